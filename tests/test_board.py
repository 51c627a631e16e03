"""The standard board: its entries are what it says, and its rows and pages what the runs say."""

import dataclasses
import functools
import html.parser
import json
import math
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

from memobench import board, claims, theory
from memobench.claims import exposure as exposure_claims
from memobench.errors import UserError
from memobench.experiments import EXPERIMENTS
from memobench.methods.construction import Construction
from memobench.methods.search import RULES
from memobench.methods.training import Training
from memobench.models import base as models
from memobench.models.base import Architecture
from memobench.models.gpt import GPT
from memobench.report import capacity as capacities_page
from memobench.report import exposure, latex, leaderboard, tables
from memobench.report.exposure import Exposure
from memobench.report.forest import Forest
from memobench.report.scaling import Scaling
from memobench.runs import Run, cells
from memobench.table import analysis, results, rows
from memobench.tasks.associations import Associations
from tests.test_html import HOSTILE

# Whose title figures have.
TITLED = EXPERIMENTS["board/256"]
SETS = pytest.mark.parametrize(
    ("vocab_size", "budget"), board.WIDTHS, ids=[f"{n}-{b}" for n, b in board.WIDTHS]
)


def _entry(architecture, vocab_size=50):
    """The sizes of an architecture as columns."""
    return cells(Run(task=Associations(vocab_size=vocab_size), architecture=architecture))


@SETS
def test_standard_entries_meet_their_budget_and_are_all_different(vocab_size, budget):
    entries = list(board.standard(vocab_size, budget))
    architectures = [architecture for architecture, _ in entries]
    assert len(set(architectures)) == len(architectures) >= 5
    overfull = board.task(vocab_size, budget)
    assert overfull.n_examples == min(budget, vocab_size**2)
    for architecture, theorem in entries:
        module = Run(task=overfull, architecture=architecture).module()
        n_params, _ = models.count_parameters(module, 2)
        assert abs(n_params / budget - 1) <= board.TOLERANCE, architecture
        if theorem is None:
            continue
        promise, sizes = Construction.named(theorem).bound, _entry(architecture, vocab_size)
        made = board.constructions(architecture, theorem, vocab_size, 2)
        assert [run.seed for run in made] == ([0, 1] if promise.applies(sizes) else [])
        for run in made:
            assert run.task.n_sequences == promise.value(sizes)
            assert run.task.seed == run.seed
            assert run.method == Construction.named(theorem)()
    kinds = {architecture.name for architecture in architectures}
    assert kinds >= {"attention_only", "mlp"}
    assert {theorem for _, theorem in entries} - {None} == set(board.THEOREMS)


def test_every_vocabulary_size_of_a_budget_has_a_set():
    assert list(board.BUDGETS) == sorted({budget for _, budget in board.WIDTHS})
    assert board.BUDGETS == tuple(2**i for i in range(8, 14))
    for vocab_size, budget in board.WIDTHS:
        # No standard entry could know all, were each parameter to hold one association.
        assert board.task(vocab_size, budget).n_examples == budget or vocab_size**2 < budget


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ({"name": "attention_only", "heads": "full", "n_heads": 5}, "attention-only, full heads"),
        # Compressed ones share maps before and behind all heads, whatever their size.
        ({"name": "attention_only", "n_heads": 5}, "attention-only, compressed heads"),
        ({"name": "attention_only", "d_head": 2}, "attention-only, compressed heads"),
        (
            {"name": "attention_only", "heads": "full", "n_layers": 2},
            "attention-only, full heads, 2 layers",
        ),
        ({"name": "mlp", "d_mlp": 3}, "MLP"),
        ({"name": "mlp", "d_mlp": 3, "activation": "relu"}, "MLP (relu)"),
        ({"name": "mlp", "d_mlp": 3, "n_heads": 2}, "attention + MLP"),
        ({"name": "mlp", "d_mlp": 3, "n_layers": 3}, "MLP, 3 layers"),
        ({"name": "sequence_encoder"}, "sequence encoder"),
        ({"name": "linear_memory"}, "linear_memory"),
    ],
)
def test_families_by_hand(sizes, name):
    sizes = {**sizes}
    kind = Architecture.named(sizes.pop("name"))
    heads = {"d_head": 4} if "d_head" in kind.columns() else {}
    assert board.family(_entry(kind(d_model=4, **heads | sizes))) == name


def test_an_architecture_of_another_ones_file_is_told_by_its_columns():
    row = {**_entry(MLP), "architecture": "mine", "n_layers": 2, "family": "mine"}
    assert board.family(row) == "mine, 2 layers"
    assert board.entry(row) == f"mine (d={MLP.d_model} w={MLP.d_mlp})"


def test_options_that_are_not_usual_tell_entries_apart():
    plain, other = (GPT(d_model=4, d_head=4, d_mlp=8, **x) for x in ({}, {"activation": "relu"}))
    assert "activation" not in " ".join(plain.shown_sizes)
    assert "activation=relu" in other.shown_sizes


@SETS
def test_families_and_sizes_tell_the_entries_of_a_set_apart(vocab_size, budget):
    entries = [x for x, _ in board.standard(vocab_size, budget)]
    rows = [{**_entry(x), "family": board.family(_entry(x))} for x in entries]
    assert len({board.entry(row) for row in rows}) == len(rows)
    assert all(row["family"] for row in rows)


