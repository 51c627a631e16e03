"""Inputs of models: stand-ins for images and texts, drawn from a seed.

Shape letters: N tokens, P pixels to a side, F frequencies.
"""

from collections.abc import Iterator

import numpy as np

from memobench.common.errors import UserError
from memobench.experiments.assumptions.models import Model

STYLES = ("noise", "natural")
# [CLS] in BERT's vocabulary, with which its tokenizer begins every sequence.
FIRST_TOKEN = 101
# How far the three colours of a stand-in for a natural image go their own ways.
_COLOUR = 0.2
_NATURAL_DEVIATION = 0.25


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
        if model.query == 0:
            tokens_N[0] = FIRST_TOKEN % model.vocab_size
        yield tokens_N


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
