"""Attention against MLP by exposures: what is said and drawn of any ratio."""

import functools
import math

import numpy as np
import pytest

from memobench import claims
from memobench.core import module as models
from memobench.core.cells import cells
from memobench.experiments import EXPERIMENTS
from memobench.experiments.capacity import exposure_claims
from memobench.experiments.capacity import exposure_figure as exposure
from memobench.experiments.capacity.exposure_figure import Exposure
from memobench.store import results
from tests.small import PROVENANCE, markdown_rows

SEEN = (64, 256, 1024)
MEASURED = {"status": "ok", "accuracy": 0.5, "accuracy_protocol": 0.5, "loss": 1.0}


@functools.cache
def _exposed(name):
    """The specs and true numbers of parameters of a part of the experiment's runs."""
    rows = [
        {**cells(run), **_counts(run.architecture, run.task), **MEASURED, **PROVENANCE}
        for run in EXPERIMENTS[name].presets["quick"]
    ]
    rows = [row for row in rows if _seen(row) in SEEN]
    return results.to_table(rows).drop(columns=["bits", "memorized"])


@functools.cache
def _counts(architecture, task):
    n_params, n_params_memory = models.count_parameters(architecture.module_for(task), 2)
    return {"n_params": n_params, "n_params_memory": n_params_memory}


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
    test = exposure_claims.attention_over_mlp(1024, EQUAL, measure)
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
    finding = exposure_claims.attention_over_mlp(1024, EQUAL)(table.assign(memorized=held))
    assert finding.estimate == pytest.approx(0.9, rel=0.02)
    assert "64: 0.90; 256: 0.90; 1,024: 0.90" in finding.evidence
    finding = exposure_claims.attention_over_mlp(64, (-math.inf, 2 / 3))(table)
    assert finding.verdict == claims.HOLDS
    assert finding.estimate == pytest.approx(0.4, rel=0.02)


def test_too_few_points_decide_nothing():
    table = _full(_exposures(1.0))
    test = exposure_claims.attention_over_mlp(1024, EQUAL)
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
        finding = exposure_claims.attention_over_mlp(64, (-math.inf, 2 / 3), measure)(
            _full(spoiled)
        )
        assert finding.verdict == claims.UNDECIDED
        assert math.isnan(finding.estimate)
        later = exposure_claims.attention_over_mlp(1024, EQUAL, measure)(_full(spoiled))
        assert later.verdict == (claims.HOLDS if where is at[0] else claims.UNDECIDED)
        rows = markdown_rows("\n".join(Exposure().sections(spoiled)))
        (row,) = [x for x in rows if (x["measure"], x["exposures"]) == (measure, "64")]
        assert (row["attention / MLP"], row["says"]) == ("–", "undecided")
        Exposure().draw(EXPERIMENTS["capacity/exposure"], "full", spoiled).savefig(
            tmp_path / "nothing.png"
        )
        _drawn(tmp_path / "nothing.png")


def test_a_run_that_diverged_is_no_rate_to_choose():
    table = _full(_exposures(1.0))
    wild = table["learning_rate"] == 1e-1
    table = table.assign(status=table["status"].where(~wild, "diverged"))
    table.loc[wild, ["memorized", "bits", "accuracy", "accuracy_protocol", "loss"]] = np.nan
    finding = exposure_claims.attention_over_mlp(1024, EQUAL)(table)
    assert finding.verdict == claims.HOLDS


def test_the_section_says_who_is_ahead():
    table = _exposures(1.0, n64=0.5, n256=1.6)
    text = "\n".join(Exposure().sections(table))
    rows = markdown_rows(text)
    told = {(x["measure"], x["exposures"]): x["says"] for x in rows}
    words = {"64": "MLP ahead", "256": "attention ahead", "1,024": "equal"}
    assert told == {(m, n): word for m in exposure.MEASURES for n, word in words.items()}
    for row in rows:
        low, ratio, high = (float(row[x]) for x in ("low", "attention / MLP", "high"))
        assert low <= ratio <= high
    assert float(rows[0]["attention / MLP"]) == pytest.approx(0.5, abs=0.02)
    noisy = markdown_rows("\n".join(Exposure().sections(_exposures(1.0, noise=0.5))))
    assert {x["says"] for x in noisy} == {"undecided"}


def _drawn(path):
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000


def test_it_is_drawn(tmp_path):
    titled = EXPERIMENTS["capacity/exposure"]
    Exposure().draw(titled, "full", _exposures(0.9, n64=0.4)).savefig(tmp_path / "exposure.png")
    _drawn(tmp_path / "exposure.png")
