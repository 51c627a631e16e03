"""The cost of a step on accelerators that are not here, seen by compiling for them.

JAX compiles for a described GPU or TPU on a machine that has none. For each program below, in packs
of several sizes, XLA's compiled text says how many kernels a step launches, whether it sorts or
loops, how its matrix products are made, and how many bytes move if every kernel reads its operands
and writes its results once; XLA plans the temporary memory. Operations are XLA's count of the
program before it is optimised.

*Model-steps per second* are a model and no measurement: a step takes its launches one after
another, or its bytes at the device's bandwidth, or its operations at its float32 rate, whichever is
longest, by the figures of `hardware.py`. The parts of a TPU's program follow each other without a
launch.

Every row is appended to accelerators.jsonl as it is compiled. After --minutes the rest is left, and
the same command goes on where it stopped. A row is kept as long as JAX, of the same version, lowers
its program to the same text: after a change of the code only what it changed is compiled anew. The
page has the rows of all that was asked for, and of nothing else.

    make aot
    python experiments/performance/accelerators.py --targets=h200 --programs="heads, published"
"""

import collections
import functools
import hashlib
import itertools
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import hardware
import jax
import measuring
import pandas as pd
import programs
import xla_text
from absl import app, flags
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rows import Rows

from memobench.engine import compiling, to_compile
from memobench.engine.compiling import Part
from memobench.planner import packing

OUTPUT = measuring.output_flag()
TARGETS = flags.DEFINE_list("targets", list(hardware.TARGETS), "Accelerators to compile for.")
PROGRAMS = flags.DEFINE_multi_string("programs", None, "Only the programs of these names.")
SIZES = flags.DEFINE_list(
    "sizes",
    ["64", "256", "1024", "planned"],
    "Runs of a pack; `planned`: of the largest that the planner makes of the full preset.",
)
MINUTES = flags.DEFINE_float("minutes", 60.0, "No compilation begins later.", lower_bound=0)

SCRIPT = "experiments/performance/accelerators.py"

MARKDOWN = """\
# What a step asks of accelerators that are not here

Compiled, not run. Written {date}, with jax {jax}, on {device}, by `{command}`;
never edited by hand. Every row is of what this day's code asks JAX for.

{table}

`runs`: 64, 256, 1,024, and as many as in the largest pack that the planner makes of the full
preset of a program's experiment. `launches`: kernels and copies of a step. `products`: matrix
products that XLA makes itself (`fused`), that stand `alone`, or that it leaves to a `library`.
`MB`: bytes of a step if every kernel reads its operands and writes its results once; on a TPU in
whole tiles of 8 x 128, without what stays on the chip. `held MB`: weights, moments, batches and
temporaries of a chunk, as XLA plans them. `planned MB`: the planner's prediction of that.
`k steps / s`: thousands of model-steps per second that launches (2 µs each on a GPU), bandwidth
and float32 rate allow, a model and no measurement; `bound by`: the longest of the three. On a TPU
neither what stays on the chip nor the start of a part takes time in it: small packs cannot be as
fast as that. `compile s`: on the CPU that compiled the row, which may have been another one, and
busy.

## Bars

At most {launches} launches a step on a GPU for a model of one layer and {of_layer} more for each
further one (its products, forward and backward, need one another), no sort, no inner
loop, and what is held within {over:g} times the plan's memory, both ways, where it is more than a
TPU's chip may keep (128 MiB). The parts of a TPU's program are counted as launches without a bar.

{misses}

More than {launches} launches on a GPU: {deep}.

## Without a row

{without}
"""

MOST_LAUNCHES, OF_LAYER = 80, 10
MOST_FROM_PLAN = 3.0


def main(argv: Sequence[str]) -> None:
    """Compiles what is missing, and writes the page."""
    # Without a TPU there is no metadata server to ask, and nothing that one process has to itself.
    for name in ("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        os.environ.setdefault(name, "1")
    output = measuring.begin(SCRIPT, OUTPUT.value)
    about = measuring.about(SCRIPT)
    rows = Rows(output / "accelerators.jsonl", {"jax": about["jax"]}, MINUTES.value)
    found, without = [], []
    for target, program, n in dict.fromkeys(_list_wanted()):
        why, row = _too_large(target, program, n), None
        try:
            row = None if why else row_of(rows, target, program, n)
            why = why or "not compiled yet: the same command goes on"
        except jax.errors.JaxRuntimeError as error:
            why = re.sub(r"^\S+: (E\d+: )?|\. .*", "", str(error).splitlines()[0])
        if row:
            found.append(row)
        else:
            without.append(f"- {hardware.TARGETS[target].name}, {program}, {int(n):,} runs: {why}.")
    found.sort(key=_place)
    table = pd.DataFrame([_format_row(row) for row in found])
    misses = [f"- {miss}" for row in found for miss in _misses(row)]
    text = MARKDOWN.format(
        table=measuring.markdown(table),
        launches=MOST_LAUNCHES,
        of_layer=OF_LAYER,
        over=MOST_FROM_PLAN,
        deep=_deep(found),
        misses="\n".join(misses) or "Every program keeps them.",
        without="\n".join(without) or "None.",
        **about,
    )
    measuring.write(output, "accelerators", text, table, about)
    print(text)
    if rows.left:
        print(f"Time was over with {rows.left} programs left: the same command goes on.")
    if misses:
        sys.exit(f"{len(misses)} bars are missed")


def row_of(rows: Rows, target: str, program: str, runs: str) -> dict[str, Any]:
    """The row of one program, for packs of so many runs; empty where time is over."""
    platform = hardware.TARGETS[target].planned_as
    pack, signature, n_lanes, n_instances = programs.packed(program, int(runs), platform)
    part = to_compile(signature, n_lanes, n_instances)["chunk"]
    key = {
        **{"kind": "step", "target": target, "program": program, "runs": runs},
        "lanes": n_lanes,
        "layers": getattr(pack.module, "n_layers", 1),
        "lowered": lowered_hash(target, part),
    }
    return rows.add(key, functools.partial(compile_one, target, part))


def lowered_hash(target: str, part: Part) -> str:
    """Names the text that XLA compiles for a target; needs no compiler."""
    traced = jax.jit(part.function, donate_argnums=part.donate).trace(*part.arguments)
    text = traced.lower(lowering_platforms=(hardware.TARGETS[target].platform,)).as_text()
    return hashlib.sha256(f"{text}{_options(target)}".encode()).hexdigest()[:16]


def compile_one(target: str, part: Part) -> dict[str, Any]:
    """The row of a compiled program: its kernels, bytes, operations and memory on a target."""
    device = hardware.TARGETS[target]
    place = NamedSharding(Mesh(device.topology().devices[:1], ("runs",)), PartitionSpec())
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), part.arguments
    )
    jitted = jax.jit(part.function, donate_argnums=part.donate, compiler_options=_options(target))
    # XLA counts the body of a loop once: a step.
    counted: Any = jax.jit(part.function).lower(*part.arguments).cost_analysis()
    lowered = jitted.lower(*shapes)
    started = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - started
    memory: Any = compiled.memory_analysis()
    return {
        **xla_text.step(compiled.as_text() or "")._asdict(),
        "flop": counted["flops"],
        "held": memory.temp_size_in_bytes
        + memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes,
        "compile s": seconds,
    }


