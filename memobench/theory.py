"""What theorems promise or forbid, as functions of a run's sizes. Imports no JAX.

A theorem takes sizes by name: a mapping such as `runs.cells`, a row of a table or a table, whose
columns then give a column. Kinds say which theorems are about them (`Spec.theorems`), so that an
architecture in a user's own file is promised what it names, and may bring theorems of its own.
"""

import bisect
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from memobench.errors import UserError
from memobench.spec import derived

# A mapping, a row or a table of the sizes that `runs.cells` names.
Sizes = Any
# Whether something holds, of sizes.
Condition = Callable[[Sizes], Any]


def always(sizes: Sizes) -> Any:
    """The condition that always holds."""
    del sizes
    return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Theorem:
    """A number that a theorem gives.

    value: that number. assumptions: what it asks beyond the sizes; empty where it asks nothing that
    random instances could fail. about: families, by their columns, whose kinds say in `theorems`
    whether it is about them. where: the sizes that it is about.
    """

    name: str
    source: str
    value: Callable[[Sizes], Any]
    assumptions: str = ""
    about: tuple[str, ...] = ()
    where: Condition = always

    def applies(self, sizes: Sizes) -> Any:
        """Whether the theorem is about runs of these sizes."""
        named = (self._named(noun, sizes) for noun in self.about)
        return functools.reduce(operator.and_, named, self.where(sizes))

    def _named(self, noun: str, sizes: Sizes) -> Any:
        """Whether the kinds of a family name it, where they say that it holds."""
        from memobench.kinds import FAMILIES

        (family,) = (family for family in FAMILIES if family.noun == noun)
        named = (
            (sizes[noun] == name) & kind.theorems[self](sizes)
            for name, kind in family.kinds().items()
            if self in kind.theorems
        )
        return functools.reduce(operator.or_, named, False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound(Theorem):
    """A number of examples that some weights memorize; proven: or else an asymptotic guide."""

    proven: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit(Theorem):
    """What no weights can do: `measure` exceeds `value` in no run to which it applies."""

    measure: Callable[[Sizes], Any]

    def __str__(self) -> str:
        assumed = f", assuming {self.assumptions}" if self.assumptions else ""
        return f"a proven limit ({self.name}; {self.source}{assumed})"


class Violation(UserError):
    """A run is beyond what a theorem forbids: it, or its measurement, is wrong."""


def _attention(sizes: Sizes) -> Any:
    # Attention to a single token is no choice: heads then add nothing to the skip connection.
    return _spans(sizes) & (sizes["context_length"] > 1)


def _attention_alone(sizes: Sizes) -> Any:
    return _attention(sizes) & (sizes["d_mlp"] == 0)


def _seen(sizes: Sizes) -> Any:
    # Heads wider than the stream, as released code has them, see no more than the stream.
    return np.minimum(sizes["d_head"], sizes["d_model"])


def _mlp(sizes: Sizes) -> Any:
    return _spans(sizes) & (sizes["d_mlp"] > 0)


def _spans(sizes: Sizes) -> Any:
    """Whether tokens span a stream of two dimensions at least."""
    return _plane(sizes) & (_number(sizes["vocab_size"]) >= sizes["d_model"])


def _plane(sizes: Sizes) -> Any:
    return sizes["d_model"] > 1


def _number(value: Any) -> Any:
    """A size or a column of sizes, NaN where a run has none."""
    return math.nan if value is None else np.asarray(value, np.float64)


def _queries_span(sizes: Sizes) -> Any:
    # Queries span their inputs' dimensions and that of the bias.
    wanted = np.minimum(sizes["context_length"], sizes["d_head"])
    return _number(sizes["input_dim"]) + 1 >= wanted


_ARCHITECTURE, _BOTH = ("architecture",), ("architecture", "task")
_DANA = "Dana, Pydi & Chevaleyre 2025"
_MAHDAVI = "Mahdavi, Liao & Thrampoulidis 2024"

COROLLARY_2 = Bound(
    name="Dana 2025: H·d_h + d",
    source=f"{_DANA}, Theorem 1 and Corollaries 1 and 2",
    value=lambda sizes: sizes["n_heads"] * _seen(sizes) + sizes["d_model"],
    assumptions="sequences end in as many tokens as there are dimensions",
    about=_ARCHITECTURE,
    where=_attention_alone,
)
SILENT_MLP = dataclasses.replace(
    COROLLARY_2,
    name="Dana 2025 with a silent MLP: H·d_h + d",
    where=lambda sizes: _attention(sizes) & (sizes["d_mlp"] > 0),
)
MAHDAVI_1 = Bound(
    name="Mahdavi 2024: H·(d_h − 1) + 1",
    source=f"{_MAHDAVI}, Theorem 1",
    value=lambda sizes: sizes["n_heads"] * (_seen(sizes) - 1) + 1,
    assumptions="as Dana et al. carry it over to tokens",
    about=_ARCHITECTURE,
    where=_attention_alone,
)
RANDOM_FEATURES = Bound(
    name="rank of an MLP: w + d",
    source="linear algebra: random hidden neurons and the skip connection are independent",
    value=lambda sizes: sizes["d_mlp"] + sizes["d_model"],
    assumptions="attention tells all sequences apart",
    about=_ARCHITECTURE,
    where=_mlp,
)
PROPOSITION_3 = Bound(
    name="Dana 2025: all sequences",
    source=f"{_DANA}, Proposition 3",
    value=lambda sizes: sizes["n_examples"],
    assumptions="one next token to a sequence",
    about=_BOTH,
    where=_plane,
)
LINEAR_LEAST_SQUARES = Bound(
    name="linear memory of random keys, exact: d",
    source="linear algebra: d random keys are independent, and W takes them to any values",
    value=lambda sizes: sizes["d_model"],
    about=_ARCHITECTURE,
    where=_plane,
)


def outer_products_guide(vocab_size: int, d_model: int) -> int:
    """How many of T associations a sum of outer products holds, all at once: an asymptotic guide.

    Keys and values are random unit vectors, labels uniform. For an association with the value v and
    another token's value w, (v - w) W k is 1 - v.w, plus crosstalk of the other T - 1: each adds
    k.k' (v - w).v', of variance 2/d^2, or 1/d where v' is v or w, as 2T/N of them are. Taken as
    Gaussian, of variance s = 2T/d^2 + (1 + 2T/N)/d in all, each of T N comparisons is lost with a
    probability below exp(-1/(2s)), and the guide is the largest T with T N exp(-1/(2s)) <= 1.

    For large d and T = N that is d^2 = 8 N ln N. If a vanishing share may be lost, each association
    stands for itself, only the largest of its N wrong answers matters, and it is 2 N ln N.

    >>> [outer_products_guide(n, 256) for n in (833, 10_000)]
    [833, 874]
    """

    def exponent(n_examples: int) -> float:
        n_own = 1 + 2 * n_examples / vocab_size
        variance = 2 * n_examples / d_model**2 + n_own / d_model
        return 2 * variance * math.log(n_examples * vocab_size)

    # One association has no crosstalk.
    return 1 + bisect.bisect_right(range(2, d_model**2 + 2), 1.0, key=exponent)


OUTER_PRODUCTS = Bound(
    name="linear memory, outer products: about d²/(8 ln N)",
    source="asymptotic guide, no theorem: `outer_products_guide`",
    value=lambda sizes: np.vectorize(outer_products_guide)(sizes["vocab_size"], sizes["d_model"]),
    assumptions="crosstalk is Gaussian; up to one instance in ten loses an association",
    about=_ARCHITECTURE,
    where=_plane,
    proven=False,
)


def _hebbian_guide(sizes: Sizes, noise: float) -> Any:
    """The largest F with noise F / (m d) + 3 F / d^3 at most 1 / (8 ln N)."""
    d_model, d_mlp = (np.asarray(sizes[x], np.float64) for x in ("d_model", "d_mlp"))
    variance = noise / np.maximum(d_mlp * d_model, 1) + 3 / d_model**3
    return np.maximum(np.floor(1 / (_confusions(sizes) * variance)), 1)


def _confusions(sizes: Sizes) -> Any:
    """8 ln N, as in `outer_products_guide`: none of N^2 comparisons is lost to Gaussian noise."""
    return 8 * np.log(np.maximum(_number(sizes["vocab_size"]), 2))


def _whitened_guide(sizes: Sizes) -> Any:
    """The largest F with a share rank/F of the answer left to it: rho / (1 - rho) = 8 ln N / d.

    Random features of m neurons have rank m, or that of all quadratic forms of d numbers.
    """
    d_model = np.asarray(sizes["d_model"], np.float64)
    rank = np.minimum(sizes["d_mlp"], d_model * (d_model + 1) / 2)
    return np.maximum(np.floor(rank * (1 + d_model / _confusions(sizes))), 1)


def _memory(sizes: Sizes) -> Any:
    return _plane(sizes) & (sizes["d_mlp"] > 0)


_guide = functools.partial(
    Bound,
    source="asymptotic guide, no theorem: Gaussian crosstalk to leading order",
    assumptions="keys and values are random directions, whose crosstalk is Gaussian",
    about=_ARCHITECTURE,
    where=_memory,
    proven=False,
)
# Memories of bilinear neurons written down, Garcia et al. (2026).
HEBBIAN = _guide(
    name="bilinear memory, outer products: F/(m·d) + 3F/d³ < 1/(8 ln N)",
    value=lambda sizes: _hebbian_guide(sizes, noise=1.0),
)
NTK = _guide(
    name="linearised relu memory: 2F/(m·d) + 3F/d³ < 1/(8 ln N)",
    value=lambda sizes: _hebbian_guide(sizes, noise=2.0),
)
WHITENED = _guide(
    name="bilinear memory, least squares: m·(1 + d/(8 ln N))",
    value=_whitened_guide,
)


def _one_step(sizes: Sizes, power: float) -> Any:
    """About d^(power + 1 / (2 alpha)) of the most frequent, N at most."""
    exponent = power + 0.5 / _number(sizes["zipf_exponent"])
    return np.minimum(np.asarray(sizes["d_model"], np.float64) ** exponent, sizes["n_examples"])


_step = functools.partial(
    Bound,
    source="Kim, Nichani, Wu, Bietti & Lee 2026: up to constants and logarithms, alpha > 1",
    assumptions="frequencies by Zipf's law, large batches",
    about=_ARCHITECTURE,
    where=lambda sizes: _plane(sizes) & (_number(sizes["zipf_exponent"]) > 1),
    proven=False,
)
GRADIENT_STEP = _step(
    name="linear memory, one gradient step: d^(1/(2α))",
    value=lambda sizes: _one_step(sizes, 0.0),
)
MUON_STEP = _step(
    name="linear memory, one step of Muon: d^(1 + 1/(2α))",
    value=lambda sizes: _one_step(sizes, 1.0),
)
# For labelled contexts of n vectors; tight where all share one (Proposition 2).
THEOREM_1 = Bound(
    name="Mahdavi 2024: H·(min(n, d_h) − 1) + 1",
    source=f"{_MAHDAVI}, Theorem 1",
    value=lambda sizes: (
        sizes["n_heads"] * (np.minimum(sizes["context_length"], sizes["d_head"]) - 1) + 1
    ),
    assumptions="queries of Kruskal rank n, contexts of rank n",
    about=_BOTH,
    where=_queries_span,
)
GENERAL_POSITION = Bound(
    name="general position: H·(d − 1) + 1",
    source=f"{_MAHDAVI}, discussion of prior work",
    value=lambda sizes: sizes["n_heads"] * (sizes["d_model"] - 1) + 1,
    assumptions="queries of Kruskal rank d, n and d_h at least d",
    about=_BOTH,
    where=lambda sizes: (
        _queries_span(sizes)
        & (sizes["context_length"] >= sizes["d_model"])
        & (sizes["d_head"] >= sizes["d_model"])
    ),
)
BUBECK = Bound(
    name="Bubeck 2020: (d − 1)·⌊w/4⌋",
    source="Bubeck, Eldan, Lee & Mikulincer 2020; here one of d coordinates is constant",
    value=lambda sizes: (sizes["d_model"] - 1) * (sizes["d_mlp"] // 4),
    assumptions="relu neurons, points of the stream in general position",
    about=_ARCHITECTURE,
    where=_mlp,
)

# A head is saturated on an example if its largest attention weight exceeds this.
SATURATED_ATTENTION = 0.99

# What a run is promised is the largest of those that apply to it; see `lower_bounds`.
LOWER_BOUNDS = (
    *(
        COROLLARY_2,
        SILENT_MLP,
        MAHDAVI_1,
        RANDOM_FEATURES,
        BUBECK,
        PROPOSITION_3,
        LINEAR_LEAST_SQUARES,
    ),
    *(THEOREM_1, GENERAL_POSITION),
)

# A guess at random gains k bits with probability 2^-k.
SLACK_BITS = 64.0

COUNTING = Limit(
    name="counting bits",
    source="weights of B bits name at most 2^B labelings (Kraft's inequality)",
    measure=lambda sizes: sizes["bits"],
    value=lambda sizes: sizes["n_params"] * _bits_per_weight(sizes) + SLACK_BITS,
    assumptions="labels uniform and independent; fails with probability 2^-64",
    where=lambda sizes: pd.notna(sizes["bits"]),
)
PROPOSITION_2 = Limit(
    name="rank of attention: H·(n − 1) + 1",
    source=f"{_MAHDAVI}, Proposition 2",
    measure=lambda sizes: sizes["attention_rank"],
    value=lambda sizes: sizes["n_heads"] * (sizes["context_length"] - 1) + 1,
    where=lambda sizes: pd.notna(sizes["attention_rank"]),
)
RANK_OF_WEIGHTS = Limit(
    name="rank of constructed attention: H·(n − 1) + 1",
    source=f"{_MAHDAVI}, Proposition 2",
    measure=lambda sizes: sizes["feature_rank"],
    value=PROPOSITION_2.value,
    assumptions="all examples share a context",
    about=("theorem", "task"),
    where=lambda sizes: pd.notna(sizes["feature_rank"]),
)
# Losses in float32 are known to about 1e-6.
_ROUNDING = 1e-5
# What certifies the least loss that a search found, before it may condemn a run below it: of so
# many starts at least, so many ended there, within a share or a number, and the gradient vanishes.
LEAST_STARTS, LEAST_AGREEING = 16, 2
AGREES, VANISHES = 1e-6, 1e-6


def certified(row: Any) -> bool:
    """Whether an optimised row's loss may count as the least there is.

    A search that ended early, or that found its best once, says only that there are such weights.
    No search proves that there are no better ones: `PROPOSITION_1` says what it assumes.
    """
    losses, gradient_norm, starts = map(row.get, ("start_losses", "gradient_norm", "starts"))
    if not isinstance(losses, list) or not losses or pd.isna(gradient_norm) or pd.isna(starts):
        return False
    agreeing = sum(math.isclose(x, losses[0], rel_tol=AGREES, abs_tol=AGREES) for x in losses)
    enough = starts >= LEAST_STARTS and agreeing >= LEAST_AGREEING
    return bool(enough and gradient_norm <= VANISHES)


PROPOSITION_1 = Limit(
    name="floor of the best sequence encoder",
    source=f"{_DANA}, Proposition 1",
    measure=lambda sizes: sizes["certified_floor"] - sizes["loss"],
    value=lambda sizes: _ROUNDING,
    assumptions="the search for the encoder, from many starts of which two agree, found the best",
    # Those that read their logits out of d_model numbers.
    about=_ARCHITECTURE,
    where=lambda sizes: pd.notna(sizes["certified_floor"]),
)
UPPER_BOUNDS = (COUNTING, PROPOSITION_2, RANK_OF_WEIGHTS, PROPOSITION_1)


@derived
def lower_bounds() -> tuple[Bound, ...]:
    """What theorems promise: ours, then those that only kinds of users' files name."""
    named = (x for x in _named_by_kinds() if isinstance(x, Bound) and x.proven)
    return tuple(dict.fromkeys((*LOWER_BOUNDS, *named)))


@derived
def upper_bounds() -> tuple[Limit, ...]:
    """What theorems forbid, in the same order."""
    named = (x for x in _named_by_kinds() if isinstance(x, Limit))
    return tuple(dict.fromkeys((*UPPER_BOUNDS, *named)))


def _named_by_kinds() -> Iterator[Theorem]:
    from memobench.kinds import FAMILIES

    for family in FAMILIES:
        for kind in family.kinds().values():
            yield from kind.theorems


def promised(sizes: Sizes) -> Any:
    """The largest number of examples that a theorem promises; NaN where none applies.

    >>> from memobench.models.transformer import AttentionOnly
    >>> from memobench.runs import Run, cells
    >>> from memobench.tasks.associations import Associations
    >>> heads = AttentionOnly(d_model=10, d_head=10, n_heads=20)
    >>> float(promised(cells(Run(task=Associations(), architecture=heads))))
    210.0
    """
    values = [_where(bound.applies(sizes), bound.value(sizes)) for bound in lower_bounds()]
    return np.fmax.reduce(np.broadcast_arrays(*values))


def check(table: pd.DataFrame) -> None:
    """Raises Violation where a run is beyond a limit; what lacks a limit's columns is passed over.

    A limit is a theorem, so that a run beyond it is a mistake in the run, in its measurement or in
    the code.
    """
    for limit, measured, beyond in violations(table):
        run_id, found = table["run_id"][beyond].iloc[0], measured[beyond].iloc[0]
        raise Violation(
            f"run {run_id} is beyond {limit}: "
            f"{found:.6g} measured, and {beyond.sum()} of {len(table)} runs like it; "
            "they or their measurement are wrong, do not publish them"
        )


def violations(
    table: pd.DataFrame, limits: Iterable[Limit] | None = None
) -> Iterator[tuple[Limit, pd.Series, np.ndarray]]:
    """Each limit that runs are beyond, what it measures of all runs, and which are beyond it."""
    for limit in upper_bounds() if limits is None else limits:
        try:
            applies = limit.applies(table)
            measured, value = limit.measure(table), limit.value(table)
        except KeyError:
            continue
        measured = pd.to_numeric(measured, errors="coerce")
        beyond = np.asarray(applies & (measured > value))
        if beyond.any():
            yield limit, measured, beyond


def _where(applies: Any, value: Any) -> Any:
    return np.where(applies, np.asarray(value, np.float64), np.nan)


def _bits_per_weight(sizes: Sizes) -> Any:
    """What one weight can hold: what a construction stored, or the method's precision."""
    from memobench.methods.base import Method

    known = {name: kind.bits_per_weight for name, kind in Method.kinds().items()}
    bits = np.vectorize(lambda name: known.get(name, Method.bits_per_weight), otypes=[float])
    by_method = bits(np.asarray(sizes["method"], object))
    stored = sizes.get("stored_bits")
    if stored is None:
        return by_method
    stored = np.asarray(stored, np.float64)
    return np.where(np.isnan(stored), by_method, stored)


def t_eps(n_examples: int, zipf_exponent: float | None, eps: float) -> int:
    """T_eps: the least number of sequences whose prior mass exceeds 1 - eps (Dana et al. 2025).

    >>> t_eps(100, None, 0.1), t_eps(100, 1.0, 0.1), t_eps(100, 1.0, 0.0)
    (91, 60, 100)
    """
    weight_T = np.arange(1.0, n_examples + 1) ** -(zipf_exponent or 0.0)
    mass_T = np.cumsum(weight_T) / weight_T.sum()
    # All sequences have the whole mass and no more, so that eps = 0 asks for all of them.
    above = np.flatnonzero(mass_T > 1 - eps + 1e-12)
    return int(above[0]) + 1 if len(above) else n_examples


def encoder_bound(
    vocab_size: int, d_model: int, n_next: int, conditional: str, parameter: float | None = None
) -> float:
    """Upper bound on the divergence of the best sequence encoder, Dana et al. (2025), Theorem 2.

    Nearly orthogonal outputs (Johnson-Lindenstrauss) for a look-up table with noise: the likeliest
    token g with probability pi(g), the others as `conditional` says. Infinite where the theorem
    says nothing, which is below d_model = 128 ln(vocab_size + 1); NaN for `dirichlet`, whose
    weights differ between sequences.

    >>> encoder_bound(10, 100, 2, "uniform"), round(encoder_bound(10, 10**9, 2, "uniform"), 3)
    (inf, 1.1)
    """
    if conditional == "dirichlet":
        return float("nan")
    weight_K = np.arange(1, n_next + 1) ** -(parameter or 0.0)
    pi_K = weight_K / weight_K.sum()
    if n_next == 1:
        return 0.0  # (1 - pi) log(1 / (perplexity - 1)) vanishes with the entropy.
    crosstalk = math.sqrt(32 * math.log(vocab_size + 1) / d_model)
    if 2 * crosstalk >= 1:
        return float("inf")
    perplexity = math.exp(-(pi_K * np.log(pi_K)).sum())
    noise_N = np.zeros(vocab_size - 1)
    noise_N[: n_next - 1] = pi_K[1:] / pi_K[1:].sum()
    from_uniform = np.abs(noise_N - 1 / (vocab_size - 1)).sum() / 2
    factor = (1 + 2 * crosstalk + crosstalk * from_uniform) / (1 - 2 * crosstalk)
    return float((1 - pi_K[0]) * math.log((vocab_size - 1) / (perplexity - 1)) * factor)
