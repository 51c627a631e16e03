"""memobench run: trains experiments, here or on a cluster."""

import itertools
import math
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from memobench.cli.command import (
    OUTPUT,
    PLUGIN,
    PRESET,
    RESULTS,
    SEEDS,
    Command,
    choose,
    format_command,
)
from memobench.cli.times import Duration
from memobench.common import folders
from memobench.common.errors import RunsFailed, UserError, describe, is_from_user_code
from memobench.common.notation import pluralize

if TYPE_CHECKING:
    from memobench.experiment import Experiment

DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print packs and what they cost; train nothing.")
PROGRESS = flags.DEFINE_bool("progress", True, "Show a progress line while training.")
PROCESSES = flags.DEFINE_integer(
    "processes",
    None,
    "How many workers train, each a process of its own; else this one does.",
    lower_bound=1,
)
ON = flags.DEFINE_string(
    "on",
    "",
    "Where workers are, if not here: a command that starts them, such as 'srun --gpus=1', or 'ray' "
    "with options, such as 'ray address=auto num_gpus=0.5'.",
)
FOR = flags.DEFINE(
    Duration(), "for", None, "Stop after this long, such as 90m or 2h; the same command resumes."
)
UNPUBLISHED = flags.DEFINE_bool(
    "unpublished", False, "Leave out runs whose rows are published; report --publish adds them."
)
REPORT = flags.DEFINE_bool(
    "report", False, "One after another, the cheapest first, each with its page in --output."
)


# What comes after --report.
_NEXT = {
    "compare": "yours beside the published",
    "leaderboard": "the board as one page, and what is ranked",
}


def run(names: list[str]) -> None:
    """Trains what --results does not hold yet; the same command resumes."""
    from memobench.runtime import launch
    from memobench.store import results

    experiments = choose(names, PRESET.value)
    place = PROCESSES.value, ON.value
    launch.make(*place)
    if DRY_RUN.value and PROCESSES.value and not ON.value:
        raise UserError("--dry_run plans for one process here; leave out --processes")
    if REPORT.value and UNPUBLISHED.value:
        raise UserError("--report draws whole experiments; leave out --unpublished")
    (results.require_no_file if DRY_RUN.value else results.check_writable)(RESULTS.value)
    results.require_not_around(RESULTS.value)
    from memobench.runtime import sweep

    presets = (experiment.runs(PRESET.value, SEEDS.value) for experiment in experiments)
    # Experiments may share runs.
    runs = list(dict.fromkeys(itertools.chain.from_iterable(presets)))
    if UNPUBLISHED.value:
        from memobench.store import published

        known = published.run_ids()
        runs = [run for run in runs if run.run_id not in known]
    if not runs and UNPUBLISHED.value:
        print("0 runs: all of them are published; leave out --unpublished")
        return
    if not runs:
        raise UserError(f"seeds={SEEDS.value}: no run has a seed below it; give more")
    if DRY_RUN.value:
        rows, workers = results.load_rows(RESULTS.value), PROCESSES.value
        packs = sweep.plan(runs, done=rows)
        predicted = sweep.predict(packs, rows.values(), workers)
        if len(experiments) == 1:
            print(plan_table(packs, predicted))
            return
        wanted = set(runs)
        print(f"{'runs':>5} {'packs':>5} {'hours':>8}  experiment")
        for experiment in experiments:
            own = [x for x in experiment.runs(PRESET.value, SEEDS.value) if x in wanted]
            of_own = sweep.plan(own, done=rows)
            n_runs = sum(len(pack.runs) for pack in of_own)
            hours = _hours(of_own, sweep.predict(of_own, rows.values(), workers))
            print(f"{n_runs:5d} {len(of_own):5d} {hours:8.2g}  {experiment.name}")
        print(_cost_line(packs, predicted))
        return
    end = time.monotonic() + (FOR.value or math.inf)
    if REPORT.value:
        _run_and_report(experiments, place, end)
        return
    try:
        seconds = max(end - time.monotonic(), 0.0)
        table = sweep.run(runs, RESULTS.value, PROGRESS.value, seconds, *place)
    except sweep.TimeUp as stopped:
        print(stopped)
        return
    diverged = int((table["status"] == "diverged").sum())
    are = "is" if len(table) == 1 else "are"
    line = f"{pluralize(len(table), 'run')} {are} in {RESULTS.value}"
    print(line + f" ({diverged} diverged)" * bool(diverged))


