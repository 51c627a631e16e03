"""Models against the papers' own numbers, a plain reference, and the properties padding needs."""

import functools
import os
import pathlib
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.module import TabledModule
from memobench.core.run import Run
from memobench.engine import program
from memobench.models.transformer import MLP, AttentionOnly, Transformer
from memobench.tasks.associations import Associations
from tests.reference import reference_logits

GOLDEN = pathlib.Path(
    os.environ.get(
        "MEMOBENCH_GOLDEN", pathlib.Path(__file__).parents[3] / "shared" / "reference" / "golden"
    )
)
GOLDEN_FILES = ("attention_only", "attention_only_compressed", "attention_only_depth3", "mlp")

SIZES: dict[str, dict[str, Any]] = {
    "square": {"d_model": 4, "d_head": 4, "n_heads": 3},
    "narrow heads": {"d_model": 5, "d_head": 2, "n_heads": 3},
    "one head": {"d_model": 4, "d_head": 4},
    "wide heads": {"d_model": 3, "d_head": 5, "n_heads": 2},
    "full": {"d_model": 5, "d_head": 2, "n_heads": 3, "heads": "full"},
    "deep": {"d_model": 4, "d_head": 2, "n_heads": 2, "n_layers": 3},
    "mlp": {"d_model": 4, "d_head": 4, "n_heads": 1, "d_mlp": 6},
    "deep mlp": {"d_model": 5, "d_head": 2, "n_heads": 2, "d_mlp": 6, "n_layers": 2},
    "full deep mlp": {
        "d_model": 4,
        "d_head": 3,
        "n_heads": 2,
        "d_mlp": 5,
        "n_layers": 2,
        "heads": "full",
    },
    "no heads": {"d_model": 4},
    "neurons alone": {"d_model": 4, "d_mlp": 6},
}


def _cases():
    """Every registered architecture at all sizes that it has."""
    for name, kind in Architecture.kinds().items():
        for label, sizes in SIZES.items():
            for context_length in (1, 2, 3):
                task = Associations(vocab_size=5, context_length=context_length)
                try:
                    run = Run(task=task, architecture=kind(**sizes))
                    tabled = isinstance(run.module(), TabledModule)
                except (TypeError, UserError):
                    continue
                # Without tables, models of all lengths are the same code.
                if tabled or context_length == 3:
                    at_once = not tabled or context_length == 2 or label in ("square", "deep mlp")
                    marks = [] if at_once else [pytest.mark.slow]
                    yield pytest.param(run, id=f"{name}-{label}-S{context_length}", marks=marks)


every_model = pytest.mark.parametrize("run", list(_cases()))


@functools.cache
def _variables(run, key=3):
    module = run.module()
    return module, models.init(module, run.task.context_length, jax.random.key(key))


def _every_sequence(run):
    return np.array(list(np.ndindex(*[run.task.vocab_size] * run.task.context_length)))


@functools.cache
def _of_each(run):
    """From weights, logits_TxN of every sequence by itself: what all tests of a model compile."""
    apply, tokens_TxS = run.module().apply, _every_sequence(run)
    return jax.jit(lambda variables: jax.vmap(functools.partial(apply, variables))(tokens_TxS))


def _golden(name):
    path = GOLDEN / f"dana_{name}.npz"
    if not path.exists():
        pytest.skip(f"{path} is not here; MEMOBENCH_GOLDEN names its folder")
    data = dict(np.load(path))
    meta = {key.removeprefix("meta_"): int(x) for key, x in data.items() if key[:5] == "meta_"}
    run = Run(
        task=Associations(vocab_size=meta["vocab"]),
        # Without hidden neurons it is the attention-only model.
        architecture=MLP(
            d_model=meta["d"],
            d_head=meta["head_dim"],
            n_heads=meta["heads"],
            n_layers=meta["layers"],
            d_mlp=meta["mlp_width"],
        ),
    )

    def weights(prefix):
        tree = {k.removeprefix(prefix): x for k, x in data.items() if k.startswith(prefix)}
        tree["position_embedding"] = tree["position_embedding"][:2]
        for layer in range(meta["layers"]):
            if not meta["mlp_width"]:
                for part, shape in (
                    ("in", (0, meta["d"])),
                    ("in_bias", 0),
                    ("out", (meta["d"], 0)),
                ):
                    tree[f"layer{layer}_mlp_{part}"] = np.zeros(shape, np.float32)
        return {key: jnp.asarray(x, jnp.float32) for key, x in tree.items()}

    return data, run, weights("param_"), weights("grad_")


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_parity_with_the_papers_model(name):
    data, run, params, gradient = _golden(name)
    module, variables = _variables(run)
    chex.assert_trees_all_equal_shapes(params, dict(variables["params"]))
    labels = jnp.asarray(data["labels"], jnp.int32)

    def loss(params):
        apply = functools.partial(module.apply, {**variables, "params": params})
        logits = jax.vmap(apply)(jnp.asarray(data["tokens"]))
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return nll.mean(), logits

    with jax.default_matmul_precision("highest"):  # As trainings have it; a GPU's own is less.
        (value, logits), ours = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    np.testing.assert_allclose(logits, data["logits"], atol=1e-5)
    np.testing.assert_allclose(value, data["loss"], atol=1e-5)
    chex.assert_trees_all_close(dict(ours), gradient, atol=1e-5)


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_ten_adam_steps_of_the_papers_model(name):
    data, run, params, _ = _golden(name)
    module, variables = _variables(run)
    n_tokens = run.task.vocab_size
    examples = jnp.asarray(data["tokens"] @ np.array([n_tokens, 1]), jnp.int32)
    labels_T = jnp.asarray(data["label_table"].reshape(-1), jnp.int32)
    np.testing.assert_array_equal(labels_T[examples], data["labels"])
    instance = run.task.sample()._replace(next_TxK=labels_T[:, None])
    signature, rate = run.method.signature(module, run.task), jnp.float32(data["adam_lr"])

    def objective(variables):
        return run.task.objective(module, variables, instance, examples)

    step = jax.jit(lambda *state: program.step(signature, objective, *state, rate))
    state = {**variables, "params": params}, optax.scale_by_adam().init(params)
    losses = []
    for _ in range(10):
        *state, (loss, _) = step(*state)
        losses.append(float(loss))
    np.testing.assert_allclose(losses, data["adam_losses"], atol=1e-4)


