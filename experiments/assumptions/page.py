"""The page of the Kruskal-rank study: ours beside the published shares, tables and the figure."""

import pathlib
from collections.abc import Sequence
from typing import Any

import pandas as pd

from memobench.analysis.statistics import share_interval
from memobench.experiments.assumptions import representations
from memobench.report import drawing, tables
from memobench.report.style import DASHED, FAINT, SOLID, styles_of

DATA = ("uniform", "sinusoidal", "learned", "rotary")
ASSUMPTION_3 = "query + mean of context"
# Panels of a row of the figure.
_COLUMNS = 3
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
_PRECISIONS = ("float64", "float32")

MARKDOWN = """\
# Kruskal rank of representations

{device}; {date}; numpy {numpy}, torch {torch}, transformers {transformers}; {seconds:.0f} s.
Written by `{command}`; never edited by hand.

Share of {subsets:,} random subsets with full rank, and its 95% interval (Clopper-Pearson, over
subsets of the vectors that are there). Full rank: the smallest singular value, computed in float64,
exceeds the tolerance times the largest. The tolerance is d times the epsilon of float64 (2.2e-16)
or of float32 (1.2e-7): the first asks whether the vectors are independent, the second whether
float32 could tell. Models computed in float64. A share without an interval is certain: the
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
Rows of trained models need a download and are left out.

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


def write(
    output: pathlib.Path,
    about: dict[str, Any],
    curves: pd.DataFrame,
    contexts: pd.DataFrame,
    left_out: Sequence[str],
) -> str:
    """Writes figure, tables and page; returns the page. `about` fills in `MARKDOWN`."""
    text = MARKDOWN.format(
        published=tables.markdown(against_published(curves), {"published": 2}),
        falls=tables.markdown(falls(curves), {}),
        contexts=tables.markdown(context_summary(contexts), {}),
        left_out="".join(f"\nLeft out: {line}.\n" for line in left_out),
        **about,
    )
    (output / "kruskal_rank.md").write_text(text)
    for name, table in (("kruskal_rank", curves), ("context_ranks", contexts)):
        measured = {key: about[key] for key in ("device", "date")}
        table.assign(**measured).to_csv(output / f"{name}.csv", index=False, float_format="%.6g")
    draw(curves, output / "kruskal_rank.png")
    return text


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
                for precision in _PRECISIONS:
                    ours = found[found["tolerance_of"] == precision].itertuples()
                    row[f"ours, {precision}"] = next(map(_share, ours), "not drawn")
                rows.append(row)
    return pd.DataFrame(rows)


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
        share, (low, high) = full / count, share_interval(full, count)
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
    """Writes the figure: a panel per set of a model, and one for all sets that need none."""
    is_data = curves["set"].isin(DATA)
    curves = curves.assign(
        panel=curves["set"].mask(is_data, "data and positions"),
        curve=curves["place"].mask(is_data, curves["set"]),
    )
    panels = dict.fromkeys(curves["panel"])
    n_rows = -(-(len(panels) + 1) // _COLUMNS)
    figure, axes_RxC = drawing.subplots(n_rows, _COLUMNS, (13, 0.6 + 3 * n_rows), sharey=True)
    styles = styles_of([*PLACES, *DATA])
    for panel, axis in zip(panels, axes_RxC.flat, strict=False):
        here = curves[curves["panel"] == panel]
        for (name, place), lines in here.groupby(["set", "place"], sort=False):
            color = styles[lines["curve"].iloc[0]].color
            for precision, dash in zip(_PRECISIONS, (SOLID, DASHED), strict=True):
                line = lines[lines["tolerance_of"] == precision]
                axis.plot(line["size"], line["full_rank"], color=color, linestyle=dash)
                axis.fill_between(line["size"], line["low"], line["high"], color=color, alpha=0.15)
            for size, share in PUBLISHED.get((name.partition("/")[0], place), {}).items():
                x = lines[size].iloc[0] if isinstance(size, str) else size
                axis.plot(x, share, "x", color=color, markersize=7, mew=2, clip_on=False)
        if here["set"].nunique() == 1:
            for letter in ("n", "d"):
                axis.axvline(here[letter].iloc[0], color=FAINT, linewidth=1, linestyle=":")
        axis.set_title(panel, fontsize="small")
        axis.set_xlim(0)
        axis.set_xlabel("size of the subsets")
    for axis in axes_RxC[:, 0]:
        axis.set_ylabel("share with full rank")
    keys = {
        "places in a model": [x for x in PLACES if (curves["curve"] == x).any()],
        "data and positions": [x for x in DATA if (curves["curve"] == x).any()],
    }
    handles = [
        drawing.key(title, linestyle="") if x is None else drawing.key(x, color=styles[x].color)
        for title, names in keys.items()
        for x in (None, *names)
        if names
    ]
    handles += [
        drawing.key(f"tolerance of {precision}", linestyle=dash)
        for precision, dash in zip(_PRECISIONS, (SOLID, DASHED), strict=True)
    ]
    for axis in axes_RxC.flat[len(panels) :]:
        axis.set_axis_off()
    axes_RxC.flat[len(panels)].legend(
        handles=handles, loc="center left", frameon=False, fontsize="small"
    )
    drawing.save(figure, path)
