"""Published pages are what today's code makes of the published tables, and figures show all of it.

Boards have pages of their own kind. `python -m tests.republish` makes pages and figures anew.
"""

import numpy as np
import pandas as pd
import pytest

from memobench.common import folders
from memobench.experiments.blocks import bought
from memobench.experiments.pages import papers
from memobench.report import verdicts
from tests import republish
from tests.published.test_tables import verdicts_agree

pytestmark = pytest.mark.published

PATHS = republish.paths()


@pytest.fixture(scope="module", params=PATHS)
def published(request):
    """Each once: pytest runs both tests of one before it reads the next."""
    return republish.read(PATHS[request.param])


def test_a_page_is_what_its_table_makes(published):
    text, decided = published.page()
    assert published.base.with_suffix(".md").read_text() == text
    kept = pd.read_csv(f"{published.base}_verdicts.csv", keep_default_na=False)
    verdicts_agree(decided, kept)
    # What cannot decide has no figure, all others have one.
    drawn = published.preset not in published.experiment.too_short
    assert published.base.with_suffix(".png").exists() == drawn
    assert (f"({published.base.name}.png)" in text) == drawn


def test_the_page_of_verdicts_has_all_that_are_published(tmp_path):
    folder = folders.published()
    for path in folder.glob(f"**/*{verdicts.ENDING}"):
        copy = tmp_path / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    assert verdicts.write(tmp_path) == (folder / "VERDICTS.md").read_text()


@pytest.mark.parametrize("paper", papers.PAPERS)
def test_a_point_of_several_experiments_counts_once(paper):
    runs = [run for found in papers.experiments(paper) for run in found.runs("paper")]
    rows = pd.DataFrame({"run_id": [run.run_id for run in runs]})
    known = rows.drop_duplicates().assign(compile_seconds=1, run_seconds=5, pack_size=2)
    known["platform"] = "cpu"
    coverage = papers.coverage(paper, known)
    assert coverage["points"].sum() == len({papers.point(run) for run in runs})
    assert (coverage["published"] == coverage["points"]).all()
    assert coverage["core-hours"].sum() == pytest.approx(3 * len(known) / 3600)
    # An accelerator's hours are none of a core's.
    known.loc[known.index[::2], "platform"] = "gpu"
    both = papers.coverage(paper, known)
    spent = both[["core-hours", "GPU-hours"]].sum()
    assert spent["GPU-hours"] == pytest.approx(3 * len(known[::2]) / 3600)
    assert spent.sum() == pytest.approx(coverage["core-hours"].sum())


def test_all_that_a_figure_shows_is_in_sight(published):
    """Every point and the ends of its interval lie within its panel, and are possible."""
    if not published.pictured:
        return
    figure = published.draw()
    bars = [(axis, bar) for axis in figure.axes for bar in axis.containers]
    points = [
        (axis, line) for axis in figure.axes for line in axis.lines if line.get_marker() != "None"
    ]
    # A heat map has cells instead.
    assert bars or points or any(axis.collections for axis in figure.axes)
    for axis, bar in bars:
        for ends in bar.lines[2]:
            for end_2xXY in ends.get_segments():
                _in_sight(axis, end_2xXY)
    for axis, line in points:
        _in_sight(axis, line.get_xydata())
    for axis in figure.axes:
        if "accuracy" == axis.get_ylabel():
            assert axis.get_ylim()[1] <= 1.1


def test_the_figure_of_blocks_has_every_ratio_of_their_verdicts():
    found = bought.ratios()
    axes = bought.figure(found).axes
    named, drawn = [], []
    for axis in axes:
        labels = dict(zip(axis.get_yticks(), axis.get_yticklabels(), strict=True))
        for bar in axis.containers:
            (ends_2xXY,) = bar.lines[2][0].get_segments()
            _in_sight(axis, ends_2xXY)
            named.append(labels[ends_2xXY[0, 1]].get_text())
            drawn.append([*ends_2xXY[:, 0], bar.lines[0].get_xdata()[0]])
    assert len(found) > 20
    by_group = sorted(zip(named, drawn, strict=True))
    rows = found[["low", "high", "estimate"]].to_numpy().tolist()
    labels = [bought.split_name(name)[1] for name in found["name"]]
    expected = sorted(zip(labels, rows, strict=True))
    for (label, numbers), (name, row) in zip(by_group, expected, strict=True):
        assert label == name
        np.testing.assert_allclose(numbers, row)


def _in_sight(axis, points_PxXY):
    points_PxXY = np.asarray(points_PxXY)[~np.isnan(points_PxXY).any(axis=1)]
    for limits, values_P in zip((axis.get_xlim(), axis.get_ylim()), points_PxXY.T, strict=True):
        least, most = sorted(limits)
        slack = 1e-9 * max(abs(least), abs(most))
        assert (values_P >= least - slack).all(), (values_P.min(), limits)
        assert (values_P <= most + slack).all(), (values_P.max(), limits)
