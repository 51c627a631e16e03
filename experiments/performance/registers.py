"""Registers and spills of kernels on a GPU that is not here, as its compiler counts them.

CUDA's compiler at run time, which comes with JAX on CUDA and with PyTorch, needs no GPU. More
registers than 255 a thread, or than a multiprocessor has for all threads of a block, are spilled to
memory, which costs time at every step.

    python experiments/performance/registers.py
"""

import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import measuring
import pandas as pd
from absl import app

import memobench
from memobench.core.run import Run
from memobench.engine import cuda, resident
from memobench.experiments.board import peak
from memobench.planner import packing

OUTPUT = measuring.output_flag()

SCRIPT = "experiments/performance/registers.py"
ARCHITECTURE = "sm_90"
# Those of all threads of a block: of an H100 or H200.
MOST_REGISTERS = 65536

MARKDOWN = """\
# Registers and spills of the kernel

Compiled for {architecture} by CUDA's compiler at run time, not run. Written {date}, on {device}, by
`{command}`; never edited by hand.

{table}

`threads`: of a block; the first number whose block fits into shared memory is taken. `registers`:
of a thread, of at most {most:,} for all threads of a block. `spilled`: bytes that a thread writes
to memory and reads again for want of registers. `stack`: bytes of its arrays there. `default`:
whether the kernel takes these models' steps unasked, on a GPU on which it was measured to be
faster.
"""


def main(argv: Sequence[str]) -> None:
    """Compiles, prints and writes."""
    output = measuring.begin(SCRIPT, OUTPUT.value)
    about = measuring.about(SCRIPT)
    table = pd.DataFrame(row for name, run in _list_cases() for row in _count(name, run))
    text = MARKDOWN.format(
        table=measuring.markdown(table), architecture=ARCHITECTURE, most=MOST_REGISTERS, **about
    )
    measuring.write(output, "registers", text, table, about)
    print(text)


def _list_cases() -> Iterator[tuple[str, Run]]:
    """Forms of the board at 2,048 parameters, and variants of one that has all parts."""
    for run in peak.runs([2048]):
        if resident.find_kernel(_signature(run)):
            yield run.architecture.family, run
            last = run
    architecture: Any = last.architecture
    method: Any = last.method
    training = method.training
    variants: dict[str, dict[str, Any]] = {
        "compressed heads": {"architecture": architecture.replace(heads="compressed", d_head=2)},
        "two layers": {"architecture": architecture.replace(n_layers=2)},
        "Muon": {"method": method.replace(training=training.replace(optimizer=memobench.Muon()))},
    }
    for length in (4, 8):
        of_length = {"context_length": length, "n_sequences": last.task.n_examples}
        variants[f"{length} tokens"] = {"task": last.task.replace(**of_length)}
    for name, changed in variants.items():
        yield f"{architecture.family}, {name}", dataclasses.replace(last, **changed)


def _signature(run: Run) -> Any:
    return packing.make_pack([run]).signature


def _count(name: str, run: Run) -> Iterator[dict[str, Any]]:
    """A row for each number of threads."""
    signature = _signature(run)
    kernel = resident.find_kernel(signature)
    assert kernel is not None, name
    by_default = resident.find_kernel(signature, anywhere=False) is not None
    constants = resident.defines(kernel, signature)
    for n_threads in cuda.THREADS:
        words = [f"-D{x}={v}" for x, v in {**constants, "B": n_threads}.items()]
        _, log = cuda.compile_source(kernel.source, [*words, "--ptxas-options=-v"], ARCHITECTURE)
        yield {
            "models": name,
            "threads": n_threads,
            "registers": _find(r"Used (\d+) registers", log),
            "spilled": _find(r"(\d+) bytes spill stores", log),
            "stack": _find(r"(\d+) bytes stack frame", log),
            "default": "yes" if by_default else "",
        }


def _find(pattern: str, log: str) -> int:
    """The largest number of a pattern: of the kernel among its functions."""
    numbers = [int(x) for x in re.findall(pattern, log)]
    if not numbers:
        sys.exit(f"the compiler's log must have {pattern!r}, got {log!r}; use another version")
    return max(numbers)


if __name__ == "__main__":
    app.run(main)
