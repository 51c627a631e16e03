"""Pages of the standard board: as Markdown, CSV and HTML, published, and by the command."""

import dataclasses
import html.parser
import json
import math
import pathlib
import re
import shutil

import numpy as np
import pandas as pd
import pytest

import memobench
from memobench import certificates
from memobench.board import families, submissions
from memobench.board import table as board
from memobench.certificates import counting
from memobench.common import folders
from memobench.core import module as models
from memobench.experiment import load_file
from memobench.report import html as page_of
from memobench.report import leaderboard, tables
from memobench.store import results
from tests import entries, registries
from tests.board.test_submissions_own import OWN
from tests.certificates.test_certificates import drawn
from tests.command_line import command_line
from tests.entries import BUDGET, HEADS, NEURONS, build, counted, made, three
from tests.report.test_html import HOSTILE
from tests.small import PROVENANCE, markdown_rows

PUBLISHED = pathlib.Path(__file__).parents[2] / "results"


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


def test_all_renderings_of_one_board(tmp_path):
    weights = [counted(bits=330.0, track="exact", weights=tmp_path / "w" / "a.safetensors")]
    text = leaderboard.write(three(), results.to_table([]), tmp_path / "out", weights)
    folder = tmp_path / "out"
    found = build(three(), [{**weights[0], "weights": "../w/a.safetensors"}])
    assert (folder / "LEADERBOARD.md").read_text("utf-8") == text
    assert "## 256 parameters, N = 16" in text
    csv = pd.read_csv(folder / "leaderboard.csv")
    assert list(csv.columns) == list(found.columns)
    numeric = found.select_dtypes("number").columns
    np.testing.assert_allclose(csv[numeric], found[numeric].astype(float), rtol=1e-5)
    assert csv["weights"].dropna().unique().tolist() == ["../w/a.safetensors"]
    written = [row for row in markdown_rows(text) if "entry" in row]
    page = Cells((folder / "leaderboard.html").read_text("utf-8"))
    data = json.loads(page.data)["rows"]
    static = [row for row in page.rows if row[0] not in ("rank", "")]
    assert len(written) == len(data) == len(static) == len(found) == 4
    named = page_of.name_entries(found).to_dict("records")
    for row, name, shown, embedded, plain in zip(
        found.to_dict("records"), named, written, data, static, strict=True
    ):
        texts = {x.label: x.text(name) for x in board.COLUMNS.values()}
        assert {**texts, **shown} == texts
        assert plain == [*shown.values()]
        assert embedded["text"] == {x.name: x.text(name) for x in page_of.COLUMNS}
        assert embedded["range"]["n_params"] == [row["n_params"]]


def test_hostile_text_is_text_in_all_renderings(tmp_path):
    # What UTF-8 cannot say is refused where submissions are read.
    texts = [text.encode("utf-8", "replace").decode() for text in HOSTILE]
    for folder, names in (("plain", [f"mine {i}" for i in range(len(texts))]), ("hostile", texts)):
        runs = [made(board.run(HEADS, BUDGET), device=names[0], commit=names[1])]
        weights = [counted(submitter=name, theorem=name, weights=name) for name in names]
        leaderboard.write(runs, results.to_table([]), tmp_path / folder, weights)
    read = {
        name: [(tmp_path / x / name).read_bytes().decode("utf-8") for x in ("plain", "hostile")]
        for name in ("LEADERBOARD.md", "leaderboard.csv", "leaderboard.html")
    }
    elements = [sorted(set(Cells(x).elements)) for x in read["leaderboard.html"]]
    assert elements[0] == elements[1]
    # Every row is one line with as many cells, in which all is text.
    rows, hostile_rows = map(markdown_rows, read["LEADERBOARD.md"])
    assert len(rows) == len(hostile_rows) == 1 + len(texts)
    by = {row["by"] for row in hostile_rows if "by" in row}
    assert by == {tables.text(text).strip() for text in texts}
    page = read["LEADERBOARD.md"][1].partition("## 256")[2]
    assert not re.search(r"(?<!\\)<[a-z/!]|(?<!\\):(?=//)", page)
    csv = pd.read_csv(tmp_path / "hostile" / "leaderboard.csv")
    assert not any(str(x).startswith("=") for x in csv.to_numpy().ravel())


def test_pages_name_the_tracks_and_the_margin_that_entries_have():
    ours = leaderboard.page(build(three(), [counted(bits=330.0)]))
    assert "- `exact`: " in ours
    assert "- `open`: " in ours
    assert "- `own`: " not in ours
    assert "over 2% more" not in ours
    theirs = leaderboard.page(build(three(), [counted(bits=330.0, submitter="Ada")]))
    assert "Submitted weights rank above an entry where they know over 2% more" in theirs
    assert leaderboard.page(build([])).count("- `o") == 2


def test_a_board_without_entries_says_so(tmp_path):
    text = leaderboard.write([], results.to_table([]), tmp_path)
    assert "No entry of the standard board is here" in text
    assert list(pd.read_csv(tmp_path / "leaderboard.csv").columns) == board.names()
    assert "No entries yet" in (tmp_path / "leaderboard.html").read_text("utf-8")


def _made_anew(folder):
    """Whether the published board is what published runs and weights make; writes it there."""
    entries.submissions()
    runs, weights = leaderboard.load_published()
    text = leaderboard.write(runs, results.to_table([]), folder, weights)
    written, published = (
        pd.read_csv(x / "leaderboard.csv").drop(columns="weights")
        for x in (folder, folders.published())
    )
    pd.testing.assert_frame_equal(written, published, rtol=1e-4)
    return text == (folders.published() / "LEADERBOARD.md").read_text("utf-8")


