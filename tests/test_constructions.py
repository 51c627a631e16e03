"""Constructed weights of Dana et al. (2025) know what is promised, by any forward pass."""

import dataclasses
import functools

import jax
import numpy as np
import pandas as pd
import pytest

import memobench
from memobench import constructions, metrics, precision, theory
from memobench.constructions import evaluation, linear, random_attention
from memobench.constructions.dana2025 import Dana2025
from memobench.errors import UserError
from memobench.methods.construction import Construction
from memobench.methods.optimum import Optimum
from memobench.methods.training import Training
from memobench.models import base as models
from memobench.models.base import Architecture
from memobench.models.gpt import GPT
from memobench.models.linear_memory import LinearMemory
from memobench.models.mlp_memory import MLPMemory
from memobench.models.query_attention import QueryAttention
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.models.transformer import MLP, AttentionOnly
from memobench.planner import packing
from memobench.runs import Run, cells
from memobench.tasks.associations import Associations
from memobench.tasks.distributions import Distributions
from memobench.tasks.factual_recall import FactualRecall
from memobench.tasks.labelled_contexts import LabelledContexts
from tests.test_models import _reference_logits

# Full heads as wide as the stream and narrower ones, compressed ones, and longer sequences.
SIZES = {
    "full": {"d_model": 4, "d_head": 4, "n_heads": 5},
    "narrow": {"d_model": 6, "d_head": 3, "n_heads": 6},
    "compressed": {"d_model": 6, "d_head": 3, "n_heads": 6, "heads": "compressed"},
    "square": {"d_model": 4, "d_head": 4, "n_heads": 5, "heads": "compressed"},
    "triples": {"d_model": 6, "d_head": 3, "n_heads": 6, "context_length": 3},
    "five tokens": {
        **{"d_model": 6, "d_head": 3, "n_heads": 6, "heads": "compressed"},
        "context_length": 5,
    },
    "plane": {"d_model": 2, "d_head": 2, "n_heads": 11},
}


def _run(
    *,
    name="attention_only",
    task=None,
    method=None,
    task_seed=0,
    seed=0,
    vocab_size=9,
    context_length=2,
    T=24,
    **sizes,
):
    """T sequences, by default 24, which is what all SIZES promise."""
    shape = {"vocab_size": vocab_size, "context_length": context_length, "n_sequences": T}
    sizes = {"heads": "full"} | (sizes or SIZES["full"])
    return Run(
        task=task or Associations(seed=task_seed, **shape),
        architecture=Architecture.named(name)(**sizes),
        method=Dana2025(**(method or {})),
        seed=seed,
    )


def _judged(run):
    """The pack's result of a run, and its certificate."""
    result = constructions.construct_pack(packing.make_pack([run]))
    return result, result.columns[0]