def test_an_mlp_with_compressed_heads_is_another_entry():
    told = [
        board.entry({**sizes, "family": board.family(sizes)})
        for heads in ("full", "compressed")
        for sizes in [_entry(dataclasses.replace(MLP, heads=heads))]
    ]
    assert told[0] == f"MLP (d={MLP.d_model} w={MLP.d_mlp})"
    assert told[1] == f"MLP (compressed d={MLP.d_model} w={MLP.d_mlp})"


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: board.searches(MLP, 31, BUDGET), "vocab_size=31, budget=512 is not a set"),
        (lambda: board.searches(MLP, N, 8192), "64 with 8,192, 128 with 8,192"),
        (lambda: board.searches(MLP, N, BUDGET, board.CONSTRUCTED), "track='constructed'"),
        (lambda: board.searches(MLP, N, BUDGET, "exact"), "trained-published, trained-exact"),
        (lambda: board.constructions(MLP, "fermat", N), "theorem='fermat'"),
    ],
)
def test_what_the_board_lacks_is_told_in_one_line(ask, said):
    with pytest.raises(UserError) as error:
        ask()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_the_exact_track_tries_four_rates_and_up_to_eight_times_the_steps():
    method = board.METHODS[board.EXACT]
    assert method.rate_factors == (0.3, 1, 3, 10)
    assert (method.sizes, method.doublings) == (2, 3)
    assert [len(board.searches(MLP, N, BUDGET, x)) for x in board.METHODS] == [board.SEEDS] * 2


@pytest.mark.parametrize("budget", board.BUDGETS)
def test_runs_are_distinct_and_quick_is_a_part_of_full(budget):
    experiment = EXPERIMENTS[f"board/{budget}"]
    quick, full = ([run.run_id for run in experiment.presets[x]] for x in ("quick", "full"))
    assert len(set(full)) == len(full)
    assert set(quick) < set(full)
    table = pd.DataFrame([cells(run) for run in experiment.presets["full"]])
    assert table.groupby("method")["seed"].unique().map(sorted).tolist() == [[0, 1, 2, 3, 4]] * 2
    assert (table["seed"] == table["task_seed"]).all()
    assert set(table["vocab_size"]) == {n for n, of in board.WIDTHS if of == budget}
    assert set(table["protocol"]) == {"published", "exact", "constructed"}
    few = pd.DataFrame([cells(run) for run in experiment.presets["quick"]])
    assert few["vocab_size"].nunique() == 1
    assert set(few["protocol"]) == {"exact", "constructed"}


# Rows as runs would leave them, with numbers by hand.

N, BUDGET = 32, 512
ATTENTION, COMPRESSED, MLP = (x for x, _ in list(board.standard(N, BUDGET))[:3])
MEASURED = {
    **{"complete_99": 100, "complete_100": 90, "incomplete_99": 101, "incomplete_100": 91},
    **{"best_accuracy": 0.5, "rate_factor": 1.0, "final_steps": 2048, "gain": 0.01},
    **{
        "previous_99": 99,
        "previous_known": 255,
        "previous_bits": 1190.0,
        "converged": True,
        "lower_bound": False,
        "trials": [[1024, 512, 1.0, 256, 256, 1.0]],
    },
    **{"accuracy": 0.5, "accuracy_protocol": 0.5, "memorized": 250.0, "bits": 1200.0, "loss": 1.0},
}
CERTIFICATE = {
    **{"stored_bits": 64.0, "aimed_accuracy": 1.0, "seconds": 0.25, "margin": 0.1},
    **{"accuracy": 1.0, "accuracy_protocol": 1.0, "memorized": 20.0, "bits": 100.0, "loss": 0.0},
}
PROVENANCE = {
    **{"memobench": "1.0", "commit": "abc1234", "device": "none", "date": "2026-01-01T00:00"},
    **{"pack_size": 4, "compile_seconds": 1.0, "run_seconds": 8.0},
}


@functools.cache
def _counts(task, architecture):
    module = Run(task=task, architecture=architecture).module()
    n_params, n_params_memory = models.count_parameters(module, 2)
    distinct = models.count_distinct(module, 2)
    counts = {"n_params": n_params, "n_params_memory": n_params_memory}
    return {**counts, "n_params_distinct": distinct}


def _row(run, **measured):
    sizes = cells(run)
    made = isinstance(run.method, Construction)
    found = {**CERTIFICATE, "promises": sizes["n_examples"]} if made else MEASURED
    return {
        **sizes,
        **_counts(Associations(vocab_size=run.task.vocab_size), run.architecture),
        "status": "ok",
        **{"curve_steps": [1], "curve_accuracy": [0.0], "curve_loss": [1.0]},
        **found,
        **PROVENANCE,
        **measured,
    }


def _rows(architecture=ATTENTION, track=board.EXACT, seeds=3, each=(), **measured):
    """Rows of an entry's seeds; `each` has the fields in which they differ."""
    runs = board.searches(architecture, N, BUDGET, track, seeds)
    each = list(each) or [{}] * seeds
    return [_row(run, **measured, **own) for run, own in zip(runs, each, strict=True)]


def _made(architecture=ATTENTION, theorem="dana2025", seeds=3, **measured):
    return [_row(run, **measured) for run in board.constructions(architecture, theorem, N, seeds)]


def _build(rows, **columns):
    return board.build(results.to_table(rows).assign(**columns))


def _three():
    """Three entries: attention searched in both tracks and constructed, and an MLP."""
    return [
        *_rows(
            each=[
                {"complete_99": 100, "previous_99": 97, "bits": 1200.0, "rate_factor": 0.3},
                {"complete_99": 110, "previous_99": 110, "bits": 1230.0, "rate_factor": 3.0},
                {"complete_99": 120, "previous_99": 118, "bits": 1290.0, "rate_factor": 10.0},
            ],
            previous_bits=1220.0,
        ),
        *_rows(track=board.PUBLISHED, each=[{"memorized": x} for x in (200.0, 210.0, 220.0)]),
        *_made(),
        *_rows(MLP, complete_99=150, bits=1500.0, each=[{"date": "2026-02-02"}, {}, {}]),
    ]


