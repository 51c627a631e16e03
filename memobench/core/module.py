"""Flax modules of models, for one example.

`Module` is the base of all of them: its defaults serve any model, and what a subclass overrides
makes it pack, start or evaluate faster.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from memobench.common.errors import UserError, require
from memobench.common.notation import pluralize
from memobench.core.kernel import Kernel
from memobench.numerics.initial_weights import Table, draw

_Module = TypeVar("_Module", bound="Module")

# Not counted as memory: the parameters of these names take tokens in and out.
EMBEDDINGS = ("token_embedding", "unembedding")
# How XLA compiles what runs a few times only: optimising its code would take longer.
RUNS_BRIEFLY: dict[str, Any] = {"xla_backend_optimization_level": 0}


class Module(nn.Module, kw_only=True):
    """Base of all models: one example in, logits or outputs out.

    What depends on true sizes and not on parameters (score scales, masks) is kept in the
    "constants" collection, where it survives padding.

    Attributes:
      paddable: sizes that may be zero-padded without changing the function: modules that differ
        only in them are trained in one program.
      kind_code: code of the user's kind that built it, so that caches by module keep apart what
        other code makes.
    """

    paddable: ClassVar[tuple[str, ...]] = ()

    kind_code: str | None = dataclasses.field(default=None, repr=False)

    def example(self, context_length: int) -> tuple[Any, ...]:
        """An example of zeros; tokens by default."""
        return (jnp.zeros(context_length, jnp.int32),)

    def parameters(self) -> Table | None:
        """The initialisation of every parameter, by name; None leaves it to Flax.

        With a table, no size needs a compilation to be initialised, or a trace to be counted.
        """
        return None

    def constants(self) -> dict[str, Any]:
        """Arrays that depend on the true sizes and not on parameters; they are zero-padded."""
        return {}

    def create_variables(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parameters and constants by name, for the `setup` of a module that lists them."""
        params = {
            name: self.param(name, weight.initialize, weight.shape)
            for name, weight in (self.parameters() or {}).items()
        }
        constants = {
            name: self.variable("constants", name, lambda x=x: jnp.asarray(x)).value
            for name, x in self.constants().items()
        }
        return params, constants

    def work(self, n_examples: int, context_length: int) -> float:
        """The number of multiplications of a forward pass over `n_examples`."""
        n_params, _ = count_parameters(self, context_length)
        return float(n_examples * n_params)

    def idle(self) -> int:
        """The number of parameters that a token does not meet, such as those of other experts."""
        return 0

    def activations(self) -> float:
        """The number of floats that one example keeps for the backward pass, roughly."""
        sizes = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
        whole = {name: value for name, value in sizes.items() if type(value) is int}
        n_outputs = whole.pop("vocab_size", 0)
        n_places = whole.pop("n_layers", 1) * whole.pop("context_length", 1)
        return 4 * n_outputs + 8 * n_places * sum(whole.values())

    def parts(self) -> dict[str, tuple[str, ...]]:
        """The names of parameters that methods may train apart from the others.

        Returns:
          read_out: those that map the last layer's features linearly to logits.
          attention_maps: those that queries and keys, and so attention maps, depend on.
        """
        return {}

    def products(self) -> tuple[tuple[int, int, int, int], ...]:
        """Sizes (m, r, n) of products of two matrices, and the number of such products."""
        return ()

    def symmetries(self, task: Any) -> float | None:
        """The dimensions of changes of the weights that leave all log-probabilities as they are.

        Those of `products` are not among them. Of almost all weights, over all inputs of tasks of
        this kind; None where no formula is known to be right, and NaN where the number differs
        between weights. A test holds every formula against the rank of the Jacobian.
        """
        del task
        return None


class KernelModule(Module):
    """A model that has code of its own for the steps of a chunk.

    Attributes:
      skipped: paddable sizes whose padding takes that code no time.
    """

    skipped: ClassVar[tuple[str, ...]] = ()

    def kernel(self) -> Kernel | None:
        """The code; None leaves steps of these sizes to XLA."""
        raise NotImplementedError


class TabledModule(Module):
    """A model that projects each token once: `tables` lists rows of tokens, `read` combines them.

    All sequences are then evaluated without repeating a token's work.
    """

    def tables(self) -> list[Any]:
        """For each position, the rows of every token: a list of S trees with leading axis N."""
        raise NotImplementedError

    def read(self, rows: list[Any]) -> jax.Array:
        """logits_N of one example from the rows of its S tokens."""
        raise NotImplementedError


