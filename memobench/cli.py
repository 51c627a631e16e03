"""The command line: list, run, status, report, leaderboard, verify, submit, check-submission."""

import ast
import difflib
import fnmatch
import itertools
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from absl import app, flags, logging

from memobench.errors import UserError
from memobench.results import check_writable, load_results, load_rows

USAGE = """memobench: how much does a transformer memorize, per parameter?

  memobench list                      the experiments, their presets and sizes
  memobench run EXPERIMENT...         train what --results does not hold yet
  memobench status                    what is being trained into --results just now
  memobench report EXPERIMENT...      figure, verdicts and tables into --output
  memobench leaderboard               LEADERBOARD.md, .html, .csv and .tex into --output
  memobench verify [FOLDER]           whether the shards of --results, or a folder, are sound
  memobench submit [EXPERIMENT...]    one file of your runs, by --submitter, for a pull request
  memobench check-submission FILE...  whether such files are what they say

An EXPERIMENT may be a pattern: 'dana2025/*' names all of that paper. --seeds=1 runs one seed alone.
--executor=ray or slurm runs packs on a cluster; --option=NAME=VALUE, repeated, sets what it needs.
"""

PRESET = flags.DEFINE_enum("preset", "quick", ["quick", "full"], "How much of an experiment.")
RESULTS = flags.DEFINE_string("results", "results/runs", "Folder of the shards.")
OUTPUT = flags.DEFINE_string("output", "results", "Folder for figures, tables and leaderboard.")
SEEDS = flags.DEFINE_integer("seeds", None, "Run only the seeds below this.", lower_bound=1)
DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Print the packs of `run` and what they cost; train nothing."
)
PROGRESS = flags.DEFINE_bool("progress", True, "Show a progress line while training.")
EXECUTOR = flags.DEFINE_string("executor", "local", "Where packs run: local, ray or slurm.")
OPTION = flags.DEFINE_multi_string("option", [], "NAME=VALUE for the executor; may be repeated.")
SUBMITTER = flags.DEFINE_string("submitter", None, "Your name, for `submit`.")
URL = flags.DEFINE_string("url", None, "An address of yours, for `submit`.")
NOTE = flags.DEFINE_string("note", None, "A sentence about your runs, for `submit`.")


def main() -> None:
    """Entry point of the `memobench` command."""
    app.run(_main)