def test_means_intervals_and_verdicts_by_hand():
    found = _build(_three())
    assert list(found.columns) == board.COLUMNS
    assert len(found) == 4
    assert found["bits_per_parameter"].is_monotonic_decreasing
    assert set(found["version"]) == {"v1"}
    assert set(found["submitter"]) == {"memobench"}
    found = found.set_index(["track", "architecture"])
    row = found.loc[(board.EXACT, "attention_only")]
    assert row["seeds"] == 3
    assert row["complete_99"] == 110
    # Student's quantile with two degrees of freedom times 10 over the root of 3.
    assert row["complete_99_interval"] == pytest.approx(4.302653 * 10 / math.sqrt(3), rel=1e-6)
    assert row["bits"] == 1240
    deviation = math.sqrt((40**2 + 10**2 + 50**2) / 2)
    assert row["bits_interval"] == pytest.approx(4.302653 * deviation / math.sqrt(3), rel=1e-6)
    # Equal numbers show no spread.
    assert row["memorized"] == 250
    assert math.isnan(row["memorized_interval"])
    # Single runs gained 3%, nothing and 1.7%; of all 512, 256 are known, and 255 were.
    assert row["gain_99"] == pytest.approx(330 / 325 - 1)
    assert row["gain_known"] == pytest.approx(256 / 255 - 1)
    assert row["gain_bits"] == pytest.approx(3720 / 3660 - 1)
    assert row["rate_at_edge"] == pytest.approx(2 / 3)
    assert row["verdict"] == "converged"
    assert row["final_steps"] == 2048
    assert row["seconds"] == 2.0
    n_params = models.count_parameters(_run_of(ATTENTION).module(), 2)[0]
    assert row["bits_per_parameter"] == pytest.approx(1240 / n_params)
    assert row["complete_99_per_parameter"] == pytest.approx(110 / n_params)
    assert row["memorized_per_parameter"] == pytest.approx(250 / n_params)
    promised = ATTENTION.n_heads * ATTENTION.d_head + ATTENTION.d_model
    assert row["proven"] == promised
    assert row["complete_99_over_proven"] == pytest.approx(110 / promised)

    row = found.loc[(board.PUBLISHED, "attention_only")]
    assert (row["seeds"], row["memorized"]) == (3, 210)
    assert row["memorized_interval"] == pytest.approx(4.302653 * 10 / math.sqrt(3), rel=1e-6)
    # Of one rate none is at an edge.
    assert math.isnan(row["rate_at_edge"])

    row = found.loc[(board.CONSTRUCTED, "attention_only")]
    assert (row["theorem"], row["verdict"], row["seeds"]) == ("dana2025", "proven", 3)
    assert row["complete_99"] == row["complete_100"] == row["n_examples"] == promised
    assert row["complete_99_over_proven"] == 1
    assert row["final_steps"] == 1
    assert row["seconds"] == 0.25

    row = found.loc[(board.EXACT, "mlp")]
    assert row["gain_99"] == pytest.approx(150 / 99 - 1)
    assert row["gain_bits"] == pytest.approx(1500 / 1190 - 1)
    assert row["rate_at_edge"] == 0
    assert (row["verdict"], row["family"], row["date"]) == ("not converged", "MLP", "2026-02-02")
    assert row["proven"] == MLP.d_mlp + MLP.d_model
    assert set(found["budget"]) == {BUDGET}


def _run_of(architecture):
    return board.searches(architecture, N, BUDGET, seeds=1)[0]


def _before(*numbers, name="previous_99"):
    return [{name: n} for n in numbers]


UNKNOWN = dict.fromkeys(("previous_99", "previous_known", "previous_bits"))
DIVERGED = {
    **dict.fromkeys(rows.MEASURES),
    **{"status": "diverged", "complete_99": 0, "complete_100": 0, "best_accuracy": 0.0},
    **{"previous_99": 9, "previous_known": 9, "previous_bits": 9.0},
}


@pytest.mark.parametrize(
    ("each", "verdict"),
    [
        # All have a complete set of 100 and know 256 of 512.
        (_before(99, 99, 99), "converged"),
        (_before(100, 100, 95), "converged"),
        # A gain of 2% is one.
        (_before(98.1, 98.1, 98.1), "converged"),
        (_before(98, 98, 98), "not converged"),
        (_before(100, 100, 93), "not converged"),
        # One run gained a little less than the others lost.
        (_before(105, 105, 90), "converged"),
        # More of the overfull set alone.
        (_before(250, 250, 250, name="previous_known"), "not converged"),
        (_before(252, 252, 252, name="previous_known"), "converged"),
        # More of its bits alone, of which 1200 are there.
        (_before(1170, 1170, 1170, name="previous_bits"), "not converged"),
        (_before(1177, 1177, 1177, name="previous_bits"), "converged"),
        # From nothing something, and nothing.
        (_before(0, 0, 0), "not converged"),
        (_before(0, 0, 0, name="previous_bits"), "not converged"),
        ([{"complete_99": 0, "previous_99": 0}] * 3, "converged"),
        ([{"bits": 0.0, "previous_bits": 0.0}] * 3, "converged"),
        # What was never doubled enters neither side: with 300 of 198 all would have gained.
        ([UNKNOWN] * 3, "not converged"),
        ([UNKNOWN, {}, {}], "converged"),
        ([UNKNOWN, *_before(98, 98)], "not converged"),
        # Who diverged would do so or not with twice the steps.
        ([{}, {}, {}], "converged"),
        ([{}, {}, DIVERGED], "not converged"),
        ([{"lower_bound": True, **UNKNOWN}, {}, {}], "lower bound"),
        ([{"lower_bound": True}] * 3, "lower bound"),
    ],
)
def test_verdicts(each, verdict):
    (row,) = _build(_rows(each=[{"complete_99": 100, **own} for own in each])).to_dict("records")
    assert row["verdict"] == verdict


def test_gains_by_hand():
    rows = _rows(each=[UNKNOWN, *_before(95, 97)])
    (row,) = _build(rows).to_dict("records")
    gains = [row[f"gain_{name}"] for name in ("99", "known", "bits")]
    assert gains == pytest.approx([200 / 192 - 1, 256 / 255 - 1, 1200 / 1190 - 1])
    nothing = {"complete_99": 0, "previous_99": 0, "best_accuracy": 0.0, "previous_known": 0}
    nothing |= {"bits": 0.0, "previous_bits": 0.0}
    (row,) = _build(_rows(each=[nothing] * 3)).to_dict("records")
    assert [row[f"gain_{name}"] for name in ("99", "known", "bits")] == [0, 0, 0]
    (row,) = _build(_rows(each=_before(0, 0, 0))).to_dict("records")
    assert math.isinf(row["gain_99"])
    (row,) = _build(_rows(each=[UNKNOWN] * 3)).to_dict("records")
    assert all(math.isnan(row[f"gain_{name}"]) for name in ("99", "known", "bits"))