def all_logits(module: Module, variables: Any, tokens_TxS: jax.Array) -> jax.Array:
    """logits_TxN of all N^S sequences, which tokens_TxS lists in lexicographic order."""
    apply: Any = module.apply
    if not isinstance(module, TabledModule):
        return jax.vmap(lambda tokens_S: apply(variables, tokens_S))(tokens_TxS)

    def read(*rows: Any) -> Any:
        return apply(variables, list(rows), method="read")

    tables = apply(variables, method="tables")
    for place in reversed(range(len(tables))):
        read = jax.vmap(read, in_axes=[0 if s == place else None for s in range(len(tables))])
    logits_SxN = read(*tables)
    return logits_SxN.reshape(len(tokens_TxS), logits_SxN.shape[-1])


def init(module: Module, context_length: int, key: jax.Array) -> Any:
    """The module's variables at its own size: {"params": ..., "constants": ...}."""
    return jax.device_put(init_on_host(module, context_length, key))


def init_on_host(module: Module, context_length: int, key: jax.Array) -> Any:
    """The same as NumPy arrays, which are padded and stacked without touching the device."""
    table = module.parameters()
    if table is not None:
        return {"params": draw(table, key), "constants": module.constants()}
    return jax.tree.map(np.asarray, _known_initializer(module, context_length)(key))


def constants_of(module: Module, context_length: int) -> dict[str, Any]:
    """The module's constants at its own size, as NumPy arrays."""
    if module.parameters() is not None:
        return module.constants()
    return init_on_host(module, context_length, jax.random.key(0))["constants"]


def initializer(module: Module, context_length: int) -> Any:
    """The module's variables as Flax initialises them: a compiled function of a key, made anew."""
    return jax.jit(
        lambda key: _flax_init(module, context_length, key), compiler_options=RUNS_BRIEFLY
    )


_known_initializer = functools.lru_cache(maxsize=1024)(initializer)


def _flax_init(module: Module, context_length: int, key: jax.Array) -> Any:
    example = module.example(context_length)
    _require_inputs(module, example)
    # How a parameter would be split over devices, which its box says, is of no use here.
    found = nn.meta.unbox(module.init(key, *example))
    return {"params": {}, "constants": {}, **found}


def _require_inputs(module: Module, example: tuple[Any, ...]) -> None:
    """Raises UserError, with the file and line, for a `__call__` that asks for other arguments."""
    signature = inspect.signature(module.__call__)
    try:
        signature.bind(*example)
    except TypeError as error:
        code = inspect.unwrap(type(module).__call__).__code__
        raise UserError(
            f"{type(module).__name__}.__call__ must take {pluralize(len(example), 'argument')}, an "
            f"example, got {signature} ({code.co_filename}, line {code.co_firstlineno}). Give "
            "further ones defaults, or leave them out"
        ) from error


@functools.lru_cache(maxsize=4096)
def shapes(module: Module, context_length: int) -> Any:
    """The tree of `init` as shapes and dtypes, without drawing parameters."""
    table = module.parameters()
    if table is None:
        return jax.eval_shape(lambda: _flax_init(module, context_length, jax.random.key(0)))
    # A trace takes 50 ms, and packs have many sizes.
    params = {name: jax.ShapeDtypeStruct(x.shape, np.float32) for name, x in table.items()}
    constants = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype), module.constants()
    )
    return {"params": params, "constants": constants}


@functools.lru_cache(maxsize=4096)
def count_parameters(module: Module, context_length: int) -> tuple[int, int]:
    """(n_params, n_params_memory): all, and all but token embeddings and unembedding."""
    sizes = _parameter_sizes(module, context_length)
    n_params = sum(sizes.values())
    return n_params, n_params - sum(sizes.get(name, 0) for name in EMBEDDINGS)


def _parameter_sizes(module: Module, context_length: int) -> dict[str, int]:
    table = module.parameters()
    if table is not None:
        # A hundred times faster than tracing, which matters for thousands of sizes.
        return {name: math.prod(weight.shape) for name, weight in table.items()}
    params = shapes(module, context_length)["params"]
    return {name: sum(x.size for x in jax.tree.leaves(sub)) for name, sub in params.items()}


