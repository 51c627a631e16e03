"""Sweeps: the runs that are missing, packed, trained, and kept shard by shard.

The same call resumes: what a results folder holds is never trained again.
"""

import collections
import contextlib
import datetime
import functools
import math
import os
import pathlib
import subprocess
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jaxlib
import pandas as pd
import tqdm

from memobench import (
    checkpoints,
    constructions,
    devices,
    metrics,
    models,
    packing,
    specs,
    tasks,
    theory,
    training,
)
from memobench import results as store
from memobench.errors import UserError
from memobench.executors import local
from memobench.specs import Run
from memobench.version import __version__


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a sweep; its message says what is saved and how to resume."""


def run(
    runs: Iterable[Run], results: store.Path | None = None, progress: bool = True
) -> pd.DataFrame:
    """Trains the runs that the folder does not hold yet and returns the table of all of them.

    Args:
      runs: in any order; equal runs count once.
      results: folder of shards to resume from and to write to; None keeps nothing on disk.
      progress: whether to show one progress line on standard error.

    Returns:
      One row per run, in the order of `runs`; its columns are those of a shard's rows.

    Raises:
      UserError: a run names an unknown task or architecture, or the folder cannot be written.
      theory.Violation: a run measured more than is possible; its pack is kept in the folder.
      Interrupted: Ctrl-C; packs that were done are in the folder.

    >>> architecture = specs.Architecture(name="attention_only", d_model=2, d_head=2, n_heads=3)
    >>> method = specs.Training(n_batches=8, epochs=2).exact()
    >>> wanted = [Run(task=specs.Task(vocab_size=5), architecture=architecture, method=method)]
    >>> str(run(wanted, progress=False).loc[0, "status"])
    'ok'
    """
    wanted = {run.run_id: run for run in runs}
    folder = None if results is None else store.check_writable(results)
    rows = {} if folder is None else _rows_in(folder, wanted)
    packs = plan(wanted.values(), done=rows)
    # Hidden, so that a folder of shards holds nothing else to its readers.
    unfinished = None if folder is None else checkpoints.Folder(folder / ".checkpoints")
    try:
        for shard in _train(packs, progress, unfinished):
            trained = {row["run_id"]: row for row in store.with_provenance(*shard)}
            if folder is not None:
                _write(folder, *shard)
            rows |= trained
            if unfinished is not None:
                unfinished.discard(trained)
            theory.check(store.to_table(list(trained.values())))
    except KeyboardInterrupt as error:
        kept = "nothing was saved, for no results folder was given"
        if folder is not None:
            kept = f"{len(rows)} of {len(wanted)} runs are saved in {folder}; "
            kept += "the same command resumes there"
        raise Interrupted(f"interrupted: {kept}") from error
    table = store.to_table([rows[run_id] for run_id in wanted])
    theory.check(table)
    return table


def plan(runs: Iterable[Run], done: Iterable[str] = ()) -> list[packing.Pack]:
    """The packs in which the runs whose ids are not done would train on this machine.

    Raises UserError for a run that no task or architecture can serve.
    """
    runs, done = list(runs), set(done)
    for run in runs:
        tasks.check(run.task)
        models.build(run)
        constructions.check(run)
    missing = [run for run in runs if run.run_id not in done]
    platform = jax.default_backend()
    # CPU devices are simulated: they share one memory and its cores.
    n_devices = 1 if platform == "cpu" else devices.count()
    return packing.plan(missing, platform, n_devices)


def _write(folder: pathlib.Path, rows: list[dict], provenance: dict[str, Any]) -> None:
    try:
        store.write_shard(folder, rows, provenance)
    except OSError as error:
        raise UserError(
            f"results={str(folder)!r} can no longer be written ({error.strerror}); "
            "what it holds is whole: mend it and the same command resumes"
        ) from error


def _rows_in(folder: pathlib.Path, wanted: dict[str, Run]) -> dict[str, dict]:
    rows = store.load_rows(folder)
    return {run_id: rows[run_id] for run_id in wanted if run_id in rows}


def _train(
    packs: list[packing.Pack], progress: bool, unfinished: checkpoints.Folder | None
) -> Iterator[tuple[list[dict], dict]]:
    """Yields (rows, provenance) of every pack as it is done, behind one progress line."""
    if not packs:
        return
    train = functools.partial(local.train, checkpoints=unfinished)
    with (
        _Progress(packs, enabled=progress) as bar,
        contextlib.closing(local.run_packs(packs, bar.steps_done, train)) as trained,
    ):
        for pack, result in trained:
            bar.runs_done(pack)
            yield rows_of(pack, result), provenance(pack, result)


def rows_of(pack: packing.Pack, result: training.PackResult) -> list[dict[str, Any]]:
    """One JSON-ready row per run; a diverged run has status `diverged` and no measures."""
    accuracy_protocol_R = training.protocol_accuracy(result)
    certificates = result.certificates or ({},) * len(pack.runs)
    rows = []
    for i, run in enumerate(pack.runs):
        task = run.task
        n_params, n_params_memory = models.count_parameters(models.build(run), task.context_length)
        diverged = not math.isfinite(result.loss_R[i])
        measures = {
            "accuracy": result.accuracy_R[i],
            "accuracy_protocol": accuracy_protocol_R[i],
            "memorized": metrics.chance_corrected(
                result.accuracy_R[i], task.n_predicted, task.chance
            ),
            "bits": result.bits_R[i],
            "loss": result.loss_R[i],
        }
        known = () if diverged else meaningful(task)
        steps, accuracy, loss = training.log_spaced_curve(
            result.step_accuracy_RxL[i], result.step_loss_RxL[i]
        )
        rows.append(
            {
                **specs.columns(run),
                "n_params": n_params,
                "n_params_memory": n_params_memory,
                "n_params_distinct": models.count_distinct(models.build(run), task.context_length),
                "status": "diverged" if diverged else "ok",
                **{name: float(x) if name in known else None for name, x in measures.items()},
                "curve_steps": steps,
                "curve_accuracy": accuracy,
                "curve_loss": loss,
                **certificates[i],
            }
        )
    return rows


def meaningful(task: specs.Task | specs.LabelledContexts) -> tuple[str, ...]:
    """The measures that mean something: with several right answers only the divergence does."""
    if isinstance(task, specs.LabelledContexts):
        bits = ("bits",) if task.n_classes else ()
        return ("accuracy", "accuracy_protocol", "loss", "memorized", *bits)
    if task.name == "distributions":
        return ("loss",)
    if task.name == "bijection":
        # Its answers are known beforehand; which belongs where is not counted in bits.
        return ("accuracy", "accuracy_protocol", "loss", "memorized")
    # Weighed by a prior, accuracy and loss do not count sequences.
    counts = () if task.zipf_exponent else ("memorized", "bits")
    return ("accuracy", "accuracy_protocol", "loss", *counts)


def provenance(pack: packing.Pack, result: training.PackResult) -> dict[str, Any]:
    """What a shard says of how it came about."""
    device = jax.devices()[0]
    return {
        "spec_version": specs.SPEC_VERSION,
        "memobench": __version__,
        "commit": _commit(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "platform": device.platform,
        "device": device_name(device),
        "n_devices": devices.count(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "pack_size": len(pack.runs),
        "compile_seconds": round(result.compile_seconds, 3),
        "run_seconds": round(result.run_seconds, 3),
    }


@functools.cache
def _commit() -> str | None:
    """The commit of the checkout this code runs from, with `+` where files differ from it."""
    here = pathlib.Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def device_name(device: Any) -> str:
    """What a reader knows the device by; for a CPU its model and number of cores."""
    if device.platform != "cpu":
        return device.device_kind
    name = "CPU"
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {os.cpu_count()} cores"


class _Progress:
    """One line: runs done, model-steps per second, time left (weighed by predicted work)."""

    def __init__(self, packs: list[packing.Pack], enabled: bool) -> None:
        self._seconds_per_step = {
            run.run_id: pack.seconds / len(pack.runs) / packing.predicted_steps(run)
            for pack in packs
            for run in pack.runs
        }
        self._n_runs = sum(len(pack.runs) for pack in packs)
        self._runs_done = self._steps_done = 0
        # Seconds told of each pack, by its first run.
        self._told: dict[str, float] = collections.defaultdict(float)
        self._lock = threading.Lock()
        self._bar = tqdm.tqdm(
            total=sum(pack.seconds for pack in packs),
            disable=not enabled,
            bar_format="{percentage:3.0f}%|{bar}| {desc} [{elapsed}, {remaining} left]",
        )

    def __enter__(self) -> "_Progress":
        self._show()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.close()

    def steps_done(self, pack: packing.Pack, steps: int) -> None:
        with self._lock:
            self._steps_done += steps
            told = self._told[pack.runs[0].run_id]
            seconds = steps * self._seconds_per_step[pack.runs[0].run_id]
            # A search may take more than was predicted.
            self._advance(pack, min(seconds, self._predicted(pack) - told))

    def runs_done(self, pack: packing.Pack) -> None:
        with self._lock:
            self._runs_done += len(pack.runs)
            # What runs did not need because they ended early or were resumed is done too.
            self._advance(pack, self._predicted(pack) - self._told[pack.runs[0].run_id])

    def _predicted(self, pack: packing.Pack) -> float:
        seconds = self._seconds_per_step
        return sum(seconds[x.run_id] * packing.predicted_steps(x) for x in pack.runs)

    def _advance(self, pack: packing.Pack, seconds: float) -> None:
        self._told[pack.runs[0].run_id] += seconds
        self._bar.update(seconds)
        self._show()

    def _show(self) -> None:
        rate = self._steps_done / (self._bar.format_dict["elapsed"] or math.inf)
        runs = f"{self._runs_done}/{self._n_runs} runs"
        self._bar.set_description_str(f"{runs}, {rate:,.0f} model-steps/s", refresh=False)
