"""The status of a results folder: runs done, sweeps and packs in training, dead processes."""

import collections

from memobench.common.notation import pluralize
from memobench.runtime.leases import HeldLease, Leases
from memobench.store import results


def text(folder: results.Path) -> str:
    """A line of runs done, one for each sweep and pack in training, and one of dead processes.

    Raises:
      UserError: the folder does not exist.

    >>> print(text("."))
    .: 0 runs are done; idle
    """
    results.require_folder(folder, results.first_step(folder), "results=")
    sweeps: dict[str, HeldLease] = {}
    packs = collections.defaultdict[str, list[HeldLease]](list)
    failed = collections.defaultdict[str, list[HeldLease]](list)
    gone = []
    for lease in Leases(folder).read():
        if not lease.alive:
            gone.append(lease)
            continue
        name = lease.about.get("sweep", "")
        kind = lease.about.get("kind")
        if kind == "sweep":
            sweeps[name] = lease
        else:
            (failed if kind == "failed" else packs)[name].append(lease)
    lines = []
    for name in sorted(sweeps.keys() | packs.keys() | failed.keys()):
        lines.append(f"sweep {name}: {_describe_sweep(sweeps.get(name))}")
        lines += [f"  pack {_describe_pack(lease)}" for lease in packs[name]]
        lines += [f"  {_describe_failed(lease)}" for lease in failed[name]]
    done = f"{folder}: {len(results.load_rows(folder))} runs are done"
    head = done if lines else f"{done}; idle"
    dead = ", ".join(sorted({f"{lease.host}, process {lease.pid}" for lease in gone}))
    tail = [f"died: {dead}; the same command takes up their runs"] if gone else []
    return "\n".join([head, *lines, *tail])


def _describe_sweep(lease: HeldLease | None) -> str:
    if lease is None:
        return "its driver is gone; its workers go on"
    return f"{lease.about.get('line', 'starting')} ({_describe_holder(lease)})"


def _describe_pack(lease: HeldLease) -> str:
    about = {"pack": "unnamed", "protocol": "unknown", "done": 0, "steps": 0, **lease.about}
    return (
        f"{about['pack']}: {len(lease.run_ids)} runs, {about['protocol']}, "
        f"{about['done'] / max(about['steps'], 1):.0%} of {about['steps']:,} model-steps "
        f"({_describe_holder(lease)})"
    )


def _describe_failed(lease: HeldLease) -> str:
    why = lease.about.get("error", "unknown")
    return f"failed: {pluralize(len(lease.run_ids), 'run')}: {why} ({_describe_holder(lease)})"


def _describe_holder(lease: HeldLease) -> str:
    return f"{lease.host}, process {lease.pid}, last heartbeat {lease.age:.0f} s ago"
