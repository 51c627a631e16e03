"""How XLA compiles for tests: most of their time is compilation, what is compiled runs briefly."""

import functools
import mmap
import pathlib

import jaxlib

QUICK = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_enable_concurrency_optimized_scheduler=false",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_llvm_disable_expensive_passes=true",
)


def flags(given):
    """The flags given, and before them those of QUICK that this XLA has."""
    return " ".join([*filter(_known, QUICK), given])


@functools.cache
def _known(flag):
    """Whether XLA has the flag: one that it does not know would end the process."""
    name = flag.removeprefix("--").partition("=")[0].encode()
    for path in pathlib.Path(jaxlib.__file__).parent.glob("libjax_common.*"):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
            # A name that was a flag is still a reserved field.
            return code.find(b"\0" + name + b"\0") >= 0
    return False
