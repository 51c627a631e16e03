"""Ranks of what a query's read-out can be made of, decided in double precision.

In one layer of attention at a query (Mahdavi et al. 2024) a linear read-out memorizes at most as
many examples as their attention weights have rank, H (n - 1) + 1 where all share a context; and
the rank of the queries' vectors says how freely those weights can be chosen. Deeper layers change
both.

Shape letters: T examples, L layers, D d_model, H n_heads, N context_length, B examples of a block.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from memobench.core.module import RUNS_BRIEFLY, Module
from memobench.numerics import precision
from memobench.tasks import labelled_contexts
from memobench.tasks.labelled_contexts import Labelled

EXAMPLES_AT_ONCE = 1024
# More examples than this are not looked at: ranks beyond it do not occur at our sizes.
MOST_EXAMPLES = 8192


def columns(module: Module, variables: Any, data: Labelled, n_examples: int) -> dict[str, Any]:
    """Columns of a module with `streams` and `attention` on the first examples of a set.

    A singular value counts if it exceeds max(shape) times the epsilon of float64 times the largest.

    Returns:
      stream_ranks: for each layer, of the T vectors that enter it at the query.
      attention_rank: of the T x H·N weights of the last layer from the query to its context.
    """
    # Blocks of one size, and no other set for fewer examples: a pack compiles once.
    n_all = min(len(data.label_T), MOST_EXAMPLES)
    n_examples, block = min(n_examples, n_all), min(n_all, EXAMPLES_AT_ONCE)
    data = Labelled(
        query_TxI=data.query_TxI[:n_all],
        context=data.context[:n_all] if data.context.ndim == 3 else data.context,
        label_T=data.label_T[:n_all],
    )
    with jax.enable_x64(True):
        variables, data = jax.device_put(precision.cast((variables, data)))
        blocks = [
            jax.device_get(
                _streams_and_attention(module, variables, data, np.arange(start, start + block))
            )
            for start in range(0, n_examples, block)
        ]
    stream_TxLxD, attention_TxM = (
        np.concatenate(parts)[:n_examples] for parts in zip(*blocks, strict=True)
    )
    return {
        "stream_ranks": [int(rank) for rank in np.linalg.matrix_rank(stream_TxLxD.swapaxes(0, 1))],
        "attention_rank": int(np.linalg.matrix_rank(attention_TxM)),
    }


@functools.partial(jax.jit, static_argnums=0, compiler_options=RUNS_BRIEFLY)
def _streams_and_attention(module: Module, variables: Any, data: Labelled, rows_B: Any) -> Any:
    def one(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        inputs = labelled_contexts.inputs(data, row)
        streams: Any = module.apply(variables, *inputs, method="streams")
        attention: Any = module.apply(variables, *inputs, method="attention")
        return jnp.stack([stream_MxD[0] for stream_MxD in streams]), attention.ravel()

    with jax.default_matmul_precision("highest"):
        return jax.vmap(one)(rows_B)
