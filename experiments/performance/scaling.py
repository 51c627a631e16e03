"""A sweep of up to a million tiny runs, simulated: what planning, storing and reporting it takes.

Nothing is trained. Runs are made up, and so are their measures: they fit each other, so that
`memobench verify` passes them, but say nothing of any model; their shards say `simulated` for a
device, go into a temporary folder and are deleted at the end. At each number of packs, of one run
and of several, every stage runs in a process of its own, one after another:

    plan, programs  `packing.plan` where every pack has a program of its own: batches differ
    plan, sizes     `packing.plan` of as many runs where up to 1,000 sizes share a program
    write           `results.write_shard`, a shard for every pack; the rows' making is in it
    read            `results.load_results`
    resume          `sweep.plan` where all but a hundredth of the runs are done
    verify          `verify.verify`
    report          the page of an experiment of all runs, with figure and CSV
    leaderboard     the leaderboard's pages

Of each stage are measured wall seconds, seconds of CPU (of all threads; on a busy machine only
these compare) and the process's peak memory, imports and what the stage is given included. A stage
that takes longer than --limit is ended, and is not tried with more packs. It prints, and writes to
--output as Markdown and CSV, one table; what the CSV there holds of other stages and numbers is
kept. With the defaults it takes more than an hour, 4 GB of disk and 10 GB of memory.

    python experiments/performance/scaling.py
    python experiments/performance/scaling.py --packs=1000 --runs_per_pack=1 --output=elsewhere
"""

import itertools
import logging as standard_logging
import multiprocessing
import pathlib
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import measuring
import pandas as pd
import scaling_stages as stages
from absl import app, flags

from memobench.common.errors import UserError
from memobench.report import tables

OUTPUT = measuring.output_flag()
PACKS = flags.DEFINE_list("packs", ["1000", "10000", "100000"], "Numbers of packs.")
RUNS_PER_PACK = flags.DEFINE_list("runs_per_pack", ["1", "10"], "Runs in each pack.")
STAGES = flags.DEFINE_list("stages", None, "Only these stages, the first words of their names.")
LIMIT = flags.DEFINE_float("limit", 600.0, "Seconds after which a stage is ended.")
FOLDER = flags.DEFINE_string("folder", None, "Where the temporary folder is made.")

SCRIPT = "experiments/performance/scaling.py"
# Stages that need what `write` wrote.
ON_SHARDS = ("read", "verify", "report", "leaderboard")
MARKDOWN = """\
# Scaling to a million runs

{device}; {date}. Written by `{commands}`; never edited by hand. Runs and measures are simulated and
nothing is trained: this is what planning, storing and reporting a sweep takes. How each stage is
measured stands in `{script}`. CPU seconds compare, wall seconds are of a machine that was busy with
other work; `per run` is CPU time over all runs, `peak` is of the whole process, imports included.

{table}

What breaks first stands in [docs/scaling.md](../../docs/scaling.md).
"""


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    output = measuring.begin(SCRIPT, OUTPUT.value)
    try:
        chosen = stages.chosen(STAGES.value)
    except UserError as error:
        sys.exit(f"{SCRIPT}: {error}")
    rows: list[dict[str, Any]] = []
    given_up: set[tuple[str, int]] = set()
    for n_packs, n_runs in itertools.product(map(int, PACKS.value), map(int, RUNS_PER_PACK.value)):
        with tempfile.TemporaryDirectory(dir=FOLDER.value) as folder:
            for stage in chosen:
                unwritten = stage in ON_SHARDS and ("write", n_runs) in given_up
                if (stage, n_runs) in given_up or unwritten:
                    continue
                row = measure(stage, n_packs, n_runs, folder, LIMIT.value)
                if row["CPU s"] is None:
                    given_up.add((stage, n_runs))
                rows.append(row)
                measuring.say(str(row))
    print(write(output, pd.DataFrame(rows)))


def write(output: pathlib.Path, table: pd.DataFrame) -> str:
    """Writes the Markdown and the CSV file; returns the Markdown."""
    about = measuring.about(SCRIPT)
    table, path = table.assign(**about), output / "scaling.csv"
    if path.exists():
        table = pd.concat([pd.read_csv(path), table])
    table = table.drop_duplicates(["stage", "packs", "runs"], keep="last")
    place = table["stage"].map(list(stages.STAGES).index)
    table = table.assign(place=place).sort_values(["place", "packs", "runs"]).drop(columns="place")
    table.to_csv(path, index=False, float_format="%.6g")
    digits = {"wall s": 1, "CPU s": 1, "per run, µs": 0, "peak MiB": 0}
    text = MARKDOWN.format(
        table=tables.markdown(table.drop(columns=list(about)), digits),
        script=SCRIPT,
        device="; ".join(sorted(set(table["device"]))),
        date=max(table["date"]),
        commands="`, `".join(dict.fromkeys(table["command"])),
    )
    (output / "scaling.md").write_text(text)
    return text


def measure(stage: str, n_packs: int, n_runs: int, folder: str, limit: float) -> dict[str, Any]:
    """One row: a stage in a process of its own; without numbers where it was ended."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_in_child, args=(sender, stage, n_packs, n_runs, folder))
    process.start()
    sender.close()
    found: dict[str, Any] = {}
    started = time.monotonic()
    try:
        if receiver.poll(limit):
            found = receiver.recv()
        else:
            found = {"found": f"ended after {time.monotonic() - started:.0f} s"}
            process.terminate()
    except EOFError:
        found = {"found": "failed"}
    process.join()
    seconds = found.get("CPU s")
    return {
        "stage": stage,
        "packs": n_packs,
        "runs": n_packs * n_runs,
        "wall s": found.get("wall s"),
        "CPU s": seconds,
        "per run, µs": None if seconds is None else 1e6 * seconds / (n_packs * n_runs),
        "peak MiB": found.get("peak MiB"),
        "found": found["found"],
    }


def _in_child(sender: Any, stage: str, n_packs: int, n_runs: int, folder: str) -> None:
    # Reports warn of what they leave out; that is no part of the measurement.
    standard_logging.disable(standard_logging.WARNING)
    work = stages.STAGES[stage](n_packs, n_runs, pathlib.Path(folder))
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    spent = {"wall s": time.perf_counter() - wall, "CPU s": time.process_time() - cpu}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    sender.send({**spent, "peak MiB": peak, "found": found})


if __name__ == "__main__":
    app.run(main)