@every_model
def test_logits_are_those_of_the_definition(run):
    module, variables = _variables(run)
    if not isinstance(module, Transformer):
        pytest.skip("the definition is of another model")
    logits = functools.partial(reference_logits, run.architecture, variables["params"])
    expected_TxN = np.stack([logits(tokens_S) for tokens_S in _every_sequence(run)])
    np.testing.assert_allclose(_of_each(run)(variables), expected_TxN, atol=1e-5)


@every_model
def test_all_logits_are_those_of_each_sequence(run):
    module, variables = _variables(run)
    if not isinstance(module, TabledModule):
        pytest.skip("all logits are those of each sequence by definition")
    together = jax.jit(models.all_logits, static_argnums=0)(module, variables, _every_sequence(run))
    np.testing.assert_allclose(together, _of_each(run)(variables), atol=1e-5)


@every_model
def test_initial_logits_are_finite_and_differ_between_keys(run):
    logits_TxN, others_TxN = (_of_each(run)(_variables(run, key)[1]) for key in (3, 4))
    assert logits_TxN.shape == (run.task.n_examples, run.task.vocab_size)
    assert np.isfinite(logits_TxN).all()
    assert not np.isclose(logits_TxN, others_TxN).all(axis=1).any()


def _formula(run):
    """Parameters counted by hand from the sizes (Dana et al. 2025, section 2 and released code)."""
    n, s = run.task.vocab_size, run.task.context_length
    a = run.architecture
    d, k, h, w = a.d_model, a.d_head, a.n_heads, a.shared_cells()["d_mlp"]
    compress = a.heads == "compressed" and k != d
    d_in = k if compress else d
    shared = s * d_in + 2 * d * k * compress
    return 2 * n * d + shared + a.n_layers * (4 * h * k * d_in + w * (2 * d + 1))


@every_model
def test_parameter_counts_by_formula_and_by_counting_agree(run):
    if run.architecture.name not in ("attention_only", "mlp"):
        pytest.skip("the formula knows the paper's models only")
    module, variables = _variables(run)
    n_params, n_params_memory = models.count_parameters(module, run.task.context_length)
    assert n_params == sum(x.size for x in jax.tree.leaves(variables["params"])) == _formula(run)
    n_embedding = 2 * run.task.vocab_size * run.architecture.d_model
    assert n_params_memory == n_params - n_embedding


@every_model
def test_parameters_are_counted_as_they_are_made(run):
    module, variables = _variables(run)
    n_params = sum(x.size for x in jax.tree.leaves(variables["params"]))
    assert models.count_parameters(module, run.task.context_length)[0] == n_params


def test_the_theorems_parameter_count_for_full_heads():
    # d (S + 2N + 4 d_h H), Dana et al. (2025), below equation 2.
    run = Run(
        task=Associations(vocab_size=50),
        architecture=AttentionOnly(d_model=10, d_head=4, n_heads=7, heads="full"),
    )
    assert models.count_parameters(run.module(), 2)[0] == 10 * (2 + 100 + 4 * 4 * 7)


@every_model
def test_permuted_heads_give_equal_outputs(run):
    _, variables = _variables(run)
    permuted = {
        name: x[::-1] if name.endswith(("query", "key", "value", "output")) else x
        for name, x in variables["params"].items()
    }
    of_each = _of_each(run)
    np.testing.assert_allclose(
        of_each({**variables, "params": permuted}), of_each(variables), atol=1e-6
    )


def test_deep_layers_are_causal():
    # With the last position's attention to others cut, earlier tokens could reach the output only
    # through a later one looking back; a token must not be seen by positions before it.
    run = Run(
        task=Associations(vocab_size=5, context_length=3),
        architecture=MLP(n_layers=2, **SIZES["square"], d_mlp=3),
    )
    module, variables = _variables(run)
    tables = jax.tree.map(np.asarray, module.apply(variables, method="tables"))
    rows = [jax.tree.map(lambda x, t=t: x[t], table) for t, table in enumerate(tables)]

    def stream(rows, position):
        return module.apply(variables, 0, rows[: position + 1], method="_add_layer")

    for position in range(3):
        jacobian = jax.jit(jax.jacobian(stream), static_argnums=1)(rows, position)
        for s in range(3):
            size = sum(float(np.abs(x).sum()) for x in jax.tree.leaves(jacobian[s]))
            assert (size > 0) == (s <= position)


def test_forbidden_and_unknown_architectures_name_the_fix():
    with pytest.raises(TypeError, match="unexpected keyword argument 'd_mlp'"):
        AttentionOnly(d_model=4, d_head=4, d_mlp=3)
    with pytest.raises(UserError, match=r"^architecture='rnn' is unknown; .* mlp,"):
        Architecture.get_kind("rnn")
    with pytest.raises(UserError, match=r"^d_head=5 exceeds d_model=4, .*lower d_head"):
        AttentionOnly(d_model=4, d_head=5, heads="full")
