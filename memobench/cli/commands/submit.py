"""memobench submit: a folder of your weights for a pull request."""

import collections
import itertools
import logging
from typing import TYPE_CHECKING, Any

from absl import flags

from memobench.cli.command import (
    OUTPUT,
    PLUGIN,
    PRESET,
    RESULTS,
    Command,
    choose,
    format_command,
)
from memobench.common.errors import UserError

if TYPE_CHECKING:
    from memobench.certificates import Certificate

# The files that are left out, by the reason.
_LeftOut = dict[str, list[Any]]

_log = logging.getLogger("memobench")

SUBMITTER = flags.DEFINE_string("submitter", None, "Your name.")
NOTE = flags.DEFINE_string("note", None, "A sentence about how the weights were found.")
ARCHITECTURE = flags.DEFINE_list("architecture", [], "Only weights of these architectures.")


def run(names: list[str]) -> None:
    """Writes certificates, or the best weights of your runs, into a folder for a pull request."""
    if not SUBMITTER.value:
        raise UserError("submit needs a name: --submitter='Your Name'")
    from memobench import certificates
    from memobench.board import submissions
    from memobench.common.notation import pluralize
    from memobench.core.architecture import Architecture
    from memobench.store.results import check_writable

    for name in ARCHITECTURE.value:
        Architecture.get_kind(name)
    files = [name for name in names if name.endswith(certificates.SUFFIX)]
    experiments = [name for name in names if name not in files]
    left_out: _LeftOut = collections.defaultdict(list)
    found = [x for file in files if (x := _certificate(file, left_out))]
    if experiments or not files:
        found += _best_of_runs(experiments, left_out)
    lines = []
    for reason, paths in left_out.items():
        more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
        lines.append(f"left out {paths[0]}{more}: {reason}")
    if left_out and not found:
        raise UserError("\n".join(lines))
    for line in lines:
        _log.warning("%s", line)
    wanted = ARCHITECTURE.value
    found = [x for x in found if not wanted or x.architecture.name in wanted]
    if not found:
        of_which = f" of architecture {', '.join(wanted)}" if wanted else ""
        kept = f"{RESULTS.value} keeps no weights{of_which} of {' '.join(names) or 'any run'}"
        raise UserError(
            f"{f'these files hold no weights{of_which}' if files else kept} that have a place on "
            f"the board; first: {format_command('run board/peak')}"
        )
    folder = check_writable(OUTPUT.value, "output") / "submissions"
    path = submissions.write(found, SUBMITTER.value, folder, NOTE.value)
    print(
        f"{pluralize(len(found), 'certificate')} in {path}. Now add that folder, unchanged, to "
        "results/submissions/ of a fork of memobench and open a pull request."
    )


def _certificate(path: Any, left_out: _LeftOut) -> "Certificate | None":
    """The certificate in a file; None if it cannot be read or has no place on the board."""
    from memobench import certificates
    from memobench.board import table as board

    try:
        found = certificates.load(path)
    except UserError as error:
        left_out[str(error).removeprefix(f"{path}: ")].append(path)
        return None
    reason = board.placement_error(found.task, found.n_params)
    if reason:
        left_out[f"weights of {found.architecture.name}: {reason}"].append(path)
    return None if reason else found


def _best_of_runs(experiments: list[str], left_out: _LeftOut) -> list["Certificate"]:
    """The weights that know most of every architecture and kind of task, over seeds.

    Where some are of a user's own kinds these alone, unless --architecture names others.
    """
    from memobench.common.notation import pluralize
    from memobench.core import own_code
    from memobench.store.results import first_step, load_rows, require_folder, weights_path

    rows = load_rows(require_folder(RESULTS.value, first_step(RESULTS.value), "results="))
    if experiments:
        presets = (
            experiment.runs(PRESET.value) for experiment in choose(experiments, PRESET.value)
        )
        ids = {run.run_id for run in itertools.chain.from_iterable(presets)}
        rows = {run_id: row for run_id, row in rows.items() if run_id in ids}
    best: dict[Any, Certificate] = {}
    for row in sorted(rows.values(), key=_score, reverse=True):
        path = weights_path(RESULTS.value, row["run_id"])
        if path.exists() and (found := _certificate(path, left_out)):
            key = found.task.replace(seed=0), found.architecture, found.first
            best.setdefault(key, found)
    ours = [x for x in best.values() if own_code.in_tree(type(x.architecture))]
    if ARCHITECTURE.value or len(ours) in (0, len(best)):
        return list(best.values())
    names = ",".join(sorted({x.architecture.name for x in best.values()}))
    _log.warning(
        "left out %s of memobench's own architectures, which yours were compared with; "
        "--architecture=%s packs all",
        pluralize(len(ours), "certificate"),
        names,
    )
    return [x for x in best.values() if x not in ours]


def _score(row: dict[str, Any]) -> tuple[float, float]:
    """Bits of the weights that are kept, and among equals the negative loss."""
    bits, loss = row.get("bits"), row.get("loss")
    # Where many models are trained those are the best one's, and the row's bits a mean.
    if row.get("best_bits") is not None:
        bits = row["best_bits"]
    elif row.get("size_bits") is not None:
        bits = max(bits for bits_T in row["size_bits"][-1] for bits in bits_T)
    return (-1.0 if bits is None else bits, -float("inf") if loss is None else -loss)


COMMAND = Command(
    run, "EXPERIMENT", (SUBMITTER, NOTE, ARCHITECTURE, PRESET, RESULTS, OUTPUT, PLUGIN)
)
