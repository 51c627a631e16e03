"""Linear memories and sequence encoders written down: what they promise, and what beyond."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memobench
from memobench import theory
from memobench.common.errors import UserError
from memobench.constructions import linear, making
from memobench.constructions.base import Construction
from memobench.constructions.linear_memory import LinearLeastSquares, OuterProducts
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiments.dana2025.own_constructions import Proposition3
from memobench.methods.training import Training, train_one
from memobench.models.linear_memory import LinearMemory
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.tasks.associations import Associations
from memobench.tasks.bijection import Bijection
from memobench.tasks.distributions import Distributions
from tests.constructed import judged

ENCODER = "dana2025_proposition3"
STEPS = ("gradient_step", "muon_step")


@pytest.mark.parametrize("theorem", [*STEPS, "outer_products", "linear_least_squares"])
def test_nothing_is_aimed_at(theorem):
    """No association decides the weights, and those they are are evaluated."""
    table = memobench.run(
        [
            Run(
                task=Bijection(vocab_size=5),
                architecture=LinearMemory(d_model=5),
                method=Construction.get_kind(theorem)(n_aimed=0, solve="least_squares"),
            )
        ],
        progress=False,
    )
    assert table["status"].tolist() == ["ok"]


def _memory(theorem, *, d=16, n=64, seed=0, **options):
    """A linear memory of width d for what follows each of n tokens."""
    return Run(
        task=Associations(vocab_size=n, context_length=1, seed=seed),
        architecture=LinearMemory(d_model=d),
        method=Construction.get_kind(theorem)(**options),
        seed=seed,
    )


def _encoder(*, d=2, task=None, **options):
    return Run(
        task=task or Associations(vocab_size=10),
        architecture=SequenceEncoder(d_model=d),
        method=Proposition3(**options),
    )


def _aimed_accuracy(theorem, **options):
    return judged(_memory(theorem, **options))[1]["aimed_accuracy"]


@pytest.mark.parametrize("weights", ["float64", "float32"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("d", "n"), [(2, 2), (5, 64), (16, 64)])
def test_least_squares_hold_as_many_as_there_are_dimensions(d, n, seed, weights):
    run = _memory("linear_least_squares", d=d, n=n, seed=seed, n_aimed=d, weights=weights)
    _, certificate = judged(run)
    assert certificate["aimed_accuracy"] == pytest.approx(1)
    assert certificate["feature_rank"] == d
    assert certificate["fit_error"] < 1e-9
    assert certificate["margin"] > 0


@pytest.mark.parametrize("weights", ["float64", "float32"])
@pytest.mark.parametrize("seed", range(3))
def test_outer_products_hold_a_few(seed, weights):
    n_aimed = theory.outer_products_guide(vocab_size=64, d_model=64) // 2
    assert n_aimed == 23
    run = _memory("outer_products", d=64, seed=seed, n_aimed=n_aimed, weights=weights)
    _, certificate = judged(run)
    assert certificate["aimed_accuracy"] == pytest.approx(1)
    assert certificate["margin"] > 0
    # Nothing was solved for: what is recalled is not the value, only nearest to it.
    assert certificate["fit_error"] > 1e-2


def test_the_guide_is_near_what_outer_products_hold():
    n, sizes = 92, {"n": 92, "solve": "least_squares"}
    assert theory.outer_products_guide(n, 91) == n
    assert theory.outer_products_guide(n, 45) == 28
    at, beyond = (
        [_aimed_accuracy("outer_products", d=d, seed=seed, **sizes) for seed in range(5)]
        for d in (91, 45)
    )
    assert np.mean(at) > 0.995
    assert max(beyond) < 0.95


def test_the_guide_grows_as_its_law_says():
    # d^2 = 8 N ln N where nothing of lower order is left.
    d = 10**7
    n_low, n_high = 2, d**2
    while n_high - n_low > 1:
        n = (n_low + n_high) // 2
        n_low, n_high = (n, n_high) if theory.outer_products_guide(n, d) >= n else (n_low, n)
    assert d**2 / (n_low * np.log(n_low)) == pytest.approx(8, rel=1e-3)


def test_outer_products_are_the_sum_of_outer_products():
    run = _memory("outer_products", d=5, n=12, n_aimed=7, solve="least_squares")
    params = making.construct(run).params
    key_NxD, value_NxD = params["token_embedding"], params["unembedding"]
    next_T = np.asarray(run.task.sample().next_TxK)[:, 0]
    aimed_A = making.aimed_examples(run)
    products = [np.outer(value_NxD[next_T[token]], key_NxD[token]) for token in aimed_A]
    np.testing.assert_allclose(params["memory"], np.sum(products, axis=0), atol=1e-12)
    for directions_NxD in (key_NxD, value_NxD):
        np.testing.assert_allclose(np.linalg.norm(directions_NxD, axis=1), 1)


def _step(theorem, *, d=6, n=12, seed=0, **options):
    return Run(
        task=Associations(vocab_size=n, context_length=1, zipf_exponent=1.5, seed=seed),
        architecture=LinearMemory(d_model=d),
        method=Construction.get_kind(theorem)(solve="least_squares", **options),
        seed=seed,
    )


def test_a_gradient_step_is_one_down_the_gradient_at_zero():
    run = _step("gradient_step")
    params, instance = making.construct(run).params, run.task.sample()

    def loss(memory_DxD):
        variables = {"params": params | {"memory": memory_DxD}, "constants": {}}
        return run.task.objective(run.module(), variables, instance)[0]

    slope_DxD = np.asarray(jax.grad(loss)(jnp.zeros((6, 6))))
    np.testing.assert_allclose(params["memory"], -slope_DxD, atol=1e-6)


def test_a_step_of_muon_has_the_same_directions_and_even_singular_values():
    gradient, muon = (
        np.linalg.svd(making.construct(_step(name, d=8, n=64)).params["memory"])
        for name in ("gradient_step", "muon_step")
    )
    for of_gradient, of_muon in ((gradient[0], muon[0]), (gradient[2].T, muon[2].T)):
        np.testing.assert_allclose(np.abs((of_gradient * of_muon).sum(axis=0)), 1, atol=1e-6)
    assert (muon[1] <= 1).all()
    # The frequency of rank 8 of 64.
    least = 8**-1.5 / (np.arange(1, 65) ** -1.5).sum()
    expected = gradient[1] / np.hypot(gradient[1], least)
    np.testing.assert_allclose(muon[1], expected, rtol=1e-5)


@pytest.mark.parametrize("theorem", STEPS)
def test_a_large_batch_is_nearly_all_and_a_small_one_is_not(theorem):
    def memory(drawn):
        memory_DxD = making.construct(_step(theorem, drawn=drawn)).params["memory"]
        return memory_DxD / np.linalg.norm(memory_DxD)

    far, near = (np.linalg.norm(memory(None) - memory(n)) for n in (1, 10**9))
    assert near < 1e-3 < 0.1 < far


def test_one_step_of_muon_stores_more_than_one_of_sgd():
    runs = {x: [_step(x, d=32, n=256, seed=i) for i in range(3)] for x in STEPS}
    accuracy = {
        name: np.mean([judged(run)[1]["aimed_accuracy"] for run in of]) for name, of in runs.items()
    }
    assert accuracy["muon_step"] > 2 * accuracy["gradient_step"]
    assert [making.promises(of[0]) for of in runs.values()] == [3, 101]
    # Without Zipf's law nothing is said.
    assert making.promises(_memory("muon_step", solve="least_squares")) is None


def test_sequences_that_were_drawn_are_held_like_all():
    run = _memory("linear_least_squares", d=16)
    task = Associations(vocab_size=64, context_length=1, n_sequences=16)
    result, _ = judged(Run(task=task, architecture=run.architecture, method=run.method))
    assert result.accuracy_R[0] == pytest.approx(1)
    assert result.loss_R[0] < 1e-9


@pytest.mark.parametrize("factor", [2, 4])
def test_beyond_its_width_a_memory_still_knows_more_than_chance(factor):
    n_aimed = factor * 16
    for seed in range(3):
        solved, added = (
            _aimed_accuracy(theorem, n_aimed=n_aimed, seed=seed, solve="least_squares")
            for theorem in ("linear_least_squares", "outer_products")
        )
        assert solved > added > 5 / 64
        # More than the 16 associations that exact weights know.
        assert solved * n_aimed > 16


def test_accuracy_falls_with_the_number_of_outer_products():
    accuracies = [
        np.mean(
            [
                _aimed_accuracy("outer_products", n_aimed=n, seed=seed, solve="least_squares")
                for seed in range(3)
            ]
        )
        for n in (4, 16, 32, 64)
    ]
    assert (np.diff(accuracies) < -0.05).all()


def test_one_association_too_many_loses_rank():
    run = _memory("linear_least_squares", d=8, n_aimed=9)
    with pytest.raises(linear.NotExact, match="the features of 9 examples have rank 8"):
        run.method.construct(making._problem(run))
    with pytest.raises(UserError, match="promises 8 examples at these sizes and 9 are wanted"):
        making.construct(run)


@pytest.mark.parametrize("d", [2, 5])
@pytest.mark.parametrize(
    "task",
    [
        Associations(vocab_size=10),
        Associations(vocab_size=64, context_length=1),
        Associations(vocab_size=5, context_length=3, zipf_exponent=1.0),
        Associations(vocab_size=2, context_length=6, n_sequences=9),
    ],
    ids=["pairs", "tokens", "triples", "some"],
)
@pytest.mark.parametrize("weights", ["float64", "float32"])
def test_two_dimensions_encode_what_is_certain(d, task, weights):
    result, certificate = judged(_encoder(d=d, task=task, weights=weights))
    assert result.accuracy_R[0] == pytest.approx(1)
    assert result.loss_R[0] < 1e-9
    assert certificate["margin"] > 0


def test_an_encoder_knows_nothing_of_what_it_is_not_made_for():
    _, certificate = judged(_encoder(n_aimed=30))
    made = making.construct(_encoder(n_aimed=30))
    assert certificate["aimed_accuracy"] == pytest.approx(1)
    assert np.count_nonzero(np.abs(made.params["encoding"]).sum(axis=1)) == 30


@pytest.mark.parametrize("theorem", ["outer_products", "linear_least_squares", ENCODER])
def test_constructed_weights_have_the_module_s_shapes(theorem):
    run = _encoder() if theorem == ENCODER else _memory(theorem, solve="least_squares")
    made = making.construct(run)
    expected = models.shapes(run.module(), run.task.context_length)["params"]
    assert {name: x.shape for name, x in made.params.items()} == {
        name: x.shape for name, x in expected.items()
    }
    assert set(made.read_out) <= set(made.params)


def test_training_betters_outer_products():
    start = OuterProducts(solve="least_squares")
    constructed = _memory("outer_products", solve="least_squares")
    method = Training(n_batches=64, epochs=16, start=start, trained="read_out").exact()
    run = Run(task=constructed.task, architecture=constructed.architecture, method=method)
    trained = train_one(run)
    assert trained.accuracy_R[0] > judged(constructed)[0].accuracy_R[0] + 0.1
    params = making.construct(constructed).params
    for name, moves in (("token_embedding", False), ("memory", True), ("unembedding", False)):
        after = trained.variables["params"][name][0]
        assert np.allclose(after, params[name], atol=1e-6) != moves


SEVERAL = Distributions(vocab_size=9, conditional="uniform", n_next=2)
SEVERAL_OF_ONE = Distributions(vocab_size=9, context_length=1, conditional="uniform", n_next=2)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (_encoder(d=1), "one dimension holds two answers; take d_model >= 2"),
        (_encoder(task=SEVERAL), "n_next=2; it is about one next token, set n_next=1"),
        (_memory(ENCODER), "linear_memory is not a sequence encoder"),
        (_memory("linear_least_squares", d=1, n=2, n_aimed=1), "take d_model >= 2"),
        (
            Run(
                task=SEVERAL_OF_ONE,
                architecture=LinearMemory(d_model=16),
                method=LinearLeastSquares(),
            ),
            "n_next=2; it is about one next token, set n_next=1",
        ),
        (
            Run(
                task=Associations(vocab_size=4),
                architecture=SequenceEncoder(d_model=16),
                method=LinearLeastSquares(),
            ),
            "sequence_encoder is not a linear memory",
        ),
        (_memory("outer_products"), "promises 3 examples at these sizes and 64 are wanted"),
        (
            Run(
                task=Associations(),
                architecture=LinearMemory(d_model=4),
                method=Training(),
            ),
            "context_length=2: linear_memory reads one token; set context_length=1",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(run, message):
    with pytest.raises(UserError, match=message) as told:
        making.construct(run) if isinstance(run.method, Construction) else run.module()
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (Proposition3, "scale"),
        (Proposition3, "solve"),
        (OuterProducts, "scale"),
        (LinearLeastSquares, "scale"),
        (LinearMemory, "d_head"),
        (LinearMemory, "n_heads"),
        (SequenceEncoder, "d_head"),
    ],
)
def test_what_means_nothing_to_a_kind_is_no_field_of_it(kind, field):
    sizes = {"d_model": 4} if issubclass(kind, Architecture) else {}
    kind(**sizes)
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{field}'"):
        kind(**sizes, **{field: 2})
