"""The stages of scaling.py, and the simulated runs that they handle.

A stage prepares in the process in which it will be measured, and returns what is measured: a
function of nothing that says in words what it found. Only what a stage needs is imported there.
"""

import itertools
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from memobench.common.errors import UserError
from memobench.core.run import Run
from memobench.core.spec import SPEC_VERSION
from memobench.experiment import Experiment
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.report.figure import Figure
from memobench.store import results
from memobench.tasks.associations import Associations
from memobench.version import __version__

TASK = Associations(vocab_size=16)
# d_model and n_heads of the sizes that share a program.
SIZES = tuple(itertools.product(range(2, 12), range(1, 101)))
# With more packs than this, `write` does not wait for the disk: it took 12 ms a shard here.
MOST_FSYNCS = 1_000
PROVENANCE = {
    **{"spec_version": SPEC_VERSION, "memobench": __version__, "commit": None},
    **{"jax": "0.0.0", "jaxlib": "0.0.0", "platform": "cpu", "device": "simulated"},
    **{"date": "2026-01-01T00:00:00+00:00", "compile_seconds": 0.0, "run_seconds": 0.0},
}

Work = Callable[[], str]


def _run(d_model: int, n_heads: int, batch_size: int, seed: int) -> Run:
    architecture = AttentionOnly(d_model=d_model, d_head=d_model, n_heads=n_heads, heads="full")
    method = Training(batch_size=batch_size, n_batches=32, epochs=4)
    return Run(task=TASK, architecture=architecture, method=method, seed=seed)


def own_programs(n_packs: int, n_runs: int) -> list[Run]:
    """Runs of which each `n_runs` have a program of their own."""
    return [_run(4, 2, 1 + i, seed) for i in range(n_packs) for seed in range(n_runs)]


def packs(n_packs: int, n_runs: int) -> Iterator[list[Run]]:
    """Configurations of `n_runs` seeds each: all SIZES of a program, then those of the next."""
    for i in range(n_packs):
        d_model, n_heads = SIZES[i % len(SIZES)]
        yield [_run(d_model, n_heads, 1 + i // len(SIZES), seed) for seed in range(n_runs)]


def shared_programs(n_packs: int, n_runs: int) -> list[Run]:
    """The runs of all these packs."""
    return list(itertools.chain(*packs(n_packs, n_runs)))


def simulated_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Rows of a pack, as a worker makes them of measures that are made up and fit each other."""
    from memobench.core.run import PackResult
    from memobench.planner import packing
    from memobench.runtime import worker

    number_R = np.array([int(run.run_id[:8], 16) for run in runs])
    accuracy_R = number_R % (TASK.n_examples + 1) / TASK.n_examples
    loss_R = 3.0 - 2.0 * accuracy_R + number_R % 97 / 1e4
    steps = runs[0].method.steps
    # Of a batch all is known or nothing.
    known_RxL = np.random.default_rng(0).random((len(runs), steps)) < accuracy_R[:, None]
    made = PackResult(
        accuracy_R=accuracy_R,
        loss_R=loss_R,
        step_accuracy_RxL=known_RxL.astype(float),
        step_loss_RxL=loss_R[:, None] + np.linspace(1, 0, steps),
        compile_seconds=0.0,
        run_seconds=0.0,
        variables={},
    )
    return worker.rows_of(packing.make_pack(runs), made)


# --- Stages ------------------------------------------------------------------------------------


def _planning(runs: Sequence[Run]) -> Work:
    from memobench.planner import packing

    return lambda: f"{len(packing.plan(runs, 'cpu')):,} packs"


def _write(n_packs: int, n_runs: int, folder: pathlib.Path) -> Work:
    provenance = {**PROVENANCE, "pack_size": n_runs}
    # Counts of parameters are kept; a sweep has most of them before it writes.
    for i in range(len(SIZES)):
        simulated_rows([_run(*SIZES[i], 1, 0)])
    waits = n_packs <= MOST_FSYNCS
    if not waits:
        os.fsync = lambda handle: None  # type: ignore[assignment,misc]

    def work() -> str:
        size = 0
        for runs in packs(n_packs, n_runs):
            path = results.write_shard(folder, simulated_rows(runs), provenance)
            size += path.stat().st_size
        return f"{n_packs:,} files, {size / 1e6:,.0f} MB" + ", without fsync" * (not waits)

    return work


def _read(_: int, __: int, folder: pathlib.Path) -> Work:
    def work() -> str:
        table = results.load_results(folder)
        return f"{len(table):,} rows of {len(table.columns)} columns"

    return work


def _resume(n_packs: int, n_runs: int, _: pathlib.Path) -> Work:
    from memobench.runtime import sweep

    done = [run.run_id for i, run in enumerate(shared_programs(n_packs, n_runs)) if i % 100]
    # Another process would have other objects: what these remember of themselves is forgotten.
    runs = shared_programs(n_packs, n_runs)
    return lambda: f"{len(sweep.plan(runs, done=done)):,} packs"


def _verify(_: int, __: int, folder: pathlib.Path) -> Work:
    from memobench.runtime import verify

    return lambda: verify.verify(folder).summary


def _report(n_packs: int, n_runs: int, folder: pathlib.Path) -> Work:
    from memobench.report import experiment as page

    experiment = Experiment(
        name="simulated",
        title="Simulated",
        presets={"full": tuple(shared_programs(n_packs, n_runs))},
        figure=Figure(x="n_heads", hue="d_model"),
    )
    table = results.load_results(folder)

    def work() -> str:
        with tempfile.TemporaryDirectory(dir=folder.parent) as output:
            text = page.write(experiment, "full", table, pathlib.Path(output))
        return f"a page of {len(text.encode()) / 1e6:,.1f} MB"

    return work


def _leaderboard(_: int, __: int, folder: pathlib.Path) -> Work:
    from memobench.report import leaderboard

    table = results.load_results(folder)

    def work() -> str:
        with tempfile.TemporaryDirectory(dir=folder.parent) as output:
            leaderboard.write([], table, pathlib.Path(output))
            size = sum(path.stat().st_size for path in pathlib.Path(output).iterdir())
        return f"pages of {size / 1e6:,.1f} MB"

    return work


STAGES: dict[str, Callable[[int, int, pathlib.Path], Work]] = {
    "plan, programs": lambda n_packs, n_runs, _: _planning(own_programs(n_packs, n_runs)),
    "plan, sizes": lambda n_packs, n_runs, _: _planning(shared_programs(n_packs, n_runs)),
    "write": _write,
    "read": _read,
    "resume": _resume,
    "verify": _verify,
    "report": _report,
    "leaderboard": _leaderboard,
}


def chosen(names: Sequence[str] | None) -> list[str]:
    """The stages whose names begin with these words; all of them for None."""
    plain = {stage: stage.replace(",", "") for stage in STAGES}
    found = [stage for stage in STAGES if names is None or plain[stage].startswith(tuple(names))]
    if not found:
        raise UserError(f"stages={names} names none of {'; '.join(plain.values())}")
    return found
