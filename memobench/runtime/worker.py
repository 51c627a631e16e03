"""One pack in, one shard out: leases, training, measures, weights and rows of a pack."""

import collections
import contextlib
import dataclasses
import datetime
import functools
import json
import logging
import math
import os
import pathlib
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from memobench import certificates
from memobench.common import atomic, settings, strict_json
from memobench.common.errors import DoesNotFit, UserError, require, short_repr
from memobench.common.notation import pluralize
from memobench.core import cells as runs
from memobench.core import module as models
from memobench.core.run import OnSteps, Pack, PackResult, Run, Weights
from memobench.engine import lanes
from memobench.numerics import metrics
from memobench.planner import packing
from memobench.runtime import checkpoints
from memobench.runtime.leases import Leases
from memobench.runtime.provenance import device_name, provenance
from memobench.store import curves, measures
from memobench.store import results as store
from memobench.store.rows import OTHERS, require_whole

_log = logging.getLogger("memobench")


@dataclasses.dataclass(frozen=True)
class Workspace:
    """A results folder as one process sees it: its shards, its leases and its checkpoints.

    Attributes:
      folder: the path.
      reader: of its shards.
      leases: of runs in training.
      sweep: the name of the sweep, which leases of this process give.
      is_temporary: whether the folder goes with the sweep, so that it needs no checkpoints and no
        weights.
    """

    folder: pathlib.Path
    reader: store.Reader
    leases: Leases
    sweep: str = ""
    is_temporary: bool = False

    @property
    def checkpoints(self) -> checkpoints.Folder:
        # Hidden, so that a folder of shards holds nothing else to its readers.
        return checkpoints.Folder(self.folder / ".checkpoints")


@settings.pin
def work(workspace: Workspace, pack: Pack, on_steps: OnSteps = lambda steps: None) -> None:
    """Trains those of a pack's runs that are neither done nor leased elsewhere.

    Args:
      workspace: the folder to which shards are written.
      pack: one pack; where it does not fit in memory it becomes several.
      on_steps: called with the number of model-steps done since its last call.

    Raises:
      DoesNotFit: a run is too large for the device.
      Unwritable: the folder can no longer be written.
      UserError: no run of the pack can be made, or what came out is not what rows may say.
    """
    runs.check_code(pack.runs)  # Files may have been edited since another process planned the pack.
    name = store.shard_name(run.run_id for run in pack.runs)
    lease = workspace.leases.take(
        [run.run_id for run in pack.runs],
        kind="pack",
        sweep=workspace.sweep,
        pack=name,
        first=pack.runs[0].run_id,
        protocol=pack.runs[0].method.protocol,
        done=0,
        steps=int(sum(run.method.cost(run).steps for run in pack.runs)),
    )
    with lease:
        # Only now: a run that another lease held until this one was taken is in a shard.
        free = lease.run_ids - workspace.reader.rows().keys()
        pack = packing.subset(pack, [run for run in pack.runs if run.run_id in free])
        if not pack.runs:
            return

        def count_steps(steps: int) -> None:
            steps = int(steps)  # A lease holds no number of NumPy's.
            lease.update(done=lease.about["done"] + steps)
            on_steps(steps)

        note = functools.partial(_note, workspace.folder / ".logs" / f"{name}.log")
        note(
            f"{len(pack.runs)} runs by {pack.runs[0].method.protocol}, padded to {pack.module!r}, "
            f"on {device_name(jax.devices()[0])}, process {os.getpid()}"
        )
        try:
            saved = None if workspace.is_temporary else workspace.checkpoints
            for part, result in train_within_memory(pack, make_trainer(count_steps, saved)):
                _write(workspace, part, result, note)
        except BaseException:
            note(traceback.format_exc().rstrip())
            raise


def make_trainer(
    on_steps: OnSteps, saved: checkpoints.Folder | None = None
) -> Callable[[Pack], PackResult]:
    """A function that trains a pack by the method of its runs, and times it."""

    def train(pack: Pack) -> PackResult:
        timed = None
        if saved:
            timed = checkpoints.Timed(saved, device_name(jax.devices()[0]), len(pack.runs))
        started = time.perf_counter()
        result = pack.runs[0].method.train(pack, on_steps, timed)
        _require_of_pack(pack, result)
        seconds = time.perf_counter() - started + (timed.earlier_seconds if timed else 0.0)
        return dataclasses.replace(
            result,
            run_seconds=seconds - result.compile_seconds,
            earlier_devices=tuple(
                timed.earlier_devices(run.run_id) if timed else () for run in pack.runs
            ),
        )

    return train


