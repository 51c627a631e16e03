"""Quotes of published rows in pages, written anew between marks by `make docs`.

    python -m memobench.experiments.pages.quotes PAGE…

A page has `<!-- NAME -->` before and `<!-- /NAME -->` behind what is written; QUOTES has the names.
"""

import collections
import functools
import itertools
import math
import pathlib
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from memobench import claims
from memobench.board.capacity_summary import SIDES
from memobench.board.table import OPEN
from memobench.common import atomic, folders
from memobench.experiments import EXPERIMENTS
from memobench.experiments.board import design, fresh, peak, shapes
from memobench.experiments.capacity import exposure_claims as exposure
from memobench.experiments.pages import papers
from memobench.experiments.pages.robustness import (
    read_beyond,
    read_designs,
    read_fresh,
    read_peaks,
    tabulate_blocks,
    tabulate_depths,
    tabulate_tied,
    tabulate_ways,
)
from memobench.methods.thresholds import Estimate
from memobench.report import answer, peak_answer, tables, verdicts
from memobench.store.published import published

# Whose claims are quoted, and the measure of most of them.
_BLOCKS = "gated norms attention experts depth optimizers optimizers-zipf".split()
_USUAL = "bits per parameter after 1,024 steps"


def _answer() -> str:
    """The answer at the best size of set, and of sets that are learned and other designs."""
    learned = answer.compare_learned_sets(published("board/typical"))
    others = f"{learned} {design.headline(published('board/design'))}"
    said = (peak_answer.answer(read_peaks(), _over_best_mlp(), read_beyond()), others)
    return "\n\n".join(textwrap.fill(x, 127, break_on_hyphens=False) for x in said)


def _tied() -> str:
    """A sentence on both sides over the MLP with tied embeddings, and every side's bits."""
    said = peak_answer.answer_for("with tied embeddings", read_peaks("board/tied"))
    return f"{textwrap.fill(said, 127, break_on_hyphens=False)}\n\n{tabulate_tied()}"


def _ratios() -> str:
    """Bits per parameter, and attention over MLP, at every budget with all forms."""
    return peak_answer.tabulate(read_peaks(), _over_best_mlp(), read_beyond())


def _over_best_mlp() -> dict[int, Estimate]:
    """Attention alone over the best MLP of all that were tried, on fresh label tables."""
    compared = fresh.compare_forms(read_fresh(), fresh.find_beyond())
    return {budget: of_form[fresh.ATTENTION] for budget, of_form in compared.items()}


def _bought() -> str:
    """The claims on blocks, each with its verdict and ratio."""
    rows = []
    for name in _BLOCKS:
        for row in papers.read_verdicts(EXPERIMENTS[f"blocks/{name}"], "quick").to_dict("records"):
            claim = row["claim"].replace(f" ({_USUAL})", "")
            verdict = f"{row['verdict']}{verdicts.estimate_of(row)}"
            rows.append({"experiment": name, "claim": tables.text(claim), "verdict": verdict})
    return tables.markdown(pd.DataFrame(rows), {})


def _exposure() -> str:
    """Attention over MLP in bits by how often each fact was seen, with best or wide heads."""
    columns: dict[str, dict[int, str]] = {}
    for way, name, preset in (
        ("steps over all facts", "capacity/exposure", "full"),
        ("passes of 16 minibatches", "capacity/exposure-passes", "full"),
    ):
        runs = published(name, preset)
        runs = runs[runs["heads"] == "full"]
        wide = runs[runs["d_head"] == runs["d_model"]]
        for heads, chosen in (("best heads", runs), ("wide heads of both", wide)):
            columns[f"{way}, {heads}"] = {
                n: tables.interval(float(ratio_B[0]), *claims.interval(ratio_B, seeds), digits=2)
                for n, (ratio_B, seeds) in exposure.ratios(chosen, "bits").items()
            }
    found = pd.DataFrame(columns).rename_axis("exposures").sort_index().fillna("–").reset_index()
    return tables.markdown(found, {})


def _count_certified() -> str:
    """The bits of the best certified weights at each budget, and how far they pass the peak."""
    board = pd.read_csv(folders.published() / "leaderboard.csv")
    typical = read_peaks().groupby("budget")["bits"].max()
    board = board[board["track"] == OPEN]
    known = board.groupby("budget")["certified_bits_per_parameter"].max()[typical.index]
    shown = {
        "parameters": [f"{budget:,}" for budget in typical.index],
        "certified bits per parameter": known.to_numpy(),
        "over the highest typical peak": [f"{x:+.2f}" for x in known - typical],
    }
    return tables.markdown(pd.DataFrame(shown), {"certified bits per parameter": 2})


