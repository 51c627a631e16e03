"""`python -m memobench` is the `memobench` command."""

import importlib.metadata
import pathlib
import sys

try:
    from memobench.cli import main as cli

    cli.main()
except ModuleNotFoundError as error:
    if any(importlib.metadata.distributions(name="memobench")):
        raise
    folder = pathlib.Path(__file__).parents[1]
    sys.exit(f"memobench: must be installed, got a path ({error}); python -m pip install {folder}")