def _require_of_pack(pack: Pack, result: Any) -> None:
    """Raises UserError unless this may be what a method's `train` returns for a pack."""
    n, method = len(pack.runs), pack.runs[0].method
    require(
        isinstance(result, PackResult),
        f"method {method.name}: its train must return a PackResult, got {short_repr(result)}",
    )
    names = ("accuracy_R", "loss_R", "step_accuracy_RxL", "step_loss_RxL")
    sizes = [np.shape(getattr(result, name)) for name in names]
    n_steps = sizes[-1][-1] if len(sizes[-1]) == 2 else 0
    require(
        sizes == [(n,), (n,), (n, n_steps), (n, n_steps)] and n_steps > 0,
        f"method {method.name}: {', '.join(names)} of its PackResult must be of "
        f"{pluralize(n, 'run')} and of a step or more, got shapes {', '.join(map(str, sizes))}",
    )
    for name, given in (("columns", result.columns), ("weights", result.weights or ())):
        require(
            len(given) in (0, n),
            f"method {method.name}: {name} of its PackResult must be of {pluralize(n, 'run')}, got "
            f"those of {len(given)}",
        )
    own = method.columns_of_rows().keys() | measures.registered_measures().keys()
    own |= {x for x in OTHERS if x.startswith("curve_")}
    for name in {x for each in result.columns for x in each} - own:
        raise UserError(
            f"method {method.name}: its PackResult has the column {short_repr(name)}; name it in "
            "columns_of_rows, or leave it out"
        )
    shapes = models.shapes(pack.module, pack.runs[0].task.context_length)
    expected = {x: shapes[x] for x in result.variables or {} if x in shapes}
    stacked = jax.tree.map(lambda x: (n, *x.shape), expected)
    require(
        jax.tree.map(np.shape, dict(result.variables or {})) == stacked,
        f"method {method.name}: variables of its PackResult must be those of pack.module, of "
        f"{pluralize(n, 'run')} each; stack them, or leave them out",
    )


def _write(
    workspace: Workspace, pack: Pack, result: PackResult, note: Callable[[str], None]
) -> None:
    """Writes weights and then their shards, and discards the checkpoints of its runs."""
    shards = _shards(pack, result)
    row_of = {row["run_id"]: row for rows, _ in shards for row in rows}
    files = [] if workspace.is_temporary else list(weights_of(pack, result))
    # A lease may have run out while this process was suspended, and another trained its runs.
    done = workspace.reader.rows().keys()
    try:
        for run, data in zip(pack.runs, files, strict=False):
            if data:
                row_of[run.run_id]["weights_digest"] = certificates.digest(data)
                if run.run_id not in done:
                    _write_weights(store.weights_path(workspace.folder, run.run_id), data)
        for rows, about in shards:
            new = [row for row in rows if row["run_id"] not in done]
            name = store.write_shard(workspace.folder, new, about).name if new else "no new shard"
            note(
                f"{len(new)} runs in {name}; compiled for {about['compile_seconds']} s, "
                f"ran for {about['run_seconds']} s"
            )
    except OSError as error:
        raise store.unwritable_error(workspace.folder, error) from error
    workspace.checkpoints.discard(row_of)