def _main(argv: Sequence[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    commands = {
        "list": _list,
        "run": _run,
        "status": _status,
        "report": _report,
        "leaderboard": _leaderboard,
        "verify": _verify,
        "submit": _submit,
        "check-submission": _check_submission,
    }
    try:
        if len(argv) < 2:
            raise UserError(f"name a command: {', '.join(commands)}; memobench --help tells more")
        if argv[1] not in commands:
            raise UserError(f"unknown command {argv[1]!r}{_closest(argv[1], commands, 0.6)}")
        commands[argv[1]](list(argv[2:]))
    except UserError as error:
        sys.exit(f"memobench: {error}")
    except BrokenPipeError:  # The reader, `head` say, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt as error:
        print(
            f"\nmemobench: {str(error) or 'interrupted; the same command resumes'}", file=sys.stderr
        )
        sys.exit(130)


def _closest(name: str, names: Iterable[str], cutoff: float = 0.4) -> str:
    close = difflib.get_close_matches(name, list(names), n=3, cutoff=cutoff)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; choose one of {', '.join(names)}"


def _experiments(names: list[str]) -> list:
    from memobench.experiments import EXPERIMENTS

    if not names:
        raise UserError(f"name an experiment: {', '.join(EXPERIMENTS)}")
    chosen: dict[str, Any] = {}
    for name in names:
        matching = fnmatch.filter(EXPERIMENTS, name)
        if not matching:
            raise UserError(f"unknown experiment {name!r}{_closest(name, EXPERIMENTS)}")
        chosen |= {match: EXPERIMENTS[match] for match in matching}
    return list(chosen.values())


def _list(names: list[str]) -> None:
    from memobench.experiments import EXPERIMENTS

    chosen = _experiments(names or list(EXPERIMENTS))
    width = max(len(experiment.name) for experiment in chosen)
    for experiment in chosen:
        sizes = ", ".join(f"{name} {len(runs)} runs" for name, runs in experiment.presets.items())
        print(f"{experiment.name:{width}s} {experiment.title} ({sizes})")


def _run(names: list[str]) -> None:
    experiments = _experiments(names)
    from memobench import sweep

    presets = (experiment.presets[PRESET.value] for experiment in experiments)
    # Experiments may share runs.
    runs = list(dict.fromkeys(itertools.chain.from_iterable(presets)))
    if SEEDS.value:
        runs = [run for run in runs if run.seed < SEEDS.value]
    if DRY_RUN.value and EXECUTOR.value != "local":
        raise UserError("--dry_run knows this machine only; leave out --executor")
    if DRY_RUN.value:
        rows = load_rows(RESULTS.value)
        packs = sweep.plan(runs, done=rows)
        print(_plan_table(packs, sweep.predict(packs, rows.values())))
        return
    table = sweep.run(runs, RESULTS.value, PROGRESS.value, EXECUTOR.value, **_options())
    diverged = int((table["status"] == "diverged").sum())
    print(f"{len(table)} runs are in {RESULTS.value}" + f" ({diverged} diverged)" * bool(diverged))


def _options() -> dict[str, Any]:
    """What --option says: numbers, True, False and None as such, all else as text."""
    options, taken = {}, ("runs", "results", "progress", "executor")
    for option in OPTION.value:
        name, equals, value = option.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"--option={option} is no NAME=VALUE, such as --option=workers=4")
        if name in taken:
            raise UserError(f"--option={option}: {name} is no option of an executor")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options


def _status(names: list[str]) -> None:
    if names:
        raise UserError(f"status takes no argument, got {' '.join(names)}; name a --results")
    from memobench import status

    print(status.text(RESULTS.value))


def _plan_table(packs: list, predicted: Any) -> str:
    lines = [f"{'pack':>4} {'runs':>5} {'waste':>6} {'memory':>10} {'seconds':>9}  padded to"]
    each = zip(packs, predicted.seconds, predicted.guessed, strict=True)
    for i, (pack, seconds, guessed) in enumerate(each):
        method, module = pack.runs[0].method, pack.module
        sizes = " ".join(
            f"{name}={getattr(module, name)}"
            for name in ("d_model", "d_head", "n_heads", "d_mlp")
            if hasattr(module, name)
        )
        lines.append(
            f"{i:4d} {len(pack.runs):5d} {pack.waste:6.0%} {pack.memory_bytes / 2**20:6.0f} MiB "
            f"{seconds:8.0f}{'?' if guessed else ' '}  {type(module).__name__} {sizes}, "
            f"{method.protocol}, {method.steps:,} steps"
        )
    return "\n".join([*lines, _cost_line(packs, predicted)])


def _cost_line(packs: list, predicted: Any) -> str:
    n_runs, n_guessed = sum(len(pack.runs) for pack in packs), sum(predicted.guessed)
    if not packs:
        return "0 runs in 0 packs: none is missing"
    memory = max(pack.memory_bytes for pack in packs) / 2**20
    on_cpu = packs[0].platform == "cpu"
    each = (os.cpu_count() or 1) if on_cpu else packs[0].n_devices
    hours = predicted.wall_seconds / 3600 * each
    line = (
        f"{n_runs} runs in {len(packs)} packs of at most {memory:.0f} MiB, "
        f"{predicted.workers} at a time on {predicted.device}: "
        f"about {predicted.wall_seconds:,.0f} s with compilation, "
        f"{hours:.2g} {'core' if on_cpu else 'accelerator'}-hours; "
    )
    if not n_guessed:
        return line + "predicted from rates measured on this device"
    sources = " and ".join(name or "orders of magnitude" for name in predicted.sources)
    return line + f"{n_guessed} packs (?) guessed, from {sources}: their kind was never run here"


def _report(names: list[str]) -> None:
    experiments = _experiments(names)
    from memobench.report import experiment as page
    from memobench.report import verdicts

    output = check_writable(OUTPUT.value, "output")
    table = load_results(RESULTS.value)
    found = {}
    for experiment in experiments:
        wanted = {run.run_id for run in experiment.presets[PRESET.value]}
        rows = table[table["run_id"].isin(wanted)].reset_index(drop=True)
        if not rows.empty:
            found[experiment.name] = (experiment, rows)
            continue
        missing = f"{RESULTS.value} holds no run of {experiment.name} --preset={PRESET.value}"
        first = f"first: memobench run {experiment.name} --preset={PRESET.value}"
        if len(experiments) == 1:
            raise UserError(f"{missing}; {first}")
        logging.warning("left out: %s; %s", missing, first)
    for experiment, rows in found.values():
        text = page.write(experiment, PRESET.value, rows, output)
        print(text if len(experiments) == 1 else f"Written to {output / experiment.name}.md")
    if len(found) > 1:
        print(verdicts.write(found, PRESET.value, output))
        print(f"Written to {output / 'VERDICTS.md'}")


def _leaderboard(names: list[str]) -> None:
    if names:
        raise UserError(f"leaderboard takes no argument, got {' '.join(names)}")
    from memobench import submissions
    from memobench.report import leaderboard

    table = load_results(RESULTS.value)
    if table.empty:
        raise UserError(f"{RESULTS.value} holds no run; first: memobench run EXPERIMENT")
    output = check_writable(OUTPUT.value, "output")
    table, dropped = submissions.merge(submissions.load_folder(output / "submissions"), table)
    for run_id, kept, left_out in dropped:
        logging.warning("run %s of %s is left out: %s has it", run_id, left_out, kept)
    print(leaderboard.write(table, output))
    print(f"Written to {output / 'LEADERBOARD.md'} and {output / 'leaderboard.html'}")


def _verify(names: list[str]) -> None:
    from memobench import verify

    if len(names) > 1:
        raise UserError(f"verify takes one folder, got {' '.join(names)}")
    folder = names[0] if names else RESULTS.value
    found = verify.verify(folder)
    for kind, lines in (("error", found.errors), ("note", found.notes)):
        for line in lines:
            print(f"{kind}: {line}")
    print(found.summary)
    if found.errors:
        raise UserError(f"{folder} is not sound; every error is named above")


def _submit(names: list[str]) -> None:
    if not SUBMITTER.value:
        raise UserError("submit needs a name: --submitter='Your Name'")
    experiments = _experiments(names) if names else []
    from memobench import submissions

    rows = load_rows(RESULTS.value)
    of_which, first = "", "memobench run EXPERIMENT"
    if experiments:
        of_which, first = f" of {' '.join(names)} --preset={PRESET.value}", "memobench run them"
        presets = (experiment.presets[PRESET.value] for experiment in experiments)
        wanted = {run.run_id for run in itertools.chain.from_iterable(presets)}
        rows = {run_id: row for run_id, row in rows.items() if run_id in wanted}
    if not rows:
        raise UserError(f"{RESULTS.value} holds no run{of_which}; first: {first}")
    folder = check_writable(OUTPUT.value, "output") / "submissions"
    path = submissions.write(rows.values(), SUBMITTER.value, folder, URL.value, NOTE.value)
    print(
        f"{len(rows)} runs are in {path}. Now add that file, unchanged, to results/submissions/ of "
        "a fork of memobench and open a pull request."
    )


def _check_submission(names: list[str]) -> None:
    if not names:
        raise UserError("name a file: memobench check-submission FILE...")
    from memobench import submissions

    wrong = []
    for name in names:
        try:
            found = submissions.read(name)
            submissions.require_new(name, found)
        except UserError as error:
            wrong.append(str(error))
        else:
            print(f"ok: {name}: {len(found.rows)} runs by {found.submitter}")
    if wrong:
        raise UserError("\n".join(wrong))


if __name__ == "__main__":
    main()