def test_tasks_without_bits_gain_none_in_bits():
    (row,) = analysis.capacities(results.to_table(_rows(bits=None))).to_dict("records")
    assert math.isnan(row["gain_bits"])
    assert row["verdict"] == "converged"
    (row,) = analysis.capacities(
        results.to_table(_rows(bits=None, each=_before(98, 98, 98)))
    ).to_dict("records")
    assert row["verdict"] == "not converged"


@pytest.mark.parametrize(
    ("best", "share"),
    [
        ((0.3, 0.3, 10.0), 1),
        ((1.0, 3.0, 3.0), 0),
        ((0.3, 1.0, None), 1 / 2),
        ((None, None, None), math.nan),
    ],
)
def test_the_share_of_best_rates_at_an_edge(best, share):
    (row,) = _build(_rows(each=[{"rate_factor": x} for x in best])).to_dict("records")
    assert row["rate_at_edge"] == pytest.approx(share, nan_ok=True)


def test_a_run_that_diverged_enters_no_mean():
    each = [{"complete_99": 100}, {"complete_99": 110}, DIVERGED]
    (row,) = _build(_rows(each=each)).to_dict("records")
    assert (row["seeds"], row["diverged"]) == (2, 1)
    assert row["bits"] == 1200
    assert row["complete_99"] == 105
    assert row["complete_99_interval"] == pytest.approx(12.7062 * 5, rel=1e-5)
    assert row["gain_99"] == pytest.approx(210 / 198 - 1)
    assert row["gain_known"] == pytest.approx(256 / 255 - 1)
    assert row["gain_bits"] == pytest.approx(1200 / 1190 - 1)


def test_weights_that_do_not_do_what_was_promised_have_no_complete_set():
    rows = _made(accuracy=0.995)
    (row,) = _build(rows).to_dict("records")
    assert row["complete_99"] == row["n_examples"]
    assert math.isnan(row["complete_100"])


def test_every_convention_of_counting_is_shown():
    rows = _rows(n_params=500, n_params_memory=400, n_params_distinct=250, complete_99=100)
    for row in rows:
        row["bits"] = 1000.0
    told, digits = capacities_page.shown(_build(rows))
    (row,) = told.to_dict("records")
    assert [row[f"99% / {x}"] for x in ("all", "memory", "distinct")] == [0.2, 0.25, 0.4]
    assert [row[f"bits / {x}"] for x in ("all", "memory", "distinct")] == [2, 2.5, 4]
    assert digits["99% / all"] == 3
    assert [row[f"gain ({x})"] for x in "abc"] == pytest.approx(
        [100 / 99 - 1, 256 / 255 - 1, 1000 / 1190 - 1]
    )
    assert row["rate at edge"] == 0
    assert row["complete 99%"] == "100"
    assert (row["parameters"], row["steps"], row["seeds"]) == (500, 2048, 3)
    (single,) = capacities_page.shown(analysis.capacities(results.to_table(rows[:1])))[0].to_dict(
        "records"
    )
    assert single["complete 99%"] == "100"
    (bound,) = capacities_page.shown(_build([{**x, "lower_bound": True} for x in rows]))[0].to_dict(
        "records"
    )
    assert bound["bits"] == "≥ 1,000"


def test_capacities_of_a_page_are_those_of_searches():
    table = results.to_table(_three())
    assert len(analysis.capacities(table)) == 4
    found = analysis.capacities(table, ["architecture", "n_params"])
    assert found.set_index("architecture")["seeds"].to_dict() == {"attention_only": 9, "mlp": 3}
    # Three searches of 330 in all, three of 100, and three constructions of what they promise.
    promised = ATTENTION.n_heads * ATTENTION.d_head + ATTENTION.d_model
    assert found["complete_99"][0] == pytest.approx((330 + 3 * 100 + 3 * promised) / 9)
    paragraphs = "\n".join(capacities_page.section(table))
    assert paragraphs.count("\n| ") == 1 + 3
    assert "proven |" not in paragraphs.partition("verdict")[2]
    assert capacities_page.section(table[table["method"] == "constructed"]) == []


# What is not on the board.


def _changed(run, **fields):
    for name, value in fields.items():
        for place in ("task", "architecture", "method"):
            spec = getattr(run, place)
            if hasattr(spec, name):
                run = dataclasses.replace(
                    run, **{place: dataclasses.replace(spec, **{name: value})}
                )
                break
        else:
            method = dataclasses.replace(
                run.method, training=dataclasses.replace(run.method.training, **{name: value})
            )
            run = dataclasses.replace(run, method=method)
    return run


@pytest.mark.parametrize("track", [board.EXACT, board.PUBLISHED])
@pytest.mark.parametrize(
    "change",
    [
        {"resolution": 0.05},
        {"doublings": 5},
        {"sizes": 5},
        {"rate_factors": (0.3, 1.0)},
        {"learning_rate": 0.02},
        {"final_learning_rate": 1e-3},
        {"epochs": 8},
        {"n_batches": 32},
        {"trained": "memory"},
        {"n_sequences": 511},
        {"n_sequences": 1024},
        {"vocab_size": 31},
        {"vocab_size": 64},
        {"n_heads": 40},
    ],
    ids=lambda change: " ".join(f"{k}={v}" for k, v in change.items()),
)
def test_what_differs_in_the_method_the_task_or_the_budget_is_no_entry(track, change):
    runs = board.searches(ATTENTION, N, BUDGET, track, seeds=3)
    rows = [_row(run) for run in runs]
    assert len(_build(rows)) == 1
    others = [_row(_changed(run, **change)) for run in runs]
    assert not {row["run_id"] for row in rows} & {row["run_id"] for row in others}
    assert _build(others).empty
    assert _build([*rows, *others])["seeds"].tolist() == [3]


