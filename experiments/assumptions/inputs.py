"""Inputs of models: stand-ins drawn from a seed, or the images and texts in a folder.

Shape letters: N tokens, P pixels to a side, F frequencies.
"""

import itertools
import logging
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from memobench.common.errors import UserError
from memobench.experiments.assumptions.models import Model, Path, existing_folder, libraries

STYLES = ("noise", "natural")
# [CLS] in BERT's vocabulary, with which its tokenizer begins every sequence.
FIRST_TOKEN = 101
# Of these no reader starts another program.
_IMAGE_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
# How far the three colours of a stand-in for a natural image go their own ways.
_COLOUR = 0.2
_NATURAL_DEVIATION = 0.25

_log = logging.getLogger("memobench")


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

    Resized to P x P (bilinear) in RGB. Every file is tried but hidden ones; a file that is broken,
    or not a BMP, GIF, JPEG, PNG, TIFF or WebP, is named in a warning and left out.

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
    hidden ones; a file that is not UTF-8 text is named in a warning and left out.

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
    _, transformers = libraries()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            model.folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # The library raises whatever its readers raise.
        raise UserError(
            f"the tokenizer in {str(model.folder)!r} cannot be loaded; fix its files, or delete "
            "them to let bytes stand in for tokens"
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
    """Yields the files in a folder by `read`, in random order; warns of those it cannot read."""
    root = existing_folder(name, folder)
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
