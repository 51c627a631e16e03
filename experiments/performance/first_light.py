"""The first hour on an accelerator: is it right, how fast is it, and what did the model say.

For each program of `programs.py`:

- *right*: loss and gradient of a step of two runs, on the device in float32, against the same in
  float64 on the host's CPU, where the models take another path (`models/lookup.py`); and a chunk of
  steps taken twice must give the same bits.
- *fast*: model-steps per second of packs of several sizes, with the seconds of compilation and the
  temporary memory.
- *foretold*: the same by `accelerators.csv`, the model from programs compiled without the device.

Rows are appended to first_light.jsonl as they are measured. After --minutes the rest is left, and
the same command goes on where it stopped: no piece takes ten minutes. A wrong step ends the script
in an error, when the page is written.

    python experiments/performance/first_light.py --minutes=9
"""

import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import measuring
import numpy as np
import pandas as pd
import programs
from absl import app, flags
from rows import Rows

from memobench.engine import initializing, reading, to_compile
from memobench.planner import accelerators

OUTPUT = measuring.output_flag()
PROGRAMS = flags.DEFINE_multi_string("programs", None, "Only the programs of these names.")
SIZES = flags.DEFINE_list("sizes", ["64", "256", "1024"], "Runs of a pack.")
SECONDS = flags.DEFINE_float("seconds", 5.0, "Time of each rate.", lower_bound=0)
MINUTES = flags.DEFINE_float("minutes", 9.0, "No measurement begins later.", lower_bound=0)

SCRIPT = "experiments/performance/first_light.py"
FORETOLD = pathlib.Path(__file__).parents[2] / "results" / "performance" / "accelerators.csv"
# Of float32 against float64: many times what rounding gives, far below what bfloat16 does.
TOLERANCE = 1e-4

MARKDOWN = """\
# First light

{date}, jax {jax}, on {device}. Written by `{command}`; never edited by hand.

## Right

{right}

`gradient`, `loss`: relative difference of a step in float32 on the device from float64 on the CPU;
at most {tolerance:g} is right. `same bits`: whether a chunk taken twice gave the same weights.

## Fast

{fast}

`foretold`: by accelerators.csv, which no device has measured; empty where it has no such program.
"""


def main(argv: Sequence[str]) -> None:
    """Measures what is missing, and writes the page."""
    output = measuring.begin(SCRIPT, OUTPUT.value)
    about = measuring.about(SCRIPT)
    of = {"jax": about["jax"], "device": about["device"]}
    rows = Rows(output / "first_light.jsonl", of, MINUTES.value)
    chosen = PROGRAMS.value or list(programs.FIRST)
    for name in chosen:
        rows.add({"kind": "right", "program": name}, lambda name=name: right(name))
    for n in SIZES.value:
        for name in chosen:
            key = {"kind": "fast", "program": name, "runs": int(n)}
            rows.add(key, lambda name=name, n=n: fast(name, int(n)))
    checked = rows.table("right").drop(columns=["kind", "of", "sitting"], errors="ignore")
    rates = rows.table("fast").drop(columns=["kind", "of", "sitting"], errors="ignore")
    if len(rates):
        on_cpu = jax.default_backend() == "cpu"
        model = {} if on_cpu else foretold(jax.devices()[0].device_kind)
        rates["foretold"] = [model.get((x.program, x.runs), np.nan) for x in rates.itertuples()]
    shown = checked.map(lambda x: f"{x:.1e}" if isinstance(x, float) else x)
    text = MARKDOWN.format(
        right=measuring.markdown(shown),
        fast=measuring.markdown(rates),
        tolerance=TOLERANCE,
        **about,
    )
    measuring.write(output, "first_light", text, pd.concat([checked, rates]), about)
    print(text)
    if rows.left:
        print(f"Time was over with {rows.left} measurements left: the same command goes on.")
    wrong = [row["program"] for row in rows.all if row["kind"] == "right" and not _is_right(row)]
    if wrong:
        sys.exit(f"wrong on this device: {', '.join(wrong)}")


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


def fast(program: str, n_runs: int) -> dict[str, Any]:
    """Model-steps per second of a pack."""
    pack, signature, n_lanes, n_instances = programs.packed(program, n_runs, jax.default_backend())
    state, *others = _arguments(pack, signature, n_lanes, n_instances)
    started = time.perf_counter()
    chunk = to_compile(signature, n_lanes, n_instances)["chunk"].compiled()
    seconds = time.perf_counter() - started
    memory: Any = chunk.memory_analysis()

    def advance(state: Any) -> tuple[Any, Any]:
        state, _ = chunk(state, *others)
        # The state is overwritten by the next chunk: a copy of one number is waited for.
        return state, jnp.copy(jax.tree.leaves(state.variables)[0].ravel()[:1])

    calls = measuring.calls_in_a_row(advance, state, SECONDS.value)
    return {
        "lanes": n_lanes,
        "k steps / s": calls * n_lanes * signature.chunk_steps / 1e3,
        "compile s": seconds,
        "temporary MB": memory.temp_size_in_bytes / 1e6,
        "planned MB": pack.memory_bytes / 1e6,
    }


def _arguments(pack: Any, signature: Any, n_lanes: int, n_instances: int) -> Any:
    """What a chunk reads: initial weights, a drawn instance, random batches, small rates."""
    parts = to_compile(signature, n_lanes, n_instances)
    _, data, lane, rate, order = parts["chunk"].arguments
    each = [initializing.init_run(pack.runs[i % len(pack.runs)]) for i in range(n_lanes)]
    state = jax.jit(parts["begin"].function)(jax.tree.map(lambda *xs: np.stack(xs), *each))
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


def foretold(device: str) -> dict[tuple[str, int], float]:
    """Thousands of model-steps per second by program and runs, of the target like this device."""
    table = pd.read_csv(FORETOLD)
    # What makers add to a name tells sizes and sockets apart, which the model does not.
    name = accelerators.nearest(device, "").replace("v5 lite", "v5e")
    table = table[table["accelerator"].str.startswith(name)]
    return {
        (row["program"], int(row["runs"])): row["k steps / s"] for row in table.to_dict("records")
    }


if __name__ == "__main__":
    app.run(main)