@pytest.mark.parametrize(
    "change",
    [
        {"zipf_exponent": 1.0},
        {"context_length": 3},
        {"task": "bijection"},
        {"method": "trained"},
        {"batch_size": 8},
        {"start": "dana2025"},
        {"rules": RULES + 1},
        {"rules": None},
    ],
)
def test_other_columns_are_no_entry_either(change):
    assert _build([{**row, **change} for row in _rows()]).empty


def _seeded(*seeds):
    """An entry's rows with these seeds, of the weights and of the instance."""
    (run,) = board.searches(ATTENTION, N, BUDGET, seeds=1)
    rows = _rows(seeds=1)
    return [
        {**row, **cells(dataclasses.replace(run, task=task, seed=seed))}
        for row in rows
        for seed, task_seed in seeds
        for task in [dataclasses.replace(run.task, seed=task_seed)]
    ]


@pytest.mark.parametrize(
    ("seeds", "counted"),
    [
        ([0, 1, 2], 3),
        ([2, 1, 0], 3),
        (range(5), 5),
        # The best three of five, and the best four.
        ([4, 2, 0], None),
        ([1, 2, 3], None),
        ([0, 1, 2, 4], None),
        (range(6), 5),
        ([0, 1], None),
        ([0, 1, 5], None),
        (range(5, 10), None),
        # An instance of another seed, as if it had been chosen.
        ([0, 1, (2, 3)], None),
        ([0, 1, 2, (3, 4)], 3),
        ([(i, 0) for i in range(5)], None),
    ],
)
def test_an_entry_has_the_first_seeds_and_three_of_them_at_least(seeds, counted):
    pairs = [x if isinstance(x, tuple) else (x, x) for x in seeds]
    assert _build(_seeded(*pairs))["seeds"].tolist() == ([counted] if counted else [])


