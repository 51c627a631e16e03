"""Published tables hold runs of their experiments, and verdicts follow from them."""

import csv
import pathlib

import numpy as np
import pandas as pd
import pytest

import memobench
from memobench import claims
from memobench.analysis import seeds as analysis
from memobench.core.cells import cells, from_cells, spec_columns
from memobench.core.spec import SPEC_VERSION
from memobench.experiments import EXPERIMENTS
from memobench.report import tables
from memobench.store import published as table
from memobench.store import results
from memobench.store.rows import all_columns
from tests.command_line import command_line

pytestmark = pytest.mark.published

PUBLISHED = pathlib.Path(__file__).parents[2] / "results"
RUNS, VERDICTS = (
    sorted(str(path.relative_to(PUBLISHED)) for path in PUBLISHED.glob(f"**/*_{what}.csv"))
    for what in ("runs", "verdicts")
)


def _experiment(name):
    """The experiment of a published file, and its preset."""
    path = pathlib.PurePath(name)
    experiment = EXPERIMENTS["/".join(path.parts[-2:]).rpartition("_")[0]]
    folder = path.parts[0]
    if len(path.parts) == 2:
        return experiment, "quick"
    return experiment, "full" if folder == "five-seeds" else folder


def _value(text):
    """A cell of a table as a value."""
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    try:
        return float(text)
    except ValueError:
        return text


def _read(path):
    texts = ("run_id", "rate_factors", "shares", "start")
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            read = {name: (x or None) if name in texts else _value(x) for name, x in row.items()}
            yield {name: read.get(name) for name in spec_columns()}, row


@pytest.mark.parametrize("name", RUNS)
def test_published_rows_are_runs_of_their_experiment(name):
    experiment, preset = _experiment(name)
    declared = {run.run_id for run in experiment.presets[preset]}
    seen = set()
    for spec, row in _read(PUBLISHED / name):
        run = from_cells(spec)
        assert run.run_id == row["run_id"]
        assert cells(run) == spec
        assert int(row["spec_version"]) == SPEC_VERSION
        seen.add(run.run_id)
    assert seen
    assert seen <= declared


def test_tables_of_runs_hold_specs_with_all_their_digits(make_run, tmp_path):
    rate = 0.003 * 0.05
    assert f"{rate:.6g}" != repr(rate)
    method = memobench.Training(learning_rate=0.003, final_learning_rate=rate)
    annealed = memobench.Annealing()
    many = memobench.LabelledContexts(n_examples=2**21)
    runs = [make_run(method=method), make_run("query_attention", task=many, method=annealed)]
    runs.append(make_run("mlp", d_mlp=3))
    made = results.to_table([{**cells(run), "loss": 1 / 3, "accuracy": 1.0} for run in runs])
    tables.write_runs(made, tmp_path / "runs.csv")
    read = list(_read(tmp_path / "runs.csv"))
    assert [from_cells(spec) for spec, _ in read] == runs
    assert [row["loss"] for _, row in read] == ["0.333333"] * 3
    again = table.read(tmp_path / "runs.csv")
    assert [from_cells(row) for row in again.to_dict("records")] == runs
    assert again["accuracy"].tolist() == [1.0] * 3


def test_every_published_run_is_there_by_the_name_of_its_experiment():
    """Once, whichever presets have it, and with the values that a shard has."""
    found = table.files()
    assert sorted(str(x.relative_to(PUBLISHED)) for y in found.values() for x in y.values()) == RUNS
    for name in ("board/typical", "dana2025/heads"):
        ids = {row["run_id"] for path in found[name].values() for _, row in _read(path)}
        rows = memobench.published(name)
        assert sorted(rows["run_id"]) == sorted(ids)
        for column, domain in ((x.name, x.domain) for x in all_columns().values()):
            assert all(map(domain.holds, rows[column].dropna())), column
        of_presets = [memobench.published(name, preset) for preset in found[name]]
        assert sum(map(len, of_presets)) >= len(rows) >= max(map(len, of_presets))


def test_rows_of_papers_of_patterns_and_of_all():
    known = memobench.published()
    assert [*zip(known["experiment"], known["preset"], strict=True)] == [
        (name, preset) for name, presets in table.files().items() for preset in presets
    ]
    assert set(memobench.published(preset="paper")["preset"]) == {"paper"}
    ids = {
        name: set(memobench.published(name, "quick")["run_id"])
        for name in ("mahdavi2024", "mahdavi2024/depth", "mahdavi2024/*-heads", "*")
    }
    assert ids["mahdavi2024/depth"] < ids["mahdavi2024"] < ids["*"]
    assert ids["mahdavi2024/*-heads"] < ids["mahdavi2024"]
    rows = memobench.published("mahdavi2024/depth")
    (counted,) = known["runs"][known["experiment"] == "mahdavi2024/depth"]
    assert counted == len(rows)
    memobench.summarize(memobench.published("*"), "bits")


