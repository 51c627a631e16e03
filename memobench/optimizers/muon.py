"""Muon: steps along orthogonalised momentum."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memobench.core.columns import choice, flag, integer, number
from memobench.core.optimizer import Optimizer, decoupled_decay, require_forgetting
from memobench.core.spec import kind

# Of the quintic by which singular values come near 1, chosen for a steep slope at 0 (Jordan 2024).
COEFFICIENTS = 3.4445, -4.7750, 2.0315
# Added to norms.
EPSILON = 1e-8
# Words in the names of parameters that are not matrices, however many axes they have.
_VECTORS = {"bias", "scale", "norm"}
_EMBEDDINGS = {"embedding", "unembedding"}


class MuonState(NamedTuple):
    """The mean of the matrices' gradients."""

    mean: Any


@kind("muon")
class Muon(Optimizer):
    """Muon (Jordan et al. 2024): Newton-Schulz makes all singular values of a step about 1.

    Matrices are those of parameters of two or more axes, by their last two: stacked heads are
    orthogonalised one by one. Embeddings and unembeddings are left to Adam unless `orthogonal` says
    `all`, biases, scales and norms always are, by their names. All else of two axes is a matrix: a
    router, DeltaNet's `key_rate` of a vector for each group, `decoder` and learned `position` of
    `QueryAttention`, and of a product-key memory the values under each first key.

    A matrix of m rows and n columns moves by `rms` sqrt(max(m, n)) times what was orthogonalised,
    so that entries move about as much as with Adam, whose rates then fit (Liu et al. 2025); without
    `rms` by the original sqrt(max(1, m/n)). Both are of the true shape. The original's m are
    outputs. So are rows here, but not those of tables of vectors, of `QueryAttention` and of the
    output of `RecallTransformer`: with these give an `rms`, which is the same for a transpose.
    """

    momentum: float = number("decay of the mean of gradients", default=0.95, least=0, most=1)
    nesterov: bool = flag("whether a step looks ahead along the mean", default=True)
    newton_schulz: int = integer("iterations of Newton-Schulz", 1, default=5, most=64)
    rms: float | None = number(
        "root mean square of a matrix's update; none for the original scale, of rows as outputs",
        default=0.2,
        above=0,
        optional=True,
    )
    orthogonal: str = choice(
        "matrices that are orthogonalised: all, or all but embeddings and unembeddings",
        *("inner", "all"),
        default="inner",
    )
    weight_decay: float = decoupled_decay(0)
    adam_rate: float = number("Adam's learning rate, as a factor", default=1, above=0)
    b1: float = number("Adam's decay of the mean of gradients", default=0.9, least=0, most=1)
    b2: float = number("Adam's decay of the mean of their squares", default=0.999, least=0, most=1)
    eps: float = number("Adam adds it to the root of the squares", default=1e-8, above=0)

    def check(self) -> None:
        require_forgetting(self, "momentum", "b1", "b2")

    def of_shapes(self, shapes: Any) -> Mapping[str, Any]:
        leaves = jax.tree.leaves_with_path(shapes)
        matrices = ((at, x.shape) for at, x in leaves if self._orthogonalizes(at, x))
        return {"factors": {_name(at): self._factor(shape) for at, shape in matrices}}

    def transform(self) -> optax.GradientTransformation:
        def labels(params: Any) -> Any:
            label = {True: "muon", False: "adam"}
            return jax.tree.map_with_path(lambda at, x: label[self._orthogonalizes(at, x)], params)

        adam = optax.scale_by_adam(self.b1, self.b2, self.eps)
        parts = {
            "muon": optax.GradientTransformationExtraArgs(self._begin_matrices, self._matrices),
            "adam": optax.chain(adam, optax.scale(self.adam_rate)),
        }
        decay = optax.add_decayed_weights(self.weight_decay)
        return optax.chain(optax.multi_transform(parts, labels), decay)

    def _orthogonalizes(self, path: Any, x: Any) -> bool:
        """True for a parameter that is orthogonalised."""
        left_out = _VECTORS if self.orthogonal == "all" else _VECTORS | _EMBEDDINGS
        words = {word.rstrip("0123456789") for word in _name(path).split("_")}
        return len(x.shape) >= 2 and not words & left_out

    def _factor(self, shape: tuple[int, ...]) -> Any:
        rows, columns = shape[-2:]
        if self.rms is None:
            return np.float32(math.sqrt(max(1, rows / max(1, columns))))
        return np.float32(self.rms * math.sqrt(max(rows, columns)))

    def _begin_matrices(self, params: Any) -> MuonState:
        return MuonState(jax.tree.map(jnp.zeros_like, params))

    def _matrices(
        self, gradient: Any, state: MuonState, params: Any = None, *, factors: Any = None, **_: Any
    ) -> tuple[Any, MuonState]:
        """Updates of matrices, and the state.

        Args:
          gradient: of the matrices.
          state: the mean.
          params: not read.
          factors: of each matrix, by its name; by default those of the shapes seen.
        """
        del params
        if factors is None:
            factors = self.of_shapes(gradient)["factors"]

        def mix(mean: jax.Array, g: jax.Array) -> jax.Array:
            return self.momentum * mean + (1 - self.momentum) * g

        mean = jax.tree.map(mix, state.mean, gradient)
        ahead = jax.tree.map(mix, mean, gradient) if self.nesterov else mean
        update = jax.tree.map_with_path(
            lambda at, x: factors[_name(at)] * orthogonalize(x, self.newton_schulz), ahead
        )
        return update, MuonState(mean)


def orthogonalize(x_MxN: jax.Array, iterations: int) -> jax.Array:
    """A matrix of the same singular vectors, its values brought near 1; or a stack of such.

    All is products with the matrix itself, so that zero-padding stays zero and changes nothing.
    """
    if x_MxN.shape[-2] > x_MxN.shape[-1]:
        return orthogonalize(x_MxN.mT, iterations).mT
    a, b, c = COEFFICIENTS
    x_MxN = x_MxN / (jnp.linalg.norm(x_MxN, axis=(-2, -1), keepdims=True) + EPSILON)
    for _ in range(iterations):
        gram_MxM = x_MxN @ x_MxN.mT
        x_MxN = a * x_MxN + (b * gram_MxM + c * gram_MxM @ gram_MxM) @ x_MxN
    return x_MxN


def _name(path: Any) -> str:
    """A parameter's name, below those of the modules that hold it."""
    return "_".join(str(getattr(key, "key", key)) for key in path)
