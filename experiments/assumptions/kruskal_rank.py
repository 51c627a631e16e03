"""Do the assumptions of Mahdavi, Liao & Thrampoulidis (2024) hold where they were checked?

Their theorem needs query vectors of Kruskal rank n (every n of them independent) and context
matrices of rank n; earlier work needs general position (every d). They checked random subsets of
representations of ViT, BERT and GPT-2, and so does this script, on what needs no download: data
uniform in (0, 1), position encodings, and untrained models at their published sizes, fed with
stand-ins for images and texts; further, if named, a saved checkpoint, a folder of images and a
folder of texts. It writes, under --output, kruskal_rank.md, .csv and .png, and context_ranks.csv.

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
    python experiments/assumptions/kruskal_rank.py --sets=vit-base --images=FOLDER --subsets=1000
    python experiments/assumptions/kruskal_rank.py --sets= --checkpoint=FOLDER --text=FOLDER
"""

import dataclasses
import datetime
import functools
import importlib.util
import pathlib
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import jax
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from absl import app, flags, logging
from matplotlib.lines import Line2D

from memobench import assumptions, positions, representations, results, worker
from memobench.errors import UserError
from memobench.report import tables

DATA = ("uniform", "sinusoidal", "learned", "rotary")
MODELS = (
    *("vit-base/natural", "vit-base/noise", "bert-base/natural", "bert-large/natural"),
    *("gpt2/natural", "gpt2-large/natural"),
)

OUTPUT = flags.DEFINE_string("output", "results/assumptions", "Folder of what is written.")
SETS = flags.DEFINE_list(
    "sets",
    [*DATA, *MODELS],
    "What is checked: data and positions, or MODEL/STYLE, where the style of the stand-in is "
    "natural or noise; a folder of --images or --text takes the stand-in's place.",
)
CHECKPOINT = flags.DEFINE_string("checkpoint", None, "Folder of a saved model to check as well.")
IMAGES = flags.DEFINE_string("images", None, "Folder of images.")
TEXT = flags.DEFINE_string("text", None, "Folder of UTF-8 texts.")
LENGTH = flags.DEFINE_integer("length", None, "Tokens of a text; by default all positions.")
SUBSETS = flags.DEFINE_integer("subsets", 100, "Random subsets of each size.", lower_bound=1)
EXAMPLES = flags.DEFINE_integer(
    "examples", None, "Vectors that subsets are drawn from; by default 5/4 of max(n, d)."
)
CONTEXTS = flags.DEFINE_integer("contexts", 8, "Context matrices of each set.", lower_bound=1)
SIZES = flags.DEFINE_integer("sizes", 32, "Subset sizes on an even grid to d.", lower_bound=1)
PRECISION = flags.DEFINE_enum(
    "precision", "float64", ["float64", "float32"], "In which models compute."
)
SEED = flags.DEFINE_integer("seed", 0, "Of weights, inputs and subsets.", lower_bound=0)

SCRIPT = "experiments/assumptions/kruskal_rank.py"
ASSUMPTION_3 = "query + mean of context"
PLACES = (*representations.PLACES, ASSUMPTION_3)
# Share of 5,000 subsets with full rank, by model, place and size; numbers stand for themselves.
PUBLISHED: dict[tuple[str, str], dict[str | int, float]] = {
    ("vit-base", "embedding"): {"n": 0.0, "d": 0.0},
    ("vit-base", "layer 1"): {"n": 1.0, "d": 0.0},
    ("vit-base", "random attention"): {"n": 1.0, 230: 1.0, 290: 0.5, 330: 0.0, "d": 0.0},
    ("vit-base", ASSUMPTION_3): {"n": 1.0},
    ("gpt2-large", "embedding"): {"n": 0.0, "d": 0.0},
    ("gpt2-large", "layer 1"): {"n": 1.0, "d": 0.0},
    ("bert-large", "embedding"): {"n": 0.0, "d": 0.0},
    ("bert-large", "layer 1"): {"n": 0.0, "d": 0.0},
}
# The synthetic task of the paper, and sequences as long as those of the models.
SYNTHETIC = (32, 64)
POSITIONS = (512, 768)
SHARED_PANEL = "data and positions"
POSITION_SIZES = ((8, 64), SYNTHETIC, (197, 768), POSITIONS, (1024, 1280))

