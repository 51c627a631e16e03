"""Ids of declared runs, and columns and their order, are those of golden files.

Made by `python -m tests.test_frozen`: a diff of the files says which experiments have other runs.
"""

import hashlib
import json
import pathlib

from memobench.experiments import EXPERIMENTS
from memobench.store.rows import all_columns

GOLDEN = pathlib.Path(__file__).parent / "golden"


def _declared() -> dict[str, str]:
    """The number of runs of each preset of each experiment, and a hash of their ids."""
    found = {}
    for name, experiment in sorted(EXPERIMENTS.items()):
        for preset, runs in sorted(experiment.presets.items()):
            text = "\n".join(run.run_id for run in runs)
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            found[f"{name}/{preset}"] = f"{len(runs)} {digest}"
    return found


def test_declared_runs_keep_their_ids():
    assert _declared() == json.loads((GOLDEN / "declared.json").read_text())


def test_columns_keep_their_order():
    assert list(all_columns()) == (GOLDEN / "columns.txt").read_text().split()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / "declared.json").write_text(json.dumps(_declared(), indent=1) + "\n")
    (GOLDEN / "columns.txt").write_text("\n".join(all_columns()) + "\n")
