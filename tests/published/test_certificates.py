"""Published weights are run again: what tables say of them is what they know."""

import pathlib
import shutil

import numpy as np
import pandas as pd
import pytest
import scipy.special

from memobench import certificates
from memobench.board import submissions
from memobench.board import table as board
from memobench.certificates import counting
from memobench.experiments.board import certified
from memobench.methods import thresholds
from tests import entries
from tests.reference import reference_logits

pytestmark = pytest.mark.published

FOLDER = pathlib.Path(__file__).parents[2] / "results" / "board"
TABLE = pd.read_csv(FOLDER / "certified.csv")
ROWS = TABLE.to_dict("records")


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['file']}" for row in ROWS])
def test_published_weights_know_what_the_table_says(row):
    certificate, digest = certificates.read(FOLDER / "weights" / row["file"])
    assert digest == row["digest"]
    # Label tables are those of seeds 0, 1, .. of the experiment, which nobody chose.
    assert board.placement_error(certificate.task, certificate.n_params) is None
    counted = counting.count(certificate)
    suffixes = ["" if name == "float32" else f"_{name}" for name in counting.FORMATS]
    measured = [
        f"{name}{suffix}"
        for name in ("bytes", "known", "accuracy", "bits", "bits_per_parameter", "bits_per_byte")
        for suffix in suffixes
    ]
    for name in ("n_params", "n_examples", *measured):
        assert counted[name] == pytest.approx(row[name], rel=1e-5), name
    if row["of"] in (certified.PART, certified.PROOF):
        of = certificate.first or certificate.task.n_examples
        assert thresholds.is_complete(counted["known"], of)


# The smallest of each family of the papers' models.
_OWN = TABLE[TABLE["architecture"].isin(["attention_only", "mlp"]) & (TABLE["of"] != "proof")]
SMALLEST = _OWN.sort_values("n_params").drop_duplicates("family").to_dict("records")


@pytest.mark.parametrize("row", SMALLEST, ids=[row["family"] for row in SMALLEST])
def test_weights_know_the_same_by_the_equations_alone(row):
    """Written out in NumPy and float64: nothing of models, engine or measures is asked."""
    certificate = certificates.load(FOLDER / "weights" / row["file"])
    data = certificate.task.sample()
    examples = [np.asarray(x)[: row["n_examples"]] for x in (data.tokens_TxS, data.next_TxK[:, 0])]
    known, bits = 0, 0.0
    for tokens, answer in zip(*examples, strict=True):
        logits = reference_logits(certificate.architecture, certificate.params, tokens)
        known += (logits >= logits[answer]).sum() == 1
        bits += np.log2(len(logits)) + np.log2(scipy.special.softmax(logits)[answer])
    assert known == row["known"]
    assert bits == pytest.approx(row["bits"], rel=1e-5)


def test_every_published_file_is_in_the_table():
    files = {path.name for path in (FOLDER / "weights").glob("*.safetensors")}
    assert files == set(TABLE["file"])
    assert len(TABLE) == TABLE["file"].nunique()


def test_what_was_certified_before_a_failure_stays(tmp_path, monkeypatch):
    """The second entry fails: the first has its file, and no table lists a file that is gone."""
    folder = shutil.copytree(FOLDER, tmp_path / "board")
    monkeypatch.setattr(certified, "FOLDER", folder)
    row = next(x for x in ROWS if x["of"] == certified.WHOLE)
    asked = []

    def certify(run, weights, runs):
        asked.append(run["run_id"])
        if len(asked) > 1:
            raise MemoryError
        better = weights / "mlp-better.safetensors"
        shutil.copy(weights / row["file"], better)
        yield {**row, "file": better.name, "bits": row["bits"] + 1}

    monkeypatch.setattr(certified, "certify", certify)
    with pytest.raises(MemoryError):
        certified.main(["256"], tmp_path)
    written = pd.read_csv(folder / "certified.csv")
    files = {path.name for path in (folder / "weights").iterdir()}
    assert len(asked) == 2
    assert (
        files
        == set(written["file"])
        == set(TABLE["file"]) - {row["file"]} | {"mlp-better.safetensors"}
    )
    monkeypatch.setattr(certified, "page", lambda found: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        certified.write(ROWS[:1])
    assert files == {path.name for path in (folder / "weights").iterdir()}


def test_published_submissions_have_their_place():
    """As `memobench check-submission` says of each: `read` runs their weights."""
    for path in entries.submissions():
        assert submissions.read(path).rows


def test_the_page_is_that_of_the_table():
    assert certified.page(TABLE) + "\n" == (FOLDER / "certified.md").read_text("utf-8")