@pytest.mark.parametrize("weights", ["float64", "float32"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_the_promised_number_is_memorized(sizes, weights):
    for task_seed, seed in ((0, 0), (0, 1), (5, 1)):
        run = _run(task_seed=task_seed, seed=seed, method={"weights": weights}, **sizes)
        assert theory.COROLLARY_2.value(cells(run)) == run.task.n_examples == 24
        result, certificate = _judged(run)
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
        result, certificate = _judged(_run(task_seed=task_seed, seed=seed, **sizes))
        assert result.accuracy_R[0] == pytest.approx(1, abs=1e-12)
        assert certificate["feature_rank"] == 100
        # Ten codes on a circle: the next one has the share cos 36 degrees of the right one.
        assert certificate["margin"] == pytest.approx(1 - np.cos(np.pi / 5), abs=1e-4)


@pytest.mark.parametrize("n_aimed", [1, 3, 23])
def test_fewer_than_promised_are_memorized_too(n_aimed):
    for name in ("full", "compressed"):
        _, certificate = _judged(_run(method={"n_aimed": n_aimed}, **SIZES[name]))
        assert certificate["aimed_accuracy"] == 1
        assert certificate["feature_rank"] == n_aimed
        assert certificate["fit_error"] < 1e-9


def test_nothing_aimed_at_gives_random_features_and_no_output_of_heads():
    run = _run(method={"n_aimed": 0})
    result, certificate = _judged(run)
    made = constructions.construct(run)
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
    run = _run(method={"n_aimed": n_aimed}, **sizes)
    made, module = constructions.construct(run), run.module()
    variables = {"params": made.params, "constants": constructions._constants(run)}
    data = run.task.sample()
    output_TxN = evaluation.outputs(module, variables, run.task, data, double=True)
    tokens_TxS = np.asarray(data.tokens_TxS)
    reference_TxN = np.stack([_reference_logits(run, variables, x) for x in tokens_TxS])
    np.testing.assert_allclose(output_TxN, reference_TxN, atol=1e-8)
    aimed_A = constructions.aimed(run)
    assert len(aimed_A) == n_aimed
    next_T = np.asarray(data.next_TxK)[:, 0]
    np.testing.assert_array_equal(reference_TxN[aimed_A].argmax(axis=1), next_T[aimed_A])


def test_constructed_weights_have_the_module_s_shapes():
    for sizes in SIZES.values():
        run = _run(**sizes)
        made = constructions.construct(run)
        expected = models.shapes(run.module(), run.task.context_length)["params"]
        assert {name: x.shape for name, x in made.params.items()} == {
            name: x.shape for name, x in expected.items()
        }
        assert {x.dtype for x in made.params.values()} == {np.dtype(np.float64)}
        assert set(made.read_out) <= set(made.params)


@pytest.mark.parametrize("name", SIZES)
def test_one_example_more_has_no_solution(name):
    run = _run(T=25, **SIZES[name])
    with pytest.raises(linear.RankLost, match="the features of 25 examples have rank 24"):
        run.method.construct(constructions._problem(run))
    with pytest.raises(UserError, match=r"promises 24 .* and 25 are wanted; lower n_aimed"):
        constructions.construct(run)
    nearest = dataclasses.replace(run, method=Dana2025(solve="least_squares"))
    certificate = constructions.construct(nearest).certificate
    assert certificate["feature_rank"] == 24
    # What is solved exactly is off by rounding, less than 1e-6 above.
    assert certificate["fit_error"] > 1e-3


def test_exact_means_that_least_squares_are_never_used(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("least squares in place of an exact solution")

    monkeypatch.setattr(np.linalg, "lstsq", fail)
    assert constructions.construct(_run()).certificate["feature_rank"] == 24
    with pytest.raises(UserError):
        constructions.construct(_run(T=25))
    with pytest.raises(AssertionError):
        constructions.construct(_run(method={"solve": "least_squares"}))


def test_least_squares_know_all_where_an_exact_solution_exists():
    for name in ("full", "compressed"):
        result, certificate = _judged(_run(method={"solve": "least_squares"}, **SIZES[name]))
        assert result.accuracy_R[0] == pytest.approx(1, abs=1e-12)
        assert certificate["fit_error"] < 1e-4


def test_scores_have_the_deviation_that_is_asked_for():
    for scale in (1.0, 16.0):
        run = _run(vocab_size=20, T=300, n_heads=3, d_model=4, d_head=4, method={"n_aimed": 1})
        method = dataclasses.replace(run.method, scale=scale)
        params = constructions.construct(dataclasses.replace(run, method=method)).params
        stream_TxSxD = params["token_embedding"][np.asarray(run.task.sample().tokens_TxS)]
        stream_TxSxD = stream_TxSxD + params["position_embedding"]
        for query, key in zip(params["layer0_query"], params["layer0_key"], strict=True):
            score_TxS = np.einsum("tk,tsk->ts", stream_TxSxD[:, -1] @ query.T, stream_TxSxD @ key.T)
            # The scale was found on other sequences of the same tokens.
            assert 0.7 < (score_TxS / 2).std() / scale < 1.4


def test_a_scale_that_loses_rank_is_told_with_one_that_does_not():
    run = _run(vocab_size=10, T=82, d_model=2, d_head=2, n_heads=40, method={"scale": 0.05})
    with pytest.raises(UserError, match=r"scale=0\.05.* the features of 82") as told:
        constructions.construct(run)
    message = str(told.value)
    assert "\n" not in message
    scale = float(message.rpartition("scale=")[2].partition(" ")[0])
    assert message.endswith(f"scale={scale:g} works")
    works = dataclasses.replace(run, method=dataclasses.replace(run.method, scale=scale))
    result, certificate = _judged(works)
    assert certificate["feature_rank"] == 82
    assert result.accuracy_R[0] == pytest.approx(1, abs=1e-12)


def test_no_scale_helps_where_the_skip_connection_has_too_few_tokens():
    # The last of four tokens has a stream of four dimensions, two short of the promised six.
    run = _run(vocab_size=4, context_length=5, d_model=6, d_head=3, n_heads=6)
    with pytest.raises(UserError, match="no scale from 1 to 128 does; lower n_aimed") as told:
        constructions.construct(run)
    fewer = int(str(told.value).partition("n_aimed to ")[2].partition(" ")[0])
    assert fewer == 22
    lower = dataclasses.replace(run, method=dataclasses.replace(run.method, n_aimed=fewer))
    assert constructions.construct(lower).certificate["feature_rank"] == fewer


def test_a_run_gives_the_same_bits_twice_and_another_seed_other_weights():
    def weights(**seeds):
        params = constructions.construct(_run(**seeds)).params
        return b"".join(params[name].tobytes() for name in sorted(params))

    first = weights(seed=3)
    assert weights(seed=3) == first
    assert weights(seed=4) != first
    # Another instance of the task meets the same random features, and other labels.
    other = constructions.construct(_run(seed=3, task_seed=1)).params
    mine = constructions.construct(_run(seed=3)).params
    np.testing.assert_array_equal(other["layer0_key"], mine["layer0_key"])
    assert np.abs(other["layer0_output"] - mine["layer0_output"]).max() > 1e-3


def test_packed_equals_alone():
    runs = [
        _run(seed=1),
        _run(seed=3, d_model=6, d_head=3, n_heads=6),
        _run(seed=1, task_seed=4, method={"n_aimed": 5, "weights": "int8"}),
    ]
    packed = constructions.construct_pack(packing.make_pack(runs))
    for i, run in enumerate(runs):
        alone, certificate = _judged(run)
        assert packed.accuracy_R[i] == alone.accuracy_R[0]
        assert packed.loss_R[i] == alone.loss_R[0]
        assert packed.columns[i] | {"seconds": 0} == certificate | {"seconds": 0}
    counted: list[int] = []
    constructions.construct_pack(packing.make_pack(runs), counted.append)
    assert sum(counted) == sum(run.method.steps for run in runs)


def test_rows_hold_the_certificates_and_are_kept(tmp_path):
    runs = [
        _run(),
        _run(method={"n_aimed": 0}),
        _run(method={"weights": "int8"}, seed=1),
        _run(T=30, method={"solve": "least_squares"}),
    ]
    table = memobench.run(runs, results=tmp_path, progress=False)
    kept = memobench.load_results(tmp_path).set_index("run_id")
    for run, (_, row) in zip(runs, table.iterrows(), strict=True):
        result, certificate = _judged(run)
        assert row["status"] == "ok"
        assert row["method"] == row["protocol"] == "constructed"
        assert row["theorem"] == "dana2025"
        assert row["accuracy"] == row["accuracy_protocol"] == result.accuracy_R[0]
        bits = metrics.memorized_bits(result.loss_R[0], run.task.n_predicted, run.task.n_choices)
        assert row["bits"] == pytest.approx(bits)
        for name, value in certificate.items():
            for found in (row[name], kept.loc[run.run_id, name]):
                same = (value is None and pd.isna(found)) or found == value
                assert same or name == "seconds"
    assert table["feature_rank"].tolist() == [24, 0, 24, 24]
    assert table["stored_bits"].tolist() == [64, 64, 9, 64]


SEVERAL = Distributions(vocab_size=4, conditional="uniform", n_next=2)
FULL_SUPPORT = Distributions(
    vocab_size=4,
    conditional="dirichlet",
    n_next=4,
    conditional_parameter=0.5,
    zipf_exponent=1.0,
)


def _check_distribution(run, n_aimed):
    (_, row) = next(memobench.run([run], progress=False).iterrows())
    assert abs(row["gamma"]) < 1e-6
    assert row["gamma"] == pytest.approx(row["aimed_loss"] - row["encoder_loss"], abs=1e-12)
    # With several right answers only the divergence means something.
    for measure in ("accuracy", "bits", "memorized", "aimed_accuracy", "margin"):
        assert pd.isna(row[measure])
    assert row["feature_rank"] == n_aimed == len(constructions.aimed(run))
    return row


def test_distributions_come_as_near_as_any_sequence_encoder(monkeypatch):
    encoder = tuple(np.random.default_rng(0).standard_normal((2, 16, 2)))
    encoder = (encoder[0], encoder[1][:4])
    monkeypatch.setattr(random_attention, "_encoder", lambda _: encoder)
    run = _run(task=FULL_SUPPORT, d_model=2, d_head=2, n_heads=7, heads="full")
    row = _check_distribution(run, 16)
    data = FULL_SUPPORT.sample()
    judged = evaluation.judge(FULL_SUPPORT, data, encoder[0] @ encoder[1].T)
    expected = FULL_SUPPORT.prior(data) @ judged.loss_T
    assert row["encoder_loss"] == pytest.approx(expected, abs=1e-12)
    assert row["loss"] == pytest.approx(expected, abs=1e-6)


def test_distributions_come_as_near_as_the_best_encoder_on_what_occurs_most(monkeypatch):
    # Few steps of the search: how good the encoder is does not matter here.
    cheap = functools.partial(Optimum, starts=2, adam_steps=20, polished=1, steps=20)
    monkeypatch.setattr(random_attention, "Optimum", cheap)
    n_most = theory.t_eps(16, 1.0, 0.1)
    assert n_most == 12
    method = {"n_aimed": n_most}
    sizes = {"d_model": 2, "d_head": 2, "n_heads": 5, "heads": "compressed"}
    run = _run(task=FULL_SUPPORT, method=method, **sizes)
    row = _check_distribution(run, n_most)
    # Half the divergence of no opinion at least is gone; what is not aimed at is not matched.
    assert 1e-3 < row["encoder_loss"] < np.log(4) / 2
    assert row["loss"] > row["aimed_loss"] + 0.01
    prior_T = FULL_SUPPORT.prior(FULL_SUPPORT.sample())
    aimed_A = constructions.aimed(run)
    assert prior_T[aimed_A].sum() > 0.9
    assert prior_T[aimed_A].min() > np.delete(prior_T, aimed_A).max()


def test_examples_aimed_at_are_the_most_frequent_and_ties_are_drawn():
    every = np.arange(24)
    np.testing.assert_array_equal(constructions.aimed(_run()), every)
    some = [constructions.aimed(_run(task_seed=s, method={"n_aimed": 6})) for s in range(3)]
    assert all(len(set(x)) == 6 for x in some)
    assert len({tuple(sorted(x)) for x in some}) == 3
    # More aimed at holds those of fewer: sets of one seed are nested.
    more = constructions.aimed(_run(method={"n_aimed": 7}))
    assert set(some[0]) < set(more)
    # The run's seed has no part in it.
    np.testing.assert_array_equal(constructions.aimed(_run(seed=9, method={"n_aimed": 6})), some[0])


def test_fewer_bits_are_rounded_before_the_rest_is_solved_for():
    margins = []
    for weights in ("float64", "bfloat16", "int8"):
        run = _run(method={"weights": weights})
        params = constructions.construct(run).params
        for name in ("token_embedding", "layer0_query", "layer0_key", "layer0_value"):
            held = precision.stored(params[name], weights)
            np.testing.assert_allclose(held, params[name], rtol=1e-6)
        solved = params["layer0_output"]
        rounded = np.abs(precision.stored(solved, weights) - solved).max()
        assert (rounded > 1e-6 * np.abs(solved).max()) == (weights != "float64")
        _, certificate = _judged(run)
        assert certificate["feature_rank"] == 24
        assert certificate["fit_error"] < 1e-6
        margins.append(certificate["margin"])
    assert margins[0] > max(margins[1:])
    # Of what is solved for, too much is lost in four bits.
    nearest = _judged(_run(method={"weights": "int4", "solve": "least_squares"}))
    assert nearest[0].accuracy_R[0] < 0.9


CONTEXTS = LabelledContexts(n_examples=4, context_length=3, input_dim=4, n_classes=3)
ONE_TOKEN = Associations(vocab_size=4, context_length=1)
ARCHITECTURES = [
    AttentionOnly(d_model=4, d_head=4, heads="full"),
    AttentionOnly(d_model=4, d_head=4, n_layers=2),
    AttentionOnly(d_model=1, d_head=1),
    AttentionOnly(d_model=2, d_head=4),
    MLP(d_model=4, d_head=4, d_mlp=5),
    MLP(d_model=4, d_head=4, d_mlp=5, activation="relu"),
    SequenceEncoder(d_model=4),
    LinearMemory(d_model=4),
    LinearMemory(d_model=1),
    MLPMemory(d_model=4, d_mlp=3, activation="bilinear"),
    MLPMemory(d_model=4, d_mlp=3, activation="reglu", tied=True),
    QueryAttention(d_model=4, d_head=4),
    QueryAttention(d_model=4, d_head=4, residual=True),
    QueryAttention(d_model=4, d_head=4, n_layers=2),
]


@pytest.mark.parametrize("theorem", sorted(Construction.kinds()))
def test_every_theorem_makes_weights_or_says_in_one_line_why_not(theorem, monkeypatch):
    d_model = 4
    encoder = np.eye(16, d_model), np.eye(d_model)
    monkeypatch.setattr(random_attention, "_encoder", lambda _: encoder)
    made, told, lines = 0, 0, []
    for architecture in ARCHITECTURES:
        for task in (Associations(vocab_size=4), ONE_TOKEN, SEVERAL, CONTEXTS):
            method = Construction.named(theorem)(n_aimed=1)
            run = Run(task=task, architecture=architecture, method=method)
            try:
                run.module()
            except UserError:
                continue
            try:
                constructions.construct(run)
                made += 1
            except UserError as error:
                lines += str(error).splitlines()
                told += 1
    assert made > 0
    assert len(lines) == told > 0


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            _run(d_model=4, d_head=4, n_heads=5, n_layers=2),
            "one layer on tokens; .* n_layers=1",
        ),
        (
            _run(d_model=4, d_head=4, n_heads=5, d_mlp=3, name="mlp"),
            "d_mlp=3; it is about attention only, set d_mlp=0",
        ),
        (
            _run(d_model=4, d_head=1, n_heads=20, heads="compressed"),
            "one dimension holds two answers",
        ),
        (
            _run(d_model=3, d_head=4, n_heads=7, heads="compressed"),
            "d_head=4 exceeds d_model=3",
        ),
        (
            _run(task=SEVERAL, d_model=4, d_head=2, n_heads=6, heads="compressed"),
            "take heads='full'",
        ),
        (_run(T=60), "promises 24 examples at these sizes and 60 are wanted"),
    ],
)
def test_mistakes_are_told_in_one_line(run, message):
    with pytest.raises(UserError, match=message) as told:
        constructions.construct(run)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: _run(method={"n_aimed": 25}), "n_aimed=25 exceeds the task's 24 examples"),
        (lambda: _run(method={"n_aimed": -1}), "n_aimed=-1 is not an integer from 0 to "),
        (
            lambda: _run(method={"solve": "guess"}),
            "solve='guess' is not one of exact, least_squares",
        ),
        (lambda: _run(method={"scale": 0}), "scale=0 is not a number > 0"),
        (lambda: _run(method={"weights": "int2"}), "weights='int2' is not one of float64, float32"),
        (
            lambda: Construction.named("euclid"),
            "theorem='euclid' is unknown; choose one of bubeck2020, dana2025, ",
        ),
        (lambda: Construction.named(None), "theorem=None is unknown; choose one of "),
        (
            lambda: Run(task=CONTEXTS, architecture=ARCHITECTURES[-1], method=Training()),
            "a Training does not train the task 'labelled_contexts'; use an Annealing",
        ),
        (
            lambda: Run(
                task=FactualRecall(n_subjects=2, n_relations=2, n_answers=2, n_noise=1),
                architecture=GPT(d_model=4, d_head=4),
                method=Dana2025(n_aimed=1),
            ),
            "nothing constructs weights for the task 'factual_recall'; use a Training",
        ),
    ],
)
def test_specs_refuse_what_means_nothing(build, message):
    with pytest.raises(UserError, match=message) as told:
        build()
    assert "\n" not in str(told.value)


