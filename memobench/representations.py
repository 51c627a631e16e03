"""Where arrays of representations come from: untrained models, checkpoints, images and texts.

Models are those of the transformers library, the extra `memobench[pretrained]`, which is imported
only when a function here needs it. Nothing is downloaded: untrained models are drawn from a seed,
and checkpoints are folders, of which only safetensors and JSON files are read and no code is run.
Everything is computed in float64 unless told otherwise.

Shape letters: T examples, B examples in a batch, N tokens, D width, H heads of width d, E = H d, C
examples whose contexts are kept, P pixels to a side.
"""

import dataclasses
import itertools
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from memobench.errors import UserError

Path = str | os.PathLike[str]

_log = logging.getLogger("memobench")

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
PLACES = ("embedding", "layer 1", "random attention")
STYLES = ("noise", "natural")
# What ViT's published preprocessing makes of the values 0..1.
PIXEL_MEAN = PIXEL_DEVIATION = 0.5
# [CLS] in BERT's vocabulary, with which its tokenizer begins every sequence.
FIRST_TOKEN = 101
# Of these no reader starts another program.
_IMAGE_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
# How far the three colours of a stand-in for a natural image go their own ways.
_COLOUR = 0.2
_NATURAL_DEVIATION = 0.25


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
    folder: pathlib.Path | None = None


@dataclasses.dataclass(frozen=True)
class Representations:
    """What stands at one place of a model: the query's vectors, and its contexts.

    Contexts hold all N tokens, the query among them, and only those of the first C examples are
    kept; their means over N are there at the embedding alone. Behind the random attention layer
    there is only the query.
    """

    queries_TxD: np.ndarray
    means_TxD: np.ndarray | None = None
    contexts_CxNxD: np.ndarray | None = None


# --- Models ------------------------------------------------------------------------------------


def untrained(
    name: str, seed: int = 0, *, dtype: npt.DTypeLike = np.float64, **sizes: Any
) -> Model:
    """A model of `UNTRAINED` at its published sizes with the library's initial weights.

    Args:
      name: a key of `UNTRAINED`.
      seed: of the weights.
      dtype: of weights and arithmetic, float64 or float32.
      **sizes: other values of the configuration, for smaller models.

    Raises:
      UserError: for unknown names, and without the extra.
    """
    torch, transformers = _libraries()
    if name not in UNTRAINED:
        raise UserError(f"model={name!r} is unknown; choose one of {', '.join(UNTRAINED)}")
    kind, published = UNTRAINED[name]
    config = transformers.AutoConfig.for_model(kind, **{**published, **sizes})
    # Built whole: the initial weights of GPT-2 depend on its number of layers.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = transformers.AutoModel.from_config(config, attn_implementation="sdpa")
    return _cut(module, dtype)