def test_rows_of_one_architecture_are_told_apart_by_family():
    rows = memobench.published("board/typical", "bench")
    mlps = rows[rows["architecture"] == "mlp"]
    by_heads = mlps.groupby("family")["n_heads"].agg(["min", "max"])
    assert by_heads.loc["MLP"].tolist() == [1, 1]
    assert by_heads.loc["attention + MLP, narrow heads", "min"] > 1


def test_published_rows_are_found_by_their_runs_whatever_has_published_them():
    of_slopes = {run.run_id for run in EXPERIMENTS["dana2025/slopes"].runs("paper")}
    of_heads = {run.run_id for run in EXPERIMENTS["dana2025/heads"].runs("quick")}
    found = table.rows_of(of_slopes | of_heads | {"none"})
    assert set(found["run_id"]) == of_slopes | of_heads
    assert found["run_id"].is_unique
    assert table.rows_of({"none"}) is None


def test_a_run_may_leave_out_what_is_published(tmp_path):
    texts = ((PUBLISHED / name).read_text("utf-8").splitlines() for name in RUNS)
    ids = {row["run_id"] for text in texts for row in csv.DictReader(text)}
    runs = EXPERIMENTS["dana2025/heads"].runs("full")
    line = ["run", "dana2025/heads", "--preset=full", "--dry_run"]
    done = command_line(*line, "--unpublished", cwd=tmp_path)
    left = [run for run in runs if run.run_id not in ids]
    assert 0 < len(left) < len(runs)
    assert f"{len(left)} runs in" in done.stdout
    assert f"{len(runs)} runs in" in command_line(*line, cwd=tmp_path).stdout


def test_what_is_not_published_gets_a_line_that_lists_what_is():
    with pytest.raises(memobench.UserError, match="did you mean board/typical"):
        memobench.published("board/tipical")
    with pytest.raises(memobench.UserError, match=r"choose one of .*dana2025/heads, "):
        memobench.published("x")
    with pytest.raises(
        memobench.UserError, match=r"'huge' of board/shapes .* choose one of .*quick, large"
    ):
        memobench.published("board/shapes", "huge")


def _known(name):
    """The table of runs that belongs to a file of verdicts."""
    return analysis.add_theory(table.read(PUBLISHED / name.replace("_verdicts", "_runs")))


def _verdicts(name, known):
    experiment, preset = _experiment(name)
    published = pd.read_csv(PUBLISHED / name, keep_default_na=False)
    seeds = int(published["seeds"].max()) if len(published) else None
    tested = experiment.claims_of(preset)
    return claims.verdicts(tested, known, experiment.specs(preset, seeds)), published


def verdicts_agree(made, published):
    assert len(made) == len(published)
    for column in ("claim", "variant", "steps", "seeds", "verdict", "doubling"):
        assert made[column].tolist() == published[column].tolist()
    # Tables of runs have six digits, of which differences keep fewer.
    for column in ("estimate", "low", "high", "claimed", "least", "most"):
        kept = pd.to_numeric(published[column]).to_numpy(float)
        assert made[column].to_numpy(float) == pytest.approx(kept, rel=1e-3, abs=1e-4, nan_ok=True)


@pytest.mark.parametrize(
    "name",
    [
        "capacity/exposure_verdicts.csv",
        "dana2025/distributions_verdicts.csv",
        "dana2025/embedding-dimension_verdicts.csv",
        "mahdavi2024/depth_verdicts.csv",
    ],
)
def test_without_some_runs_a_claim_is_undecided_or_as_it_was(name):
    known, random = _known(name), np.random.default_rng(0)
    whole, _ = _verdicts(name, known)
    whole = whole.set_index(["claim", "variant", "steps"])
    for kept in (0.3, 0.9, 1 - 1 / len(known)):
        some, _ = _verdicts(name, known.sample(frac=kept, random_state=random))
        for row in some.set_index(["claim", "variant", "steps"]).itertuples():
            undecided = row.verdict == claims.UNDECIDED and " missing, of " in row.evidence
            before = whole.loc[row.Index] if row.Index in whole.index else None
            assert undecided or (before["verdict"], before["evidence"]) == row[2:4], row


def test_no_claim_on_what_was_trained_is_decided_by_fewer_than_three_seeds():
    found = pd.concat([pd.read_csv(PUBLISHED / name) for name in VERDICTS])
    few = found[found["seeds"] < claims.MIN_SEEDS]
    assert not few.empty
    # An optimum is found in double precision and is the same for every seed; weights are made.
    decided = set(few.loc[few["verdict"] != claims.UNDECIDED, "variant"])
    assert decided == {claims.OPTIMUM, claims.CONSTRUCTED}


def test_a_claim_on_exposures_sees_every_learning_rate():
    """Of 450 runs with five rates 270 once turned a verdict from fails to holds."""
    name = "full/capacity/exposure_verdicts.csv"
    known = _known(name)
    rates = sorted(set(known["learning_rate"]))
    some, published = _verdicts(name, known[known["learning_rate"].isin(rates[:3])])
    assert len(some) == len(published)
    assert set(some["verdict"]) == {claims.UNDECIDED}
    assert some["evidence"].str.contains("runs are missing").all()