def test_an_entry_of_chosen_seeds_is_named(caplog):
    chosen = [row for row in _rows(seeds=5) if row["seed"] in (0, 2, 4)]
    others = _rows(MLP)
    assert _build([*chosen, *others])["architecture"].tolist() == ["mlp"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("left out: attention")
    assert "its seeds are 0, 2, 4; an entry has all from 0 on, diverged ones too" in line
    # Who leaves out what diverged chooses too.
    each = [{}, DIVERGED, {}, {}]
    assert len(_build(_rows(seeds=4, each=each))) == 1
    assert _build([row for row in _rows(seeds=4, each=each) if row["status"] == "ok"]).empty
    # Of two files neither fills the other's gaps.
    first, second = _rows(seeds=5)[:3], _rows(seeds=5)[3:]
    sources = ["a.json"] * 3 + ["b.json"] * 2
    assert _build([*first, *second], source=sources)["seeds"].tolist() == [3]


def test_what_diverged_is_one_of_three_runs():
    (row,) = _build(_rows(each=[{}, DIVERGED, DIVERGED])).to_dict("records")
    assert (row["seeds"], row["diverged"]) == (1, 2)
    assert _build(_rows(seeds=2, each=[{}, DIVERGED])).empty


def test_a_budget_is_met_within_a_twentieth():
    for n_params, on in ((486, False), (487, True), (512, True), (537, True), (538, False)):
        found = _build(_rows(n_params=n_params))
        assert len(found) == on, n_params


def test_plain_training_and_other_constructions_are_no_entries():
    plain = [
        dataclasses.replace(run, method=Training())
        for run in board.searches(ATTENTION, N, BUDGET, seeds=3)
    ]
    assert _build([_row(run) for run in plain]).empty
    assert len(_build(_made())) == 1
    for change in (
        {"promises": 1000},
        {"promises": 1},
        {"promises": None},
        {"n_aimed": 3},
        {"solve": "least_squares"},
        {"weights": "int8"},
        {"scale": 3.0},
        {"zipf_exponent": 1.0},
        {"n_params": 600},
    ):
        assert _build([{**row, **change} for row in _made()]).empty, change


def test_an_architecture_of_ones_own_is_an_entry():
    (row,) = _build([{**x, "architecture": "mine"} for x in _rows()]).to_dict("records")
    assert (row["architecture"], row["family"], row["budget"]) == ("mine", "mine", BUDGET)
    assert (row["track"], row["seeds"]) == (board.EXACT, 3)
    # No theorem is about it.
    assert math.isnan(row["proven"])


def test_two_submitters_are_never_averaged():
    rows = [*_rows(bits=1000.0), *_rows(bits=1400.0)]
    submitter = ["ann"] * 3 + ["bob"] * 3
    found = _build(rows, submitter=submitter, source=[f"{x}.json" for x in submitter])
    assert found["submitter"].tolist() == ["bob", "ann"]
    assert found["bits"].tolist() == [1400, 1000]
    assert found["seeds"].tolist() == [3, 3]


def test_two_files_of_one_name_are_never_averaged():
    rows = [*_rows(bits=1000.0), *_rows(bits=1400.0)]
    found = _build(rows, submitter=["ann"] * 6, source=["ann-1.json"] * 3 + ["ann-2.json"] * 3)
    assert found["submitter"].tolist() == ["ann"] * 2
    assert found["bits"].tolist() == [1400, 1000]
    assert found["seeds"].tolist() == [3, 3]
    # Nor do they fill one another up.
    apart = ["ann-1.json"] * 2 + ["ann-2.json"]
    assert _build(_rows(), submitter=["ann"] * 3, source=apart).empty


def test_options_of_an_architecture_are_never_averaged():
    rows = [*_rows(bits=1000.0), *_rows(bits=1400.0)]
    for name, values in (("residual", (None, True)), ("d_value", (1, 2))):
        each = [values[0]] * 3 + [values[1]] * 3
        found = _build([{**row, name: value} for row, value in zip(rows, each, strict=True)])
        assert found["seeds"].tolist() == [3, 3], name


def test_what_is_impossible_is_no_entry():
    with pytest.raises(theory.Violation):
        _build(_rows(bits=512 * 40.0))


# Renderings.


class Cells(html.parser.HTMLParser):
    """Tables of a page as lists of rows, the data, and all elements."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.elements, self.data = [], [], ""
        self._cell, self._json = None, False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self._json = dict(attributes).get("id") == "data"
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag):
        self._cell = None if tag in ("td", "th") else self._cell
        self._json = False

    def handle_data(self, data):
        if self._cell:
            self.rows[-1][-1] += data
        if self._json:
            self.data += data


def _markdown_rows(text):
    """The tables of a Markdown page, a dictionary for each row."""
    rows, head = [], None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
            continue
        cells = [x.strip() for x in re.split(r"(?<!\\)\|", line)[1:-1]]
        if head is None:
            head = cells
        elif not line.startswith("|:") and not line.startswith("|-"):
            rows.append(dict(zip(head, cells, strict=True)))
    return rows


def _first(text):
    """The number that a cell begins with."""
    return float(re.search(r"-?[\d,]+(\.\d+)?", text)[0].replace(",", ""))


def test_four_renderings_of_one_board(tmp_path):
    table = results.to_table([*_three(), *_rows(COMPRESSED, lower_bound=True, bits=900.0)])
    text = leaderboard.write(table, tmp_path)
    found = board.build(table)
    assert (tmp_path / "LEADERBOARD.md").read_text("utf-8") == text
    assert text.count("\n## ") == 1
    assert "## 512 parameters, N = 32" in text
    assert "Measured on: none; memobench 1.0 (abc1234)." in text
    csv = pd.read_csv(tmp_path / "leaderboard.csv")
    assert list(csv.columns) == board.COLUMNS
    numeric = found.select_dtypes("number").columns
    # An integer of all rows stays one.
    np.testing.assert_allclose(csv[numeric], found[numeric].astype(float), rtol=1e-5)

    written = _markdown_rows(text)
    assert len(written) == len(found) == 5
    for row, shown in zip(found.to_dict("records"), written, strict=True):
        assert shown["entry"] == board.entry(row)
        assert shown["track"] == row["track"]
        assert shown["verdict"] == row["verdict"]
        assert ("≥" in shown["bits"]) == (row["verdict"] == "lower bound")
        assert _first(shown["bits"]) == round(row["bits"])
        assert _first(shown["complete 99%"]) == round(row["complete_99"])
        assert _first(shown["bits / all"]) == pytest.approx(row["bits_per_parameter"], abs=5.1e-3)
        per = row["bits"] / row["n_params_distinct"]
        assert _first(shown["bits / distinct"]) == pytest.approx(per, abs=5.1e-3)

    page = Cells((tmp_path / "leaderboard.html").read_text("utf-8"))
    embedded = {(x["track"], x["entry"]): x for x in json.loads(page.data)["board"]}
    static = {(x[2], x[0]): x for x in page.rows if len(x) > 2 and x[2] in board.TRACKS}
    assert len(embedded) == len(static) == 5
    tex = (tmp_path / "leaderboard.tex").read_text("utf-8")
    for row in found.to_dict("records"):
        key = row["track"], board.entry(row)
        told, cells = embedded[key], static[key]
        for name in ("bits", "complete_99", "complete_100", "memorized", "n_params", "budget"):
            assert told[name] == pytest.approx(row[name])
        for name in ("bits_interval", "complete_99_interval", "seconds", "proven"):
            known = math.nan if told[name] is None else told[name]
            assert known == pytest.approx(row[name], nan_ok=True)
        assert told["steps"] == row["final_steps"]
        assert told["verdict"] == row["verdict"] == cells[-1]
        assert told["family"] == row["family"] == cells[3]
        measured = [_first(x) for x in cells[6:10]]
        in_tex = _tex_cells(tex, *key)
        for i, name in enumerate(("bits", "memorized", "complete_99", "complete_100")):
            per = row[name] / row["n_params"]
            assert measured[i] == pytest.approx(per, rel=1e-3)
            assert in_tex[1 + i] == pytest.approx(per, abs=5.1e-4)
        assert in_tex[0] == row["n_params"]
        assert in_tex[-1] == row["seeds"]
    assert tex.count(r"& \raggedright memobench & ") == 5
    assert tex.count(r"\begin{table}") == 3
    # One stands in every caption.
    marked = sum(found["verdict"] == "not converged")
    assert tex.count(r"$^{\dagger}$") == 3 + marked


def _tex_cells(text, track, entry):
    """The numbers that the cells of an entry's line begin with."""
    (table,) = [x for x in text.split(r"\begin{table}") if f" {track}, $N" in x]
    told = latex.escaped(entry)
    (line,) = [x for x in table.splitlines() if x.startswith(rf"\raggedright {told}")]
    return [_first(x.replace("$", "")) for x in line.split(" & ")[3:]]


def test_constructions_that_fail_are_dashes(tmp_path):
    leaderboard.write(results.to_table(_made(accuracy=0.5)), tmp_path)
    (row,) = _markdown_rows((tmp_path / "LEADERBOARD.md").read_text("utf-8"))
    assert row["complete 99%"] == row["99% / all"] == "–"
    assert " -- & -- & " in (tmp_path / "leaderboard.tex").read_text("utf-8")


def test_hostile_text_is_text_in_all_renderings(tmp_path):
    # What UTF-8 cannot say is refused where submissions are read.
    texts = [text.encode("utf-8", "replace").decode() for text in HOSTILE]
    for folder, told in (("plain", [f"mine {i}" for i in range(len(texts))]), ("hostile", texts)):
        rows = [
            {**row, **dict.fromkeys(("architecture", "device", "commit", "memobench"), text)}
            for text in told
            for row in _rows()
        ]
        submitters = [text for text in told for _ in range(3)]
        table = results.to_table(rows).assign(submitter=submitters, source=submitters)
        leaderboard.write(table, tmp_path / folder)
    read = {
        name: [(tmp_path / x / name).read_bytes().decode("utf-8") for x in ("plain", "hostile")]
        for name in ("LEADERBOARD.md", "leaderboard.csv", "leaderboard.tex", "leaderboard.html")
    }
    elements = [sorted(set(Cells(x).elements)) for x in read["leaderboard.html"]]
    assert elements[0] == elements[1]
    commands = [set(re.findall(r"\\[A-Za-z]+", x)) for x in read["leaderboard.tex"]]
    assert commands[1] - commands[0] <= {
        rf"\text{name}" for name in "backslash less greater quotedbl bar".split()
    }
    # Every row is one line with as many cells, in which all is text.
    rows, hostile_rows = map(_markdown_rows, read["LEADERBOARD.md"])
    assert len(rows) == len(hostile_rows) == len(texts)
    assert {row["by"] for row in hostile_rows} == {tables.text(text).strip() for text in texts}
    page = read["LEADERBOARD.md"][1].partition("## ")[2]
    assert not re.search(r"(?<!\\)<[a-z/!]|(?<!\\):(?=//)", page)
    csv = pd.read_csv(tmp_path / "hostile" / "leaderboard.csv")
    assert len(csv) == len(texts)
    for name in ("submitter", "architecture", "device", "family"):
        # But for the quotes that keep text from being a formula.
        assert sorted(x.replace("'", "") for x in csv[name]) == sorted(
            text.replace("'", "") for text in texts
        )
        assert not any(x.startswith("=") for x in csv[name])


def test_a_board_without_entries_says_so(tmp_path):
    plain = Run(task=Associations(vocab_size=5), architecture=ATTENTION)
    others = results.to_table([_row(plain, bits=1.0)])
    for table in (others, others.iloc[:0]):
        folder = tmp_path / str(len(table))
        text = leaderboard.write(table, folder)
        assert "No run of the standard board is in this folder" in text
        assert list(pd.read_csv(folder / "leaderboard.csv").columns) == board.COLUMNS
        assert "No entries yet" in (folder / "leaderboard.html").read_text("utf-8")
        assert r"\begin{table}" not in (folder / "leaderboard.tex").read_text("utf-8")
        assert (folder / "CONFIGURATIONS.md").exists()


# Attention against MLP by exposures.

SEEN = (64, 256, 1024)


@functools.cache
def _exposed(name):
    """The specs and true numbers of parameters of a part of the experiment's runs."""
    rows = [_row(run) for run in EXPERIMENTS[name].presets["quick"]]
    rows = [row for row in rows if _seen(row) in SEEN]
    return results.to_table(rows).drop(columns=["bits", "memorized"])


def _seen(row):
    return row["epochs"] if row["protocol"] == "passes" else row["steps"]


def _exposures(ratio, noise=0.01, best_rate=1e-2, name="capacity/exposure", **ratios):
    """What attention holds over the MLP, at one learning rate; others hold half as much.

    Seeds deviate by as much as `noise`. `ratios` are at other exposures than all, as n64=0.5.
    """
    table = _exposed(name)
    at = table.apply(lambda row: ratios.get(f"n{_seen(row)}", ratio), axis=1)
    held = at.where(table["architecture"] == "attention_only", 1.0)
    held = held.where(table["heads"] == "full", 0.1)
    held *= np.where(table["learning_rate"] == best_rate, 1, 0.5)
    # What both families share by seed would cancel.
    own = np.where(table["architecture"] == "attention_only", 1.0, -0.5)
    held *= 1 + noise * own * (table["seed"] - table["seed"].mean())
    return table.assign(memorized=0.3 * held * table["n_params"], bits=held * table["n_params"])


def _full(table):
    return table[table["heads"] == "full"]


EQUAL = (0.91, 1.1)


@pytest.mark.parametrize("measure", ["memorized", "bits"])
@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [
        (1.0, 0.01, claims.HOLDS),
        (0.5, 0.01, claims.FAILS),
        (1.5, 0.01, claims.FAILS),
        (1.05, 0.3, claims.UNDECIDED),
    ],
)
def test_attention_over_mlp(ratio, noise, verdict, measure):
    test = claims.attention_over_mlp(1024, EQUAL, measure)
    finding = test(_full(_exposures(ratio, noise)))
    assert finding.verdict == verdict
    assert finding.low < finding.estimate < finding.high
    if noise < 0.1:
        assert finding.estimate == pytest.approx(ratio, rel=0.02)
        assert finding.high - finding.low < 0.1 * ratio
    assert f"{measure} per parameter, attention over MLP at 1,024 exposures" in finding.evidence