def _shards(pack: Pack, result: PackResult) -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Rows and provenance of a pack, for each list of devices that trained its runs in turn.

    Raises UserError for what no reader would accept: nothing is written then.
    """
    by_earlier = collections.defaultdict(list)
    earlier_of = result.earlier_devices or ((),) * len(pack.runs)
    for earlier, row in zip(earlier_of, rows_of(pack, result), strict=True):
        by_earlier[earlier].append(row)
    shards = [(rows, provenance(pack, result, earlier)) for earlier, rows in by_earlier.items()]
    for rows, about in shards:
        try:
            # As readers will.
            require_whole(strict_json.parse(json.dumps(rows).encode()), about)
        except (UserError, TypeError, ValueError) as error:
            raise UserError(
                f"the result of run {rows[0]['run_id']} and those packed with it: {error}; report "
                "it, or fix the kind of yours that made it"
            ) from error
    return shards


def _note(log: pathlib.Path, text: str) -> None:
    """Writes a line into a pack's log; where that fails, training goes on."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with contextlib.suppress(OSError):
        log.parent.mkdir(exist_ok=True)
        # Source and paths within a traceback may be text of any kind.
        with open(log, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{date} {text}\n")


def train_within_memory(
    pack: Pack, train: Callable[[Pack], PackResult]
) -> Iterator[tuple[Pack, PackResult]]:
    """Yields the pack with its result, or smaller ones, with a warning, where it does not fit.

    Raises:
      DoesNotFit: a run alone does not fit in memory; all others were yielded before.
    """
    parts, too_large = [pack], list[Run]()
    while parts:
        part = parts.pop(0)
        try:
            result = train(part)
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            # What follows is beyond this block: the error keeps what the pack held on the device.
        else:
            yield part, result
            continue
        smaller = packing.halve_pack(part)
        if not smaller:
            too_large += part.runs
            continue
        _log.warning(
            "a pack of %s, %d models at a time, did not fit in memory; trying %s, %d at a time",
            pluralize(len(part.runs), "run"),
            part.slots,
            " and ".join(str(len(each.runs)) for each in smaller),
            smaller[0].slots,
        )
        parts[:0] = smaller
    if too_large:
        name, sizes = too_large[0].architecture.name, too_large[0].architecture.shared_cells()
        raise DoesNotFit(
            f"{name} with d_model={sizes['d_model']}, n_heads={sizes['n_heads']}, "
            f"d_mlp={sizes['d_mlp']} (run {too_large[0].run_id}) does not fit in memory even "
            "alone; choose a larger device, or one that nothing else fills (see nvidia-smi), fewer "
            "processes or a smaller batch_size"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """True where the device or the host had too little memory."""
    return isinstance(error, MemoryError) or (
        isinstance(error, jax.errors.JaxRuntimeError)
        and any(x in str(error) for x in ("RESOURCE_EXHAUSTED", "CUDA_ERROR_OUT_OF_MEMORY"))
    )


def rows_of(pack: Pack, result: PackResult) -> list[dict[str, Any]]:
    """One JSON-ready row per run; a diverged run has status `diverged` and no measures."""
    accuracy_protocol_R = curves.published_accuracy(result.step_accuracy_RxL)
    own_columns = result.columns or ({},) * len(pack.runs)
    rows = []
    for i, run in enumerate(pack.runs):
        task = run.task
        module = run.module()
        diverged = not math.isfinite(result.loss_R[i])
        measured = {
            "accuracy": result.accuracy_R[i],
            "accuracy_protocol": accuracy_protocol_R[i],
            "memorized": metrics.correct_for_chance(
                result.accuracy_R[i], task.n_predicted, task.chance
            ),
            "bits": metrics.memorized_bits(result.loss_R[i], task.n_predicted, task.n_choices),
            "loss": result.loss_R[i],
        }
        known = () if diverged else task.measures
        steps, accuracy, loss = curves.points(result.step_accuracy_RxL[i], result.step_loss_RxL[i])
        rows.append(
            {
                **runs.cells(run),
                **models.counts(module, task),
                "status": "diverged" if diverged else "ok",
                **{name: float(x) if name in known else None for name, x in measured.items()},
                **({} if diverged else _own_measures(run, result, i)),
                "curve_steps": steps,
                "curve_accuracy": accuracy,
                "curve_loss": loss,
                **{name: _convert(cell) for name, cell in own_columns[i].items()},
            }
        )
    return rows


def _convert(cell: Any) -> Any:
    """A cell as JSON has it; None for a number that is not finite, as of a diverged run."""
    return strict_json.or_null(cell.tolist() if hasattr(cell, "tolist") else cell)


def weights_of(pack: Pack, result: PackResult) -> Iterator[bytes | None]:
    """Yields the file of each run's weights; None where they are missing or not finite.

    None, and a line in the log, where a certificate cannot hold such weights.
    """
    variables = jax.tree.map(np.asarray, result.variables)
    for i, run in enumerate(pack.runs):
        found = result.weights[i] if result.weights else _crop_weights(run, variables, i)
        is_finite = found and all(np.isfinite(x).all() for x in jax.tree.leaves(found.params))
        yield _encode_certificate(run, found) if found and is_finite else None


def _encode_certificate(run: Run, found: Weights) -> bytes | None:
    task = found.task or run.task
    try:
        return certificates.encode(
            certificates.make(task, run.architecture, found.params, seed=run.seed)
        )
    except UserError as error:
        _log.warning("weights of run %s are not kept: %s", run.run_id, error)
        return None


def _crop_weights(run: Run, variables: Any, place: int) -> Weights | None:
    """A run's weights, cut out of those of a pack, which are padded and stacked."""
    if not variables:
        return None
    shapes = certificates.shapes(run.module(), run.task.context_length)
    padded = traverse_util.flatten_dict(variables["params"], sep="/")
    places = {name: (place, *map(slice, shape)) for name, shape in shapes.items()}
    return Weights({name: padded[name][where] for name, where in places.items()})


def _write_weights(path: pathlib.Path, data: bytes) -> None:
    """Writes a file of weights whole; the row's digest notices if a power failure loses it."""
    path.parent.mkdir(exist_ok=True)
    with atomic.replace(path, durable=False) as file:
        file.write(data)


def _own_measures(run: Run, result: PackResult, place: int) -> dict[str, float]:
    """Measures of the task's own kind; empty where it has none, or takes no single weights."""
    if not result.variables or not measures.measures_of(run.task):
        return {}
    true = models.shapes(run.module(), run.task.context_length)
    variables = lanes.crop(result.variables, place, {name: true[name] for name in result.variables})
    return measures.of_weights(run.task, run.module(), variables)
