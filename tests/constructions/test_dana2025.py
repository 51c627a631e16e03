"""Constructed weights of Dana et al. (2025) know what is promised, by any forward pass."""

import dataclasses

import numpy as np
import pytest

from memobench import theory
from memobench.common.errors import UserError
from memobench.constructions import linear, making
from memobench.constructions.base import Construction
from memobench.constructions.dana2025 import Dana2025
from memobench.core import module as models
from memobench.core.cells import cells
from memobench.core.run import Run
from memobench.models.transformer import MLP, AttentionOnly
from memobench.numerics import metrics, precision
from memobench.store.measures import outputs
from memobench.tasks.associations import Associations
from tests.constructed import SIZES, judged, run_of
from tests.reference import reference_logits


@pytest.mark.parametrize("weights", ["float64", "float32"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_the_promised_number_is_memorized(sizes, weights):
    for task_seed, seed in ((0, 0), (5, 1)):
        run = run_of(task_seed=task_seed, seed=seed, method={"weights": weights}, **sizes)
        assert theory.COROLLARY_2.value(cells(run)) == run.task.n_examples == 24
        result, certificate = judged(run)
        assert result.accuracy_R[0] == pytest.approx(1, abs=1e-12)
        assert certificate["aimed_accuracy"] == 1
        assert certificate["margin"] > 0.1
        assert result.loss_R[0] < 1e-9
        # All 24 labels are known, and nothing else can be.
        bits = metrics.memorized_bits(result.loss_R[0], 24, 9)
        assert bits == pytest.approx(24 * np.log2(9))
        assert certificate["feature_rank"] == 24
        assert certificate["fit_error"] < 1e-6
        assert certificate["stored_bits"] == {"float64": 64, "float32": 32}[weights]


def test_all_pairs_are_memorized_in_the_plane():
    # d = 2 and H d_h + 2 >= T_0, Corollary 1; conditions up to 1e11, which float32 may not bear.
    sizes = {"vocab_size": 10, "T": None, "d_model": 2, "d_head": 2, "n_heads": 49}
    for task_seed, seed in ((0, 0), (1, 2)):
        result, certificate = judged(run_of(task_seed=task_seed, seed=seed, **sizes))
        assert result.accuracy_R[0] == pytest.approx(1, abs=1e-12)
        assert certificate["feature_rank"] == 100
        # Ten codes on a circle: the next one has the share cos 36 degrees of the right one.
        assert certificate["margin"] == pytest.approx(1 - np.cos(np.pi / 5), abs=1e-4)


@pytest.mark.parametrize("n_aimed", [1, 3, 23])
def test_fewer_than_promised_are_memorized_too(n_aimed):
    for name in ("full", "compressed"):
        _, certificate = judged(run_of(method={"n_aimed": n_aimed}, **SIZES[name]))
        assert certificate["aimed_accuracy"] == 1
        assert certificate["feature_rank"] == n_aimed
        assert certificate["fit_error"] < 1e-9


@pytest.mark.parametrize("heads", ["full", "compressed"])
@pytest.mark.parametrize("n_aimed", [1, 2])
def test_few_answers_among_many_tokens_are_told_from_them(heads, n_aimed):
    """Whose codes are near each other in so few dimensions."""
    for seed in range(4):
        sizes = {"d_model": 2, "d_head": 2, "n_heads": 5, "heads": heads, "vocab_size": 50, "T": 12}
        run = run_of(method={"n_aimed": n_aimed}, seed=seed, **sizes)
        assert judged(run)[1]["aimed_accuracy"] == 1


def test_nothing_aimed_at_gives_random_features_and_no_output_of_heads():
    run = run_of(method={"n_aimed": 0})
    result, certificate = judged(run)
    made = making.construct(run)
    assert not made.params["layer0_output"].any()
    assert made.params["layer0_query"].all()
    assert certificate["aimed_accuracy"] is None
    assert certificate["margin"] is None
    assert result.accuracy_R[0] < 0.5


@pytest.mark.parametrize("n_aimed", [24, 7])
@pytest.mark.parametrize("name", ["full", "square", "triples"])
def test_the_weights_know_their_examples_by_an_independent_forward_pass(name, n_aimed):
    # Heads of dimension 4, where the scale 1 / sqrt(d_h) is exact in float32 too.
    sizes = SIZES[name] | {"d_head": 4, "d_model": 4, "n_heads": 5}
    run = run_of(method={"n_aimed": n_aimed}, **sizes)
    made, module = making.construct(run), run.module()
    variables = {"params": made.params, "constants": making._constants(run)}
    data = run.task.sample()
    output_TxN = outputs(module, variables, run.task, data, double=True)
    tokens_TxS = np.asarray(data.tokens_TxS)
    reference_TxN = np.stack(
        [reference_logits(run.architecture, variables["params"], x) for x in tokens_TxS]
    )
    np.testing.assert_allclose(output_TxN, reference_TxN, atol=1e-8)
    aimed_A = making.aimed_examples(run)
    assert len(aimed_A) == n_aimed
    next_T = np.asarray(data.next_TxK)[:, 0]
    np.testing.assert_array_equal(reference_TxN[aimed_A].argmax(axis=1), next_T[aimed_A])


def test_constructed_weights_have_the_module_s_shapes():
    for sizes in SIZES.values():
        run = run_of(**sizes)
        made = making.construct(run)
        expected = models.shapes(run.module(), run.task.context_length)["params"]
        assert {name: x.shape for name, x in made.params.items()} == {
            name: x.shape for name, x in expected.items()
        }
        assert {x.dtype for x in made.params.values()} == {np.dtype(np.float64)}
        assert set(made.read_out) <= set(made.params)


@pytest.mark.parametrize("name", SIZES)
def test_one_example_more_has_no_solution(name):
    run = run_of(T=25, **SIZES[name])
    with pytest.raises(linear.NotExact, match="the features of 25 examples have rank 24"):
        run.method.construct(making._problem(run))
    with pytest.raises(UserError, match=r"promises 24 .* and 25 are wanted; lower n_aimed"):
        making.construct(run)
    nearest = dataclasses.replace(run, method=Dana2025(solve="least_squares"))
    certificate = making.construct(nearest).certificate
    assert certificate["feature_rank"] == 24
    # What is solved exactly is off by rounding, less than 1e-6 above.
    assert certificate["fit_error"] > 1e-3


def test_exact_means_that_least_squares_are_never_used(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("least squares in place of an exact solution")

    monkeypatch.setattr(np.linalg, "lstsq", fail)
    assert making.construct(run_of()).certificate["feature_rank"] == 24
    with pytest.raises(UserError):
        making.construct(run_of(T=25))
    with pytest.raises(AssertionError):
        making.construct(run_of(method={"solve": "least_squares"}))


def test_least_squares_know_all_where_an_exact_solution_exists():
    for name in ("full", "compressed"):
        result, certificate = judged(run_of(method={"solve": "least_squares"}, **SIZES[name]))
        assert result.accuracy_R[0] == pytest.approx(1, abs=1e-12)
        assert certificate["fit_error"] < 1e-4


def test_scores_have_the_deviation_that_is_asked_for():
    for scale in (1.0, 16.0):
        run = run_of(vocab_size=20, T=300, n_heads=3, d_model=4, d_head=4, method={"n_aimed": 1})
        method = dataclasses.replace(run.method, scale=scale)
        params = making.construct(dataclasses.replace(run, method=method)).params
        stream_TxSxD = params["token_embedding"][np.asarray(run.task.sample().tokens_TxS)]
        stream_TxSxD = stream_TxSxD + params["position_embedding"]
        for query, key in zip(params["layer0_query"], params["layer0_key"], strict=True):
            score_TxS = np.einsum("tk,tsk->ts", stream_TxSxD[:, -1] @ query.T, stream_TxSxD @ key.T)
            # The scale was found on other sequences of the same tokens.
            assert 0.7 < (score_TxS / 2).std() / scale < 1.4


def test_a_scale_that_loses_rank_is_told_with_one_that_does_not():
    run = run_of(vocab_size=10, T=82, d_model=2, d_head=2, n_heads=40, method={"scale": 0.05})
    with pytest.raises(UserError, match=r"scale=0\.05.* the features of 82") as told:
        making.construct(run)
    message = str(told.value)
    assert "\n" not in message
    scale = float(message.rpartition("scale=")[2].partition(" ")[0])
    assert message.endswith(f"scale={scale:g} works")
    works = dataclasses.replace(run, method=dataclasses.replace(run.method, scale=scale))
    result, certificate = judged(works)
    assert certificate["feature_rank"] == 82
    assert result.accuracy_R[0] == pytest.approx(1, abs=1e-12)


def test_no_scale_helps_where_the_skip_connection_has_too_few_tokens():
    # The last of four tokens has a stream of four dimensions, two short of the promised six.
    run = run_of(vocab_size=4, context_length=5, d_model=6, d_head=3, n_heads=6)
    with pytest.raises(UserError, match="no scale from 1 to 128 does; lower n_aimed") as told:
        making.construct(run)
    fewer = int(str(told.value).partition("n_aimed to ")[2].partition(" ")[0])
    assert fewer == 22
    lower = dataclasses.replace(run, method=dataclasses.replace(run.method, n_aimed=fewer))
    assert making.construct(lower).certificate["feature_rank"] == fewer


def test_a_run_gives_the_same_bits_twice_and_another_seed_other_weights():
    def weights(**seeds):
        params = making.construct(run_of(**seeds)).params
        return b"".join(params[name].tobytes() for name in sorted(params))

    first = weights(seed=3)
    assert weights(seed=3) == first
    assert weights(seed=4) != first
    # Another instance of the task meets the same random features, and other labels.
    other = making.construct(run_of(seed=3, task_seed=1)).params
    mine = making.construct(run_of(seed=3)).params
    np.testing.assert_array_equal(other["layer0_key"], mine["layer0_key"])
    assert np.abs(other["layer0_output"] - mine["layer0_output"]).max() > 1e-3


def test_examples_aimed_at_are_the_most_frequent_and_ties_are_drawn():
    every = np.arange(24)
    np.testing.assert_array_equal(making.aimed_examples(run_of()), every)
    some = [making.aimed_examples(run_of(task_seed=s, method={"n_aimed": 6})) for s in range(3)]
    assert all(len(set(x)) == 6 for x in some)
    assert len({tuple(sorted(x)) for x in some}) == 3
    # More aimed at holds those of fewer: sets of one seed are nested.
    more = making.aimed_examples(run_of(method={"n_aimed": 7}))
    assert set(some[0]) < set(more)
    # The run's seed has no part in it.
    np.testing.assert_array_equal(
        making.aimed_examples(run_of(seed=9, method={"n_aimed": 6})), some[0]
    )


def test_fewer_bits_are_rounded_before_the_rest_is_solved_for():
    margins = []
    for weights in ("float64", "bfloat16", "int8"):
        run = run_of(method={"weights": weights})
        params = making.construct(run).params
        for name in ("token_embedding", "layer0_query", "layer0_key", "layer0_value"):
            held = precision.round_to(params[name], weights)
            np.testing.assert_allclose(held, params[name], rtol=1e-6)
        solved = params["layer0_output"]
        rounded = np.abs(precision.round_to(solved, weights) - solved).max()
        assert (rounded > 1e-6 * np.abs(solved).max()) == (weights != "float64")
        _, certificate = judged(run)
        assert certificate["feature_rank"] == 24
        assert certificate["fit_error"] < 1e-6
        margins.append(certificate["margin"])
    assert margins[0] > max(margins[1:])
    # Of what is solved for, too much is lost in four bits.
    nearest = judged(run_of(method={"weights": "int4", "solve": "least_squares"}))
    assert nearest[0].accuracy_R[0] < 0.9


@pytest.mark.parametrize("theorem", ["dana2025", "random_features"])
@pytest.mark.parametrize(("vocab_size", "d_model"), [(6, 6), (7, 6), (2, 2), (3, 2)])
def test_as_few_tokens_as_dimensions_are_told_apart(theorem, vocab_size, d_model):
    # Codes of so few tokens span too few dimensions for an invertible basis, if nothing is done.
    n_all = vocab_size**2
    wanted = n_all - d_model
    sizes = {"d_model": d_model, "d_head": d_model, "heads": "full"}
    architecture = {
        "dana2025": AttentionOnly(n_heads=-(-wanted // d_model), **sizes),
        "random_features": MLP(d_mlp=wanted, **sizes),
    }[theorem]
    for seed in range(2):
        task = Associations(vocab_size=vocab_size, seed=seed)
        method = Construction.get_kind(theorem)()
        run = Run(task=task, architecture=architecture, method=method, seed=seed)
        result, certificate = judged(run)
        assert result.accuracy_R[0] == 1
        assert certificate["fit_error"] < 1e-5
