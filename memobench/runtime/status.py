"""What is going on in a results folder, for whoever asks from another shell."""

import collections

from memobench.runtime.leases import Held, Leases
from memobench.store import results


def text(folder: results.Path) -> str:
    """A line of what is done, one for each sweep and pack in training, and one of who died.

    Raises UserError for a folder that does not exist.

    >>> print(text("."))
    .: 0 runs are done; nobody works here
    """
    results.require_folder(folder, results.first_step(folder), "results=")
    sweeps: dict[str, Held] = {}
    packs = collections.defaultdict(list)
    gone = []
    for lease in Leases(folder).all():
        if not lease.alive:
            gone.append(lease)
            continue
        name = lease.about.get("sweep", "")
        if lease.about.get("kind") == "sweep":
            sweeps[name] = lease
        else:
            packs[name].append(lease)
    lines = []
    for name in sorted(sweeps.keys() | packs.keys()):
        lines.append(f"sweep {name}: {_sweep(sweeps.get(name))}")
        lines += [f"  pack {_pack(lease)}" for lease in packs[name]]
    done = f"{folder}: {len(results.load_rows(folder))} runs are done"
    head = done if lines else f"{done}; nobody works here"
    who = ", ".join(sorted({f"{lease.host}, process {lease.pid}" for lease in gone}))
    tail = [f"died: {who}; the same command takes up their runs"] if gone else []
    return "\n".join([head, *lines, *tail])


def _sweep(lease: Held | None) -> str:
    if lease is None:
        return "its driver is gone; its workers go on"
    return f"{lease.about.get('line', 'starting')} ({_who(lease)})"


def _pack(lease: Held) -> str:
    about = {"pack": "unnamed", "protocol": "unknown", "done": 0, "steps": 0, **lease.about}
    return (
        f"{about['pack']}: {len(lease.run_ids)} runs, {about['protocol']}, "
        f"{about['done'] / max(about['steps'], 1):.0%} of {about['steps']:,} model-steps "
        f"({_who(lease)})"
    )


def _who(lease: Held) -> str:
    return f"{lease.host}, process {lease.pid}, heard of {lease.age:.0f} s ago"
