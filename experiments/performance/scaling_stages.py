"""The stages of scaling.py, and the simulated runs that they handle.

A stage prepares in the process in which it will be measured, and returns what is measured.
"""

import functools
import itertools
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from memobench import metrics
from memobench.errors import UserError
from memobench.experiment import Experiment
from memobench.methods.training import Training
from memobench.models.base import Architecture
from memobench.models.transformer import AttentionOnly
from memobench.report.figure import Figure
from memobench.runs import Run, cells
from memobench.spec import SPEC_VERSION
from memobench.table import results
from memobench.tasks.associations import Associations
from memobench.version import __version__

VOCAB_SIZE = 16
# d_model and n_heads of the sizes that share a program.
SIZES = tuple(itertools.product(range(2, 12), range(1, 101)))
CURVE_POINTS = 32
# With more packs than this, `write` does not wait for the disk: it took 12 ms a shard here.
MOST_FSYNCS = 1_000
PROVENANCE = {
    **{"spec_version": SPEC_VERSION, "memobench": __version__, "commit": None},
    **{"jax": "0.0.0", "jaxlib": "0.0.0", "platform": "cpu", "device": "simulated"},
    **{"date": "2026-01-01T00:00:00+00:00", "compile_seconds": 0.0, "run_seconds": 0.0},
}


def _run(d_model: int, n_heads: int, batch_size: int, seed: int) -> Run:
    architecture = AttentionOnly(d_model=d_model, d_head=d_model, n_heads=n_heads, heads="full")
    method = Training(batch_size=batch_size, n_batches=32, epochs=4)
    return Run(task=_TASK, architecture=architecture, method=method, seed=seed)


_TASK = Associations(vocab_size=VOCAB_SIZE)


def own_programs(n_packs: int, n_runs: int) -> list[Run]:
    """Runs of which each `n_runs` have a program of their own."""
    return [_run(4, 2, 1 + i, seed) for i in range(n_packs) for seed in range(n_runs)]


def shared_programs(n_packs: int, n_runs: int) -> Iterator[list[Run]]:
    """Configurations of `n_runs` seeds each: all SIZES of a program, then those of the next."""
    for i in range(n_packs):
        d_model, n_heads = SIZES[i % len(SIZES)]
        yield [_run(d_model, n_heads, 1 + i // len(SIZES), seed) for seed in range(n_runs)]


def simulated_row(run: Run) -> dict[str, Any]:
    """A row of which every measure is made up and fits the others."""
    n_params, n_params_memory, n_params_distinct = _counts(run.architecture)
    n_examples = run.task.n_examples
    number = int(run.run_id, 16)
    known = number % (n_examples + 1)
    accuracy, loss = known / n_examples, 3.0 - 2.0 * known / n_examples + number % 97 / 1e4
    steps = sorted({1 + (run.method.steps - 1) * i // CURVE_POINTS for i in range(CURVE_POINTS)})
    steps = [*(step for step in steps if step < run.method.steps), run.method.steps]
    return {
        **cells(run),
        "n_params": n_params,
        "n_params_memory": n_params_memory,
        "n_params_distinct": n_params_distinct,
        "status": "ok",
        "accuracy": accuracy,
        "accuracy_protocol": accuracy,
        "memorized": float(metrics.chance_corrected(accuracy, n_examples, run.task.chance)),
        "bits": float(metrics.memorized_bits(loss, n_examples, VOCAB_SIZE)),
        "loss": loss,
        "curve_steps": steps,
        "curve_accuracy": [accuracy * step / steps[-1] for step in steps],
        "curve_loss": [loss + 1 - step / steps[-1] for step in steps],
    }


@functools.cache
def _counts(architecture: Architecture) -> tuple[int, int, int]:
    from memobench.models import base as models

    module = architecture.build(_TASK)
    counted = models.count_parameters(module, _TASK.context_length)
    return *counted, models.count_distinct(module, _TASK.context_length)


# --- Stages ------------------------------------------------------------------------------------

Work = Callable[[], str]


def _plan(runs: Sequence[Run]) -> str:
    from memobench.planner import packing

    return f"{len(packing.plan(runs, 'cpu')):,} packs"


def _plan_programs(n_packs: int, n_runs: int, _: pathlib.Path) -> Work:

    return functools.partial(_plan, own_programs(n_packs, n_runs))


def _plan_sizes(n_packs: int, n_runs: int, _: pathlib.Path) -> Work:

    return functools.partial(_plan, list(itertools.chain(*shared_programs(n_packs, n_runs))))


def _write(n_packs: int, n_runs: int, folder: pathlib.Path) -> Work:
    provenance = {**PROVENANCE, "pack_size": n_runs}
    for architecture in dict.fromkeys(_run(*size, 1, 0).architecture for size in SIZES):
        _counts(architecture)

    waits = n_packs <= MOST_FSYNCS
    if not waits:
        os.fsync = lambda handle: None  # type: ignore[assignment,misc]

    def work() -> str:
        size = 0
        for runs in shared_programs(n_packs, n_runs):
            rows = [simulated_row(run) for run in runs]
            size += results.write_shard(folder, rows, provenance).stat().st_size
        return f"{n_packs:,} files, {size / 1e6:,.0f} MB" + ", without fsync" * (not waits)

    return work


def _read(_: int, n_runs: int, folder: pathlib.Path) -> Work:
    def work() -> str:
        table = results.load_results(folder)
        return f"{len(table):,} rows of {len(table.columns)} columns"

    return work


def _resume(n_packs: int, n_runs: int, _: pathlib.Path) -> Work:
    from memobench.runtime import sweep

    runs = list(itertools.chain(*shared_programs(n_packs, n_runs)))
    done = [run.run_id for i, run in enumerate(runs) if i % 100]
    # Another process would have other objects: what these remember of themselves is forgotten.
    runs = list(itertools.chain(*shared_programs(n_packs, n_runs)))
    return lambda: f"{len(sweep.plan(runs, done=done)):,} packs"


def _verify(n_packs: int, n_runs: int, folder: pathlib.Path) -> Work:
    from memobench.table import verify

    return lambda: verify.verify(folder).summary


def _report(n_packs: int, n_runs: int, folder: pathlib.Path) -> Work:
    from memobench.report import experiment as page

    runs = tuple(itertools.chain(*shared_programs(n_packs, n_runs)))
    experiment = Experiment(
        name="simulated",
        title="Simulated",
        presets={"full": runs},
        left_out="",
        figure=Figure(x="n_heads", hue="d_model"),
    )
    table = results.load_results(folder)

    def work() -> str:
        with tempfile.TemporaryDirectory(dir=folder.parent) as output:
            text = page.write(experiment, "full", table, pathlib.Path(output))
        return f"a page of {len(text.encode()) / 1e6:,.1f} MB"

    return work


def _leaderboard(n_packs: int, n_runs: int, folder: pathlib.Path) -> Work:
    from memobench.report import leaderboard

    table = results.load_results(folder)

    def work() -> str:
        with tempfile.TemporaryDirectory(dir=folder.parent) as output:
            leaderboard.write(table, pathlib.Path(output))
            size = sum(path.stat().st_size for path in pathlib.Path(output).iterdir())
        return f"pages of {size / 1e6:,.1f} MB"

    return work


STAGES: dict[str, Callable[[int, int, pathlib.Path], Work]] = {
    "plan, programs": _plan_programs,
    "plan, sizes": _plan_sizes,
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
