"""Families of architectures, and the shapes of each that meet a budget of parameters.

An architecture is not judged by one arbitrary width: of each family a grid of shapes that meet the
budget is tried for a short time, and the one that knows most stands for the family. The grid has at
most six widths d; heads of dimension d, or d/2 where they are compressed, or 1, 2 and 4 where they
are narrow (2 and 4 in today's blocks); and beside neurons one head, or heads with a quarter to
three quarters of what embeddings leave.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import numbers
from collections.abc import Callable, Iterator
from typing import Any

from memobench.common.errors import require
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.task import Task
from memobench.models.feed_forward import neurons
from memobench.models.mixture_of_experts import MixtureOfExperts
from memobench.models.modern import Modern
from memobench.models.product_key_memory import ProductKeyMemory
from memobench.models.transformer import MLP, AttentionOnly
from memobench.tasks.associations import Associations

# Budgets of parameters, all counted, and the vocabulary whose pairs are associated.
VOCAB_SIZES = {256: 16, 512: 32, 1024: 32, 2048: 64, 4096: 64, 8192: 128}
VOCAB_SIZES |= {16384: 128, 32768: 256, 65536: 256}
# An architecture meets a budget within this share of it.
TOLERANCE = 0.05
# Token embeddings and unembeddings, 2 N d, take these shares of the budget.
LEAST_SHARE, MOST_SHARE = 0.2, 0.8
# Shares of what is left that a mixed layer's heads take, but for one head; then a memory's values.
SPLITS = (0.25, 0.5, 0.75)
# Dimensions of narrow heads, which are full heads with fewer dimensions than the residual stream.
NARROW = (1, 2, 4)
# Today's blocks that are compared at equal parameters: plain and gated, with norms and without.
BLOCKS = (
    *(("rms", activation) for activation in ("gelu", "relu_squared", "swiglu", "bilinear")),
    *(("none", activation) for activation in ("gelu", "swiglu")),
)
# Blocks whose unembedding is the token embedding: positions and dimensions of their heads, and the
# largest share of the budget that tokens take.
TIED, MOST_SHARE_TIED = (("learned", 1), ("rope", 2), ("rope", 4)), 0.5
# Experts of a mixture, and how many of them a token meets.
N_EXPERTS, TOP_K = 4, (1, 2)


def task(budget: int, seed: int = 0) -> Associations:
    """As many associations of pairs as parameters, far more than any architecture memorizes.

    Raises UserError for a budget that the board does not have.
    """
    budgets = ", ".join(f"{each:,}" for each in VOCAB_SIZES)
    require(
        isinstance(budget, numbers.Integral) and budget in VOCAB_SIZES,
        f"budget must be one of the board's, {budgets}, got {budget!r}.",
    )
    return Associations(vocab_size=VOCAB_SIZES[budget], n_sequences=budget, seed=seed)


def shapes(budget: int) -> list[Architecture]:
    """The shapes of Dana et al.'s families that meet a budget.

    >>> sorted({shape.family for shape in shapes(256)})[:2]
    ['MLP', 'MLP (relu)']
    """
    return _shapes_within_budget(budget, _shapes_at_width)


def narrow_shapes(budget: int) -> list[Architecture]:
    """The shapes of one layer with narrow heads, alone and beside an MLP.

    >>> sorted({shape.family for shape in narrow_shapes(256)})
    ['MLP, narrow head', 'attention + MLP, narrow heads', 'attention-only, narrow heads']
    """
    return _shapes_within_budget(budget, _narrow_at_width)


def deep_shapes(budget: int) -> list[Architecture]:
    """The shapes of two layers with narrow heads, alone and beside an MLP.

    Above 2,048 parameters of the three narrowest widths alone: in one layer wider models know less.

    >>> sorted({shape.family for shape in deep_shapes(256)})[0]
    'MLP, narrow head, 2 layers'
    """
    at = widths(budget)[: 3 if budget > 2048 else None]
    return _shapes_within_budget(budget, functools.partial(_narrow_at_width, n_layers=2), at)


def block_shapes(budget: int) -> list[Architecture]:
    """The shapes of today's blocks with wide heads, plain and gated, and of their attention alone.

    >>> sorted({shape.family for shape in block_shapes(256)})[:2]
    ['modern', 'modern (activation=bilinear)']
    """
    return _shapes_within_budget(budget, _blocks_at_width)


def narrow_block_shapes(budget: int) -> list[Architecture]:
    """The shapes of today's blocks with narrow heads, and of their attention alone.

    Above 4,096 parameters without the narrowest width and the two widest, which know the least at
    4,096.

    >>> sorted({shape.family for shape in narrow_block_shapes(256)})[:2]
    ['modern (activation=bilinear), narrow head', 'modern (activation=bilinear), narrow heads']
    """
    at = widths(budget)[slice(1, 4) if budget > 4096 else slice(None)]
    return _shapes_within_budget(budget, functools.partial(_blocks_at_width, narrow=True), at)


def sparse_shapes(budget: int) -> list[Architecture]:
    """The shapes of mixtures of SwiGLU experts and of product-key memories, without norms.

    >>> sorted({shape.family for shape in sparse_shapes(256)})[1:]
    ['mixture_of_experts (norm=none, n_experts=4, top_k=2)', 'product_key_memory (norm=none)']
    """
    return _shapes_within_budget(budget, _sparse_at_width)


def tied_shapes(budget: int) -> list[Architecture]:
    """The shapes of blocks without norms whose unembedding is the token embedding.

    Heads are narrow, one of two or four dimensions before neurons, or more of one or two. Above 512
    parameters without the two widest: at 512 they are past the best.

    >>> sorted({shape.family for shape in tied_shapes(256)})[-1]
    'modern attention (norm=none, tied=True), narrow heads'
    """
    at = widths(budget, n_maps=1, most_share=MOST_SHARE_TIED)[: 4 if budget > 512 else None]
    return _shapes_within_budget(budget, _tied_at_width, at)


def _shapes_within_budget(
    budget: int, of: Callable[[int, int], Iterator[Architecture]], at: list[int] | None = None
) -> list[Architecture]:
    """The shapes that a function of budget and width makes, if they meet the budget.

    They have these widths, by default all.
    """
    found = dict.fromkeys(shape for width in at or widths(budget) for shape in of(budget, width))
    return [shape for shape in found if meets_budget(shape, budget)]


def meets_budget(shape: Architecture, budget: int) -> bool:
    """True if all parameters of a shape are the budget, within TOLERANCE."""
    module = shape.module_for(task(budget))
    n_params, _ = models.count_parameters(module, task(budget).context_length)
    return abs(n_params / budget - 1) <= TOLERANCE


def sizes_that_fit(shape: Architecture, budget: int, of: Task | None = None) -> list[str]:
    """The sizes of a shape, each alone, with which its parameters are nearest to the budget.

    They are counted on a task, by default the board's of the budget.

    >>> sizes_that_fit(MLP(d_model=4, d_head=4, d_mlp=9), budget=512)
    ['d_model=5', 'd_head=5', 'n_heads=3', 'd_mlp=20']
    """
    on = of or task(budget)

    def off(name: str, size: int) -> float:
        module = shape.replace(**{name: size}).module_for(on)
        return models.count_parameters(module, on.context_length)[0] / budget - 1

    found = []
    for name in (x.name for x in dataclasses.fields(shape) if type(getattr(shape, x.name)) is int):
        with contextlib.suppress(Exception):  # A user's code may refuse a size as it likes.
            low, high = 1, 2
            while off(name, high) < 0 and high < budget:
                low, high = high, 2 * high
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if off(name, middle) < 0 else (low, middle)
            nearest = min((low, high), key=lambda size: abs(off(name, size)))
            if abs(off(name, nearest)) <= TOLERANCE:
                found.append(f"{name}={nearest}")
    return found


def widths(budget: int, n_maps: int = 2, most_share: float = MOST_SHARE) -> list[int]:
    """At most six widths of the residual stream, about evenly apart, whose tokens leave memory.

    Args:
      budget: of parameters.
      n_maps: of tokens, an embedding and an unembedding, or both in one.
      most_share: of the budget that these take.
    """
    per_width = n_maps * VOCAB_SIZES[budget] / budget
    least, most = max(2, round(LEAST_SHARE / per_width)), int(most_share / per_width)
    return sorted({round(least + (most - least) * i / 5) for i in range(6)})


def _narrow_at_width(budget: int, width: int, n_layers: int = 1) -> Iterator[Architecture]:
    memory = (_memory_budget(budget, width) - 2 * width) / n_layers
    for d_head in (x for x in NARROW if x < width):
        sizes: dict[str, Any] = {"d_model": width, "d_head": d_head, "heads": "full"}
        sizes["n_layers"] = n_layers
        head = 4 * width * d_head
        if n_heads := round(memory / head):
            yield AttentionOnly(**sizes, n_heads=n_heads)
        for n_heads in _numbers_of_heads(memory / head):
            if (d_mlp := round((memory - n_heads * head) / (2 * width + 1))) >= 1:
                yield MLP(**sizes, n_heads=n_heads, d_mlp=d_mlp)


def _shapes_at_width(budget: int, width: int) -> Iterator[Architecture]:
    memory = _memory_budget(budget, width) - 2 * width
    head, neuron = 4 * width**2, 2 * width + 1

    def attention_shapes(n_heads: float, n_layers: int) -> Iterator[Architecture]:
        if round(n_heads) >= 1:
            yield AttentionOnly(
                d_model=width, d_head=width, n_heads=round(n_heads), n_layers=n_layers, heads="full"
            )

    def mlp_shapes(
        n_heads: int, n_layers: int = 1, activation: str = "gelu"
    ) -> Iterator[Architecture]:
        d_mlp = round((memory / n_layers - n_heads * head) / neuron)
        if d_mlp >= 1:
            yield MLP(
                d_model=width,
                d_head=width,
                n_heads=n_heads,
                n_layers=n_layers,
                d_mlp=d_mlp,
                heads="full",
                activation=activation,
            )

    yield from attention_shapes(memory / head, 1)
    yield from attention_shapes(memory / head / 2, 2)
    half = width // 2
    shared = memory + 2 * width - 2 * half - 2 * width * half
    if half and round(shared / (4 * half**2)) >= 1:
        n_heads = round(shared / (4 * half**2))
        yield AttentionOnly(d_model=width, d_head=half, n_heads=n_heads)
    yield from mlp_shapes(1)
    yield from mlp_shapes(1, activation="relu")
    yield from mlp_shapes(1, n_layers=2)
    for n_heads in _numbers_of_heads(memory / head)[1:]:
        yield from mlp_shapes(n_heads)


def _blocks_at_width(budget: int, width: int, narrow: bool = False) -> Iterator[Architecture]:
    for d_head in _head_dimensions(width, narrow):
        for norm, scale in (("rms", width), ("none", 0)):
            if n_heads := round((_memory_budget(budget, width) - 2 * scale) / (4 * width * d_head)):
                yield Modern(d_model=width, d_head=d_head, n_heads=n_heads, norm=norm)
        for norm, activation in BLOCKS:
            for own, left in _sizes_with_heads(budget, width, d_head, norm):
                if (d_mlp := neurons(activation, left, width)) >= 1:
                    yield Modern(**own, d_mlp=d_mlp, activation=activation)


def _tied_at_width(budget: int, width: int) -> Iterator[Architecture]:
    for positions, d_head in (x for x in TIED if x[1] < width):
        # A vector for each of two positions.
        of_positions = 2 * width if positions == "learned" else 0
        left = budget - VOCAB_SIZES[budget] * width - of_positions
        head = 4 * width * d_head
        own: dict[str, Any] = {"d_model": width, "d_head": d_head, "positions": positions}
        own |= {"norm": "none", "tied": True}
        if d_head < 4:
            yield Modern(**own, n_heads=round(left / head))
        numbers = (
            x for x in _numbers_of_heads(left / head) if d_head in ((1, 2) if x > 1 else (2, 4))
        )
        for n_heads, activation in itertools.product(numbers, ("gelu", "swiglu")):
            if (d_mlp := neurons(activation, left - n_heads * head, width)) >= 1:
                yield Modern(**own, n_heads=n_heads, d_mlp=d_mlp, activation=activation)


def _head_dimensions(width: int, narrow: bool) -> tuple[int, ...]:
    """The dimensions of heads of today's blocks: the model's width, or narrow ones.

    Rotary positions turn two dimensions at a time, so one is too few.
    """
    return tuple(x for x in NARROW if 1 < x < width) if narrow else (width,)


def _sparse_at_width(budget: int, width: int) -> Iterator[Architecture]:
    for own, left in _sizes_with_heads(budget, width, width, "none"):
        if (d_mlp := neurons("swiglu", left / N_EXPERTS - width, width)) >= 1:
            for top_k in TOP_K:
                yield MixtureOfExperts(**own, d_mlp=d_mlp, n_experts=N_EXPERTS, top_k=top_k)
        for share in SPLITS:
            n_keys = round(math.sqrt(max(0, share * left / width)))
            d_key = round((left - n_keys**2 * width) / (2 * (width + n_keys)))
            if n_keys > 1 and d_key >= 1:
                yield ProductKeyMemory(**own, d_key=d_key, n_keys=n_keys)


def _memory_budget(budget: int, width: int) -> int:
    """The parameters of a budget that tokens leave."""
    return budget - 2 * VOCAB_SIZES[budget] * width


def _sizes_with_heads(
    budget: int, width: int, d_head: int, norm: str
) -> Iterator[tuple[dict[str, Any], int]]:
    """Sizes of several numbers of heads, and the parameters that they and norms leave."""
    left = _memory_budget(budget, width) - (0 if norm == "none" else 3 * width)
    head = 4 * width * d_head
    for n_heads in _numbers_of_heads(left / head):
        sizes = {"d_model": width, "d_head": d_head, "n_heads": n_heads, "norm": norm}
        yield sizes, left - n_heads * head


def _numbers_of_heads(most: float) -> list[int]:
    """One, and the shares of the most that there can be."""
    return sorted({1, *(round(share * most) for share in SPLITS)} - {0})
