"""`python -m memobench` is the `memobench` command."""

import importlib.util
import pathlib
import sys

try:
    from memobench.cli import main as cli

    cli.main()
except ModuleNotFoundError as error:
    # Only where it is installed are experiments a part of the package.
    if importlib.util.find_spec("memobench.experiments"):
        raise
    folder = pathlib.Path(__file__).parents[1]
    sys.exit(f"memobench: must be installed, got a path ({error}); python -m pip install {folder}")
