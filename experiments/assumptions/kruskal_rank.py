"""Do the assumptions of Mahdavi, Liao & Thrampoulidis (2024) hold where they were checked?

Their theorem needs query vectors of Kruskal rank n (every n of them independent) and context
matrices of rank n; earlier work needs general position (every d). They checked random subsets of
representations of ViT, BERT and GPT-2, and so does this script, on what needs no download: data
uniform in (0, 1), position encodings, and untrained models at their published sizes, fed with
stand-ins for images and texts. It writes, under --output, kruskal_rank.md, .csv and .png, and
context_ranks.csv.

A matrix has full rank where its smallest singular value exceeds a tolerance times its largest; the
tolerance is d times the epsilon of float64 or of float32, both decided from the same decompositions
in float64.

What to expect: under the tolerance of float32 16 of the 18 published shares, all but the middle of
the random attention layer's fall (published 230..330; ours 456..504 for images with the spectrum of
photographs and 720..744 for noise). Under that of float64 12 of them: ViT and GPT-2 are in general
position once they leave the embedding, so that the published zeros at size d say what float32 can
tell; BERT is not, whatever the tolerance, as its layer norm takes a dimension. Sinusoidal encodings
have rank n in exact arithmetic, and 84 of 197 in float64.

Models need an extra, `pip install -e .[pretrained]`; without it their sets are left out. The
defaults take 34 minutes on two busy CPU cores, half of it for GPT-2-large and BERT-large;
`--subsets=5000` is the published number of subsets.

    python experiments/assumptions/kruskal_rank.py
    python experiments/assumptions/kruskal_rank.py --sets=vit-base/noise --subsets=1000
"""

import dataclasses
import datetime
import functools
import importlib.util
import shlex
import sys
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
import pandas as pd
from absl import app, flags, logging

from memobench.common.errors import UserError
from memobench.experiments.assumptions import (
    inputs,
    kruskal,
    models,
    page,
    positions,
    representations,
)
from memobench.experiments.assumptions.page import ASSUMPTION_3, DATA, PUBLISHED
from memobench.models.positions import sinusoids
from memobench.runtime import worker
from memobench.store import results

MODELS = (
    *("vit-base/natural", "vit-base/noise", "bert-base/natural", "bert-large/natural"),
    *("gpt2/natural", "gpt2-large/natural"),
)

OUTPUT = flags.DEFINE_string("output", "results/assumptions", "Folder of what is written.")
SETS = flags.DEFINE_list(
    "sets",
    [*DATA, *MODELS],
    "What is checked: data and positions, or MODEL/STYLE, where the style of the stand-in is "
    "natural or noise.",
)
SUBSETS = flags.DEFINE_integer("subsets", 100, "Random subsets of each size.", lower_bound=1)
SIZES = flags.DEFINE_integer("sizes", 32, "Subset sizes on an even grid to d.", lower_bound=1)
SEED = flags.DEFINE_integer("seed", 0, "Of weights, inputs and subsets.", lower_bound=0)

SCRIPT = "experiments/assumptions/kruskal_rank.py"
# Context matrices of each set.
CONTEXTS = 8
# The synthetic task of the paper, and sequences as long as those of the models.
SYNTHETIC = (32, 64)
POSITIONS = (512, 768)
POSITION_SIZES = ((8, 64), SYNTHETIC, (197, 768), POSITIONS, (1024, 1280))


