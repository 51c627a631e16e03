"""Where results are: a user's own, and what memobench has published. Imports no JAX."""

import pathlib

# A user's own, below the working directory; git ignores it. Pages and figures lie beside shards.
RUNS = "runs"
SHARDS = f"{RUNS}/shards"

_PACKAGE = pathlib.Path(__file__).parent
CHECKOUT = _PACKAGE.parent


def published() -> pathlib.Path:
    """The folder of what memobench publishes: that of the checkout, or of the installed package."""
    installed = _PACKAGE / "results"
    return installed if installed.is_dir() else CHECKOUT / "results"