@functools.lru_cache(maxsize=4096)
def count_distinct(module: Module, context_length: int) -> int:
    """Parameters less those that products of matrices make redundant.

    A product of an m x r and an r x n matrix has r (m + n - r) of them, or m n where r is at least
    the smaller of both.
    """
    n_params, _ = count_parameters(module, context_length)
    for m, r, n, count in module.products():
        n_params -= count * (r * (m + n) - product_dimensions(m, r, n))
    return n_params


def product_dimensions(m: int, r: int, n: int) -> int:
    """The dimension of the set of products of an m x r and an r x n matrix.

    >>> product_dimensions(3, 2, 3), product_dimensions(3, 5, 4)
    (8, 12)
    """
    return r * (m + n - r) if r < min(m, n) else m * n


def has_room(n_params: int, n_free: int) -> bool:
    """True where so many parameters leave room among functions of so many dimensions.

    Where they do not, several weights have the same function for no reason but that.
    """
    return 5 * n_params <= 4 * n_free


def degrees_of_freedom(module: Module, task: Any) -> int | None:
    """The degrees of freedom by the module's formula: None where it has none.

    They are the rank of the Jacobian of log-probabilities over all inputs of tasks of this kind
    with respect to all parameters, at almost all weights.
    """
    found = module.symmetries(task)
    if found is None or math.isnan(found):
        return None
    return count_distinct(module, task.context_length) - int(found)


def cells_to_trace(module: Module, context_length: int) -> int:
    """Roughly how many cells tracing a model touches, to count its parameters."""
    if not isinstance(module, TabledModule):
        return context_length * getattr(module, "d_model", 1)
    # It reads token by token.
    return 8192 * context_length * (1 + (getattr(module, "n_layers", 1) - 1) * context_length)


def counts(module: Module, task: Any) -> dict[str, int | None]:
    """The cells of a row that count the model's parameters, by column."""
    context_length = task.context_length
    n_params, n_params_memory = count_parameters(module, context_length)
    return {
        "n_params": n_params,
        "n_params_memory": n_params_memory,
        "n_params_distinct": count_distinct(module, context_length),
        "n_params_active": n_params - module.idle(),
        "degrees_of_freedom": degrees_of_freedom(module, task),
    }


def paddable_sizes(module: Module) -> dict[str, Any]:
    """The module's own paddable sizes, by name."""
    return {name: getattr(module, name) for name in module.paddable}


def enclose(modules: list[Module]) -> Module:
    """The smallest module of the same structure that holds all of them by padding."""
    sizes = [paddable_sizes(module) for module in modules]
    largest: dict[str, Any] = {name: max(size[name] for size in sizes) for name in sizes[0]}
    return modules[0].clone(**largest)


def stack(trees: Iterable[Any]) -> Any:
    """Trees of NumPy arrays as one with a further first axis."""
    return jax.tree.map(lambda *xs: np.stack(xs), *trees)


def pad_to(tree: Any, shapes: Any) -> Any:
    """Zero-pads every leaf at the end of each axis to the size of its counterpart in `shapes`."""

    def pad(x: Any, target: Any) -> np.ndarray:
        padded = np.zeros(target.shape, target.dtype)
        padded[tuple(slice(size) for size in x.shape)] = x
        return padded

    return jax.tree.map(pad, tree, shapes)


def structure(module: Module) -> Module:
    """The module without its paddable sizes: equal for modules that train in one program."""
    zeros: dict[str, Any] = dict.fromkeys(module.paddable, 0)
    return module.clone(**zeros)


def has_attention(module: Module) -> bool:
    """True where a method `attention` of the module says what its last layer attends to."""
    return callable(getattr(type(module), "attention", None))


def trains(module: Module, trained: str | None) -> Callable[[str], bool]:
    """A predicate on names of parameters, true for those that a method trains.

    Args:
      module: of the parameters.
      trained: `read_out`, `all_but_attention` (queries and keys are fixed), `memory` (embeddings
        are fixed), or None for all.

    Raises:
      UserError: the module does not name such parameters.
    """
    if trained is None:
        return lambda name: True
    if trained == "memory":
        return lambda name: name not in EMBEDDINGS
    offer = "read_out" if trained == "read_out" else "attention_maps"
    names = module.parts().get(offer, ())
    require(
        names,
        f"trained={trained!r}: {type(module).__name__} offers no {offer}; leave trained out",
    )
    return lambda name: (name in names) == (trained == "read_out")
