"""How tests are started: settings of JAX and others, the order of tests, and garbage.

What only those who run tests need is in `tests.fixtures`, which imports JAX.
"""

import atexit
import gc
import os
import shutil
import sys
import tempfile

from tests import xla

os.environ["XLA_FLAGS"] = xla.flags(os.environ.get("XLA_FLAGS", ""))
# Nobody reads where in Python an operation of a test came from, and noting it takes long.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# Matrices of tests are small: a second thread of BLAS only waits, and a core is each worker's.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests count compilations, and leave nothing in the user's folders.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

# Bytecode of tests is kept beside them, for workers and the next time: asserts are rewritten, which
# takes as long as to import all that they test.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Programs are XLA's, of all models: tests/engine/test_resident.py has the kernels.
os.environ["MEMOBENCH_KERNELS"] = "0"

# The cases that hypothesis draws are always the same: it has nothing to remember.
os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = tempfile.mkdtemp(prefix="memobench-cases-")

PROCESSES = {"test_extending", "test_devices", "test_plugins", "test_performance"}
FORGETS = "test_own_code"

# Files of users, which register kinds wherever they are imported.
collect_ignore_glob = ["extending/*"]


def pytest_configure(config):
    """Of several processes the first runs no tests; others import much, and none of it is garbage.

    To search it again and again would take a third of the time until all is collected.
    """
    if not config.getoption("numprocesses", None):
        gc.disable()
        config.pluginmanager.import_plugin("tests.fixtures")


def pytest_unconfigure(config):
    """A worker ends at once: to free what its tests have made, piece by piece, takes seconds."""
    shutil.rmtree(os.environ["HYPOTHESIS_STORAGE_DIRECTORY"], ignore_errors=True)
    if hasattr(config, "workerinput"):
        gc.freeze()
        atexit.register(os._exit, 0)


def pytest_collection_modifyitems(items):
    """Files whose tests start processes come first, so that none of these is the last to end.

    After those that make JAX forget what it has compiled nothing is left to compile again.
    """
    items.sort(key=lambda item: (item.path.stem not in PROCESSES, item.path.stem == FORGETS))


def pytest_collection_finish():
    """What collecting made stays: traces make many objects, and would search it again and again."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 10, 10)