def test_only_constructions_are_constructed():
    run = dataclasses.replace(_run(), method=Training())
    with pytest.raises(ValueError, match="'published' is not constructed"):
        constructions.construct(run)


def test_double_precision_does_not_leak():
    _judged(_run())
    assert jax.numpy.ones(1).dtype == np.float32


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
    for seed in range(3):
        task = Associations(vocab_size=vocab_size, seed=seed)
        method = Construction.named(theorem)()
        run = Run(task=task, architecture=architecture, method=method, seed=seed)
        result, certificate = _judged(run)
        assert result.accuracy_R[0] == 1
        assert certificate["fit_error"] < 1e-5


def test_a_construction_that_no_theorem_promises_is_refused_before_any_pack():
    with pytest.raises(UserError, match="promises 24 examples"):
        memobench.plan([_run(), _run(T=25)])
    start = Training(n_batches=4, epochs=1, start=Dana2025())
    with pytest.raises(UserError, match="promises 24 examples"):
        memobench.plan([dataclasses.replace(_run(T=25), method=start)])


def test_a_run_that_cannot_be_made_costs_no_other(caplog, tmp_path):
    fine = [_run(seed=seed) for seed in (0, 1)]
    lost = _run(method={"scale": 1e-9})
    table = memobench.run([*fine, lost], results=tmp_path, progress=False)
    assert table["status"].tolist() == ["ok", "ok", "diverged"]
    assert len(memobench.load_results(tmp_path)) == 3
    assert "the other runs go on" in caplog.text
    assert lost.run_id in caplog.text
    assert table["accuracy"][:2].tolist() == [1, 1]
    with pytest.raises(UserError, match="works"):
        memobench.run([lost], progress=False)
