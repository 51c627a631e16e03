"""All local devices: each trains an equal share of a pack's runs, and none waits for another.

What has an entry for each run (axis R, always the first) is SPLIT over the devices; what all runs
read is SHARED, a copy on each. Where the runs do not divide evenly the last is repeated, and what
comes of its copies is cut off. On one device all of this does nothing.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

SPLIT, SHARED = PartitionSpec("runs"), PartitionSpec()


def count() -> int:
    """The number of this process's devices."""
    return jax.local_device_count()


def n_cores() -> int:
    """The number of cores this process may use: a cluster's job may have few of its machine's."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux alone has it.
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def share(n_runs: int) -> int:
    """The most of n_runs that one device gets."""
    return -(-n_runs // count())


def round_up_to_devices(n_runs: int) -> int:
    """`n_runs`, rounded up to a multiple of the number of devices."""
    return share(n_runs) * count()


def jit(function: Callable[..., Any], specs: Any, **options: Any) -> Any:
    """`jax.jit` of a function of stacked runs, all of whose results have axis R, on every device.

    Each device runs the function on its share, as if there were no other.

    Args:
      function: of stacked runs.
      specs: SPLIT or SHARED for each argument or part of one.
      **options: those of `jax.jit`.
    """
    if count() == 1:
        return jax.jit(function, **options)
    local = jax.shard_map(function, mesh=_mesh(), in_specs=specs, out_specs=SPLIT, check_vma=False)
    # Said again to jit, which lets empty arrays be anywhere.
    shardings = {"in_shardings": jax.tree.map(_sharding, specs), "out_shardings": _sharding(SPLIT)}
    return jax.jit(local, **shardings, **options)


def split(tree: Any) -> Any:
    """A stacked tree on the devices, filled up with its last entry."""

    def one(x: Any) -> jax.Array:
        n = round_up_to_devices(len(x))
        return _put(x if n == len(x) else x[np.minimum(np.arange(n), len(x) - 1)], SPLIT)

    return jax.tree.map(one, tree)


def replicate(tree: Any) -> Any:
    """A copy of the tree on every device."""
    return jax.tree.map(lambda x: _put(x, SHARED), tree)


def without_fill(n_runs: int, tree: Any) -> Any:
    """A stacked tree cut to its `n_runs`, without the copies that `split` added."""
    return jax.tree.map(lambda x: x if len(x) == n_runs else np.asarray(x)[:n_runs], tree)


def _put(x: Any, spec: PartitionSpec) -> jax.Array:
    return jax.device_put(x) if count() == 1 else jax.device_put(x, _sharding(spec))


def _sharding(spec: PartitionSpec) -> NamedSharding:
    return NamedSharding(_mesh(), spec)


@functools.cache
def _mesh() -> Mesh:
    # JAX 0.12 made explicit axes the default.
    return Mesh(np.array(jax.local_devices()), ("runs",), axis_types=(AxisType.Auto,))
