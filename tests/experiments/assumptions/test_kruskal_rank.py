"""The script of the Kruskal-rank study, as it is run."""

import pathlib
import subprocess
import sys

import pandas as pd
import pytest


def kruskal_rank(*arguments):
    root = pathlib.Path(__file__).parents[3]
    script = root / "experiments" / "assumptions" / "kruskal_rank.py"
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


def test_the_script_writes_page_figure_and_tables(tmp_path):
    done = kruskal_rank("--sets=uniform", "--subsets=2", "--sizes=2", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "kruskal_rank.md").read_text()
    assert page in done.stdout
    assert "| uniform | query | 32 | 64 |" in page
    assert (tmp_path / "kruskal_rank.png").stat().st_size > 0
    table = pd.read_csv(tmp_path / "kruskal_rank.csv")
    assert set(table["tolerance_of"]) == {"float64", "float32"}
    assert (table.loc[table["set"] == "uniform", "full_rank"] == 1).all()
    assert len(pd.read_csv(tmp_path / "context_ranks.csv"))


@pytest.mark.slow
def test_the_script_names_mistakes_in_a_line(tmp_path):
    done = kruskal_rank("--sets=none_such", "--output", tmp_path)
    assert done.returncode == 1
    assert "'none_such' is unknown" in done.stderr.splitlines()[-1]
