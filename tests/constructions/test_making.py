"""Every construction: in packs and rows, and what is refused, in one line."""

import dataclasses
import itertools

import jax
import numpy as np
import pandas as pd
import pytest

import memobench
from memobench.common.errors import UserError
from memobench.constructions import making, random_attention
from memobench.constructions.base import Construction
from memobench.constructions.dana2025 import Dana2025
from memobench.core.run import Run
from memobench.experiments.capacity.own_tasks import FactualRecall
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.methods.training import Training
from memobench.models.gpt import GPT
from memobench.models.linear_memory import LinearMemory
from memobench.models.mlp_memory import MLPMemory
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.models.transformer import MLP, AttentionOnly
from memobench.numerics import metrics, precision
from memobench.planner import packing
from memobench.store.rows import row_columns
from memobench.tasks.associations import Associations
from memobench.tasks.labelled_contexts import LabelledContexts
from tests.constructed import SEVERAL, judged, run_of


def test_packed_equals_alone():
    runs = [
        run_of(seed=1),
        run_of(seed=3, d_model=6, d_head=3, n_heads=6),
        run_of(seed=1, task_seed=4, method={"n_aimed": 5, "weights": "int8"}),
    ]
    packed = making.construct_pack(packing.make_pack(runs))
    for i, run in enumerate(runs):
        alone, certificate = judged(run)
        assert packed.accuracy_R[i] == alone.accuracy_R[0]
        assert packed.loss_R[i] == alone.loss_R[0]
        assert packed.columns[i] | {"seconds": 0} == certificate | {"seconds": 0}


def test_a_pack_stops_between_its_runs_and_not_after_the_last():
    def stop(steps):
        raise KeyboardInterrupt

    runs = [run_of(seed=seed) for seed in range(3)]
    counted: list[int] = []
    making.construct_pack(packing.make_pack(runs), counted.append)
    assert counted == [1, 1]
    with pytest.raises(KeyboardInterrupt):
        making.construct_pack(packing.make_pack(runs), stop)
    assert len(making.construct_pack(packing.make_pack(runs[:1]), stop).loss_R) == 1


def test_rows_hold_the_certificates_and_are_kept(tmp_path):
    runs = [
        run_of(),
        run_of(method={"n_aimed": 0}),
        run_of(method={"weights": "int8"}, seed=1),
        run_of(T=30, method={"solve": "least_squares"}),
    ]
    table = memobench.run(runs, results=tmp_path, progress=False)
    kept = memobench.load_results(tmp_path).set_index("run_id")
    for run, (_, row) in zip(runs, table.iterrows(), strict=True):
        result, certificate = judged(run)
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


CONTEXTS = LabelledContexts(n_examples=4, context_length=3, input_dim=4, n_classes=3)
ONE_TOKEN, TWO_TOKENS = (Associations(vocab_size=4, context_length=n) for n in (1, 2))
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
        for task in (TWO_TOKENS, ONE_TOKEN, SEVERAL, CONTEXTS):
            method = Construction.get_kind(theorem)(n_aimed=1)
            run = Run(task=task, architecture=architecture, method=method)
            try:
                run.module()
            except UserError:
                continue
            try:
                making.construct(run)
                made += 1
            except UserError as error:
                lines += str(error).splitlines()
                told += 1
    assert made > 0
    assert len(lines) == told > 0


@pytest.mark.parametrize("theorem", sorted(Construction.kinds()))
def test_random_weights_are_rounded_before_others_are_solved_for(theorem):
    """Those that depend on the run's seed, but not on the examples."""
    kind, weights = Construction.get_kind(theorem), "int4"
    how = {"solve": "least_squares"} if kind.approximates else {}
    method = kind(n_aimed=2, weights=weights, **how)
    for architecture, task in itertools.product(ARCHITECTURES, (TWO_TOKENS, ONE_TOKEN, CONTEXTS)):
        params = [
            _params(task.replace(seed=task_seed), architecture, method, seed)
            for task_seed, seed in ((0, 0), (1, 0), (0, 1))
        ]
        if None in params:
            continue
        first, of_other_examples, of_other_seed = params
        for name, x in first.items():
            if np.array_equal(x, of_other_examples[name]) and (x != of_other_seed[name]).any():
                again = precision.round_to(x, weights)
                np.testing.assert_allclose(again, x, rtol=1e-6, err_msg=name)


