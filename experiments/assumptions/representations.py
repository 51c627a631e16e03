"""The vectors at the first places of a model, of which theorems assume independence.

Shape letters: T examples, B examples in a batch, N tokens, D width, H heads of width d, E = H d, C
examples whose contexts are kept, P pixels to a side.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from memobench.experiments.assumptions.models import Model, libraries

PLACES = ("embedding", "layer 1", "random attention")
# What ViT's published preprocessing makes of the values 0..1.
PIXEL_MEAN = PIXEL_DEVIATION = 0.5


@dataclasses.dataclass(frozen=True)
class Representations:
    """The vectors at one place of a model: the query's, and its contexts.

    Contexts hold all N tokens, the query among them, and only those of the first C examples are
    kept; their means over N are there at the embedding alone. Behind the random attention layer
    there is only the query.
    """

    queries_TxD: np.ndarray
    means_TxD: np.ndarray | None = None
    contexts_CxNxD: np.ndarray | None = None


def represent(
    model: Model,
    inputs: Iterable[np.ndarray],
    *,
    n_contexts: int = 8,
    batch: int = 8,
    seed: int = 0,
) -> dict[str, Representations]:
    """The representations of examples at every one of `PLACES`.

    `embedding` is what enters the first layer, with positions; `layer 1` what leaves it; `random
    attention` what one fresh attention layer (`random_attention`) reads from the embedding. The
    library's own first layer computes whole contexts; where only the query counts, and the kind of
    model is known, `_READERS` does the same with a small part of the arithmetic.

    Args:
      model: from `untrained`.
      inputs: tokens_N (integers) or pixels_PxPx3 (uint8), one array per example.
      n_contexts: C, of how many examples the contexts are kept.
      batch: how many examples are computed together.
      seed: of the random attention layer.
    """
    torch, _ = libraries()
    fresh = random_attention(model, seed)
    reader = _READERS.get(model.module.config.model_type)
    parts: dict[tuple[str, str], list[Any]] = {}

    def keep(place: str, field: str, values: Any) -> None:
        parts.setdefault((place, field), []).append(values.numpy().copy())

    n_done = 0
    for examples in _batches(inputs, batch):
        n_kept = min(len(examples), max(0, n_contexts - n_done))
        n_done += len(examples)
        with torch.inference_mode():
            whole = reader is None or n_kept > 0
            tokens_BxNxD, output_BxNxD = _first_layer(model, np.stack(examples), whole)
            keep("embedding", "queries_TxD", tokens_BxNxD[:, model.query])
            keep("embedding", "means_TxD", tokens_BxNxD.mean(dim=1))
            keep("embedding", "contexts_CxNxD", tokens_BxNxD[:n_kept])
            keep("random attention", "queries_TxD", fresh(tokens_BxNxD))
            if reader is None:
                keep("layer 1", "queries_TxD", output_BxNxD[:, model.query])
            else:
                keep("layer 1", "queries_TxD", reader(model, tokens_BxNxD))
            if whole:
                keep("layer 1", "contexts_CxNxD", output_BxNxD[:n_kept])
    places: dict[str, dict[str, np.ndarray]] = {place: {} for place in PLACES}
    for (place, field), arrays in parts.items():
        places[place][field] = np.concatenate(arrays)
    return {place: Representations(**fields) for place, fields in places.items()}


def random_attention(model: Model, seed: int) -> Callable[[Any], Any]:
    """A fresh attention layer of the model's width, read at its query: tokens_BxNxD -> outputs_BxD.

    Four maps in R^{D x D}, Xavier-uniform as in Mahdavi et al. (2024), scores over the square root
    of D / H, no bias, no residual connection; the query attends to all N tokens.
    """
    torch, _ = libraries()
    bound = np.sqrt(6 / (2 * model.width))
    shape = (4, model.width, model.width)
    maps = np.random.default_rng(seed).uniform(-bound, bound, size=shape)
    query_DxD, key_DxD, value_DxD, output_DxD = torch.from_numpy(maps)
    scale = (model.width // model.n_heads) ** -0.5

    def read(tokens_BxNxD: Any) -> Any:
        q_BxD = tokens_BxNxD[:, model.query] @ query_DxD.T
        return _attend(q_BxD, tokens_BxNxD, key_DxD, value_DxD, model.n_heads, scale) @ output_DxD.T

    return read


def _attend(
    q_BxE: Any, tokens_BxNxD: Any, key_ExD: Any, value_ExD: Any, n_heads: int, scale: float
) -> Any:
    """values_BxE, heads side by side, that one query draws from the tokens.

    One query needs no keys and values of N tokens: it passes through the keys' map itself, and the
    values' map follows the weighted mean. The keys' bias would move all scores alike.
    """
    heads = (n_heads, -1)
    q_HxBxd = q_BxE.unflatten(1, heads).transpose(0, 1)
    folded_BxHxD = (q_HxBxd @ key_ExD.unflatten(0, heads)).transpose(0, 1)
    weights_BxHxN = (scale * folded_BxHxD @ tokens_BxNxD.mT).softmax(dim=2)
    mixed_HxBxD = (weights_BxHxN @ tokens_BxNxD).transpose(0, 1)
    return (mixed_HxBxD @ value_ExD.unflatten(0, heads).mT).transpose(0, 1).flatten(1)


def _read_gpt2(model: Model, tokens_BxNxD: Any) -> Any:
    layer, n_heads = model.layer, model.n_heads
    normed_BxNxD = layer.ln_1(tokens_BxNxD)
    query_ExD, key_ExD, value_ExD = layer.attn.c_attn.weight.T.chunk(3)
    query_E, _, value_E = layer.attn.c_attn.bias.chunk(3)
    q_BxE = normed_BxNxD[:, model.query] @ query_ExD.T + query_E
    read_BxE = _attend(q_BxE, normed_BxNxD, key_ExD, value_ExD, n_heads, layer.attn.scaling)
    x_BxD = tokens_BxNxD[:, model.query] + layer.attn.c_proj(read_BxE + value_E)
    return x_BxD + layer.mlp(layer.ln_2(x_BxD))


def _read_vit(model: Model, tokens_BxNxD: Any) -> Any:
    layer, n_heads, attention = model.layer, model.n_heads, model.layer.attention
    normed_BxNxD = layer.layernorm_before(tokens_BxNxD)
    key, value = attention.k_proj, attention.v_proj
    q_BxE = attention.q_proj(normed_BxNxD[:, model.query])
    read_BxE = _attend(q_BxE, normed_BxNxD, key.weight, value.weight, n_heads, attention.scaling)
    read_BxE = read_BxE if value.bias is None else read_BxE + value.bias
    x_BxD = tokens_BxNxD[:, model.query] + attention.o_proj(read_BxE)
    return x_BxD + layer.mlp(layer.layernorm_after(x_BxD))


def _read_bert(model: Model, tokens_BxNxD: Any) -> Any:
    layer, n_heads, attention = model.layer, model.n_heads, model.layer.attention.self
    x_BxD = tokens_BxNxD[:, model.query]
    key, value = attention.key, attention.value
    q_BxE = attention.query(x_BxD)
    read_BxE = _attend(q_BxE, tokens_BxNxD, key.weight, value.weight, n_heads, attention.scaling)
    x_BxD = layer.attention.output(read_BxE + value.bias, x_BxD)
    return layer.output(layer.intermediate(x_BxD), x_BxD)


# What the first layer makes of the query, by the kind of model.
_READERS = {"bert": _read_bert, "gpt2": _read_gpt2, "vit": _read_vit}


class _EnoughError(Exception):
    """Ends a forward pass when all that is wanted is there."""


def _first_layer(model: Model, examples: np.ndarray, whole: bool) -> tuple[Any, Any]:
    """The input of the first layer and, if whole, its output."""
    torch, _ = libraries()
    found: list[Any] = []

    def keep_input(_: Any, args: tuple, kwargs: dict) -> None:
        found.append(args[0] if args else kwargs["hidden_states"])
        if not whole:
            raise _EnoughError

    def keep_output(_: Any, __: Any, output: Any) -> None:
        found.append(output if torch.is_tensor(output) else output[0])
        raise _EnoughError

    hooks = (
        model.layer.register_forward_pre_hook(keep_input, with_kwargs=True),
        model.layer.register_forward_hook(keep_output),
    )
    try:
        model.module(**_arguments(model, examples))
    except _EnoughError:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return found[0], found[1] if whole else None


def _arguments(model: Model, examples: np.ndarray) -> dict[str, Any]:
    torch, _ = libraries()
    if model.pixels is None:
        tokens = torch.from_numpy(examples)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    pixels = torch.from_numpy(examples).permute(0, 3, 1, 2).to(torch.float64) / 255
    return {"pixel_values": (pixels - PIXEL_MEAN) / PIXEL_DEVIATION}


def _batches(inputs: Iterable[np.ndarray], size: int) -> Iterator[list[np.ndarray]]:
    iterator = iter(inputs)
    while examples := list(itertools.islice(iterator, size)):
        yield examples
