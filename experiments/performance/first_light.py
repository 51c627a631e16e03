"""The first hour on an accelerator: is it right, how fast is it, and what did the model say.

For each program of `programs.py`:

- *right*: loss and gradient of a step of two runs, on the device in float32, against the same in
  float64 on the host's CPU, where the models take another path (`models/lookup.py`); and a chunk of
  steps taken twice must give the same bits.
- *fast*: model-steps per second of packs of several sizes, with the seconds of compilation and the
  temporary memory; beside them PyTorch, one model after another, and the device's own ceilings.
- *foretold*: the same by `accelerators.csv`, the model from programs compiled without the device.

What is right is found, and programs are compiled, side by side; rates are measured after that, one
at a time. Rows are appended to first_light.jsonl as they are measured. After --minutes nothing is
begun, and the same command goes on where it stopped: no piece takes ten minutes. A wrong step ends
the script in an error, when the page is written. The page has the rows of all devices that the file
knows; --minutes=0 writes it and measures nothing.

    python experiments/performance/first_light.py --minutes=9
"""

import concurrent.futures
import datetime
import functools
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import associations
import ceilings
import jax
import jax.numpy as jnp
import measuring
import numpy as np
import pandas as pd
import programs
import pytorch
from absl import app, flags
from measuring import say
from rows import Rows

from memobench.engine import initializing, reading, to_compile
from memobench.planner import accelerators
from memobench.runtime import local

OUTPUT = measuring.output_flag()
PROGRAMS = flags.DEFINE_multi_string("programs", None, "Only the programs of these names.")
SIZES = flags.DEFINE_list("sizes", ["64", "256", "1024"], "Runs of a pack.")
SECONDS = flags.DEFINE_float("seconds", 5.0, "Time of each rate.", lower_bound=0)
MINUTES = flags.DEFINE_float("minutes", 9.0, "No measurement begins later.", lower_bound=0)

SCRIPT = "experiments/performance/first_light.py"
FORETOLD = pathlib.Path(__file__).parents[2] / "results" / "performance" / "accelerators.csv"
# Of float32 against float64: many times what rounding gives, far below what bfloat16 does.
TOLERANCE = 1e-4
# Runs whose initial weights the others of a pack repeat: the host makes them one after another.
INITIALIZED = 16

MARKDOWN = """\
# First light

Measured on each device by `{command}`; never edited by hand.

## Right

{right}

`gradient`, `loss`: relative difference of a step in float32 on the device from float64 on the CPU;
at most {tolerance:g} is right. `same bits`: whether a chunk taken twice gave the same weights.

## Fast

{rates}

`k steps / s`: thousands of model-steps per second, steady. `× PyTorch`: over the same model in
eager PyTorch, one after another. `TB / s`: what the program moves by accelerators.csv, at this
rate. `foretold`: `k steps / s` by accelerators.csv, a model; both are empty where it has no such
program. `planned`: by the planner. `seconds`: the least time for which a rate was measured.
`compile s`: side by side with up to as many others as there are cores.

## Ceilings

{ceilings}

A copy, bytes read and written counted; a product of float32 matrices at the precision of training;
steps of PyTorch. Empty: not measured there.
"""


def main(argv: Sequence[str]) -> None:
    """Measures what is missing, and writes the page."""
    output = measuring.begin(SCRIPT, OUTPUT.value)
    about = measuring.about(SCRIPT) | pytorch.version()
    of = {name: about[name] for name in ("jax", "device", "torch")}
    of |= {"seconds": str(SECONDS.value)}
    rows = Rows(output / "first_light.jsonl", of, MINUTES.value)
    failed = _measure(rows, PROGRAMS.value or list(programs.FIRST), list(map(int, SIZES.value)))
    tables = {kind: _table(rows, kind) for kind in ("right", "fast", "ceiling", "pytorch")}
    rates, ceilings_of = _rates(tables), _ceilings(tables)
    shown = tables["right"].map(lambda x: f"{x:.1e}" if isinstance(x, float) else x)
    text = MARKDOWN.format(
        right=measuring.markdown(shown),
        rates=measuring.markdown(rates),
        ceilings=measuring.markdown(ceilings_of),
        tolerance=TOLERANCE,
        command=f"python {SCRIPT}",
    )
    measuring.write(
        output, "first_light", text, pd.concat([tables["right"], rates, ceilings_of]), {}
    )
    print(text)
    if rows.left:
        print(f"Time was over with {rows.left} measurements left: the same command goes on.")
    wrong = [row["program"] for row in rows.all if row["kind"] == "right" and not _is_right(row)]
    said = [f"wrong on this device: {'; '.join(wrong)}"] if wrong else []
    said += [f"not measured, see above: {'; '.join(failed)}"] if failed else []
    if said:
        sys.exit("\n".join(said))