def test_an_exposure_is_a_pass_or_a_step_over_all():
    each = {"n64": 0.5, "n256": 1.6, "n1024": 1.0}
    for name in ("capacity/exposure", "capacity/exposure-passes"):
        found = exposure_claims.ratios(_full(_exposures(1.0, name=name, **each)), "bits")
        assert {f"n{n}": round(ratio_B[0], 1) for n, (ratio_B, _) in found.items()} == each


def test_each_family_has_its_best_learning_rate_at_every_exposure():
    table = _full(_exposures(0.8, noise=1e-4, n64=0.4))
    # Attention alone is better off with another one.
    other = (table["architecture"] == "attention_only") & (table["learning_rate"] == 3e-2)
    held = table["memorized"].where(~other, 0.9 * 0.3 * table["n_params"])
    finding = claims.attention_over_mlp(1024, EQUAL)(table.assign(memorized=held))
    assert finding.estimate == pytest.approx(0.9, rel=0.02)
    assert "64: 0.90; 256: 0.90; 1,024: 0.90" in finding.evidence
    finding = claims.attention_over_mlp(64, (-math.inf, 2 / 3))(table)
    assert finding.verdict == claims.HOLDS
    assert finding.estimate == pytest.approx(0.4, rel=0.02)


def test_too_few_points_decide_nothing():
    table = _full(_exposures(1.0))
    test = claims.attention_over_mlp(1024, EQUAL)
    for few in (
        table[table["architecture"] == "mlp"],
        table[table["steps"] < 1024],
        table[(table["architecture"] == "mlp") | (table["steps"] < 1024)],
        table.iloc[:0],
    ):
        finding = test(few)
        assert finding.verdict == claims.UNDECIDED
        assert "too few points: both families at 1,024 exposures" in finding.evidence
    two = test(table[table["seed"] < 2])
    assert two.verdict == claims.UNDECIDED
    assert "2 seeds; at least 3 are needed" in two.evidence


