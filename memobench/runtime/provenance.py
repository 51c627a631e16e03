"""The provenance of a shard: code, versions, device and time."""

import contextlib
import datetime
import functools
import logging
import os
import pathlib
import platform
import re
import subprocess
from collections.abc import Sequence
from typing import Any

import jax
import jaxlib

from memobench.common import folders
from memobench.core.run import Pack, PackResult
from memobench.core.spec import SPEC_VERSION
from memobench.engine import devices
from memobench.version import __version__

_log = logging.getLogger("memobench")


def provenance(
    pack: Pack, result: PackResult, earlier_devices: Sequence[str] = ()
) -> dict[str, Any]:
    """The provenance of a shard, of the last process that trained its runs.

    Args:
      pack: of which the shard is.
      result: of the pack.
      earlier_devices: names of devices that trained its runs before this one.
    """
    device = jax.devices()[0]
    return {
        "spec_version": SPEC_VERSION,
        "memobench": __version__,
        "commit": read_commit(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "platform": device.platform,
        "device": ", then ".join([*earlier_devices, device_name(device)]),
        "instruction_set": instruction_set() if device.platform == "cpu" else None,
        "n_devices": devices.count(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "pack_size": len(pack.runs),
        "compile_seconds": round(result.compile_seconds, 3),
        "run_seconds": round(result.run_seconds, 3),
    }


@functools.cache
def read_commit() -> str | None:
    """The commit of the checkout this code runs from, with `+` where files differ from it.

    None, with a warning, where git does not tell. Once known it stays, whatever is checked out
    while this process runs: call it before the first training.
    """
    # Installed, it may lie within the repository of something else.
    if not (folders.CHECKOUT / ".git").exists():
        return None
    # Whoever owns it: its code runs already.
    command = ["git", "-c", "safe.directory=*", "-C", str(folders.CHECKOUT), "describe"]
    command += ["--always", "--abbrev=7", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        why = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
        _log.warning("rows will name no commit, for git says: %s", " ".join(str(why).split()))
        return None
    return done.stdout.strip()


def device_name(device: Any) -> str:
    """The name of a device for readers; for a CPU its model and number of cores."""
    if device.platform != "cpu":
        return device.device_kind
    return f"{_cpu('model name') or 'CPU'}, {os.cpu_count()} cores"


# Instruction sets by XLA's name, each beyond the one before, with the kernel's name.
INSTRUCTION_SETS = {
    "SSE4_2": "sse4_2",
    "AVX": "avx",
    "AVX2": "avx2",
    "AVX512": "avx512f",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX": "amx_bf16",
    "AMX_FP16": "amx_fp16",
}


def instruction_set() -> str:
    """The instruction set that XLA may use, on which the last bits of its results depend.

    It is the highest of INSTRUCTION_SETS that this CPU has, up to `--xla_cpu_max_isa` in XLA_FLAGS;
    where the kernel names none of them, the kind of machine.
    """
    flags = _cpu("flags").split()
    usable = [name for name, flag in INSTRUCTION_SETS.items() if flag in flags]
    if not usable:
        return platform.machine() or "unknown"
    limits = re.findall(r"--XLA_CPU_MAX_ISA=(\w+)", os.environ.get("XLA_FLAGS", "").upper())
    names = list(INSTRUCTION_SETS)
    if limits and limits[-1] in names:
        most = names.index(limits[-1])
        usable = [name for name in usable if names.index(name) <= most] or names[:1]
    return usable[-1]


def _cpu(field: str) -> str:
    """A field of the kernel about the first processor; empty where it is missing."""
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/cpuinfo").read_text("utf-8", errors="replace")
        for line in text.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    return ""
