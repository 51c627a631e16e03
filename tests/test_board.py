"""The standard board: what is an entry, and what its rows and pages say of runs and weights."""

import dataclasses
import functools
import html.parser
import json
import math
import pathlib
import re

import numpy as np
import pandas as pd
import pytest

from memobench import board, certificates, families, theory, typical
from memobench.certificates import counting
from memobench.errors import UserError
from memobench.models import base as models
from memobench.models.base import Architecture
from memobench.models.gpt import GPT
from memobench.models.transformer import MLP, AttentionOnly
from memobench.report import html as page_of
from memobench.report import latex, leaderboard, tables
from memobench.runs import Run, cells
from memobench.table import results
from memobench.tasks.associations import Associations
from tests.command_line import command_line
from tests.small import PROVENANCE, markdown_rows
from tests.test_html import HOSTILE

PUBLISHED = pathlib.Path(__file__).parents[1] / "results"
BUDGET = 256
HEADS = AttentionOnly(d_model=3, d_head=3, n_heads=4, heads="full")
NEURONS = MLP(d_model=3, d_head=3, d_mlp=17, heads="full")
BOTH = MLP(d_model=3, d_head=3, n_heads=2, d_mlp=12, heads="full")


def _entry(architecture, vocab_size=50):
    """The sizes of an architecture as columns."""
    return cells(Run(task=Associations(vocab_size=vocab_size), architecture=architecture))


@functools.cache
def _n_params(architecture, budget=BUDGET):
    return models.count_parameters(architecture.build(families.task(budget)), 2)[0]


def made(run, level=300.0, spread=10.0, **changed):
    """The row of a capacity run whose label tables differ by `spread` about `level` bits."""
    method = run.method
    random = np.random.default_rng(int(level))
    bits_KxM = level * (1 - 0.1 / 4 ** np.arange(method.rungs))[:, None] + spread * (
        random.standard_normal(method.lanes)
    )
    n_params = changed.get("n_params") or _n_params(run.architecture, run.task.n_examples)
    row = {
        **cells(run),
        **{"n_params": n_params, "n_params_memory": n_params // 2, "n_params_distinct": n_params},
        **{"status": "ok", "bits": bits_KxM[-1].mean(), "accuracy": 0.3, "loss": 1.0},
        **{"memorized": 60.0, "accuracy_protocol": 0.3},
        "rung_steps": method.ladder,
        "rung_rates": [0.01] * method.rungs,
        "rung_bits": bits_KxM.tolist(),
        "rung_known": [[80] * method.lanes] * method.rungs,
        "complete_trials": [[9 + i % 7, int(i % 7 < 3)] for i in range(method.threshold_trials)],
        "pilot_trials": [[3.0, 11, 1]] * method.trial_pilots if method.trial_pilots else None,
        "trial_rate": 0.03 if method.trial_pilots else None,
        "edge_of_rates": False,
        "pilot_bits": [],
        "best_bits": float(bits_KxM.max()),
        "best_complete": 11,
        **{"curve_steps": [1], "curve_accuracy": [0.0], "curve_loss": [1.0]},
        **PROVENANCE,
    }
    return row | changed


def three():
    """Runs of three architectures that know 500, 420 and 300 bits of 256 associations."""
    pairs = ((BOTH, 500.0), (NEURONS, 420.0), (HEADS, 300.0))
    return [made(board.run(architecture, BUDGET), level) for architecture, level in pairs]


def _build(rows, certified=(), **columns):
    return board.build(results.to_table(rows).assign(**columns), certified)


def counted(architecture=HEADS, budget=BUDGET, seed=0, bits=300.0, **changed):
    """What counting says of weights of an architecture."""
    task = families.task(budget, seed)
    n_params = _n_params(architecture, budget)
    per_byte = {"bits_per_byte": bits / n_params / 4, "bits_per_byte_int8": bits / n_params}
    row = {"file": "x.safetensors", "task": task.name, **task.shared_cells(), **task.cells()}
    row |= {"architecture": architecture.name, **architecture.shared_cells()}
    row |= {**architecture.cells(), "n_params": n_params, "known": 70, **per_byte}
    return row | {"bits": bits, "bits_per_parameter": bits / n_params, **changed}


# Entries.


@pytest.mark.parametrize("budget", board.TABLES)
def test_every_run_of_the_board_is_an_entry(budget):
    assert board.TABLES.keys() == families.VOCAB_SIZES.keys()
    for shape in families.shapes(budget)[::9]:
        for track in board.TRAININGS:
            run = board.run(shape, budget, track)
            n_params = _n_params(shape, budget)
            assert board.track_of(made(run, 1.0, 0.0, n_params=n_params)) == track
            assert run.method.tables >= board.LEAST_TABLES


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("task", {"seed": 1}),
        ("task", {"n_sequences": 255}),
        ("task", {"vocab_size": 17}),
        ("architecture", {"n_heads": 9}),
        ("method", {"tables": board.LEAST_TABLES - 1}),
        ("training", {"epochs": 128}),
        ("training", {"trained": "memory"}),
        ("training", {"learning_rate": 0.02}),
        ("method", {"rate_factors": (1.0, 3.0)}),
    ],
    ids=lambda x: str(x),
)
@pytest.mark.parametrize("track", board.TRAININGS)
def test_what_differs_in_task_training_or_budget_is_no_entry(track, place, change):
    run = board.run(HEADS, BUDGET, track)
    if place == "training":
        place, change = "method", {"training": run.method.training.replace(**change)}
    other = dataclasses.replace(run, **{place: getattr(run, place).replace(**change)})
    n_params = models.count_parameters(other.module(), 2)[0]
    # By the exact gradient pilots may try whatever rates they like.
    expected = track if "rate_factors" in change and track == board.EXACT else None
    assert board.track_of(made(other, 1.0, 0.0, n_params=n_params)) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"rung_bits": [[1.0]]},
        {"rung_bits": [[1.0] * 32, [1.0] * 32, [1e300] * 32]},
        {"rung_known": [[1] * 32, [1] * 32, [1] * 31]},
        {"rung_known": None},
        {"complete_trials": [[1]]},
        {"complete_trials": [[0, 1]]},
        {"rung_steps": [1, 2, 3]},
        {"rung_rates": []},
        {"d_model": 5},
    ],
    ids=str,
)
def test_a_row_that_no_run_makes_is_left_out_in_one_line(change, caplog):
    assert board.track_of(made(board.run(HEADS, BUDGET)) | change) is None
    (record,) = caplog.records
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: board.run(NEURONS, 300), "budget=300 is none of the board's; choose one of 256, "),
        (lambda: board.run(NEURONS, BUDGET, "open"), "track='open' is not one of training"),
    ],
)
def test_what_the_board_lacks_is_said_in_one_line(ask, said):
    with pytest.raises(UserError) as error:
        ask()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "n_params", "said"),
    [
        (families.task(256, board.TABLES[256] - 1), 256, ""),
        (families.task(256), 268, ""),
        (families.task(512, 40), 512, "task_seed=40 is none of the 40 label tables of 512"),
        (families.task(8192, 6), 8192, "choose one from 0 to 5"),
        (families.task(256), 269, "n_params=269 is not within 5% of the budget of 256"),
        (Associations(vocab_size=16), 256, "its task is none of the board's"),
        (families.task(256).replace(vocab_size=17), 256, "choose one of 16 tokens at 256, 32 tok"),
    ],
)
def test_weights_without_a_place_hear_why_in_one_line(task, n_params, said):
    reason = board.off_board(task, n_params) or ""
    assert said in reason
    assert bool(reason) == bool(said)
    assert "\n" not in reason


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
    row = _entry(kind(d_model=4, **heads | sizes))
    assert typical.family(row) == name
    assert typical.family({**row, "architecture": "mine", "n_layers": 2}) == "mine, 2 layers"