@pytest.mark.parametrize("measure", ["memorized", "bits"])
def test_over_nothing_there_is_no_ratio(tmp_path, measure):
    table = _exposures(1.0)
    at = [table["steps"] == 64, table["steps"] <= 1024]
    for where in at:
        nothing = where & (table["architecture"] == "mlp")
        spoiled = table.assign(**{measure: table[measure].where(~nothing, 0.0)})
        finding = claims.attention_over_mlp(64, (-math.inf, 2 / 3), measure)(_full(spoiled))
        assert finding.verdict == claims.UNDECIDED
        assert math.isnan(finding.estimate)
        later = claims.attention_over_mlp(1024, EQUAL, measure)(_full(spoiled))
        assert later.verdict == (claims.HOLDS if where is at[0] else claims.UNDECIDED)
        rows = _markdown_rows("\n".join(Exposure().sections(spoiled)))
        (row,) = [x for x in rows if (x["measure"], x["exposures"]) == (measure, "64")]
        assert (row["attention / MLP"], row["says"]) == ("–", "undecided")
        Exposure().draw(TITLED, "full", spoiled, tmp_path / "nothing.png")
        _drawn(tmp_path / "nothing.png")


def test_a_run_that_diverged_is_no_rate_to_choose():
    table = _full(_exposures(1.0))
    wild = table["learning_rate"] == 1e-1
    table = table.assign(status=table["status"].where(~wild, "diverged"))
    table.loc[wild, ["memorized", "bits", "accuracy", "accuracy_protocol", "loss"]] = np.nan
    finding = claims.attention_over_mlp(1024, EQUAL)(table)
    assert finding.verdict == claims.HOLDS


def test_the_section_says_who_is_ahead():
    table = _exposures(1.0, n64=0.5, n256=1.6)
    text = "\n".join(Exposure().sections(table))
    rows = _markdown_rows(text)
    told = {(x["measure"], x["exposures"]): x["says"] for x in rows}
    words = {"64": "MLP ahead", "256": "attention ahead", "1,024": "equal"}
    assert told == {(m, n): word for m in exposure.MEASURES for n, word in words.items()}
    for row in rows:
        low, ratio, high = (float(row[x]) for x in ("low", "attention / MLP", "high"))
        assert low <= ratio <= high
    assert float(rows[0]["attention / MLP"]) == pytest.approx(0.5, abs=0.02)
    noisy = _markdown_rows("\n".join(Exposure().sections(_exposures(1.0, noise=0.5))))
    assert {x["says"] for x in noisy} == {"undecided"}


def _drawn(path):
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000


def test_figures_are_drawn(tmp_path):
    rows = [*_three(), *_rows(COMPRESSED, lower_bound=True, bits=900.0)]
    table = results.to_table(rows)
    Forest().draw(TITLED, "full", table, tmp_path / "forest.png")
    Exposure().draw(TITLED, "full", _exposures(0.9, n64=0.4), tmp_path / "exposure.png")
    widths = [
        _row(run, complete_99=4 * run.architecture.d_model**2 * (1 + 0.05 * run.seed))
        for d in (4, 8, 16)
        for run in board.searches(dataclasses.replace(MLP, d_model=d, d_head=d), N, BUDGET, seeds=3)
    ]
    guides = (("4 d²", lambda d: 4 * d**2), ("d² / ln d", lambda d: d**2 / np.log(d)))
    shown = Scaling(x="d_model", y="complete_99", guides=guides)
    shown.draw(TITLED, "full", results.to_table(widths), tmp_path / "scaling.png")
    for name in ("forest", "exposure", "scaling"):
        _drawn(tmp_path / f"{name}.png")


def test_a_forest_of_nothing_is_drawn(tmp_path):
    nothing = results.to_table(_rows()).iloc[:0]
    Forest().draw(TITLED, "full", nothing, tmp_path / "forest.png")
    assert (tmp_path / "forest.png").read_bytes().startswith(b"\x89PNG")


def test_the_published_board_is_what_its_published_runs_make(tmp_path):
    folder = pathlib.Path(__file__).parents[1] / "results"
    git = shutil.which("git")
    if (
        git
        and subprocess.run(
            [git, "status", "--porcelain", "."], cwd=folder, capture_output=True
        ).stdout
    ):
        pytest.skip("results/ holds more than is published: `make bench` wrote there")
    texts = dict.fromkeys(("run_id", "commit", "rate_factors"), str)
    listed = sorted(folder.glob("**/board/*_runs.csv"))
    runs = pd.concat([pd.read_csv(path, dtype=texts) for path in listed], ignore_index=True)
    whole = results.to_table(runs.drop_duplicates("run_id").to_dict("records"))
    tables.write_csv(board.build(whole), tmp_path / "board.csv")
    keys = ["submitter", "track", "family", "budget", "vocab_size", "n_params", "theorem"]
    made, published = (
        pd.read_csv(path).sort_values([*keys, "bits"], ignore_index=True)
        for path in (tmp_path / "board.csv", folder / "leaderboard.csv")
    )
    assert len(published) >= 30
    # Tables of runs have six digits, of which differences keep fewer.
    pd.testing.assert_frame_equal(made, published, rtol=1e-3, atol=1e-4)
