"""Figures of annealed runs, whose pages list ranks, and the picture of saturation."""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memobench.common import notation
from memobench.experiment import Drawing, Experiment
from memobench.report import tables
from memobench.report.drawing import subplots
from memobench.report.figure import Figure
from memobench.theory import SATURATED_ATTENTION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranked(Figure):
    """A figure whose page lists the ranks of annealed runs."""

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`."""
        return [*super().sections(table), *list_ranks(table)]


def list_ranks(table: pd.DataFrame) -> list[str]:
    """The section on ranks of a page, empty where no run has them."""
    table = table[table["attention_rank"].notna()]
    if table.empty:
        return []
    keys = ["contexts", "n_examples", "residual", "n_layers", "promised"]
    groups: Any = table.groupby(keys, dropna=False)
    found = [
        {
            **dict(zip(keys, key, strict=True)),
            "streams": ", ".join(map(_range, zip(*of_group["stream_ranks"], strict=True))),
            "attention": _range(of_group["attention_rank"]),
        }
        for key, of_group in groups
    ]
    return [
        "## Ranks",
        "Of the T vectors that enter each layer at the query (`streams`), and of the T × H·n "
        "weights of the last layer from the query (`attention`), in float64 at the weights of "
        "least loss; a range where seeds differ. `attention` is at most H·(n − 1) + 1, for the "
        "weights of a head add up to one. `promised` is the theorem's number.",
        tables.markdown(pd.DataFrame(found).astype({"residual": str}), {}),
    ]


def _range(values: Iterable[float]) -> str:
    values = [int(value) for value in values]
    return f"{min(values)}" + (f" to {max(values)}" if max(values) > min(values) else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture(Drawing):
    """The examples that each head serves, for runs with saturation; a panel for every size."""

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: ranks."""
        return list_ranks(table)

    def draw(self, experiment: "Experiment", preset: str, table: pd.DataFrame) -> "Drawn":
        """See `Drawing`; two panels for every size.

        Left, for the first seed whose weights are in the folder: rows are heads, columns examples,
        sorted by the head that is the least saturated on them. Right, for all seeds: how many
        examples are served by how many heads. A head serves an example if it is not saturated on
        it.
        """
        counted = table[table["status"] == "ok"].dropna(subset=["examples_by_serving_heads"])
        sizes = counted.sort_values("seed").groupby(["n_heads", "n_examples"])
        groups: list[Any] = [x for x in sizes if x[1]["largest_attention"].notna().any()]
        figure, axes = subplots(
            max(len(groups), 1),
            2,
            (13, 3.2 * max(len(groups), 1) + 0.8),
            style="white",
            width_ratios=(5, 2),
        )
        for (left, right), ((n_heads, n_examples), runs) in zip(axes, groups, strict=False):
            shown = runs.dropna(subset=["largest_attention"]).iloc[0]
            picture = _weights(left, np.array(shown["largest_attention"]))
            figure.colorbar(picture, ax=left, label="largest attention weight", pad=0.01)
            left.set_title(
                f"H = {n_heads}, T = {n_examples:,}: {shown['saturated']:.0%} of pairs above "
                f"{SATURATED_ATTENTION}, accuracy {shown['accuracy']:.3f} (seed {shown['seed']})",
                fontsize="small",
            )
            _histogram(right, runs)
        figure.suptitle(notation.typeset(experiment.title))
        return figure


def _weights(axis: "Axes", largest_HxT: np.ndarray) -> Any:
    serving_T = largest_HxT.argmin(axis=0)
    order_T = np.lexsort((largest_HxT.min(axis=0), serving_T))
    axis.set_xlabel("examples, sorted by the head that is the least saturated")
    axis.set_ylabel("head")
    axis.set_yticks(range(len(largest_HxT)))
    return axis.imshow(
        largest_HxT[:, order_T], aspect="auto", interpolation="nearest", cmap="viridis", vmin=0
    )


def _histogram(axis: "Axes", runs: pd.DataFrame) -> None:
    counts_RxS = np.array(runs["examples_by_serving_heads"].tolist())
    share_RxS = counts_RxS / counts_RxS.sum(axis=1, keepdims=True)
    axis.bar(range(share_RxS.shape[1]), share_RxS.mean(axis=0), color="0.6")
    for share_S in share_RxS:
        axis.plot(range(len(share_S)), share_S, "o", color="black", markersize=3)
    axis.set_xlabel("heads that serve an example", fontsize="small")
    axis.set_ylabel("share of examples")
    axis.set_xticks(range(share_RxS.shape[1]))
    axis.set_title(f"mean of {len(runs)} seeds, dots each", fontsize="small")
