"""What the standard board reads, made up: rows of runs, and counts of weights."""

import functools
import math

import numpy as np

from memobench import certificates
from memobench.board import families
from memobench.board import table as board
from memobench.common import folders
from memobench.core import module as models
from memobench.core.cells import cells
from memobench.experiment import load_file
from memobench.models.transformer import MLP, AttentionOnly
from memobench.store import results
from tests.small import PROVENANCE

BUDGET = 256
HEADS = AttentionOnly(d_model=3, d_head=3, n_heads=4, heads="full")
NEURONS = MLP(d_model=3, d_head=3, d_mlp=17, heads="full")
BOTH = MLP(d_model=3, d_head=3, n_heads=2, d_mlp=12, heads="full")


@functools.cache
def n_params_of(architecture, budget=BUDGET):
    return models.count_parameters(architecture.module_for(families.task(budget)), 2)[0]


def made(run, level=300.0, spread=10.0, **changed):
    """The row of a peak whose label tables differ by `spread` about `level` bits.

    It is at the third of the set sizes and the second of the learning rates.
    """
    method = run.method
    own_JxR = np.multiply.outer(
        [0.6, 0.8, *np.linspace(1, 0.9, method.shape[0] - 2)], [0.9, 1.0, 0.95, 0.8]
    )
    own_T = level + spread * np.random.default_rng(int(level)).standard_normal(method.tables)
    entropy_J = np.array(method.sizes(run)) * math.log2(run.task.n_choices)
    bits_JxRxT = np.clip(np.multiply.outer(own_JxR, own_T), 0, entropy_J[:, None, None])
    return {
        **_common(run, **changed),
        "bits": bits_JxRxT[-1].mean(),
        "size_bits": bits_JxRxT.tolist(),
        "size_known": np.full(method.shape, 80).tolist(),
        **changed,
    }


def overfull(run, level=300.0, spread=10.0, **changed):
    """The row of a capacity run whose label tables differ by `spread` about `level` bits."""
    method = run.method
    random = np.random.default_rng(int(level))
    bits_KxM = level * (1 - 0.1 / 4 ** np.arange(method.rungs))[:, None] + spread * (
        random.standard_normal(method.lanes)
    )
    row = {
        **_common(run, **changed),
        "bits": bits_KxM[-1].mean(),
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
    }
    return row | changed


def _common(run, n_params=None, **_):
    """What rows of both kinds have."""
    n_params = n_params or n_params_of(run.architecture, board.find_budget(run.task))
    return {
        **cells(run),
        "n_params": n_params,
        **{"n_params_memory": n_params // 2, "n_params_distinct": n_params // 3},
        **{"status": "ok", "accuracy": 0.3, "loss": 1.0},
        **{"memorized": 60.0, "accuracy_protocol": 0.3},
        **{"curve_steps": [1], "curve_accuracy": [0.0], "curve_loss": [1.0]},
        **PROVENANCE,
    }


def three():
    """Runs of three architectures that know 500, 420 and 300 bits of 256 associations."""
    pairs = ((BOTH, 500.0), (NEURONS, 420.0), (HEADS, 300.0))
    return [made(board.run(architecture, BUDGET), level) for architecture, level in pairs]


def build(rows, certified=(), **columns):
    return board.build(results.to_table(rows).assign(**columns), certified)


def counted(architecture=HEADS, budget=BUDGET, seed=0, bits=300.0, **changed):
    """What counting says of weights of an architecture."""
    task = families.task(budget, seed)
    n_params = n_params_of(architecture, budget)
    per_byte = {"bits_per_byte": bits / n_params / 4, "bits_per_byte_int8": bits / n_params}
    row = {"file": "x.safetensors", "task": task.name, **task.shared_cells(), **task.cells()}
    row |= {"architecture": architecture.name, **architecture.shared_cells()}
    row |= {**architecture.cells(), "n_params": n_params, "known": 70, **per_byte}
    return row | {"bits": bits, "bits_per_parameter": bits / n_params, **changed}


def submissions():
    """The folders of published submissions; loads of their code what was read and is listed."""
    folder = folders.published()
    lines = (folder / "reviewed.txt").read_text("utf-8").splitlines()
    reviewed = {line.split()[0] for line in lines if line.strip()}
    found = sorted((folder / "submissions").glob("*/"))
    for file in (file for path in found for file in path.glob("*.py")):
        if certificates.digest(file.read_bytes()) in reviewed:
            load_file(file)
    return found