MARKDOWN = """\
# Kruskal rank of representations

{device}; {date}; numpy {numpy}, torch {torch}, transformers {transformers}; {seconds:.0f} s.
Written by `{command}`; never edited by hand.

Share of {subsets:,} random subsets with full rank, and its 95% interval (Clopper-Pearson, over
subsets of the vectors that are there). Full rank: the smallest singular value, computed in float64,
exceeds the tolerance times the largest. The tolerance is d times the epsilon of float64 (2.2e-16)
or of float32 (1.2e-7): the first asks whether the vectors are independent, the second whether
float32 could tell. Models computed in {precision}. A share without an interval is certain: the
singular values of the whole set decide it.

![Share of subsets with full rank](kruskal_rank.png)

*Solid: tolerance of float64. Dashed: tolerance of float32. Dotted: sizes n and d. Crosses:
published.*

## Published vs ours

{published}

Published are shares of 5,000 subsets, on ImageNet and Wikipedia; the tolerance and precision behind
them are not stated in what we have. Ours read stand-ins: `noise` is uniform pixels or tokens,
`natural` random fields with the 1/f spectrum of photographs, or tokens with Zipf's frequencies.
Whether the published layer 1 of BERT-large was trained is not stated either; ours is not. The
published random attention layer is one of which we know no more than its name; ours has
Xavier-uniform maps and as many heads as the model; and its fall follows the spectrum of the images.
Rows of trained models need a download and are left out; `--checkpoint` computes them.

## Where full rank is lost

{falls}

`all to`: the largest size, of those looked at, up to which every subset has full rank; `none from`:
the least from which on none has. `σ_d/σ_1`: smallest over largest singular value of the first
subset of the largest size, no more than d. Where a layer norm comes last, as in BERT, untrained
vectors have mean zero and lie in d - 1 dimensions: size d is lost whatever the tolerance.

## Ranks of contexts

{contexts}

A context of a model holds all its n tokens, that of uniform data n vectors, and that of positions
the encodings of positions 0..n - 1; rotary ones turn the same vector. Sinusoidal encodings have
rank min(n, d) in exact arithmetic: a combination of rows that vanishes is a polynomial of degree
n - 1 with d different roots on the unit circle. Their frequencies reach only from 1e-4 to 1 of the
possible π, which is why about n / π singular values and a few more stand out from rounding.
{left_out}"""


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
        "precision": PRECISION.value,
        "command": shlex.join(["python", SCRIPT, *sys.argv[1:]]),
        "seconds": time.perf_counter() - started,
    }
    print(write(output, about, curves, contexts, left_out))


def write(
    output: pathlib.Path,
    about: dict[str, Any],
    curves: pd.DataFrame,
    contexts: pd.DataFrame,
    left_out: Sequence[str],
) -> str:
    """Writes figure, tables and page; returns the page."""
    text = MARKDOWN.format(
        subsets=SUBSETS.value,
        published=tables.markdown(against_published(curves), {"published": 2}),
        falls=tables.markdown(falls(curves), {}),
        contexts=tables.markdown(context_summary(contexts), {}),
        left_out="".join(f"\nLeft out: {line}.\n" for line in left_out),
        **about,
    )
    (output / "kruskal_rank.md").write_text(text)
    for name, table in (("kruskal_rank", curves), ("context_ranks", contexts)):
        measured = {key: about[key] for key in ("device", "date", "precision")}
        table.assign(**measured).to_csv(output / f"{name}.csv", index=False, float_format="%.6g")
    draw(curves, output / "kruskal_rank.png")
    return text


def _version(name: str) -> str:
    try:
        return __import__(name).__version__
    except ImportError:
        return "not installed"


