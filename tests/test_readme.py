"""The README's example is run as it stands, and its costs are the measured ones."""

import pathlib
import re
import subprocess
import sys

from memobench.experiments import EXPERIMENTS

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_the_readmes_python_runs_and_prints_what_it_says(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.S | re.M)
    assert blocks
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "gated_memory" in done.stdout


def test_the_costs_are_those_of_the_results():
    """Every experiment has a line, as `experiments/performance/costs.py` wrote it."""
    table = (README.parent / "results/performance/costs.md").read_text()
    lines = table.split("## What each experiment costs")[1].split("## Rates")[0].splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    told = {row.split("|")[1].strip() for row in rows}
    assert told >= set(EXPERIMENTS), "run experiments/performance/costs.py, copy its lines"
    missing = [row for row in rows if row not in README.read_text().splitlines()]
    assert not missing