@dataclasses.dataclass(frozen=True)
class Vectors:
    """A set of vectors that subsets are drawn from; n is the context's length."""

    name: str
    place: str
    vectors_TxD: np.ndarray
    n: int


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    logging.set_verbosity(logging.WARNING)
    started = time.perf_counter()
    try:
        output = results.check_writable(OUTPUT.value, "output")
        curves, contexts, left_out = measure()
    except UserError as error:
        sys.exit(f"{SCRIPT}: {error}")
    about = {
        "device": worker.device_name(jax.devices("cpu")[0]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "numpy": np.__version__,
        **{name: _version(name) for name in ("torch", "transformers")},
        "subsets": SUBSETS.value,
        "command": shlex.join(["python", SCRIPT, *sys.argv[1:]]),
        "seconds": time.perf_counter() - started,
    }
    print(page.write(output, about, curves, contexts, left_out))


def _version(name: str) -> str:
    try:
        return __import__(name).__version__
    except ImportError:
        return "not installed"


def _say(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


def measure() -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """The curves and the ranks of contexts of all sets, and which sets were left out."""
    for name in SETS.value:
        if name not in DATA and name.partition("/")[0] not in models.UNTRAINED:
            known = ", ".join((*DATA, *models.UNTRAINED))
            raise UserError(f"sets: {name!r} is unknown; choose from {known}")
    curves, contexts, left_out = [], [], []
    names = [name for name in SETS.value if name in DATA]
    of_models = [name for name in SETS.value if name not in DATA]
    for name in names:
        vectors, found_ranks = data(name)
        curves.append(curve(vectors))
        contexts += found_ranks
    installed = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
    for name in of_models:
        if not installed:
            left_out.append(f"{name}, which needs pip install 'memobench[pretrained]'")
            continue
        found, found_ranks = of_model(name)
        contexts += found_ranks
        curves += map(curve, found)
    if not curves:
        raise UserError("nothing to check; name --sets")
    return pd.concat(curves), pd.concat(contexts), left_out


def tolerances(shape: Sequence[int]) -> dict[float, str]:
    """The tolerances, each with the precision that it is of."""
    return {kruskal.relative_tolerance(shape, x): x for x in ("float64", "float32")}


def curve(vectors: Vectors) -> pd.DataFrame:
    """The Kruskal-rank curve of a set at all tolerances."""
    started = time.perf_counter()
    n_vectors, width = vectors.vectors_TxD.shape
    model = vectors.name.partition("/")[0]
    published = [
        size for size in PUBLISHED.get((model, vectors.place), {}) if isinstance(size, int)
    ]
    grid = np.linspace(0, width, SIZES.value + 1).round().astype(int)
    sizes = {1, 2, vectors.n, width, *published, *(int(size) for size in grid)}
    tolerance = tolerances((width,))
    table = kruskal.kruskal_curve(
        vectors.vectors_TxD,
        [size for size in sizes if 1 <= size <= n_vectors],
        n_subsets=SUBSETS.value,
        tolerances=list(tolerance),
        seed=SEED.value,
    )
    seconds = time.perf_counter() - started
    _say(f"{vectors.name}, {vectors.place}: curve of {n_vectors:,} vectors took {seconds:.0f} s")
    return table.assign(
        set=vectors.name,
        place=vectors.place,
        n=vectors.n,
        d=width,
        examples=n_vectors,
        tolerance_of=table["tolerance"].map(tolerance),
        curve_seconds=seconds,
    )


def ranks(name: str, place: str, contexts_BxNxD: np.ndarray) -> pd.DataFrame:
    """The ranks of contexts at all tolerances."""
    tolerance = tolerances(contexts_BxNxD.shape[1:])
    table = kruskal.context_ranks(contexts_BxNxD, tolerances=list(tolerance))
    return table.assign(set=name, place=place, tolerance_of=table["tolerance"].map(tolerance))


def data(name: str) -> tuple[Vectors, list[pd.DataFrame]]:
    """Vectors without a model: the paper's synthetic data, or position encodings."""
    rng = np.random.default_rng(SEED.value)
    if name == "uniform":
        n, width = SYNTHETIC
        queries_TxD = rng.uniform(size=(1000, width))
        contexts_BxNxD = rng.uniform(size=(CONTEXTS, n, width))
        return Vectors(name, "query", queries_TxD, n), [ranks(name, "query", contexts_BxNxD)]
    encodings: dict[str, Callable[[int, int], np.ndarray]] = {
        "sinusoidal": sinusoids,
        "learned": functools.partial(positions.learned, seed=SEED.value),
        # The same vector at every position, so that positions alone make the difference.
        "rotary": lambda n, d: positions.rotary(np.tile(rng.normal(size=d), (n, 1))),
    }
    encode = encodings[name]
    tables_of_ranks = [ranks(name, "positions", encode(n, d)[None]) for n, d in POSITION_SIZES]
    return Vectors(name, "positions", encode(*POSITIONS), POSITIONS[0]), tables_of_ranks


def of_model(name: str) -> tuple[list[Vectors], list[pd.DataFrame]]:
    """Vectors of an untrained model, `MODEL/STYLE`, on its inputs."""
    kind, _, style = name.partition("/")
    model, style = models.untrained(kind, SEED.value), style or "natural"
    n_examples = 5 * max(model.length, model.width) // 4
    examples = inputs.random_inputs(model, n_examples, style, SEED.value)
    name = f"{kind}/{style}"
    started = time.perf_counter()
    places = representations.represent(model, examples, n_contexts=CONTEXTS, seed=SEED.value)
    _say(f"{name}: representations took {time.perf_counter() - started:.0f} s")
    embedding = places["embedding"]
    assert embedding.means_TxD is not None
    assert embedding.contexts_CxNxD is not None
    n = embedding.contexts_CxNxD.shape[1]
    found = [Vectors(name, place, at.queries_TxD, n) for place, at in places.items()]
    sums = embedding.queries_TxD + embedding.means_TxD
    found.append(Vectors(name, ASSUMPTION_3, sums, n))
    return found, [
        ranks(name, place, at.contexts_CxNxD)
        for place, at in places.items()
        if at.contexts_CxNxD is not None
    ]


if __name__ == "__main__":
    app.run(main)