def _run_and_report(
    experiments: "Sequence[Experiment]", place: tuple[int | None, str], end: float
) -> None:
    """Runs and reports experiments until a time; then prints what they answer.

    Args:
      experiments: in any order; the cheapest comes first.
      place: `processes` and `on` of `sweep.run`.
      end: of `time.monotonic`.

    Raises:
      UserError: runs were lost or a page could not be made; all others are done.
    """
    from memobench.report import experiment as page
    from memobench.runtime import sweep
    from memobench.store import results

    output = folders.of_preset(results.check_writable(OUTPUT.value, "output"), PRESET.value)
    runs = {x.name: x.runs(PRESET.value, SEEDS.value) for x in experiments}
    done = results.load_rows(RESULTS.value)

    def cost(experiment: "Experiment") -> float:
        packs = sweep.plan(runs[experiment.name], done=done)
        return sweep.predict(packs, done.values()).wall_seconds if packs else 0.0

    answers, failed = [], []
    for experiment in sorted(experiments, key=cost):
        wanted = runs[experiment.name]
        try:
            seconds = max(end - time.monotonic(), 0.0)
            table = sweep.run(wanted, RESULTS.value, PROGRESS.value, seconds, *place)
        except sweep.TimeUp as stopped:
            print(stopped)
            break
        except RunsFailed as error:
            failed.append(f"{experiment.name}: {error}")
            continue
        try:
            page.write(experiment, PRESET.value, table, output, SEEDS.value)
            files = ".png and .md" if experiment.has_figure(PRESET.value) else ".md"
            line = f"{experiment.name}: {output / experiment.name}{files}"
            line = ": ".join(filter(None, [line, page.agreement(experiment, table)]))
            answers.append(experiment.figure.answer(table.copy()))
        except Exception as error:  # A figure may raise anything.
            if not isinstance(error, UserError) and not is_from_user_code(error):
                traceback.print_exc()
            line = f"{experiment.name}: no page: {describe(error)}"
            failed.append(line)
        print(line, flush=True)
    print("\n".join(["", *filter(None, answers), f"Figures, pages and tables are in {output}/."]))
    print("\n".join(["Next:", *(f"  {format_command(x)}  # {what}" for x, what in _NEXT.items())]))
    if failed:
        raise UserError("; ".join(failed))


def plan_table(packs: list, predicted: Any) -> str:
    """A line for each pack, and one with their cost."""
    from memobench.core.module import paddable_sizes

    lines = [f"{'pack':>4} {'runs':>5} {'waste':>6} {'memory':>10} {'seconds':>9}  padded to"]
    for i, (pack, seconds) in enumerate(zip(packs, predicted.seconds, strict=True)):
        method, module = pack.runs[0].method, pack.module
        sizes = "".join(f" {name}={size}" for name, size in paddable_sizes(module).items())
        lines.append(
            f"{i:4d} {len(pack.runs):5d} {pack.waste:6.0%} {pack.memory_bytes / 2**20:6.0f} MiB "
            f"{seconds:8.0f}{'?' if predicted.guessed else ' '}  {type(module).__name__}{sizes}, "
            f"{method.protocol}, {method.steps:,} steps"
        )
    return "\n".join([*lines, _cost_line(packs, predicted)])


def _hours(packs: list, predicted: Any) -> float:
    """The hours of all cores or accelerators that the packs take together."""
    from memobench.engine import devices
    from memobench.runtime import local

    if not packs:
        return 0.0
    each = devices.n_cores() if packs[0].platform == "cpu" else packs[0].n_devices
    return sum(predicted.seconds) / 3600 * each / local.n_workers()


def _cost_line(packs: list, predicted: Any) -> str:
    n_runs = sum(len(pack.runs) for pack in packs)
    if not packs:
        return "0 runs in 0 packs: all are done"
    memory = max(pack.memory_bytes for pack in packs) / 2**20
    on_cpu, hours = packs[0].platform == "cpu", _hours(packs, predicted)
    line = (
        f"{pluralize(n_runs, 'run')} in {pluralize(len(packs), 'pack')} of at most {memory:.0f} "
        f"MiB, {predicted.workers} at a time on {predicted.device}: "
        f"about {predicted.wall_seconds:,.0f} s with compilation, "
        f"{hours:.2g} {'core' if on_cpu else 'accelerator'}-hours; "
    )
    if predicted.guessed:
        return f"{line}guessed (?): nothing like it was measured on this device"
    return f"{line}by what was measured on this device, mostly within a factor of three"


COMMAND = Command(
    run,
    "EXPERIMENT",
    (
        PRESET,
        SEEDS,
        RESULTS,
        OUTPUT,
        REPORT,
        UNPUBLISHED,
        DRY_RUN,
        FOR,
        PROGRESS,
        PROCESSES,
        ON,
        PLUGIN,
    ),
)