def test_options_that_are_not_usual_tell_entries_apart():
    plain, other = (GPT(d_model=4, d_head=4, d_mlp=8, **x) for x in ({}, {"activation": "relu"}))
    assert "activation" not in " ".join(plain.shown_sizes)
    assert "activation=relu" in other.shown_sizes


# Rows.


def test_rows_say_what_runs_and_weights_say():
    rows = three()
    weights = [
        counted(HEADS, bits=330.0, track="exact", weights="a"),
        counted(HEADS, bits=200.0, track="exact", weights="b", n_examples=50, known=50),
        counted(HEADS, bits=390.0, submitter="Ada", weights="c", known=256, n_examples=256),
        counted(NEURONS, bits=60.0, track="constructed", theorem="dana2025", weights="d"),
    ]
    found = _build(rows, weights)
    # Options that no entry has are no columns.
    assert list(found.columns) == [*board.names(), "activation", "heads"]
    assert set(found["version"]) == {"v2"}
    exact = found[found["track"] == "exact"].set_index("architecture")
    assert exact["family"].tolist() == ["attention + MLP", "MLP", "attention-only, full heads"]
    summary = typical.summary(results.to_table(rows)).set_index("family")
    for row in exact.to_dict("records"):
        by_hand = summary.loc[row["family"]]
        for end in ("", "_low", "_high"):
            per = by_hand[f"bits{end}"] / row["n_params"]
            assert row[f"bits_per_parameter{end}"] == pytest.approx(per)
            assert row[f"half_99{end}"] == by_hand[f"half_99{end}"]
        assert (row["steps"], row["tables"], row["by"]) == (4096, board.TABLES[BUDGET], "memobench")
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
    assert _build(far)["rank_high"].tolist() == [1, 2, 3]
    found = _build(near)
    assert found["rank_low"].tolist() == [1, 1, 3]
    assert found["rank_high"].tolist() == [2, 2, 3]
    assert board.COLUMNS["rank"].text(found.iloc[0]) == "1–2"
    equal = _build(far[:0], [counted(HEADS), counted(HEADS, submitter="Ada")])
    assert equal["rank_low"].tolist() == [1, 1]
    assert equal["rank_high"].tolist() == [2, 2]