def _options(target: str) -> dict[str, Any]:
    gpu = hardware.TARGETS[target].platform == "cuda"
    return {name: x for name, x in compiling.options().items() if gpu and "gpu" in name}


def _list_wanted() -> Iterator[tuple[str, str, str]]:
    """Targets, programs and runs of a pack."""
    chosen = PROGRAMS.value or programs.FIRST
    for n, target, program in itertools.product(SIZES.value, TARGETS.value, chosen):
        if n != "planned":
            yield target, program, n
        elif program in programs.EXPERIMENT:
            platform = hardware.TARGETS[target].planned_as
            yield target, program, str(programs.planned_runs(program, platform))


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    """The sort key of a row: device, size and program."""
    targets, order = list(hardware.TARGETS), list(programs.FIRST)
    return targets.index(row["target"]), int(row["runs"]), order.index(row["program"])


def _too_large(target: str, program: str, runs: str) -> str:
    """The reason why the planner would not make a pack of so many runs; empty where it would."""
    platform = hardware.TARGETS[target].planned_as
    planned = programs.packed(program, int(runs), platform)[0].memory_bytes
    most = packing.MEMORY_BYTES[platform]
    over = planned > most
    return (
        f"planned {planned / 1e9:.1f} GB, and packs take {most / 1e9:.1f} at most" if over else ""
    )


def _planned(row: dict[str, Any]) -> float:
    """The bytes that the planner predicts for a pack."""
    platform = hardware.TARGETS[row["target"]].planned_as
    return programs.packed(row["program"], int(row["runs"]), platform)[0].memory_bytes


def _deep(rows: Sequence[dict[str, Any]]) -> str:
    """The programs that need more launches than one layer may, with their least and most."""
    found = collections.defaultdict(list)
    for row in rows:
        if hardware.TARGETS[row["target"]].launch and row["launches"] > MOST_LAUNCHES:
            found[row["program"], row["layers"]].append(row["launches"])
    texts = [
        f"{program}, of {layers} layers, {min(counts)} to {max(counts)}"
        for (program, layers), counts in found.items()
    ]
    return "; ".join(texts) or "none"


def _misses(row: dict[str, Any]) -> list[str]:
    """The bars that a program misses."""
    device, planned = hardware.TARGETS[row["target"]], _planned(row)
    most = MOST_LAUNCHES + OF_LAYER * (row["layers"] - 1)
    found = {
        f"{row['launches']} launches": device.launch and row["launches"] > most,
        f"{row['sorts']} sorts": row["sorts"],
        f"{row['loops']} inner loops": row["loops"],
        f"{row['held'] / planned:.2f} times the plan": (
            row["held"] > device.on_chip
            and not 1 / MOST_FROM_PLAN <= row["held"] / planned <= MOST_FROM_PLAN
        ),
    }
    name = f"{device.name}, {row['program']}, {row['runs']} runs"
    return [f"{name}: {text}" for text, missed in found.items() if missed]


def _format_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the page has it."""
    device = hardware.TARGETS[row["target"]]
    seconds = {
        "launches": row["launches"] * device.launch,
        "bytes": row["bytes"] / device.bandwidth,
        "FLOP": row["flop"] / device.flops,
    }
    longest = max(seconds, key=lambda name: seconds[name])
    return {
        "accelerator": device.name,
        "program": row["program"],
        "runs": int(row["runs"]),
        "lanes": row["lanes"],
        "launches": row["launches"],
        "sorts": row["sorts"],
        "inner loops": row["loops"],
        "products": ", ".join(f"{n} {kind}" for kind, n in row["products"].items()),
        "MB": row["bytes"] / 1e6,
        "GFLOP": row["flop"] / 1e9,
        "held MB": row["held"] / 1e6,
        "planned MB": _planned(row) / 1e6,
        "compile s": row["compile s"],
        "k steps / s": row["lanes"] / seconds[longest] / 1e3,
        "bound by": longest,
    }


if __name__ == "__main__":
    app.run(main)
