"""Memories of bilinear neurons written down, against dense solves, gradients and estimates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from memobench import theory
from memobench.analysis import theorems
from memobench.common.errors import UserError
from memobench.constructions import making
from memobench.constructions.base import Construction
from memobench.core import module as models
from memobench.core.cells import cells
from memobench.core.run import Run
from memobench.experiments.hebbian2026 import own_constructions as hebbian
from memobench.models.mlp_memory import MLPMemory
from memobench.planner import packing
from memobench.tasks.bijection import Bijection

THEOREMS = ("hebbian", "hebbian_whitened", "hebbian_data_dependent", "ntk")
every_theorem = pytest.mark.parametrize("theorem", THEOREMS)


def _run(theorem, *, d=8, n=12, m=6, seed=0, tied=True, **options):
    return Run(
        task=Bijection(vocab_size=n, permuted=True, seed=seed),
        architecture=MLPMemory(
            d_model=d,
            d_mlp=m,
            activation=Construction.get_kind(theorem).activation,
            tied=tied,
        ),
        method=Construction.get_kind(theorem)(solve="least_squares", **options),
        seed=seed,
    )


def _accuracy(runs):
    return making.construct_pack(packing.make_pack(runs)).accuracy_R.mean()


def _facts(n=12, d=5, m=6, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) for shape in ((n, d), (n, m), (n, d), (m, d)))


@every_theorem
@pytest.mark.parametrize("tied", [True, False])
def test_a_memory_of_m_neurons_has_3_d_m_weights_and_its_tables(theorem, tied):
    run = _run(theorem, d=8, n=12, m=6, tied=tied)
    made = making.construct(run)
    assert models.count_parameters(run.module(), 1) == (3 * 8 * 6 + (2 - tied) * 12 * 8, 3 * 8 * 6)
    shapes = models.shapes(run.module(), 1)["params"]
    assert {x: y.shape for x, y in made.params.items()} == {x: y.shape for x, y in shapes.items()}
    assert set(made.read_out) <= set(made.params)


@every_theorem
def test_keys_are_directions_and_the_weights_follow_from_the_seed(theorem):
    made, again = (making.construct(_run(theorem)).params for _ in range(2))
    other = making.construct(_run(theorem, seed=1)).params
    np.testing.assert_allclose(np.linalg.norm(made["token_embedding"], axis=1), 1)
    for name, x in made.items():
        assert np.array_equal(x, again[name])
        assert not np.array_equal(x, other[name])


def test_outer_products_are_their_sum():
    run = _run("hebbian", tied=False)
    p = making.construct(run).params
    next_T = np.asarray(run.task.sample().next_TxK)[:, 0]
    expected = sum(
        np.outer(p["unembedding"][j], (p["mlp_in"] @ k) * (p["mlp_gate"] @ k))
        for j, k in zip(next_T, p["token_embedding"], strict=True)
    )
    # Features are over sqrt(m), in the sum and where they are read.
    np.testing.assert_allclose(p["mlp_out"], expected / 12 / 6, atol=1e-12)


@pytest.mark.parametrize("m", [6, 12, 20])
def test_whitening_is_a_ridge_regression(m):
    _, feature, value, _ = _facts(m=m)
    share = 12 if m <= 12 else 1
    augmented = np.vstack([feature, np.sqrt(1e-3 * share) * np.eye(m)])
    target = np.vstack([value, np.zeros((m, 5))])
    expected = scipy.linalg.lstsq(augmented, target)[0].T
    np.testing.assert_allclose(hebbian.whiten(feature, value, 1e-3), expected, atol=1e-10)


def test_both_forms_are_equal_at_m_equal_to_f_with_the_ridge_times_f():
    _, feature, value, _ = _facts(m=12)
    dual = np.linalg.solve(feature @ feature.T + 12 * 1e-3 * np.eye(12), value).T @ feature
    np.testing.assert_allclose(hebbian.whiten(feature, value, 1e-3), dual, atol=1e-10)


@pytest.mark.parametrize("fits", ["scores", "values"])
def test_a_fitted_projection_is_the_minimum_of_its_objective(fits):
    key, other, value, projection = _facts(n=30)
    read = np.random.default_rng(1).standard_normal((5, 6))
    target = value
    if fits == "scores":
        read, target = value @ read, np.eye(30)

    def objective(x):
        error = (other * (key @ x.T)) @ read.T - target
        return (error**2).sum() + 1e-2 * (x**2).sum()

    found = hebbian.projection(key, other, read, target, 1e-2)
    design = np.einsum("fw,fd,cw->fcwd", other, key, read).reshape(len(target) * len(read), -1)
    gram = design.T @ design + 1e-2 * np.eye(design.shape[1])
    dense = np.linalg.solve(gram, design.T @ target.ravel()).reshape(projection.shape)
    np.testing.assert_allclose(found, dense, atol=1e-7)
    with jax.enable_x64(True):
        slope, start = (jax.grad(objective)(jnp.asarray(x)) for x in (found, 0 * found))
    assert np.linalg.norm(slope) < 1e-8 * np.linalg.norm(start)


def test_fitting_values_gives_other_weights_than_fitting_scores():
    scores, values = (
        making.construct(_run("hebbian_data_dependent", fitted=x)).params
        for x in ("scores", "values")
    )
    assert np.array_equal(scores["token_embedding"], values["token_embedding"])
    assert not np.allclose(scores["mlp_gate"], values["mlp_gate"])


@every_theorem
def test_more_neurons_than_products_of_coordinates_are_no_obstacle(theorem):
    # Features of 4 coordinates have rank 10.
    made = making.construct(_run(theorem, d=4, n=6, m=32))
    assert all(np.isfinite(x).all() for x in made.params.values())


@pytest.mark.parametrize(("theorem", "divisor"), [("hebbian", 1), ("ntk", 2)])
def test_wide_memories_have_the_square_of_the_inner_product_as_their_kernel(theorem, divisor):
    d, n, m = 6, 5, 200_000
    run = _run(theorem, d=d, n=n, m=m, tied=False)
    p = making.construct(run).params
    gate = p["token_embedding"] @ p["mlp_gate"].T
    hidden = (p["token_embedding"] @ p["mlp_in"].T) * (
        gate if theorem == "hebbian" else np.maximum(gate, 0)
    )
    values = p["unembedding"][np.asarray(run.task.sample().next_TxK)[:, 0]]
    kernel = (p["token_embedding"] @ p["token_embedding"].T) ** 2
    # Sums of outer products are over F; columns of norm 1 have 1/d of the identity as their mean.
    expected = kernel @ values / (n if theorem == "hebbian" else divisor * d)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(hidden @ p["mlp_out"].T, expected, atol=0.03 * largest)


# Mean accuracy of four maps at the width that `theory` estimates, in the reference's check.
@pytest.mark.parametrize(
    ("theorem", "d", "n", "m", "expected"),
    [
        *(("hebbian", 32, 64, 82, 0.957), ("hebbian", 64, 128, 82, 0.965)),
        ("hebbian", 64, 256, 203, 0.995),
        *(("hebbian_whitened", 32, 64, 32, 0.949), ("hebbian_whitened", 64, 128, 48, 0.961)),
        ("hebbian_whitened", 64, 256, 104, 0.993),
        *(("ntk", 32, 64, 165, 0.848), ("ntk", 64, 128, 164, 0.883), ("ntk", 64, 256, 407, 0.981)),
    ],
)
def test_nearly_all_facts_are_known_at_the_estimated_width(theorem, d, n, m, expected):
    runs = [_run(theorem, d=d, n=n, m=m, seed=seed) for seed in range(4)]
    # Twice 4 maps, and facts of a map that are known or not together.
    assert _accuracy(runs) == pytest.approx(expected, abs=0.05)
    assert making.promises(runs[0]) == pytest.approx(n, rel=0.05)


@every_theorem
@pytest.mark.parametrize("tied", [True, False])
def test_three_times_the_estimated_width_knows_all(theorem, tied):
    factor = {"hebbian": 82, "ntk": 165}.get(theorem, 32)
    runs = [
        _run(theorem, d=32, n=64, m=3 * factor, seed=seed, tied=tied, weights="float32")
        for seed in range(2)
    ]
    assert _accuracy(runs) > 0.99


def test_the_guides_are_of_their_own_architecture():
    sizes = cells(_run("hebbian", d=64, n=128, m=82))
    assert theory.HEBBIAN.applies(sizes)
    assert theory.WHITENED.applies(sizes)
    assert not theory.NTK.applies(sizes)
    assert theory.NTK.applies(cells(_run("ntk", d=64, n=128, m=82)))
    # None of them is proven, so that nothing is promised.
    assert np.isnan(theorems.promised_examples(sizes))
    plain = cells(Run(task=Bijection(vocab_size=9), architecture=MLPMemory(d_model=4, d_mlp=3)))
    assert not theory.HEBBIAN.applies(plain)


@pytest.mark.parametrize(
    ("theorem", "activation", "message"),
    [
        ("hebbian", "relu", "activation='bilinear'; take that"),
        ("ntk", "bilinear", "activation='reglu'; take that"),
    ],
)
def test_mistakes_are_told_in_one_line(theorem, activation, message):
    run = Run(
        task=Bijection(vocab_size=12, permuted=True),
        architecture=MLPMemory(d_model=8, d_mlp=6, activation=activation),
        method=Construction.get_kind(theorem)(solve="least_squares"),
    )
    with pytest.raises(UserError, match=message) as told:
        making.construct(run)
    assert "\n" not in str(told.value)


def test_exactly_no_more_is_taken_than_the_guide_says():
    run = _run("hebbian", d=16, n=64, m=4)
    exact = Run(task=run.task, architecture=run.architecture, method=hebbian.Hebbian())
    with pytest.raises(UserError, match="promises 1 examples at these sizes and 64 are wanted"):
        making.construct(exact)
