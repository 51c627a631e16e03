"""Measuring, as all scripts of this folder do it."""

import collections
import concurrent.futures
import datetime
import pathlib
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import pandas as pd
from absl import flags, logging

from memobench.common.errors import UserError
from memobench.report import tables
from memobench.runtime import worker
from memobench.store import results

Key = TypeVar("Key")
T = TypeVar("T")


def output_flag() -> flags.FlagHolder:
    """The flag of the folder that a script writes to; only scripts define flags."""
    return flags.DEFINE_string("output", "results/performance", "Folder of what is written.")


def begin(script: str, folder: Any) -> pathlib.Path:
    """The folder that a script writes to; ends the script in a line where it cannot."""
    logging.set_verbosity(logging.WARNING)
    # What an earlier measurement compiled would not be compiled again.
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        return results.check_writable(folder, "output")
    except UserError as error:
        sys.exit(f"{script}: {error}")


def say(text: str) -> None:
    """A line of progress, with the time."""
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


def about(script: str) -> dict[str, str]:
    """On what and when a script measured, and the command that repeats it."""
    return {
        "device": worker.device_name(jax.devices()[0]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "jax": jax.__version__,
        "command": shlex.join(["python", script, *sys.argv[1:]]),
    }


def markdown(table: pd.DataFrame) -> str:
    """A table with one digit behind the point."""
    return tables.markdown(table, {str(c): 1 for c in table.select_dtypes("float")})


def write(
    output: pathlib.Path, name: str, text: str, table: pd.DataFrame, about: dict[str, str]
) -> None:
    """Writes a page, and its table as CSV with what it was measured on in every row."""
    (output / f"{name}.md").write_text(text)
    table.assign(**about).to_csv(output / f"{name}.csv", index=False, float_format="%.4g")


# --- Rates -------------------------------------------------------------------------------------


def spread(rates: Sequence[float]) -> dict[str, float]:
    """The median of a rate over rounds, and its ends."""
    return {"rate": statistics.median(rates), "lowest": min(rates), "highest": max(rates)}


def in_turns(measures: Mapping[Key, Callable[[], T]], rounds: int) -> dict[Key, list[T]]:
    """The values of each measure by its key; a round takes every one once."""
    found = collections.defaultdict(list)
    for turn in range(rounds):
        for key, measure in measures.items():
            found[key].append(measure())
            say(f"round {turn + 1} of {rounds}: {key}: {found[key][-1]}")
    return dict(found)


def columns(rates: Sequence[float]) -> dict[str, float]:
    """`spread` as columns of a page."""
    median, lowest, highest = spread(rates).values()
    return {"model-steps / s": median, "lowest / s": lowest, "highest / s": highest}


def side_by_side(works: Sequence[Callable[[], T]]) -> list[T]:
    """The value of each of the works, which run at the same time, a thread each."""
    with concurrent.futures.ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(lambda work: work(), works))


def steady(
    steps: Iterator[None],
    seconds: float,
    warm_up: int,
    wait: Callable[[], Any] = lambda: None,
) -> float:
    """Steps per second after the first few; waits for the device before either reading."""
    for _ in range(warm_up):
        next(steps)
    wait()
    started, n = time.perf_counter(), 0
    while time.perf_counter() < started + seconds:
        next(steps)
        n += 1
    wait()
    return n / (time.perf_counter() - started)
