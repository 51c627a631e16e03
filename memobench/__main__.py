"""`python -m memobench` is the `memobench` command."""

import importlib.metadata
import pathlib
import sys

try:
    from memobench.cli import main as cli

    cli.main()
except ModuleNotFoundError as error:
    folder = pathlib.Path(__file__).parents[1]
    # A checkout that was installed elsewhere keeps a note of that in its own folder.
    others = [path for path in sys.path if pathlib.Path(path).resolve() != folder]
    if any(importlib.metadata.distributions(name="memobench", path=others)):
        raise
    sys.exit(f"memobench: must be installed, got a path ({error}); python -m pip install {folder}")