def _effort() -> str:
    """Shapes tried for each side in one layer and in two, and what the best of fewer knows."""
    rows, runs = [], published("board/shapes").set_index("run_id")
    bits = runs["bits"] / runs["n_params"]
    for budget in (256, 512, 1024, 2048, 4096, 8192):
        # Tied embeddings are another design.
        untied = (of for name, of in shapes.SHAPES.items() if name != "tied")
        declared = (shapes.runs([budget], of) for of in untied)
        tried = collections.defaultdict[Any, list[float]](list)
        for run in itertools.chain.from_iterable(declared):
            if run.run_id in bits:
                of: Any = run.architecture
                tried[of.side[0], of.n_layers].append(bits[run.run_id])
        row = {"parameters": f"{budget:,}"}
        for n_layers, layers in ((1, "one layer"), (2, "two")):
            fewest = min(len(tried[side, n_layers]) for side in SIDES)
            for side in SIDES:
                known = tried[side, n_layers]
                share = f" ({_best_of(known, fewest) / max(known):.3f})" if fewest else ""
                row[f"{side}, {layers}"] = f"{len(known)}{share}"
        rows.append(row)
    return tables.markdown(pd.DataFrame(rows), {})


def _best_of(values: Sequence[float], n: int) -> float:
    """The mean of the best of n of the values, over all choices of n.

    >>> _best_of([1, 2, 3], 2)
    2.6666666666666665
    """
    ways = ((math.comb(i, n - 1), x) for i, x in enumerate(sorted(values)))
    return sum(n_ways * x for n_ways, x in ways) / math.comb(len(values), n)


def _design() -> str:
    """The ratios of sides to the MLP over designs, and how they spread."""
    return design.tabulate(read_designs())


def _lengths() -> str:
    """The share of examples that is known by context length, at the size of Mahdavi et al."""
    rows = []
    for kind in ("classification", "regression"):
        runs = published(f"mahdavi2024/{kind}-context", "trend")
        for contexts, of_set in runs.groupby("contexts"):
            known: dict[Any, float] = of_set.groupby("context_length")["accuracy"].mean().to_dict()
            row = {"": kind, "contexts": contexts, "examples": f"{of_set['n_examples'].max():,}"}
            rows.append(row | {f"n = {n}": f"{known[n]:.3f}" for n in sorted(known)})
    # The longest row has all lengths in their order.
    found = pd.DataFrame(rows, columns=[*max(rows, key=len)])
    return tables.markdown(found.fillna("–"), {})


# Configurations that are quoted, each by its fastest row; what others write comes first.
_OTHERS = {
    "PyTorch, eager, one model after another": r"^PyTorch, ",
    "JAX, jitted, one model after another": r"^JAX, jitted",
}
_OURS = {"one run": r"^one run$", "two packs side by side": r"^two packs"}


def _speed() -> str:
    """Model-steps per second on labelled contexts: what others write, one run, and packs."""
    contexts = pd.read_csv(folders.published() / "performance" / "labelled_contexts.csv")
    found = []
    for of, rows in contexts[contexts["H"] == 20].groupby("contexts", sort=False):
        rate = rows.set_index("configuration")["model-steps / s"]
        fastest = {
            said: rate[rate.index.str.contains(kind)].max()
            for said, kind in (_OTHERS | _OURS).items()
        }
        strongest = max(fastest[said] for said in _OTHERS)
        found += [
            {"contexts": of, "": said, "model-steps / s": x, "× strongest": x / strongest}
            for said, x in fastest.items()
        ]
    return tables.markdown(pd.DataFrame(found), {"model-steps / s": 0, "× strongest": 1})


def _shares() -> str:
    """The share of each paper that was measured at its own size."""
    of_papers = (f"- {title}: {papers.share(paper)}." for paper, title in _TITLES.items())
    return "\n".join(of_papers)


_TITLES = {
    "dana2025": "Dana et al.",
    "mahdavi2024": "Mahdavi et al.",
    "nichani2025": "Nichani et al. (without scaling)",
    "hebbian2026": "Garcia et al.",
}
QUOTES: dict[str, Callable[[], str]] = {
    "answer": _answer,
    "block-heads": tabulate_blocks,
    "bought": _bought,
    "certified": _count_certified,
    "depths": tabulate_depths,
    "design": _design,
    "effort": _effort,
    "forms": lambda: peak.forms(read_peaks()),
    "ratios": _ratios,
    "exposure": _exposure,
    "shares": _shares,
    "speed": _speed,
    "tied": _tied,
    "ways": tabulate_ways,
    "standing": lambda: textwrap.fill(
        verdicts.count_standing(verdicts.read(folders.published())), 127
    ),
    "dana2025-commands": functools.partial(papers.commands, "dana2025"),
    "mahdavi2024-lengths": _lengths,
    "mahdavi2024-commands": functools.partial(papers.commands, "mahdavi2024"),
    **{paper: functools.partial(papers.summarize, paper) for paper in papers.PAPERS},
}


def renew(page: str) -> str:
    """The page with what it quotes as the published tables have it.

    Raises ValueError where a mark that opens is not closed.
    """
    for name, quote in QUOTES.items():
        # On a line of its own: elsewhere it is an option that includes what is quoted.
        head, first, rest = page.partition(f"\n<!-- {name} -->\n")
        if first:
            # Right after the opening mark where nothing is quoted yet.
            _, last, tail = f"\n{rest}".partition(f"\n<!-- /{name} -->\n")
            if not last:
                raise ValueError(f"<!-- {name} --> is not closed by a line <!-- /{name} -->")
            page = f"{head}{first}{quote()}{last}{tail}"
    return page


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        atomic.replace_text(path, renew(path.read_text("utf-8")))