def checkpoint(folder: Path, *, dtype: npt.DTypeLike = np.float64) -> Model:
    """A model saved by `save_pretrained` in a folder: `config.json` and safetensors files.

    Raises:
      UserError: where there is no such folder, its weights are no safetensors, those of the first
        layer are missing, or it is no Transformer of images or text; and without the extra.
    """
    _, transformers = _libraries()
    path = _folder("checkpoint", folder)
    for pattern in ("config.json", "*.safetensors"):
        if not any(path.glob(pattern)):
            raise UserError(
                f"checkpoint={str(folder)!r} holds no {pattern}; save the model with "
                "save_pretrained, which writes config.json and safetensors"
            )
    try:
        module, info = transformers.AutoModel.from_pretrained(
            path,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
    except Exception as error:  # The library raises whatever its readers raise.
        reason = str(error).strip().splitlines()[:1]
        raise UserError(
            f"checkpoint={str(folder)!r} cannot be loaded ({' '.join(reason)}); name a model saved "
            "with save_pretrained"
        ) from error
    model = dataclasses.replace(_cut(module, dtype), folder=path)
    kept = set(model.module.state_dict())
    if missing := sorted(key for key in info["missing_keys"] if key in kept and "pool" not in key):
        raise UserError(
            f"checkpoint={str(folder)!r} lacks {missing[0]}, whose values would be random; name a "
            "complete one"
        )
    return model


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise UserError(
            "models, images and texts need an extra: pip install 'memobench[pretrained]'"
        ) from error
    return torch, transformers


def _cut(module: Any, dtype: npt.DTypeLike) -> Model:
    """Drops all layers but the first, and finds out what the model reads."""
    torch, _ = _libraries()
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
    module = module.eval().to(torch.float64 if np.dtype(dtype) == np.float64 else torch.float32)
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


# --- Representations ---------------------------------------------------------------------------


def represent(
    model: Model,
    inputs: Iterable[np.ndarray],
    *,
    n_contexts: int = 8,
    batch: int = 8,
    seed: int = 0,
    on_examples: Callable[[int], None] = lambda _: None,
) -> dict[str, Representations]:
    """The representations of examples at every one of `PLACES`.

    `embedding` is what enters the first layer, with positions; `layer 1` what leaves it; `random
    attention` what one fresh attention layer (`random_attention`) reads from the embedding. The
    library's own first layer computes whole contexts; where only the query counts, and the kind of
    model is known, `_READERS` does the same with a small part of the arithmetic.

    Args:
      model: from `untrained` or `checkpoint`.
      inputs: tokens_N (integers) or pixels_PxPx3 (uint8), one array per example.
      n_contexts: C, of how many examples the contexts are kept.
      batch: how many examples are computed together.
      seed: of the random attention layer.
      on_examples: told how many more examples are done.

    Raises:
      UserError: for tokens or lengths beyond the model's tables.
    """
    torch, _ = _libraries()
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
        on_examples(len(examples))
    places: dict[str, dict[str, np.ndarray]] = {place: {} for place in PLACES}
    for (place, field), arrays in parts.items():
        places[place][field] = np.concatenate(arrays)
    return {place: Representations(**fields) for place, fields in places.items()}


def random_attention(model: Model, seed: int) -> Callable[[Any], Any]:
    """A fresh attention layer of the model's width, read at its query: tokens_BxNxD -> outputs_BxD.

    Four maps in R^{D x D}, Xavier-uniform as in Mahdavi et al. (2024), scores over the square root
    of D / H, no bias, no residual connection; the query attends to all N tokens. Takes and returns
    tensors of the model's dtype.
    """
    torch, _ = _libraries()
    bound = np.sqrt(6 / (2 * model.width))
    shape = (4, model.width, model.width)
    maps = np.random.default_rng(seed).uniform(-bound, bound, size=shape)
    dtype = next(model.module.parameters()).dtype
    query_DxD, key_DxD, value_DxD, output_DxD = torch.from_numpy(maps).to(dtype)
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
    """What enters the first layer, and, for the whole of it, what leaves it."""
    torch, _ = _libraries()
    found: list[Any] = []

    def before(_: Any, args: tuple, kwargs: dict) -> None:
        found.append(args[0] if args else kwargs["hidden_states"])
        if not whole:
            raise _EnoughError

    def after(_: Any, __: Any, output: Any) -> None:
        found.append(output if torch.is_tensor(output) else output[0])
        raise _EnoughError

    hooks = (
        model.layer.register_forward_pre_hook(before, with_kwargs=True),
        model.layer.register_forward_hook(after),
    )
    try:
        model.module(**_arguments(model, examples))
    except _EnoughError:
        pass
    except IndexError as error:
        raise UserError(
            f"length={examples.shape[1]} or a token is beyond this model's tables; lower length"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return found[0], found[1] if whole else None


def _arguments(model: Model, examples: np.ndarray) -> dict[str, Any]:
    torch, _ = _libraries()
    if model.pixels is None:
        tokens = torch.from_numpy(examples)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    dtype = next(model.module.parameters()).dtype
    pixels = torch.from_numpy(examples).permute(0, 3, 1, 2).to(dtype) / 255
    return {"pixel_values": (pixels - PIXEL_MEAN) / PIXEL_DEVIATION}


def _batches(inputs: Iterable[np.ndarray], size: int) -> Iterator[list[np.ndarray]]:
    iterator = iter(inputs)
    while examples := list(itertools.islice(iterator, size)):
        yield examples


# --- Inputs ------------------------------------------------------------------------------------


def random_inputs(model: Model, n_examples: int, style: str, seed: int) -> Iterator[np.ndarray]:
    """Stand-ins for images or texts: `noise`, or something more `natural`.

    Images are uint8 pixels_PxPx3. `noise`: independent and uniform. `natural`: a random field whose
    amplitude falls as 1/f, as that of photographs does (Field 1987), shared by the colours up to a
    fifth. Texts are tokens_N: `noise` is uniform over the vocabulary, `natural` has frequency
    1/rank (Zipf 1935). Models that are read at their first token find the same one there, as behind
    a tokenizer.

    Raises:
      UserError: for other styles.
    """
    if style not in STYLES:
        raise UserError(f"style={style!r} is unknown; choose one of {', '.join(STYLES)}")
    rng = np.random.default_rng(seed)
    if model.pixels is not None:
        draw = _noise_image if style == "noise" else _natural_image
        for _ in range(n_examples):
            yield draw(model.pixels, rng)
        return
    assert model.vocab_size is not None
    weight = np.arange(1, model.vocab_size + 1) ** -(1.0 if style == "natural" else 0.0)
    for _ in range(n_examples):
        tokens_N = rng.choice(model.vocab_size, size=model.length, p=weight / weight.sum())
        yield _with_first(model, tokens_N, FIRST_TOKEN % model.vocab_size)


def _noise_image(pixels: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(256, size=(pixels, pixels, 3), dtype=np.uint8)


def _natural_image(pixels: int, rng: np.random.Generator) -> np.ndarray:
    fields_4xPxP = rng.normal(size=(4, pixels, pixels))
    rows, columns = np.fft.fftfreq(pixels), np.fft.rfftfreq(pixels)
    frequency_PxF = np.hypot(rows[:, None], columns)
    frequency_PxF[0, 0] = 1 / pixels
    fields_4xPxP = np.fft.irfft2(np.fft.rfft2(fields_4xPxP) / frequency_PxF, s=(pixels, pixels))
    fields_4xPxP /= fields_4xPxP.std(axis=(1, 2), keepdims=True)
    image_3xPxP = fields_4xPxP[0] + _COLOUR * fields_4xPxP[1:]
    image_3xPxP = 255 * (0.5 + _NATURAL_DEVIATION * image_3xPxP)
    return image_3xPxP.transpose(1, 2, 0).round().clip(0, 255).astype(np.uint8)


def images(model: Model, folder: Path, limit: int | None = None, seed: int = 0) -> Iterator:
    """pixels_PxPx3 (uint8) of the images in a folder and those within it, in random order.

    Resized to P x P (bilinear) in RGB. Every file is tried but hidden ones; what is no BMP, GIF,
    JPEG, PNG, TIFF or WebP, or broken, is named in a warning and left out.

    Raises:
      UserError: where there is no folder or no image in it, and without the extra.
    """
    if model.pixels is None:
        raise UserError("images need a model of images; this one reads text")
    size = (model.pixels, model.pixels)
    try:
        from PIL import Image
    except ImportError as error:
        raise UserError("images need an extra: pip install 'memobench[pretrained]'") from error

    def read(path: pathlib.Path) -> np.ndarray:
        with Image.open(path, formats=_IMAGE_FORMATS) as image:
            resized = image.convert("RGB").resize(size, Image.Resampling.BILINEAR)
            return np.asarray(resized, dtype=np.uint8)

    # A broken PNG is a SyntaxError; an image of absurd size has an exception of its own.
    broken = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
    readable = _readable("images", folder, read, broken, seed)
    return itertools.islice(readable, limit)


def texts(model: Model, folder: Path, limit: int | None = None, seed: int = 0) -> Iterator:
    """tokens_N of the UTF-8 texts in a folder and those within it, joined in random order and cut.

    Tokens are made by the tokenizer in the checkpoint's folder; without one every byte is a token,
    its value modulo the vocabulary, which is a stand-in and no tokenizer. Every file is tried but
    hidden ones; what is no UTF-8 text is named in a warning and left out.

    Raises:
      UserError: where there is no folder or too little text in it.
    """
    if model.vocab_size is None:
        raise UserError("texts need a model of text; this one reads images")
    tokenize, first_token = _tokenizer(model)

    def read(path: pathlib.Path) -> list[int]:
        return tokenize(path.read_text(encoding="utf-8"))

    def cut() -> Iterator[np.ndarray]:
        rest: list[int] = []
        count = 0
        for tokens in _readable("texts", folder, read, (OSError, UnicodeError), seed):
            rest += tokens
            while len(rest) >= model.length:
                yield _with_first(model, np.array(rest[: model.length], np.int64), first_token)
                rest = rest[model.length :]
                count += 1
        if not count:
            raise UserError(
                f"texts={str(folder)!r} holds {len(rest)} tokens, less than one sequence of "
                f"{model.length}; add texts or lower length"
            )

    return itertools.islice(cut(), limit)


def _with_first(model: Model, tokens_N: np.ndarray, first_token: int | None) -> np.ndarray:
    if model.query == 0 and first_token is not None:
        tokens_N[0] = first_token
    return tokens_N


def _tokenizer(model: Model) -> tuple[Callable[[str], list[int]], int | None]:
    """From text to tokens, and the token that begins a sequence."""
    assert model.vocab_size is not None
    vocab_size = model.vocab_size
    names = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")
    if model.folder is None or not any((model.folder / name).exists() for name in names):
        return (lambda text: [b % vocab_size for b in text.encode()]), FIRST_TOKEN % vocab_size
    _, transformers = _libraries()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            model.folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # The library raises whatever its readers raise.
        raise UserError(
            f"the tokenizer in {str(model.folder)!r} cannot be loaded; mend its files or take them "
            "away, and bytes stand in for tokens"
        ) from error

    def tokenize(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    return tokenize, tokenizer.cls_token_id


def _readable(
    name: str,
    folder: Path,
    read: Callable[[pathlib.Path], Any],
    broken: tuple[type[Exception], ...],
    seed: int,
) -> Iterator:
    """What `read` makes of the files in a folder, in random order; names those it cannot read."""
    root = _folder(name, folder)
    paths = sorted(path for path in root.rglob("[!.]*") if path.is_file())
    count = 0
    for i in np.random.default_rng(seed).permutation(len(paths)):
        try:
            content = read(paths[i])
        except broken as error:
            _log.warning("left out: %s cannot be read (%s)", paths[i], type(error).__name__)
            continue
        count += 1
        yield content
    if not count:
        raise UserError(
            f"{name}={str(folder)!r} holds nothing that can be read; name another folder"
        )


def _folder(name: str, folder: Path) -> pathlib.Path:
    path = pathlib.Path(folder)
    if not path.is_dir():
        raise UserError(f"{name}={str(folder)!r} is no folder; name one, nothing is downloaded")
    return path
