"""Architectures: who memorizes. One file per architecture; `ARCHITECTURES` lists them once.

An entry builds a Flax module from the task's and the architecture's sizes. The module takes one
example, `tokens_S -> logits_N` (or, where it offers other `inputs`, those), and keeps in its
"constants" collection whatever depends on its true sizes and not on parameters. Modules that differ
only in the attributes named in `PADDABLE`, or in their class's own `paddable`, are zero-padded to
one shape and trained in one program; a class that such padding would change says `paddable = ()`.
Further offers (see `transformer.py`): with `tables` and `read` the exact protocol evaluates all
sequences without repeating a token's work, with `initial` weights are drawn without a compilation
for every size, `work` tells the planner what a step costs, `attention` shows where heads look,
`read_out` and `attention_maps` name parameters for methods that train some of them only, `products`
tells which parameters meet only in a product, `parameters` lists every parameter by name, its shape
first.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from memobench.errors import UserError
from memobench.models import (
    gpt,
    linear_memory,
    mlp_memory,
    query_attention,
    recall_transformer,
    sequence_encoder,
    transformer,
)
from memobench.specs import Architecture, Run, Training

# From the task (a `Task`, a `LabelledContexts`) and the architecture's sizes.
ARCHITECTURES: dict[str, Callable[[Any, Architecture], nn.Module]] = {
    "attention_only": transformer.attention_only,
    "mlp": transformer.mlp,
    "sequence_encoder": sequence_encoder.sequence_encoder,
    "linear_memory": linear_memory.linear_memory,
    "mlp_memory": mlp_memory.mlp_memory,
    "recall_transformer": recall_transformer.recall_transformer,
    "gpt": gpt.gpt,
    "query_attention": query_attention.query_attention,
}

PADDABLE = ("d_model", "d_head", "n_heads", "d_mlp")
# What is no memory: parameters of these names take tokens in and out.
EMBEDDINGS = ("token_embedding", "unembedding")


def build(run: Run) -> nn.Module:
    """The run's module at its true size. Raises UserError for an unknown or forbidden one."""
    name = run.architecture.name
    if name not in ARCHITECTURES:
        raise UserError(
            f"architecture name={name!r} is unknown; choose one of {', '.join(ARCHITECTURES)}"
        )
    module = ARCHITECTURES[name](run.task, run.architecture)
    if isinstance(run.method, Training):
        trained(module, run.method)
    return module


def trained(module: nn.Module, method: Training) -> Callable[[str], bool]:
    """Whether the method trains a parameter, by its name. Raises UserError where none are named."""
    if method.trained == "memory":
        return lambda name: name not in EMBEDDINGS
    offer = {"read_out": "read_out", "all_but_attention": "attention_maps"}.get(
        method.trained or ""
    )
    if offer is None:
        return lambda _: True
    if not hasattr(module, offer):
        raise UserError(
            f"trained={method.trained!r}: {type(module).__name__} offers no {offer}; "
            "leave trained out"
        )
    names: Any = getattr(module, offer)()
    return lambda name: (name in names) == (method.trained == "read_out")


def init(module: nn.Module, context_length: int, key: jax.Array) -> Any:
    """The module's variables at its own size: {"params": ..., "constants": ...}."""
    if hasattr(module, "initial"):
        return jax.tree.map(jnp.asarray, module.initial(key))
    return _initializer(module, context_length)(key)


@functools.lru_cache(maxsize=1024)
def _initializer(module: nn.Module, context_length: int) -> Any:
    # It runs a few times only: optimising the generator's code would take eight times longer.
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}
    return jax.jit(lambda key: _flax_init(module, context_length, key), compiler_options=options)


def _flax_init(module: nn.Module, context_length: int, key: jax.Array) -> Any:
    tokens: Any = (jnp.zeros(context_length, jnp.int32),)
    inputs: Any = getattr(module, "inputs", lambda: tokens)()
    variables = module.init(key, *inputs)
    return {"constants": {}, **variables}


@functools.lru_cache(maxsize=4096)
def shapes(module: nn.Module, context_length: int) -> Any:
    """The tree of `init` as shapes and dtypes, without computing anything."""
    return jax.eval_shape(lambda: _flax_init(module, context_length, jax.random.key(0)))


@functools.lru_cache(maxsize=4096)
def count_parameters(module: nn.Module, context_length: int) -> tuple[int, int]:
    """(n_params, n_params_memory): all, and all but token embeddings and unembedding."""
    sizes = _parameter_sizes(module, context_length)
    n_params = sum(sizes.values())
    return n_params, n_params - sum(sizes.get(name, 0) for name in EMBEDDINGS)


def _parameter_sizes(module: nn.Module, context_length: int) -> dict[str, int]:
    if hasattr(module, "parameters"):
        # A hundred times faster than tracing, which counts for thousands of sizes.
        table: Any = module.parameters()
        return {name: math.prod(shape) for name, (shape, *_) in table.items()}
    params = shapes(module, context_length)["params"]
    return {name: sum(x.size for x in jax.tree.leaves(sub)) for name, sub in params.items()}


@functools.lru_cache(maxsize=4096)
def count_distinct(module: nn.Module, context_length: int) -> int:
    """Parameters less those that products of matrices make redundant: degrees of freedom.

    A product of an m x r and an r x n matrix has r (m + n - r) of them, or m n where r is no less
    than both. The module's `products` names (m, r, n) and how many such products it has.
    """
    n_params, _ = count_parameters(module, context_length)
    offered: Any = getattr(module, "products", lambda: ())()
    for m, r, n, count in offered:
        kept = r * (m + n - r) if r < min(m, n) else m * n
        n_params -= count * (r * (m + n) - kept)
    return n_params


def logits(module: nn.Module, variables: Any, tokens_S: jax.Array) -> jax.Array:
    """logits_N of the token after one sequence."""
    return jnp.asarray(module.apply(variables, tokens_S))


def all_logits(module: nn.Module, variables: Any, tokens_TxS: jax.Array) -> jax.Array:
    """logits_TxN of all N^S sequences, which tokens_TxS lists in lexicographic order."""
    if not hasattr(module, "tables"):
        return jax.vmap(lambda tokens_S: logits(module, variables, tokens_S))(tokens_TxS)

    def read(*rows: Any) -> Any:
        return module.apply(variables, list(rows), method="read")

    tables: Any = module.apply(variables, method="tables")
    for position in reversed(range(len(tables))):
        read = jax.vmap(read, in_axes=[0 if s == position else None for s in range(len(tables))])
    logits_SxN = read(*tables)
    return logits_SxN.reshape(len(tokens_TxS), logits_SxN.shape[-1])
