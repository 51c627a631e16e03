"""Forks of a process in which JAX is at work: its threads are gone in them. Imports no JAX."""

import os
import sys

_after_jax = False


def is_after_jax() -> bool:
    """True in a process that was forked after JAX began: what it computes never ends."""
    return _after_jax


def _note() -> None:
    global _after_jax
    # JAX tells this nowhere else, and the lock of what does is another thread's, maybe.
    _after_jax |= bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None))


if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(after_in_child=_note)