def _say(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


# --- Measuring ---------------------------------------------------------------------------------


def measure() -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """The curves and the ranks of contexts of all sets, and which sets were left out."""
    for name in SETS.value:
        if name not in DATA and name.partition("/")[0] not in representations.UNTRAINED:
            known = ", ".join((*DATA, *representations.UNTRAINED))
            raise UserError(f"sets: {name!r} is unknown; choose from {known}")
    curves, contexts, left_out = [], [], []
    names = [name for name in SETS.value if name in DATA]
    models = [name for name in SETS.value if name not in DATA]
    if CHECKPOINT.value:
        models.append("checkpoint")
    for name in names:
        vectors, found_ranks = data(name)
        curves.append(curve(vectors))
        contexts += found_ranks
    seen = set()
    installed = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
    for name in models:
        if not installed and name != "checkpoint":
            left_out.append(f"{name}, which needs pip install 'memobench[pretrained]'")
            continue
        found, found_ranks = of_model(name)
        contexts += found_ranks
        # With a folder of inputs the stand-ins of a model become one.
        fresh = [vectors for vectors in found if (vectors.name, vectors.place) not in seen]
        seen |= {(vectors.name, vectors.place) for vectors in fresh}
        curves += [curve(vectors) for vectors in fresh]
    if not curves:
        raise UserError("nothing to check; name --sets or a --checkpoint")
    return pd.concat(curves), pd.concat(contexts), left_out


def epsilons() -> dict[str, float]:
    """The precisions whose tolerances are told apart: none finer than the computation."""
    names = ["float64", "float32"] if PRECISION.value == "float64" else ["float32"]
    return {name: float(np.finfo(name).eps) for name in names}


def curve(vectors: Vectors) -> pd.DataFrame:
    """The Kruskal-rank curve of a set at all tolerances."""
    started = time.perf_counter()
    n_vectors, width = vectors.vectors_TxD.shape
    model = vectors.name.partition("/")[0]
    told = [size for size in PUBLISHED.get((model, vectors.place), {}) if isinstance(size, int)]
    grid = np.linspace(0, width, SIZES.value + 1).round().astype(int)
    sizes = {1, 2, vectors.n, width, *told, *(int(size) for size in grid)}
    tolerance = {width * epsilon: name for name, epsilon in epsilons().items()}
    table = assumptions.kruskal_curve(
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
    side = max(contexts_BxNxD.shape[1:])
    tolerance = {side * epsilon: precision for precision, epsilon in epsilons().items()}
    table = assumptions.context_ranks(contexts_BxNxD, tolerances=list(tolerance))
    return table.assign(set=name, place=place, tolerance_of=table["tolerance"].map(tolerance))


def data(name: str) -> tuple[Vectors, list[pd.DataFrame]]:
    """What needs no model: the paper's synthetic data, and position encodings."""
    rng = np.random.default_rng(SEED.value)
    if name == "uniform":
        n, width = SYNTHETIC
        queries_TxD = rng.uniform(size=(EXAMPLES.value or 1000, width))
        contexts_BxNxD = rng.uniform(size=(CONTEXTS.value, n, width))
        return Vectors(name, "query", queries_TxD, n), [ranks(name, "query", contexts_BxNxD)]
    encodings: dict[str, Callable[[int, int], np.ndarray]] = {
        "sinusoidal": positions.sinusoidal,
        "learned": functools.partial(positions.learned, seed=SEED.value),
        # The same vector at every position, so that positions alone make the difference.
        "rotary": lambda n, d: positions.rotary(np.tile(rng.normal(size=d), (n, 1))),
    }
    encode = encodings[name]
    tables_of_ranks = [ranks(name, "positions", encode(n, d)[None]) for n, d in POSITION_SIZES]
    return Vectors(name, "positions", encode(*POSITIONS), POSITIONS[0]), tables_of_ranks


def of_model(name: str) -> tuple[list[Vectors], list[pd.DataFrame]]:
    """What an untrained model, `MODEL/STYLE`, or the checkpoint makes of its inputs."""
    kind, _, style = name.partition("/")
    dtype = np.dtype(PRECISION.value)
    if CHECKPOINT.value and kind == "checkpoint":
        model = representations.checkpoint(CHECKPOINT.value, dtype=dtype)
    else:
        model = representations.untrained(kind, SEED.value, dtype=dtype)
    if LENGTH.value and model.pixels is None:
        model = dataclasses.replace(model, length=LENGTH.value)
    n_examples = EXAMPLES.value or 5 * max(model.length, model.width) // 4
    source, inputs = _inputs(model, style or "natural", n_examples)
    name = f"{kind}/{source}"
    started = time.perf_counter()
    places = representations.represent(model, inputs, n_contexts=CONTEXTS.value, seed=SEED.value)
    _say(f"{name}: representations took {time.perf_counter() - started:.0f} s")
    embedding = places["embedding"]
    assert embedding.means_TxD is not None
    assert embedding.contexts_CxNxD is not None
    n = embedding.contexts_CxNxD.shape[1]
    found = [Vectors(name, place, at.queries_TxD, n) for place, at in places.items()]
    sums = assumptions.query_plus_context(embedding.queries_TxD, embedding.means_TxD)
    found.append(Vectors(name, ASSUMPTION_3, sums, n))
    return found, [
        ranks(name, place, at.contexts_CxNxD)
        for place, at in places.items()
        if at.contexts_CxNxD is not None
    ]


def _inputs(
    model: representations.Model, style: str, n_examples: int
) -> tuple[str, Iterable[np.ndarray]]:
    """Where the inputs come from, in a word, and the inputs."""
    if model.pixels is not None and IMAGES.value:
        return "images", representations.images(model, IMAGES.value, n_examples, SEED.value)
    if model.pixels is None and TEXT.value:
        return "texts", representations.texts(model, TEXT.value, n_examples, SEED.value)
    return style, representations.random_inputs(model, n_examples, style, SEED.value)


# --- Reporting ---------------------------------------------------------------------------------


def against_published(curves: pd.DataFrame) -> pd.DataFrame:
    """A row per published share and set of that model, ours at both tolerances beside it."""
    rows = []
    for (model, place), shares in PUBLISHED.items():
        for name in dict.fromkeys(curves["set"]):
            here = curves[(curves["set"] == name) & (curves["place"] == place)]
            if name.partition("/")[0] != model or here.empty:
                continue
            for size, published in shares.items():
                number = int(here[size].iloc[0]) if isinstance(size, str) else size
                label = f"{size} = {number}" if isinstance(size, str) else str(size)
                row = {"set": name, "place": place, "size": label, "published": published}
                found = here[here["size"] == number]
                for precision in dict.fromkeys(curves["tolerance_of"]):
                    cells = [_share(cell) for cell in _rows(found, precision)]
                    row[f"ours, {precision}"] = cells[0] if cells else "not drawn"
                rows.append(row)
    return pd.DataFrame(rows)


def _rows(table: pd.DataFrame, precision: str) -> Iterator[Any]:
    return table[table["tolerance_of"] == precision].itertuples()


def _share(row: Any) -> str:
    if row.decided_by == "whole set":
        return f"{row.full_rank:.0f}"
    return f"{row.full_rank:.3f} [{row.low:.3f}, {row.high:.3f}]"


def falls(curves: pd.DataFrame) -> pd.DataFrame:
    """A row per set, place and tolerance: where full rank is lost."""
    rows = []
    groups: Any = curves.groupby(["set", "place", "tolerance_of"], sort=False)
    for (name, place, precision), curve in groups:
        kept = curve.loc[curve["full_rank"] == 1, "size"]
        lost = curve.loc[curve["full_rank"] == 0, "size"]
        within = curve[curve["size"] <= curve["d"]]
        rows.append(
            {
                "set": name,
                "place": place,
                "n": curve["n"].iloc[0],
                "d": curve["d"].iloc[0],
                "vectors": curve["examples"].iloc[0],
                "tolerance": f"{curve['tolerance'].iloc[0]:.1e} ({precision})",
                "all to": kept.max() if len(kept) else 0,
                "none from": f"{lost.min()}" if len(lost) else "–",
                "σ_d/σ_1": f"{within['conditioning'].iloc[-1]:.1e}",
            }
        )
    return pd.DataFrame(rows)


def context_summary(contexts: pd.DataFrame) -> pd.DataFrame:
    """A row per set, place, size and tolerance: the share of contexts with rank n."""
    rows = []
    groups: Any = contexts.groupby(["set", "place", "n", "d", "tolerance_of"], sort=False)
    for (name, place, n, d, precision), table in groups:
        full, count = int(table["full_rank"].sum()), len(table)
        share, low, high = assumptions.share(full, count)
        rows.append(
            {
                "set": name,
                "place": place,
                "n": n,
                "d": d,
                "tolerance": f"{table['tolerance'].iloc[0]:.1e} ({precision})",
                "contexts": count,
                "rank n": f"{share:.2f} [{low:.2f}, {high:.2f}]" if count > 1 else f"{share:.0f}",
                "least rank": table["rank"].min(),
            }
        )
    return pd.DataFrame(rows)


def draw(curves: pd.DataFrame, path: pathlib.Path) -> None:
    """Writes the figure: a panel per set."""
    sns.set_theme(context="notebook", style="whitegrid")
    # What needs no model has a curve each and shares a panel.
    panel_of = {
        name: SHARED_PANEL if name in DATA else name for name in dict.fromkeys(curves["set"])
    }
    panels = list(dict.fromkeys(panel_of.values()))
    n_columns = min(3, len(panels))
    n_rows = -(-len(panels) // n_columns)
    figure, axes = plt.subplots(
        n_rows,
        n_columns,
        figsize=(5 * n_columns, 3.3 * n_rows + 1),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    there = {*curves["set"], *curves["place"]}
    # Data and places never share a panel, so that both may begin with the first colours.
    colors = {
        name: color
        for names in (DATA, PLACES)
        for name, color in zip(names, sns.color_palette("colorblind"), strict=False)
        if name in there
    }
    for axis, panel in zip(axes.ravel(), panels, strict=False):
        here = curves[curves["set"].map(panel_of) == panel]
        _panel(axis, here, colors)
        axis.set_title(panel, fontsize="small")
        if panel == SHARED_PANEL:
            axis.legend(handles=_lines(colors, DATA), loc="center right", fontsize="small")
    for axis in axes.ravel()[len(panels) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("share with full rank")
    for axis in axes.ravel()[max(0, len(panels) - n_columns) : len(panels)]:
        axis.set_xlabel("size of the subsets")
    handles = _lines(colors, PLACES)
    for precision in dict.fromkeys(curves["tolerance_of"]):
        style = _style(precision)
        label = f"tolerance of {precision}"
        handles.append(Line2D([], [], color="0.3", linestyle=style, label=label))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize="small"
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _lines(colors: dict[str, Any], names: Sequence[str]) -> list[Line2D]:
    return [Line2D([], [], color=colors[name], label=name) for name in names if name in colors]


def _style(precision: str) -> Literal["-", "--"]:
    return "-" if precision == "float64" else "--"


def _panel(axis: plt.Axes, curves: pd.DataFrame, colors: dict[str, Any]) -> None:
    groups: Any = curves.groupby(["set", "place", "tolerance_of"], sort=False)
    for i, ((name, place, precision), line) in enumerate(groups):
        color = colors[name] if name in DATA else colors[place]
        # The later the thinner, as curves lie on each other.
        style: dict[str, Any] = {
            "linestyle": _style(precision),
            "linewidth": 1.2 + 0.5 * (len(groups) - 1 - i),
        }
        axis.plot(line["size"], line["full_rank"], color=color, **style)
        axis.fill_between(line["size"], line["low"], line["high"], color=color, alpha=0.15)
        for size, share in PUBLISHED.get((name.partition("/")[0], place), {}).items():
            x = line[size].iloc[0] if isinstance(size, str) else size
            axis.plot(x, share, "x", color=color, markersize=7, markeredgewidth=2, clip_on=False)
    if curves["set"].nunique() == 1:
        for letter in ("n", "d"):
            axis.axvline(curves[letter].iloc[0], color="0.4", linewidth=1, linestyle=":")
    axis.set_ylim(-0.05, 1.05)
    axis.set_xlim(0)


if __name__ == "__main__":
    app.run(main)