def test_budgets_and_tracks_are_ranked_by_themselves():
    other = MLP(d_model=4, d_head=4, d_mlp=20, heads="full")
    rows = [*three(), made(board.run(HEADS, BUDGET, board.PUBLISHED), 250.0)]
    found = _build([*rows, made(board.run(other, 512), 1000.0)])
    places = found.groupby(["budget", "track"])["rank_low"].apply(list).to_dict()
    assert places == {(256, "exact"): [1, 2, 3], (256, "published"): [1], (512, "exact"): [1]}


def test_rows_of_the_reader_are_beside_ours_and_ranked_with_them():
    rows = [*three(), *three()]
    found = _build(rows, by=["memobench"] * 3 + ["you"] * 3)
    assert found["by"].value_counts().to_dict() == {"memobench": 3, "you": 3}
    assert found["rank_low"].tolist() == [1, 1, 3, 3, 5, 5]
    # The same run twice is one.
    assert len(_build(rows)) == 3


def test_what_is_no_entry_is_left_out_and_named_where_it_is_foreign(caplog):
    rows = three()
    rows[0] |= {"architecture": "theirs"}
    rows[1] |= {"status": "diverged"}
    foreign = [counted(seed=board.TABLES[BUDGET]), counted(architecture=HEADS, n_params=900)]
    foreign += [counted() | {"architecture": "theirs"}]
    found = _build(rows, [*foreign, counted(bits=222.0)])
    assert found["architecture"].tolist() == ["attention_only", "attention_only"]
    assert found["track"].tolist() == ["exact", "open"]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert all(line.startswith("left out of the board: ") for line in said)
    assert "is none of the 96 label tables" in " ".join(said)


def test_what_is_impossible_is_no_entry():
    with pytest.raises(theory.Violation):
        _build([made(board.run(HEADS, BUDGET), bits=256 * 40.0)])


def test_no_run_and_no_weights_make_no_row():
    empty = _build([])
    assert list(empty.columns) == board.names()
    assert empty.empty


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


def test_four_renderings_of_one_board(tmp_path):
    weights = [counted(bits=330.0, track="exact", weights=tmp_path / "w" / "a.safetensors")]
    text = leaderboard.write(three(), results.to_table([]), tmp_path / "out", weights)
    folder = tmp_path / "out"
    found = _build(three(), [{**weights[0], "weights": "../w/a.safetensors"}])
    assert (folder / "LEADERBOARD.md").read_text("utf-8") == text
    assert "## 256 parameters, N = 16" in text
    csv = pd.read_csv(folder / "leaderboard.csv")
    assert list(csv.columns) == list(found.columns)
    numeric = found.select_dtypes("number").columns
    np.testing.assert_allclose(csv[numeric], found[numeric].astype(float), rtol=1e-5)
    assert csv["weights"].dropna().unique().tolist() == ["../w/a.safetensors"]
    first = [column.label for column in board.FIRST]
    assert len(first) == 8
    written = [row for row in markdown_rows(text) if "entry" in row]
    page = Cells((folder / "leaderboard.html").read_text("utf-8"))
    data = json.loads(page.data)["rows"]
    static = [row for row in page.rows if row[0] not in ("rank", "")]
    tex = (folder / "leaderboard.tex").read_text("utf-8")
    assert len(written) == len(data) == len(static) == len(found) == 4
    for row, shown, embedded, plain in zip(
        found.to_dict("records"), written, data, static, strict=True
    ):
        texts = {x.label: x.text(row) for x in board.COLUMNS.values()}
        assert {**texts, **shown} == texts
        assert plain[:8] == [texts[label] for label in first]
        assert embedded["text"] == {x.name: texts[x.label] for x in board.COLUMNS.values()}
        assert embedded["range"]["n_params"] == [row["n_params"]]
        assert f"{latex.escaped(texts['rank'])} & {latex.escaped(row['entry'])} & " in tex
    assert tex.count(r"\begin{table}") == 2


