"""Untrained models of the transformers library, drawn from a seed.

The library is the extra `memobench[pretrained]` and is imported only when a function here needs it.
Nothing is downloaded. Everything is computed in float64.
"""

import dataclasses
from typing import Any

from memobench.common.errors import UserError

# Published sizes, as keyword arguments of the configuration of that kind.
UNTRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "vit-base": ("vit", {}),
    "bert-base": ("bert", {}),
    "bert-large": (
        "bert",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
    "gpt2": ("gpt2", {}),
    "gpt2-large": ("gpt2", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
}


@dataclasses.dataclass(frozen=True)
class Model:
    """A model cut off after its first layer, and what its inputs look like.

    `query` is the position that is read: the last of causal models, else the first. `length` is N,
    `pixels` P for models of images and None for models of text.
    """

    module: Any
    layer: Any
    query: int
    length: int
    width: int
    n_heads: int
    vocab_size: int | None
    pixels: int | None


def untrained(name: str, seed: int = 0, **sizes: Any) -> Model:
    """A model of `UNTRAINED` at its published sizes with the library's initial weights.

    Args:
      name: a key of `UNTRAINED`.
      seed: of the weights.
      **sizes: other values of the configuration, for smaller models.

    Raises:
      UserError: for unknown names, and without the extra.
    """
    torch, transformers = libraries()
    if name not in UNTRAINED:
        raise UserError(f"model={name!r} is unknown; choose one of {', '.join(UNTRAINED)}")
    kind, published = UNTRAINED[name]
    config = transformers.AutoConfig.for_model(kind, **{**published, **sizes})
    # Built whole: the initial weights of GPT-2 depend on its number of layers.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = transformers.AutoModel.from_config(config, attn_implementation="sdpa")
    return _cut(module)


def libraries() -> tuple[Any, Any]:
    """PyTorch and transformers. Raises UserError where they are not installed."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise UserError("models need an extra: pip install 'memobench[pretrained]'") from error
    return torch, transformers


def _cut(module: Any) -> Model:
    """Drops all layers but the first, and finds out what the model reads."""
    torch, _ = libraries()
    config = module.config
    n_layers = getattr(config, "num_hidden_layers", None)
    lists = [part for part in module.modules() if isinstance(part, torch.nn.ModuleList)]
    layers = next((part for part in lists if len(part) == n_layers), None)
    pixels, patch = getattr(config, "image_size", None), getattr(config, "patch_size", 1)
    square = all(size is None or isinstance(size, int) for size in (pixels, patch))
    if layers is None or config.is_encoder_decoder or not square:
        raise UserError(
            f"model_type={config.model_type!r} is not one stack of layers over text or square "
            "images; choose a model like ViT, BERT or GPT-2"
        )
    del layers[1:]
    module = module.eval().to(torch.float64)
    causal = any(getattr(part, "is_causal", False) for part in layers[0].modules())
    if pixels is None:
        length, vocab_size = config.max_position_embeddings, config.vocab_size
    else:
        length, vocab_size = (pixels // patch) ** 2 + 1, None
    return Model(
        module=module,
        layer=layers[0],
        query=-1 if causal else 0,
        length=length,
        width=config.hidden_size,
        n_heads=config.num_attention_heads,
        vocab_size=vocab_size,
        pixels=pixels,
    )