def test_the_published_board_is_what_published_runs_and_weights_make(tmp_path):
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards/v2-tables.md").touch()  # Which the page then links to.
    assert _made_anew(tmp_path)
    read = json.loads(Cells((PUBLISHED / "leaderboard.html").read_text("utf-8")).data)
    made_now = json.loads(json.dumps(page_of.data(page_of.name_entries(_published()))))
    assert [row["text"]["entry"] for row in read["rows"]] == [
        row["text"]["entry"] for row in made_now["rows"]
    ]
    for row in read["rows"]:
        weights = row["text"]["weights"]
        assert weights == "–" or (PUBLISHED / weights).exists()


def test_earlier_boards_stay_and_are_not_mixed_with_this_one():
    for path in (PUBLISHED / "boards").glob("*.csv"):
        assert set(pd.read_csv(path)["version"]) == {path.stem} != {board.VERSION}
        text = path.with_suffix(".html").read_text("utf-8")
        links = re.findall(r'href="(?!data:)([^"]+)"', text)
        links += re.findall(
            r"\]\(([^)]+)\)", path.with_name(f"{path.stem}-tables.md").read_text("utf-8")
        )
        assert len(links) > 9
        for link in links:
            assert (path.parent / link).exists(), link


def test_merged_submissions_are_part_of_the_published_board(tmp_path, monkeypatch):
    """Of an architecture that memobench has, and of an own one, whose file was reviewed."""
    merged = tmp_path / "results"
    # Entries of the quick preset are enough beside them.
    shutil.copytree(PUBLISHED / "board", merged / "board")
    monkeypatch.setattr(folders, "published", lambda: merged)
    (tmp_path / "own.py").write_text(OWN)
    with registries.restore():
        load_file(tmp_path / "own.py")
        for name, architecture in (("Ann", HEADS), ("Bob", memobench.OwnTable(d_model=1))):
            weights = drawn(architecture, families.task(BUDGET), of_weights=1)
            path = submissions.write([weights], name, merged / "submissions")
    (code,) = path.glob("*.py")
    (merged / "reviewed.txt").write_text(certificates.digest(code.read_bytes()))
    line = ("leaderboard", "--output=results", f"--plugin={code}")
    done = command_line(*line, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = pd.read_csv(merged / "leaderboard.csv").set_index("by")
    for name, track in (("Ann", board.OPEN), ("Bob", board.OPEN_OWN)):
        assert found.loc[name, "track"] == track
        assert found.loc[name, "weights"].startswith(f"submissions/{name.lower()}-")
        assert (merged / found.loc[name, "weights"]).exists()
    assert _made_anew(tmp_path / "anew")


def _published():
    return pd.read_csv(PUBLISHED / "leaderboard.csv")


def test_every_published_entry_has_weights_on_its_track():
    found = _published()
    assert found["weights"].notna().all()
    # Others may submit what knows nothing.
    ours = found[found["by"] == board.OWN]
    assert (ours["certified_bits_per_parameter"] > 0).all()
    trained = found[found["track"] == board.EXACT]
    # No mean is above the best of the same sets.
    best = trained["certified_bits_per_parameter"]
    assert (trained["overfull_bits_per_parameter"] < best).all()
    assert set(ours["track"]) == board.TRACKS.keys() - {board.OPEN_OWN}


def test_the_command_shows_published_rows_and_ours_with_their_weights(
    tmp_path, caplog, monkeypatch
):
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
    module = HEADS.module_for(families.task(BUDGET))
    params = models.init_on_host(module, 2, np.array([0, 1], np.uint32))["params"]
    kept = certificates.make(families.task(BUDGET, 3), HEADS, params)
    path = results.weights_path(runs, row["run_id"])
    path.parent.mkdir()
    path.write_bytes(certificates.encode(kept))
    (runs / "torn.json").write_text("{")
    entries.submissions()
    done = command_line("leaderboard", f"--results={runs}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = pd.read_csv(tmp_path / "runs" / "leaderboard.csv")
    assert "1 of your 2 runs of peaks are not ranked:\n- it must train for 4,096" in done.stdout
    assert "--preset=entry" not in done.stdout
    assert len(found) == len(_published()) + 2
    found = found[found["by"] == "you"].reset_index(drop=True)
    assert found["track"].tolist() == ["exact", "open"]
    bits = counting.count(kept, ("float32",))["bits_per_parameter"]
    assert found["certified_bits_per_parameter"].tolist() == pytest.approx([bits, bits], rel=1e-4)
    assert found["weights"][0] == f"../mine/weights/{row['run_id']}.safetensors"
    assert not math.isnan(found["bits_per_parameter"][0])
    # What is said of the reader's runs does not depend on published ones.
    monkeypatch.setattr(leaderboard, "load_published", lambda: ([], []))
    (tmp_path / "alone").mkdir()
    results.write_shard(tmp_path / "alone", others, PROVENANCE)
    alone = command_line("leaderboard", "--results=alone", cwd=tmp_path)
    assert "1 of your 1 runs of peaks are not ranked" in alone.stdout
    assert "memobench run board/peak --preset=entry --results=alone" in alone.stdout
    # What cannot be read is said to be that, and no more.
    (tmp_path / "unknown").mkdir()
    results.write_shard(tmp_path / "unknown", [{**row, "architecture": "nobodys"}], PROVENANCE)
    unknown = command_line("leaderboard", "--results=unknown", cwd=tmp_path)
    assert "architecture='nobodys' is unknown" in caplog.text
    assert "not ranked" not in unknown.stdout
    plain = pd.DataFrame({"method": ["training"], "status": ["ok"]})
    assert "No run of yours is ranked" in leaderboard.explain_off_board(plain)
    none = command_line("leaderboard", "--results=none", cwd=tmp_path)
    assert none.returncode == 1
    assert "'none' is not a folder" in none.stderr