def _measure(rows: Rows, chosen: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """Adds what is not in the rows yet; returns what could not be measured, which it says."""
    right_keys: list[dict[str, Any]] = [{"kind": "right", "program": name} for name in chosen]
    fast_keys: list[dict[str, Any]] = [
        {"kind": "fast", "program": name, "runs": n} for n in sizes for name in chosen
    ]
    failed: list[str] = []

    def add(key: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> None:
        try:
            rows.add(key, measure)
        except Exception:  # The rest is measured whatever becomes of one.
            say(traceback.format_exc())
            failed.append(", ".join(map(str, key.values())))

    def compiled(key: dict[str, Any]) -> Compiled | None:
        return None if rows.over else Compiled(key["program"], key["runs"])

    with concurrent.futures.ThreadPoolExecutor(local.n_cores()) as pool:
        for key in right_keys:
            pool.submit(add, key, functools.partial(right, key["program"]))
        programs_of = {
            tuple(key.items()): pool.submit(compiled, key)
            for key in fast_keys
            if not rows.known(key)
        }
    # What rates are compared with comes first, for they may take all the time that there is.
    if sizes:
        add({"kind": "ceiling"}, functools.partial(ceilings.measure, 1, 1, SECONDS.value))
        for n_threads in pytorch.threads()[:1]:
            add({"kind": "pytorch"}, functools.partial(_pytorch, n_threads))
    for key in fast_keys:
        add(key, functools.partial(_rate, programs_of.get(tuple(key.items()))))
    return failed


def _rate(begun: Any) -> dict[str, Any]:
    return begun.result().rate()


def _pytorch(n_threads: int) -> dict[str, Any]:
    return {"rate": associations.pytorch_rate(n_threads, SECONDS.value)}


def _table(rows: Rows, kind: str) -> pd.DataFrame:
    """What all devices measured of a kind, with the device, the day and JAX's version first."""
    return pd.DataFrame(
        {
            "device": row["of"]["device"],
            "date": f"{datetime.datetime.fromtimestamp(row['sitting'], datetime.UTC):%Y-%m-%d}",
            "jax": row["of"]["jax"],
            **({"seconds": float(row["of"]["seconds"])} if kind == "fast" else {}),
            **{name: x for name, x in row.items() if name not in ("kind", "of", "sitting")},
        }
        for row in rows.everywhere
        if row["kind"] == kind
    )


def _rates(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The rates, and what they are compared with."""
    rates = tables["fast"]
    if not len(rates):
        return rates
    each: Iterable[Any] = rates.to_dict("records")
    known = {device: foretold(device) for device in rates["device"].unique()}
    modelled = [known[row["device"]].get((row["program"], row["runs"]), {}) for row in each]
    per_second = rates["k steps / s"] * 1e3
    if len(tables["pytorch"]):
        of_device = tables["pytorch"].groupby("device")["rate"].last()
        is_same = rates["program"] == "heads, published"
        rates["× PyTorch"] = (per_second / rates["device"].map(of_device)).where(is_same)
    megabytes = np.array([row.get("MB", np.nan) for row in modelled])
    rates["TB / s"] = per_second / rates["lanes"] * megabytes / 1e6
    rates["foretold"] = [row.get("k steps / s", np.nan) for row in modelled]
    rates["planned"] = [planned(row["device"], row["program"], row["runs"]) for row in each]
    return rates


def _ceilings(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """A row for each device."""
    both = (tables["ceiling"], tables["pytorch"])
    found = {device: {"device": device} for x in both for device in x.get("device", ())}
    for row in tables["ceiling"].to_dict("records"):
        found[row["device"]] |= {
            "copy, TB / s": row["bytes/s"] / 1e12,
            "product, TFLOP / s": row["FLOP/s"] / 1e12,
        }
    for row in tables["pytorch"].to_dict("records"):
        found[row["device"]]["PyTorch, steps / s"] = row["rate"]
    return pd.DataFrame(found.values())


def right(program: str) -> dict[str, Any]:
    """How far a step on the device is from float64 on the CPU, and whether chunks repeat."""
    pack, signature, n_lanes, n_instances = programs.packed(program, 2, jax.default_backend())
    arguments = _arguments(pack, signature, n_lanes, n_instances)

    def step(arguments: Any) -> Any:
        """Loss and gradient of the first lane's first step."""
        state, data, lane_R, _, order_RxCxB = arguments
        variables, lane, order_B = jax.tree.map(
            lambda x: x[0], (state.variables, lane_R, order_RxCxB[:, 0])
        )
        seen = reading.of(signature).steps(data, lane)

        def loss(params: Any) -> Any:
            return seen(order_B, {**variables, "params": params})[0]

        return jax.value_and_grad(loss)(variables["params"])

    here = jax.device_get(jax.jit(step)(arguments))
    cpu = jax.devices("cpu")[0]
    with jax.enable_x64(True), jax.default_device(cpu):
        exact = jax.tree.map(_double, jax.device_get(arguments))
        reference = jax.device_get(jax.jit(step)(jax.device_put(exact, cpu)))
    part = to_compile(signature, n_lanes, n_instances)["chunk"]
    chunk = part._replace(donate=()).compiled()
    once, again = (jax.device_get(chunk(*arguments)) for _ in range(2))
    return {
        "loss": _difference(here[0], reference[0]),
        "gradient": _difference(here[1], reference[1]),
        "same bits": all(map(np.array_equal, jax.tree.leaves(once), jax.tree.leaves(again))),
    }


class Compiled:
    """The chunk of steps of a pack, compiled."""

    def __init__(self, program: str, n_runs: int) -> None:
        self._of = programs.packed(program, n_runs, jax.default_backend())
        _, *shape = self._of
        started = time.perf_counter()
        self._chunk = to_compile(*shape)["chunk"].compiled()
        self._seconds = time.perf_counter() - started

    def rate(self) -> dict[str, Any]:
        """Model-steps per second."""
        pack, signature, n_lanes, n_instances = self._of
        state, *others = _arguments(pack, signature, n_lanes, n_instances)

        def advance(state: Any) -> tuple[Any, Any]:
            state, _ = self._chunk(state, *others)
            # The state is overwritten by the next chunk: a copy of one number is waited for.
            return state, jnp.copy(jax.tree.leaves(state.variables)[0].ravel()[:1])

        calls = measuring.calls_in_a_row(advance, state, SECONDS.value)
        return {
            "lanes": n_lanes,
            "k steps / s": calls * n_lanes * signature.chunk_steps / 1e3,
            "compile s": self._seconds,
            "temporary MB": self._chunk.memory_analysis().temp_size_in_bytes / 1e6,
            "planned MB": pack.memory_bytes / 1e6,
        }


def _arguments(pack: Any, signature: Any, n_lanes: int, n_instances: int) -> Any:
    """What a chunk reads: initial weights, a drawn instance, random batches, small rates."""
    parts = to_compile(signature, n_lanes, n_instances)
    _, data, lane, rate, order = parts["chunk"].arguments
    each = jax.device_get([initializing.init_run(run) for run in pack.runs[:INITIALIZED]])
    repeated = np.arange(n_lanes) % len(each)
    variables = jax.tree.map(lambda *xs: np.stack(xs)[repeated], *each)
    state = jax.jit(parts["begin"].function)(variables)
    rng = np.random.default_rng(0)

    def drawn(x: Any, most: int) -> np.ndarray:
        if jnp.issubdtype(x.dtype, jnp.integer):
            return rng.integers(0, most, x.shape).astype(x.dtype)
        return rng.uniform(0.01, 1.0, x.shape).astype(x.dtype)

    data = jax.tree.map(lambda x: drawn(x, 2), data)
    lane = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), lane)
    lane = lane._replace(n_examples=np.full(n_lanes, signature.task.n_examples, np.int32))
    rate, order = np.full(rate.shape, 1e-3, np.float32), drawn(order, signature.task.n_examples)
    return jax.device_put((state, data, lane, rate, order))


def _double(x: Any) -> Any:
    return x.astype(np.float64) if x.dtype == np.float32 else x


def _difference(found: Any, expected: Any) -> float:
    """The norm of what two trees differ by, relative to that of the second."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    squares = [(np.sum((x - y) ** 2), np.sum(y**2)) for x, y in pairs]
    above, below = np.sum(squares, axis=0)
    return float(np.sqrt(above / below))


def _is_right(row: dict[str, Any]) -> bool:
    return max(row["loss"], row["gradient"]) <= TOLERANCE and row["same bits"]


def planned(device: str, program: str, n_runs: int) -> float:
    """Thousands of model-steps per second by the planner's model of a device; NaN of CPUs."""
    if not device.startswith(tuple(accelerators.DEVICES)):
        return np.nan
    figures = accelerators.DEVICES[accelerators.nearest(device, "")]
    platform = "tpu" if device.startswith("TPU") else "gpu"
    pack, _, n_lanes, _ = programs.packed(program, n_runs, platform)
    moved = n_lanes * accelerators.seconds_of_traffic(pack.module, pack.runs[0], figures)
    return n_lanes / max(figures.step_seconds, moved) / 1e3


def foretold(device: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Rows of accelerators.csv of the target like a device, by program and runs; none of CPUs."""
    table = pd.read_csv(FORETOLD)
    # What makers add to a name tells sizes and sockets apart, which the model does not.
    if not device.startswith(tuple(accelerators.DEVICES)):
        return {}
    name = accelerators.nearest(device, "").replace("v5 lite", "v5e")
    table = table[table["accelerator"].str.startswith(name)]
    rows: Iterable[Any] = table.to_dict("records")
    return {(row["program"], int(row["runs"])): row for row in rows}


if __name__ == "__main__":
    app.run(main)
