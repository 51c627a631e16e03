"""Folders of results: a user's own, and those that memobench has published. Imports no JAX."""

import os
import pathlib
from typing import Any

from memobench.common.errors import require, short_repr

# A user's own, below the working directory; git ignores it. Pages and figures lie beside shards.
RUNS = "runs"
SHARDS = f"{RUNS}/shards"

# The preset whose pages lie beside the folders of the others.
QUICK = "quick"

_PACKAGE = pathlib.Path(__file__).parents[1]
CHECKOUT = _PACKAGE.parent


def require_path(path: Any, name: str = "results") -> None:
    """Raises UserError for what is not a path, and for one that a shell would have expanded."""
    is_one = isinstance(path, str | os.PathLike)
    require(is_one, f"{name}={short_repr(path)} is not a path; give a text or a pathlib.Path")
    is_home = os.fsdecode(path).startswith("~")
    require(not is_home, f"{name}={os.fspath(path)!r} begins with ~; give os.path.expanduser of it")


def of_preset(folder: pathlib.Path, preset: str) -> pathlib.Path:
    """The folder of a preset's pages, so that those of one never replace another's."""
    return folder if preset == QUICK else folder / preset


def published() -> pathlib.Path:
    """The folder of what memobench publishes: that of the checkout, or of the installed package."""
    installed = _PACKAGE / "results"
    return installed if installed.is_dir() else CHECKOUT / "results"