def _params(task, architecture, method, seed):
    """The weights; None where there are none."""
    run = Run(task=task, architecture=architecture, method=method, seed=seed)
    try:
        run.module()
        return making.construct(run).params
    except UserError:
        return None


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            run_of(d_model=4, d_head=4, n_heads=5, n_layers=2),
            "one layer on tokens; .* n_layers=1",
        ),
        (
            run_of(d_model=4, d_head=4, n_heads=5, d_mlp=3, name="mlp"),
            "d_mlp=3; it is about attention only, set d_mlp=0",
        ),
        (
            run_of(d_model=4, d_head=1, n_heads=20, heads="compressed"),
            "one dimension holds two answers",
        ),
        (
            run_of(d_model=3, d_head=4, n_heads=7, heads="compressed"),
            "d_head=4 exceeds d_model=3",
        ),
        (
            run_of(task=SEVERAL, d_model=4, d_head=2, n_heads=6, heads="compressed"),
            "take heads='full'",
        ),
        (run_of(T=60), "promises 24 examples at these sizes and 60 are wanted"),
    ],
)
def test_mistakes_are_told_in_one_line(run, message):
    with pytest.raises(UserError, match=message) as told:
        making.construct(run)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: run_of(method={"n_aimed": 25}), "n_aimed=25 exceeds the task's 24 examples"),
        (lambda: run_of(method={"n_aimed": -1}), "n_aimed=-1 is not an integer from 0 to "),
        (
            lambda: run_of(method={"solve": "guess"}),
            "solve='guess' is not one of exact, least_squares",
        ),
        (lambda: run_of(method={"scale": 0}), "scale=0 is not a number > 0"),
        (
            lambda: run_of(method={"weights": "int2"}),
            "weights='int2' is not one of float64, float32",
        ),
        (
            lambda: Construction.get_kind("euclid"),
            "theorem='euclid' is unknown; choose one of bubeck2020, dana2025, ",
        ),
        (lambda: Construction.get_kind(None), "theorem=None is unknown; choose one of "),
        (
            lambda: Run(task=CONTEXTS, architecture=ARCHITECTURES[-1], method=Training()),
            "a Training does not train the task 'labelled_contexts', which is not of tokens",
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


@pytest.mark.parametrize(
    ("start", "said", "holds"),
    [
        # A row of another's construction is whole, as that of another's architecture is.
        ("mine n_aimed=3", "theorem='mine' is unknown; .* --plugin", True),
        ("dana2025 n_aimed=-5", "n_aimed=-5 is not", False),
        ("dana2025 ==", "start='dana2025 ==' is not a construction", False),
    ],
)
def test_a_start_that_is_not_known_says_why(start, said, holds):
    column = row_columns()["start"]
    with pytest.raises(UserError, match=said):
        column.domain.read(start)
    assert column.domain.holds(start) == holds


def test_only_constructions_are_constructed():
    run = dataclasses.replace(run_of(), method=Training())
    with pytest.raises(UserError, match="method='trained' is not a construction"):
        making.construct(run)


def test_double_precision_does_not_leak():
    judged(run_of())
    assert jax.numpy.ones(1).dtype == np.float32


def test_a_construction_that_no_theorem_promises_is_refused_before_any_pack():
    with pytest.raises(UserError, match="promises 24 examples"):
        memobench.plan([run_of(), run_of(T=25)])
    start = Training(n_batches=4, epochs=1, start=Dana2025())
    with pytest.raises(UserError, match="promises 24 examples"):
        memobench.plan([dataclasses.replace(run_of(T=25), method=start)])


def test_a_run_that_cannot_be_made_costs_no_other(caplog, tmp_path):
    fine = [run_of(seed=seed) for seed in (0, 1)]
    lost = run_of(method={"scale": 1e-9})
    table = memobench.run([*fine, lost], results=tmp_path, progress=False)
    assert table["status"].tolist() == ["ok", "ok", "diverged"]
    assert len(memobench.load_results(tmp_path)) == 3
    assert f"run {lost.run_id} cannot be made: theorem=" in caplog.text
    assert table["accuracy"][:2].tolist() == [1, 1]
    # Alone it is what it is beside others.
    assert memobench.run([lost], progress=False)["status"].tolist() == ["diverged"]
