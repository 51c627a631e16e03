"""Capacities of searches: means, gains and verdicts by hand, and how pages show them."""

import math

import pytest

from memobench.analysis import capacities
from memobench.core.cells import cells
from memobench.core.run import Run
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.report import capacity as section_of_pages
from memobench.store import results, rows
from memobench.tasks.associations import Associations
from tests.small import PROVENANCE, markdown_rows

FULL = AttentionOnly(d_model=4, d_head=4, n_heads=4, heads="full")
SEARCH = Search(
    training=Training(epochs=16, batch_size=None, protocol="exact"), rate_factors=(0.3, 1, 3, 10)
)
MEASURED = {
    **{"complete_99": 100, "complete_100": 90, "best_accuracy": 0.5, "rate_factor": 1.0},
    **{"final_steps": 2048, "previous_99": 99, "previous_known": 255, "previous_bits": 1190.0},
    **{"lower_bound": False, "trials": [[1024, 512, 1.0, 256, 256, 1.0]]},
    **{"accuracy": 0.5, "accuracy_protocol": 0.5, "memorized": 250.0, "bits": 1200.0, "loss": 1.0},
    **{"n_params": 500, "n_params_memory": 400, "n_params_distinct": 250, "status": "ok"},
    **{"curve_steps": [1], "curve_accuracy": [0.0], "curve_loss": [1.0], **PROVENANCE},
}
UNKNOWN = dict.fromkeys(("previous_99", "previous_known", "previous_bits"))
DIVERGED = {
    **dict.fromkeys(rows.MEASURES),
    **{"status": "diverged", "complete_99": 0, "complete_100": 0, "best_accuracy": 0.0},
    **{"previous_99": 9, "previous_known": 9, "previous_bits": 9.0},
}


def _table(*each):
    """Three searches of one architecture, or as many as there are fields in which they differ."""
    found = []
    for seed, own in enumerate(each or [{}] * 3):
        task = Associations(vocab_size=32, n_sequences=512, seed=seed)
        run = Run(task=task, architecture=FULL, method=SEARCH, seed=seed)
        found.append({**cells(run), **MEASURED, **own})
    return results.to_table(found)


def _capacity(*each):
    (row,) = capacities.summarize(_table(*each)).to_dict("records")
    return row


def _before(*numbers, name="previous_99"):
    return [{name: n} for n in numbers]


@pytest.mark.parametrize(
    ("each", "verdict"),
    [
        # All have a complete set of 100 and know 256 of 512.
        (_before(99, 99, 99), "converged"),
        # A gain of 2% is one.
        (_before(98.1, 98.1, 98.1), "converged"),
        (_before(98, 98, 98), "not converged"),
        # One run gained a little less than the others lost.
        (_before(105, 105, 90), "converged"),
        # More of the overfull set alone, and more of its 1,200 bits alone.
        (_before(250, 250, 250, name="previous_known"), "not converged"),
        (_before(1170, 1170, 1170, name="previous_bits"), "not converged"),
        # From nothing something, and nothing.
        (_before(0, 0, 0), "not converged"),
        ([{"complete_99": 0, "previous_99": 0}] * 3, "converged"),
        # What was never doubled enters neither side: with 300 of 198 all would have gained.
        ([UNKNOWN] * 3, "not converged"),
        ([UNKNOWN, {}, {}], "converged"),
        # Who diverged would do so or not with twice the steps.
        ([{}, {}, DIVERGED], "not converged"),
        ([{"lower_bound": True, **UNKNOWN}, {}, {}], "lower bound"),
        # Tasks without bits gain none in bits.
        ([{"bits": None}] * 3, "converged"),
    ],
)
def test_verdicts(each, verdict):
    assert _capacity(*each)["verdict"] == verdict


def test_means_intervals_and_gains_by_hand():
    row = _capacity(
        {"complete_99": 100, "previous_99": 97, "rate_factor": 0.3},
        {"complete_99": 110, "previous_99": 110, "rate_factor": 3.0},
        {"complete_99": 120, "previous_99": 118, "rate_factor": 10.0},
    )
    assert (row["seeds"], row["complete_99"]) == (3, 110)
    # Student's quantile with two degrees of freedom times 10 over the root of 3.
    assert row["complete_99_interval"] == pytest.approx(4.302653 * 10 / math.sqrt(3), rel=1e-6)
    # Equal numbers show no spread.
    assert math.isnan(row["memorized_interval"])
    gains = [row[f"gain_{name}"] for name in ("99", "known", "bits")]
    assert gains == pytest.approx([330 / 325 - 1, 256 / 255 - 1, 1200 / 1190 - 1])
    assert row["rate_at_edge"] == pytest.approx(2 / 3)
    promised = FULL.n_heads * FULL.d_head + FULL.d_model
    assert row["complete_99_over_proven"] == pytest.approx(110 / promised)


def test_a_rate_at_the_edge_is_one_in_tables_too():
    """They list it with six digits."""
    row = _capacity(*[{"rate_factors": "0.3333333333333333 1.0 3.0", "rate_factor": 0.333333}] * 3)
    assert row["rate_at_edge"] == 1


def test_a_run_that_diverged_enters_no_mean():
    row = _capacity({"complete_99": 100}, {"complete_99": 110}, DIVERGED)
    assert (row["seeds"], row["diverged"], row["bits"], row["complete_99"]) == (2, 1, 1200, 105)
    assert row["gain_99"] == pytest.approx(210 / 198 - 1)


def test_pages_show_every_convention_of_counting():
    (row,) = markdown_rows("\n".join(section_of_pages.section(_table())))
    # Of 520 parameters of such a model 368 are degrees of freedom, whatever rows say.
    assert [row[f"99% / {x}"] for x in ("all", "memory", "freedom")] == ["0.200", "0.250", "0.272"]
    assert [row[f"bits / {x}"] for x in ("all", "memory", "freedom")] == ["2.40", "3.00", "3.26"]
    assert (row["complete 99%"], row["parameters"], row["seeds"]) == ("100", "500", "3")
    (bound,) = markdown_rows("\n".join(section_of_pages.section(_table({"lower_bound": True}))))
    assert bound["bits"] == "≥ 1,200"
    unsearched = _table().assign(complete_99=None)
    assert section_of_pages.section(unsearched) == []
