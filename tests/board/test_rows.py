"""Rows of the standard board: what they say of runs and weights, and how they are ranked."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import memobench
from memobench import theory
from memobench.board import capacity_summary, peak
from memobench.board import table as board
from memobench.experiment import load_experiments, load_file
from memobench.experiments.board import typical
from memobench.models.transformer import MLP
from memobench.store import results
from tests.board.test_submissions_own import OWN
from tests.entries import BOTH, BUDGET, HEADS, NEURONS, build, counted, made, overfull, three


@pytest.mark.parametrize(
    ("smaller", "is_marked"), [([1] * 9 + [0], False), ([1] * 8 + [0] * 2, True), ([0] * 4, False)]
)
def test_sets_that_half_know_are_marked_where_a_fifth_of_smaller_ones_are_not(smaller, is_marked):
    half = overfull(typical.run(HEADS, BUDGET))
    # By most of them some 60; of four sets far below nothing is said.
    trials = [[n, int(n < 60)] for n in (54, 56, 58, 59, 61, 62, 64, 66)] * 4
    half["complete_trials"] = [*([30, known] for known in smaller), *trials][: len(trials)]
    (row,) = build([made(board.run(HEADS, BUDGET), 300.0), half]).to_dict("records")
    assert 50 < row["half_99"] < 70
    assert board.COLUMNS["half_99"].text(row).endswith(board.FAILED) == is_marked
    assert row["failed"] == 0


def test_users_find_the_run_of_an_entry_without_a_module_of_its_own():
    assert memobench.board_run(NEURONS, BUDGET) == board.run(NEURONS, BUDGET)


def test_rows_say_what_runs_and_weights_say():
    rows = three()
    half = overfull(typical.run(HEADS, BUDGET))
    # Of an MLP there are no trials, and of both runs only those under another protocol.
    brief = typical.run(NEURONS, BUDGET).method.replace(
        threshold_trials=0, trial_pilots=None, give_up=None
    )
    others = [
        overfull(dataclasses.replace(typical.run(NEURONS, BUDGET), method=brief)),
        overfull(typical.run(BOTH, BUDGET, typical.PUBLISHED)),
    ]
    weights = [
        counted(HEADS, bits=330.0, track="exact", weights="a"),
        counted(HEADS, bits=200.0, track="exact", weights="b", n_examples=50, known=50),
        counted(HEADS, bits=390.0, submitter="Ada", weights="c", known=256, n_examples=256),
        counted(NEURONS, bits=60.0, track="constructed", theorem="dana2025", weights="d"),
    ]
    found = build([*rows, half, *others], weights)
    # Options that no entry has are no columns.
    assert list(found.columns) == [*board.names(), "activation", "heads"]
    assert set(found["version"]) == {"v3"}
    exact = found[found["track"] == "exact"].set_index("architecture")
    assert exact["family"].tolist() == ["attention + MLP", "MLP", "attention-only, full heads"]
    summary = peak.peaks(results.to_table(rows)).set_index("family")
    # Of 258, 257 and 246 parameters, whatever else rows say.
    freedom = {"attention + MLP": 207, "MLP": 224, "attention-only, full heads": 159}
    for row in exact.to_dict("records"):
        by_hand = summary.loc[row["family"]]
        for end in ("", "_low", "_high"):
            per = by_hand[f"bits{end}"]
            assert row[f"bits_per_parameter{end}"] == pytest.approx(per)
        per_freedom = by_hand["bits"] * row["n_params"] / freedom[row["family"]]
        assert row["bits_per_degree_of_freedom"] == pytest.approx(per_freedom)
        # The third of five sizes, of 160, and the second of the learning rates.
        assert (row["set_size"], row["share_known"], row["learning_rate"]) == (160, 0.5, 0.02)
        assert row["set_size_per_parameter"] == pytest.approx(160 / row["n_params"])
        # As large as the budget it is the fifth.
        overfull_bits = 0.9 * row["bits_per_parameter"]
        assert row["overfull_bits_per_parameter"] == pytest.approx(overfull_bits)
        assert (row["tables"], row["failed"], row["by"]) == (24, 0, "memobench")
    estimate = capacity_summary.summarize(results.to_table([half])).iloc[0]
    for name in ("half_99", "half_99_low", "half_99_high"):
        assert exact.loc["attention_only", name] == estimate[name]
        assert exact[name].isna().sum() == 2
    heads = exact.loc["attention_only"]
    assert heads["certified_bits_per_parameter"] == pytest.approx(330 / heads["n_params"])
    assert heads["bits_per_byte"] == pytest.approx(330 / heads["n_params"])
    assert (heads["certified_set"], heads["weights"]) == (50, "a")
    assert exact["certified_bits_per_parameter"].isna().sum() == 2
    made = found[found["track"] == "constructed"]
    assert made["theorem"].tolist() == ["dana2025"]
    # All weights are on the open track, each under the name of who found them.
    opened = found[found["track"] == "open"]
    assert opened["by"].tolist() == ["Ada", "memobench", "memobench"]
    assert opened["weights"].tolist() == ["c", "a", "d"]
    assert opened["rank_low"].tolist() == opened["rank_high"].tolist() == [1, 2, 3]
    assert opened["certified_set"].iloc[0] == 256


def test_what_cannot_be_told_apart_shares_a_rank():
    far, near = three(), three()
    near[1] = made(board.run(NEURONS, BUDGET), 499.0)
    assert build(far)["rank_high"].tolist() == [1, 2, 3]
    found = build(near)
    assert found["rank_low"].tolist() == [1, 1, 3]
    assert found["rank_high"].tolist() == [2, 2, 3]
    assert board.COLUMNS["rank"].text(found.iloc[0]) == "1–2"
    equal = build(far[:0], [counted(HEADS), counted(HEADS, submitter="Ada")])
    assert equal["rank_low"].tolist() == [1, 1]
    assert equal["rank_high"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("bits", "by", "low", "high"),
    [
        # Of our own weights, which are counted, any difference counts.
        ([300.1, 300.0, 299.0], ["memobench"] * 3, [1, 2, 3], [1, 2, 3]),
        # Nobody passes one of ours by less than the margin, nor ours one of theirs.
        ([300.0, 300.1], ["memobench", "Ada"], [1, 1], [2, 2]),
        ([300.0, 299.9], ["memobench", "Ada"], [1, 1], [2, 2]),
        ([300.0, 305.9], ["memobench", "Ada"], [1, 1], [2, 2]),
        ([306.1, 300.0], ["Ada", "memobench"], [1, 2], [1, 2]),
        ([301.0, 300.0, 200.0], ["Ada", "Bob", "memobench"], [1, 1, 3], [2, 2, 3]),
        # What passes the one shares ranks with the other.
        ([309.0, 304.0, 300.0], ["Ada", "Bob", "memobench"], [1, 1, 2], [2, 3, 3]),
        ([0.0, 0.0], ["memobench", "Ada"], [1, 1], [2, 2]),
    ],
)
def test_weights_of_others_rank_above_those_that_they_pass_by_a_margin(bits, by, low, high):
    assert board.MARGIN == 0.02
    shapes = [HEADS, NEURONS, BOTH][: len(bits)]
    n_params = 256  # As bits per parameter are compared.
    rows = [
        counted(architecture, bits=x, submitter=whose, bits_per_parameter=x / n_params)
        for architecture, x, whose in zip(shapes, bits, by, strict=True)
    ]
    found = build([], rows[::-1])
    # Whatever the order of the files: as the case has them.
    assert found["by"].tolist() == by
    assert found["rank_low"].tolist() == low
    assert found["rank_high"].tolist() == high


def test_architectures_that_are_not_ours_are_listed_apart(tmp_path):
    """One weight for each pair knows the whole set; on the open track it would be first."""
    (tmp_path / "own.py").write_text(OWN)
    load_file(tmp_path / "own.py")
    own = memobench.OwnTable(d_model=1)
    found = build([], [counted(bits=330.0), counted(own, bits=1024.0, submitter="Ada")])
    assert found["track"].tolist() == [board.OPEN, board.OPEN_OWN]
    assert found["by"].tolist() == ["memobench", "Ada"]
    assert found["rank_high"].tolist() == [1, 1]


def test_budgets_and_tracks_are_ranked_by_themselves():
    other = MLP(d_model=4, d_head=4, d_mlp=20, heads="full")
    found = build([*three(), made(board.run(other, 512), 1000.0)], [counted()])
    places = found.groupby(["budget", "track"])["rank_low"].apply(list).to_dict()
    assert places == {(256, "exact"): [1, 2, 3], (256, "open"): [1], (512, "exact"): [1]}


def test_weights_of_tracks_that_are_gone_are_on_the_open_one():
    found = build([], [counted(track="published")])
    assert found["track"].tolist() == ["open"]


def test_weights_of_the_largest_set_of_a_peak_count():
    """Of 640 associations where parameters are 512."""
    own = MLP(d_model=4, d_head=4, d_mlp=20, heads="full")
    task = peak.task(512)
    assert task.n_examples == 640
    found = build([], [counted(own, 512) | {"n_sequences": 640, "n_examples": 640}])
    assert found["budget"].tolist() == [512]


def test_rows_of_the_reader_are_beside_ours_and_ranked_with_them():
    rows = [*three(), *three()]
    found = build(rows, by=["memobench"] * 3 + ["you"] * 3)
    assert found["by"].value_counts().to_dict() == {"memobench": 3, "you": 3}
    assert found["rank_low"].tolist() == [1, 1, 3, 3, 5, 5]
    # The same run twice is one.
    assert len(build(rows)) == 3


def test_what_is_no_entry_is_left_out_and_named_where_it_is_foreign(caplog):
    rows = three()
    rows[0] |= {"architecture": "theirs"}
    rows[1] |= {"status": "diverged"}
    foreign = [counted(seed=board.LABEL_TABLES[BUDGET]), counted(architecture=HEADS, n_params=900)]
    foreign += [counted() | {"architecture": "theirs"}]
    found = build(rows, [*foreign, counted(bits=222.0)])
    assert found["architecture"].tolist() == ["attention_only", "attention_only"]
    assert found["track"].tolist() == ["exact", "open"]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert all(line.startswith("left out of the board: ") for line in said)
    assert "must be one of the 96 label tables" in " ".join(said)


def test_a_size_that_the_model_does_not_have_is_not_ranked(tmp_path, caplog):
    """Rows and weights of before it was refused in training."""
    (tmp_path / "own.py").write_text(
        OWN.replace("d_model: int", "d_model: int = 1").replace(", self.d_model", "")
    )
    load_file(tmp_path / "own.py")
    own = memobench.OwnTable(d_model=9)
    usual = board.run(HEADS, BUDGET)
    run = memobench.Run(task=usual.task, architecture=own, method=usual.method)
    assert len(build([made(run)], [counted(own)])) == 0
    for record in caplog.records:
        assert "architecture own_table: d_model changes nothing: " in record.getMessage()
    assert len(caplog.records) == 2


def test_what_is_impossible_is_no_entry():
    with pytest.raises(theory.Violation):
        build([made(board.run(HEADS, BUDGET), bits=256 * 40.0)])


def test_no_run_and_no_weights_make_no_row():
    empty = build([])
    assert list(empty.columns) == board.names()
    assert empty.empty


def test_equal_differences_of_tables_tell_no_entries_apart():
    known_T = np.linspace(1.5, 2.5, 6)
    for other_T in (known_T, known_T + 0.1):
        assert capacity_summary.p_value_of_equal(known_T, other_T, 0.0, paired=True) == 1
    other_T = np.linspace(1.0, 2.2, 6)
    assert capacity_summary.p_value_of_equal(known_T, other_T, 0.0, paired=True) < 0.05
    assert capacity_summary.p_value_of_equal(known_T, other_T, 0.0, paired=False) > 0.05


def test_entries_of_other_label_tables_are_not_compared_table_by_table():
    """One knows 0.02 more of each table than the other; tables differ by more."""
    known_T = np.linspace(1.0, 1.2, 24)
    noise_T = 0.001 * (np.arange(24) % 3)
    entries = pd.DataFrame({"model": None, "bits_T": [known_T, known_T - 0.02 + noise_T]})
    for drawn in ({}, {"task_seed": 0}, {"task_seed": 0, "vocab_size": 16}):
        assert capacity_summary.rank_entries(entries.assign(**drawn))["rank_low"].tolist() == [1, 2]
    for drawn in ({"task_seed": [0, 1]}, {"task_seed": 0, "vocab_size": [16, 32]}):
        assert capacity_summary.rank_entries(entries.assign(**drawn))["rank_low"].tolist() == [1, 1]


def test_the_preset_of_one_entry_is_ranked():
    (run,) = load_experiments()["board/peak"].runs("entry")
    assert board.track_of(made(run)) == "exact"