def test_hostile_text_is_text_in_all_renderings(tmp_path):
    # What UTF-8 cannot say is refused where submissions are read.
    texts = [text.encode("utf-8", "replace").decode() for text in HOSTILE]
    for folder, names in (("plain", [f"mine {i}" for i in range(len(texts))]), ("hostile", texts)):
        runs = [made(board.run(HEADS, BUDGET), device=names[0], commit=names[1])]
        weights = [counted(submitter=name, theorem=name, weights=name) for name in names]
        leaderboard.write(runs, results.to_table([]), tmp_path / folder, weights)
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
    rows, hostile_rows = map(markdown_rows, read["LEADERBOARD.md"])
    assert len(rows) == len(hostile_rows) == 1 + len(texts)
    by = {row["by"] for row in hostile_rows if "by" in row}
    assert by == {tables.text(text).strip() for text in texts}
    page = read["LEADERBOARD.md"][1].partition("## 256")[2]
    assert not re.search(r"(?<!\\)<[a-z/!]|(?<!\\):(?=//)", page)
    csv = pd.read_csv(tmp_path / "hostile" / "leaderboard.csv")
    assert not any(str(x).startswith("=") for x in csv.to_numpy().ravel())


def test_a_board_without_entries_says_so(tmp_path):
    text = leaderboard.write([], results.to_table([]), tmp_path)
    assert "No entry of the standard board is here" in text
    assert list(pd.read_csv(tmp_path / "leaderboard.csv").columns) == board.names()
    assert "No entries yet" in (tmp_path / "leaderboard.html").read_text("utf-8")
    assert r"\begin{table}" not in (tmp_path / "leaderboard.tex").read_text("utf-8")


# Published rows, and the command.


def test_the_published_board_is_what_published_runs_and_weights_make(tmp_path):
    runs, weights = leaderboard.published()
    text = leaderboard.write(runs, results.to_table([]), tmp_path, weights)
    written, published = (
        pd.read_csv(folder / "leaderboard.csv").drop(columns="weights")
        for folder in (tmp_path, PUBLISHED)
    )
    pd.testing.assert_frame_equal(written, published, rtol=1e-4)
    assert text == (PUBLISHED / "LEADERBOARD.md").read_text("utf-8")
    read = json.loads(Cells((PUBLISHED / "leaderboard.html").read_text("utf-8")).data)
    made_now = json.loads(json.dumps(page_of.data(_published())))
    assert [row["text"]["entry"] for row in read["rows"]] == [
        row["text"]["entry"] for row in made_now["rows"]
    ]
    for row in read["rows"]:
        weights = row["text"]["weights"]
        assert weights == "–" or (PUBLISHED / weights).exists()


def _published():
    return pd.read_csv(PUBLISHED / "leaderboard.csv")


def test_every_published_entry_has_weights_on_its_track():
    found = _published()
    trained = found[found["track"].isin(("exact", "constructed", "open"))]
    assert trained["weights"].notna().all()
    assert (trained["certified_bits_per_parameter"] > 0).all()
    exact = found[found["track"] == "exact"]
    # No mean is above the best.
    assert (exact["bits_per_parameter"] < exact["certified_bits_per_parameter"]).all()
    assert set(found["track"]) == set(board.TRACKS)


def test_the_command_shows_published_rows_and_ours_with_their_weights(tmp_path):
    """From a folder of shards and weights, beside published tables and submissions."""
    runs = tmp_path / "mine"
    runs.mkdir()
    row = {k: x for k, x in made(board.run(HEADS, BUDGET)).items() if k not in PROVENANCE}
    # A quarter of the steps is no entry.
    run = board.run(NEURONS, BUDGET)
    short = run.method.replace(training=run.method.training.replace(epochs=16))
    other = made(dataclasses.replace(run, method=short))
    others = [{k: x for k, x in other.items() if k not in PROVENANCE}]
    results.write_shard(runs, [row, *others], PROVENANCE)
    module = HEADS.build(families.task(BUDGET))
    params = models.init_on_host(module, 2, np.array([0, 1], np.uint32))["params"]
    kept = certificates.of(families.task(BUDGET, 3), HEADS, params)
    path = results.weights_path(runs, row["run_id"])
    path.parent.mkdir()
    path.write_bytes(certificates.encode(kept))
    (runs / "torn.json").write_text("{")
    done = command_line("leaderboard", f"--results={runs}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = pd.read_csv(tmp_path / "runs" / "leaderboard.csv")
    assert "1 of your 2 runs of capacities are of other sets, steps or trainings" in done.stdout
    assert len(found) == len(_published()) + 2
    found = found[found["by"] == "you"].reset_index(drop=True)
    assert found["track"].tolist() == ["exact", "open"]
    bits = counting.count(kept, ("float32",))["bits_per_parameter"]
    assert found["certified_bits_per_parameter"].tolist() == pytest.approx([bits, bits], rel=1e-4)
    assert found["weights"][0] == f"../mine/weights/{row['run_id']}.safetensors"
    assert not math.isnan(found["bits_per_parameter"][0])
    none = command_line("leaderboard", "--results=none", cwd=tmp_path)
    assert none.returncode == 1
    assert "'none' is not a folder" in none.stderr
