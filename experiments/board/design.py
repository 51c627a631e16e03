"""board/design: how attention over MLP depends on vocabulary, context, depth, steps and optimiser.

The board has one design: two tokens, one layer, 4,096 steps of Adam, equal frequencies. Here all of
these vary together, in an orthogonal array of 36 designs: any two levels of different choices meet
equally often, so that the effect of each choice is read from all of them. In each design the six
main families learn sets of several sizes, at three learning rates.

Expected: narrow heads keep up with the MLP in most designs, wide heads in few.

    memobench run board/design --preset=quick
    memobench report board/design --preset=quick
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy

from memobench.analysis import statistics
from memobench.board import capacity_summary, families
from memobench.common.errors import require
from memobench.common.notation import enumerate_words, pluralize
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Drawing, Experiment
from memobench.experiments.board import peak
from memobench.methods.thresholds import FAILING
from memobench.methods.training import Training
from memobench.numerics import metrics
from memobench.optimizers import Adam, Optimizer
from memobench.optimizers.muon import Muon
from memobench.report import tables
from memobench.report.answer import format_range
from memobench.report.drawing import subplots
from memobench.report.style import styles_of
from memobench.store.rows import architecture_columns
from memobench.tasks.associations import Associations

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Vocabularies at each budget. The least has pairs enough for all sets but the largest.
VOCAB_SIZES = {512: (24, 32, 48), 1024: (32, 48, 64), 2048: (48, 64, 96)}
OPTIMIZERS: dict[str, Optimizer] = {"Adam": Adam(), "Muon": Muon()}
# Bits of a set's labels over parameters: most is known of sets somewhat larger than the capacity.
LOADS = (1.75, 2.5, 3.5, 5.0, 7.0)
# Bits that are weighted by how often each is asked grow with the set however large it is: under
# Zipf's law sets of one size count, and no larger ones are tried.
ZIPF_LOAD = 3.5
LEARNING_RATES = (0.01, 0.03, 0.1)
# Label tables: the best set size and learning rate on the others count on each.
TABLES = 2
_STEPS_PER_EPOCH = 64
# The share of the budget by which a shape may miss it, where another does so less.
_MISSED = 0.06


@dataclasses.dataclass(frozen=True)
class Design:
    """A choice of everything but the architecture's family."""

    budget: int
    vocab_size: int
    context_length: int
    steps: int
    n_layers: int
    optimizer: str
    zipf_exponent: float | None

    def task(self, n_sequences: int, seed: int = 0) -> Associations:
        return Associations(
            vocab_size=self.vocab_size,
            context_length=self.context_length,
            n_sequences=n_sequences,
            zipf_exponent=self.zipf_exponent,
            seed=seed,
        )

    @property
    def loads(self) -> tuple[float, ...]:
        """The sizes of sets that are tried, as LOADS; none has more than all contexts."""
        most = ZIPF_LOAD if self.zipf_exponent else max(LOADS)
        n_contexts = self.vocab_size**self.context_length
        return tuple(x for x in LOADS if x <= most and self.n_sequences(x) <= n_contexts)

    def n_sequences(self, load: float) -> int:
        """Sequences of a set of a size, as LOADS."""
        return round(load * self.budget / math.log2(self.vocab_size))

    def training(self, learning_rate: float) -> Training:
        return Training(
            protocol="exact",
            batch_size=None,
            n_batches=_STEPS_PER_EPOCH,
            epochs=self.steps // _STEPS_PER_EPOCH,
            learning_rate=learning_rate,
            final_learning_rate=learning_rate / 20,
            optimizer=OPTIMIZERS[self.optimizer],
        )


def designs(budget: int) -> list[Design]:
    """The 36 designs: choices of three levels by a Latin square, times choices of two levels."""
    three, two = range(3), range(2)
    return [
        Design(
            budget=budget,
            vocab_size=VOCAB_SIZES[budget][i],
            context_length=(2, 4, 8)[j],
            steps=(256, 1024, 4096)[(i + j) % 3],
            n_layers=(1, 2)[k],
            optimizer=("Adam", "Muon")[m],
            zipf_exponent=(None, 1.0)[(k + m) % 2],
        )
        for i, j, k, m in itertools.product(three, three, two, two)
    ]


def _shapes(design: Design) -> list[Architecture]:
    """The board's shapes in a design; of a width between two whole numbers, those of both.

    A shape that misses the budget is left out where the other does so less.
    """
    found: dict[Architecture, None] = {}
    for shape in peak.main_shapes(design.budget):
        of: Any = shape
        width = of.d_model * families.VOCAB_SIZES[design.budget] / design.vocab_size
        both = [_fit(shape, design, max(2, x)) for x in (math.floor(width), math.ceil(width))]
        missed = [abs(_n_params(x, design) / design.budget - 1) for x in both]
        most = max(_MISSED, min(missed))
        found |= {x: None for x, by in zip(both, missed, strict=True) if by <= most}
    return list(found)


def _n_params(shape: Architecture, design: Design) -> int:
    task = design.task(64)
    return models.count_parameters(shape.module_for(task), task.context_length)[0]


def _fit(shape: Architecture, design: Design, width: int) -> Architecture:
    """A shape of the board in a design and of another width, of as many parameters.

    Embeddings, and heads beside an MLP, take about the share of the parameters that they have in
    the board's shape.
    """
    of: Any = shape
    d_head = max(1, round(of.d_head * width / of.d_model))
    new = shape.replace(d_model=width, d_head=d_head, n_layers=design.n_layers)
    has_mlp = of.side[0] != capacity_summary.ATTENTION
    size = "d_mlp" if has_mlp else "n_heads"
    if has_mlp and of.n_heads > 1:
        heads, neurons = of.n_heads * 4 * of.d_model * of.d_head, of.d_mlp * (2 * of.d_model + 1)
        left = (design.budget - 2 * design.vocab_size * width) / design.n_layers
        n_heads = left * heads / (heads + neurons) / (4 * width * d_head)
        new = new.replace(n_heads=max(1, round(n_heads)))
    one, two = (_n_params(new.replace(**{size: n}), design) for n in (1, 2))
    return new.replace(**{size: max(1, 1 + round((design.budget - one) / (two - one)))})


def runs_of(design: Design, loads: Iterable[float]) -> Iterator[Run]:
    """Every main family in a design, on sets of these sizes, at every learning rate."""
    settings = list(itertools.product(loads, LEARNING_RATES, range(TABLES)))
    for shape in _shapes(design):
        for load, rate, seed in settings:
            yield Run(
                task=design.task(design.n_sequences(load), seed),
                architecture=shape,
                method=design.training(rate),
                seed=seed,
            )


def runs(budgets: Iterable[int]) -> Iterator[Run]:
    """Every main family in every design, on sets of every size, at every learning rate."""
    return itertools.chain.from_iterable(runs_of(x, x.loads) for b in budgets for x in designs(b))


# The choices of a design, by the columns of rows.
CHOICES = {
    "vocab_size": "vocabulary",
    "context_length": "context",
    "steps": "steps",
    "n_layers": "layers",
    "optimizer": "optimiser",
    "zipf_exponent": "frequencies",
}
EQUAL = "equal"
# What is compared with the MLP: a side and a form of its heads, "" for the best form.
ATTENTION, MLP, BOTH = capacity_summary.SIDES
COMPARED = {
    "attention alone": (ATTENTION, ""),
    "attention alone, wide heads": (ATTENTION, "full"),
    "attention + MLP": (BOTH, ""),
}
# Ratios that the figure's axis is marked with.
_TICKS = (0.6, 0.8, 1, 1.2, 1.4, 1.6, 1.8)
# Of points of choices that may not matter.
_PALE = 0.25
_SETTING = ["heads", "d_model", "d_head", "n_heads", "d_mlp", "load", "learning_rate"]
# Of the two whole widths beside a scaled one, those that count, and how pandas finds them.
WIDTHS: dict[str, Any] = {"the lower": "min", "the upper": "max", "both": ""}


def known_bits(table: pd.DataFrame) -> pd.DataFrame:
    """The trainings of a table: budget, CHOICES, side, _SETTING, task_seed and bits_per_parameter.

    Bits are those that are known of all labels, weighted by how often each is asked; a training
    that diverged knows none. Column `setting` numbers what all of _SETTING say.
    """
    rows = table.query("method == 'trained' and protocol == 'exact'")
    if rows.empty:
        return rows.assign(budget=0, load=0.0)
    shapes = rows.groupby(architecture_columns(), dropna=False, sort=False).ngroup()
    examples: list[Any] = rows.loc[~shapes.duplicated()].to_dict("records")
    known_as = [capacity_summary.architecture(row) for row in examples]
    sides = [each.side if each else ("", "") for each in known_as]
    entropy = rows["n_examples"] * np.log2(rows["vocab_size"].astype(float))
    bits = metrics.memorized_bits(rows["loss"], rows["n_examples"], rows["vocab_size"])
    zipf = rows["zipf_exponent"].astype(float)
    rows = rows.assign(
        budget=rows["n_params"].map(capacity_summary.budget),
        optimizer=rows["optimizer"].str.capitalize(),
        zipf_exponent=zipf.map(lambda x: EQUAL if pd.isna(x) else f"Zipf {x:g}"),
        side=[sides[shape][0] for shape in shapes],
        heads=[sides[shape][1] for shape in shapes],
        load=(entropy / rows["n_params"]).map(_nearest_load),
        bits_per_parameter=np.where(rows["status"] == "ok", bits, 0) / rows["n_params"],
    )
    columns = ["budget", *CHOICES, "side", *_SETTING, "task_seed", "bits_per_parameter"]
    rows = rows.loc[rows["side"] != "", columns]
    return rows.assign(setting=rows.groupby(_SETTING, dropna=False).ngroup())


def _nearest_load(load: float) -> float:
    return min(LOADS, key=lambda each: abs(math.log(each / load)))


def best_known(rows: pd.DataFrame, all_choose: bool = False) -> np.ndarray:
    """bits_T: bits per parameter of each label table in the setting that is best on the others.

    Args:
      rows: of `known_bits`, those of one side in one design.
      all_choose: whether the setting is that best on all tables, those that count, too.
    """
    by_setting = rows.pivot(index="setting", columns="task_seed", values="bits_per_parameter")
    bits_XxT = by_setting.to_numpy()
    choosing_XxT = bits_XxT.sum(axis=1, keepdims=True) - (0 if all_choose else 1) * bits_XxT
    return np.take_along_axis(bits_XxT, choosing_XxT.argmax(axis=0)[None], axis=0)[0]


def ratios(
    table: pd.DataFrame,
    load: float | None = None,
    widths: str = "both",
    all_choose: bool = False,
) -> pd.DataFrame:
    """Logarithms of the bits per parameter of COMPARED over those of the MLP, a row a design.

    Designs that lack a label table of a setting, as half a sweep does, have none.

    Raises UserError where settings of a design have other label tables than the rest.

    Args:
      table: of runs.
      load: the size of set that counts, of equal frequencies alone; by default that of most bits,
        under Zipf's law ZIPF_LOAD.
      widths: a key of WIDTHS.
      all_choose: of `best_known`.

    Returns:
      Columns: budget, CHOICES, COMPARED, `bits`, the logarithm of the MLP's bits per parameter, and
      `noise`, the variance that label tables leave in the first of COMPARED, whose ratios on each
      table are `by_table`. Where a training failed, knowing less than FAILING of what those on
      other tables know, ratios are NaN: the setting that was chosen without it was no good one.
    """
    rows = known_bits(table)
    found = []
    is_equal = rows["zipf_exponent"] == EQUAL
    rows = rows[
        is_equal & (rows["load"] == load) if load else is_equal | (rows["load"] == ZIPF_LOAD)
    ]
    if WIDTHS[widths]:
        of_form = rows.groupby(["budget", *CHOICES, "side", "heads"])["d_model"]
        rows = rows[rows["d_model"] == of_form.transform(WIDTHS[widths])]
    for design, of_design in rows.groupby(["budget", *CHOICES]):
        sides = dict(iter(of_design.groupby("side")))
        # A setting is chosen for one label table by the others.
        tables_of = {tuple(sorted(set(x))) for _, x in of_design.groupby("setting")["task_seed"]}
        is_whole = all(len(x) == TABLES for x in tables_of)
        require(
            not is_whole or len(tables_of) == 1,
            "board/design: models must be trained on the same label tables, got task_seed "
            f"{' and '.join(map(str, sorted(tables_of)))} in one design. Train on the same.",
        )
        if is_whole and {ATTENTION, MLP} <= sides.keys():
            mlp_T = best_known(sides[MLP], all_choose)
            row: dict[str, Any] = dict(zip(["budget", *CHOICES], design, strict=True))
            row["bits"] = np.nan if _fails(mlp_T) else math.log(mlp_T.mean())
            for name, (side, heads) in COMPARED.items():
                own = sides.get(side, of_design.head(0))
                own = own[own["heads"] == heads] if heads else own
                own_T = best_known(own, all_choose) if len(own) else np.zeros(len(mlp_T))
                fails = _fails(own_T) or _fails(mlp_T)
                row[name] = np.nan if fails else float(np.log(own_T.mean() / mlp_T.mean()))
                if name == "attention alone":
                    relative_T = own_T / max(own_T.mean(), 1e-9) - mlp_T / max(mlp_T.mean(), 1e-9)
                    noise = float(relative_T.var(ddof=1) / len(own_T))
                    row["noise"] = np.nan if fails else noise
                    row["by_table"] = (own_T / np.maximum(mlp_T, 1e-9)).tolist()
            found.append(row)
    return pd.DataFrame(found)


def _fails(bits_T: np.ndarray) -> bool:
    return bool(bits_T.min() <= FAILING * bits_T.max())


def effects(log_ratio: pd.DataFrame, of: str) -> pd.DataFrame:
    """The ratio at every level of each choice, averaged over the others, with 95% intervals.

    Least squares on logarithms, with an effect for each level and none for pairs of them, which are
    thereby part of the spread that intervals are made of.

    Args:
      log_ratio: `ratios` of one budget.
      of: a key of COMPARED, or another column.

    Returns:
      Columns choice, level, designs, ratio, ratio_low, ratio_high, and p_value: of equal ratios at
      all levels of the choice. The first row has all designs.
    """
    kept = log_ratio.dropna(subset=[of])
    y_C = kept[of].to_numpy(float)
    levels = {choice: sorted(set(kept[choice])) for choice in CHOICES}
    codes = {choice: _contrasts(kept[choice], levels[choice]) for choice in CHOICES}
    design_CxK = np.concatenate([np.ones((len(kept), 1)), *codes.values()], axis=1)
    fit_K, _, rank, _ = np.linalg.lstsq(design_CxK, y_C)
    left = len(y_C) - rank
    variance = float(((y_C - design_CxK @ fit_K) ** 2).sum() / max(1, left))
    covariance_KxK = variance * np.linalg.pinv(design_CxK.T @ design_CxK)
    quantile = scipy.stats.t.ppf(0.975, left) if left > 0 else np.inf

    def row(choice: str, level: Any, at_K: np.ndarray, n: int, p_value: float) -> dict[str, Any]:
        value, error = at_K @ fit_K, quantile * math.sqrt(at_K @ covariance_KxK @ at_K)
        ends = (value, value - error, value + error)
        names = ("ratio", "ratio_low", "ratio_high")
        return {"choice": choice, "level": level, "designs": n, "p_value": p_value} | {
            name: math.exp(x) for name, x in zip(names, ends, strict=True)
        }

    everywhere_K = np.eye(design_CxK.shape[1])[0]
    found = [row("all designs", "", everywhere_K, len(y_C), np.nan)]
    first = 1
    for choice, code_CxL in codes.items():
        of_choice = slice(first, first + code_CxL.shape[1])
        first = of_choice.stop
        fit_L, covariance_LxL = fit_K[of_choice], covariance_KxK[of_choice, of_choice]
        statistic = fit_L @ np.linalg.pinv(covariance_LxL) @ fit_L / max(1, len(fit_L))
        p_value = float(scipy.stats.f.sf(statistic, max(1, len(fit_L)), max(1, left)))
        for level in levels[choice]:
            at_K = everywhere_K.copy()
            at_K[of_choice] = _contrasts(pd.Series([level]), levels[choice])[0]
            n = int((kept[choice] == level).sum())
            found.append(row(choice, level, at_K, n, p_value))
    return pd.DataFrame(found)


def compare_choices(by_budget: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """A row for each of COMPARED, budget and choice.

    Returns:
      Columns name, budget, choice, ratios (at each level, in words), p_value, and matters: whether
      levels have unequal ratios by Holm's test of all rows.
    """
    rows = [
        {
            "name": name,
            "budget": budget,
            "choice": str(choice),
            "ratios": ", ".join(f"{x.ratio:.2f} ({x.level})" for x in of.itertuples()),
            "p_value": of["p_value"].iloc[0],
        }
        for name in COMPARED
        for budget, log_ratio in by_budget.items()
        for choice, of in effects(log_ratio, name).iloc[1:].groupby("choice", sort=False)
    ]
    found = pd.DataFrame(rows, columns=["name", "budget", "choice", "ratios", "p_value"])
    return found.assign(matters=np.array(statistics.holm(list(found["p_value"])), bool))


def estimate_designs(log_ratio: pd.DataFrame) -> pd.DataFrame:
    """The rows of `ratios` of one budget, with `low` and `high` of attention alone over the MLP.

    95% intervals of single designs over label tables and initial weights. Two tables are too few
    for a variance of their own: each design has the mean variance of all.
    """
    noise_C = log_ratio["noise"].dropna()
    # Each design has the variance of TABLES tables, which is TABLES - 1 degrees of freedom.
    freedom = len(noise_C) * (TABLES - 1)
    error = scipy.stats.t.ppf(0.975, freedom) * math.sqrt(noise_C.mean()) if freedom else math.inf
    value_C = log_ratio["attention alone"]
    return log_ratio.assign(low=np.exp(value_C - error), high=np.exp(value_C + error))


def _contrasts(level_C: pd.Series, levels: list[Any]) -> np.ndarray:
    """Columns, one less than levels, whose effects add up to 0."""
    is_level_CxL = level_C.to_numpy()[:, None] == np.array(levels, object)[None]
    return (is_level_CxL[:, :-1].astype(float) - is_level_CxL[:, -1:]).reshape(len(level_C), -1)


def spread(log_ratio: pd.DataFrame) -> tuple[float, float, float]:
    """Standard deviations of attention over MLP, of its logarithm over designs.

    All of it, what label tables and initial weights alone would have it be, and what that leaves
    for designs.
    """
    total = float(log_ratio["attention alone"].var(ddof=1))
    noise = float(log_ratio["noise"].mean())
    return math.sqrt(total), math.sqrt(noise), math.sqrt(max(0.0, total - noise))


def split_budgets(log_ratio: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """The rows of `ratios` of each budget, the least first."""
    budgets = sorted(set(log_ratio["budget"])) if len(log_ratio) else []
    return {budget: log_ratio[log_ratio["budget"] == budget] for budget in budgets}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effects(Drawing):
    """The ratio to the MLP at every level of every choice, a panel for each budget."""

    def draw(self, experiment: Experiment, preset: str, table: pd.DataFrame) -> "Figure":
        """See `Drawing`; pale are choices whose levels may be equal."""
        from matplotlib.ticker import FixedLocator

        by_budget = split_budgets(ratios(table))
        choices = compare_choices(by_budget)
        styles = styles_of(COMPARED)
        n = max(1, len(by_budget))
        figure, (axes,) = subplots(1, n, (2 + 7 * n, 10), sharex=True)
        for axis, (budget, log_ratio) in zip(axes, by_budget.items(), strict=False):
            labels: list[str] = []
            for offset, (name, (_, heads)) in enumerate(COMPARED.items()):
                style = dataclasses.replace(styles[name], is_hollow=bool(heads))
                found = effects(log_ratio, name)
                y = np.arange(len(found)) + 0.22 * (offset - 1)
                single = np.exp(log_ratio[name].dropna())
                axis.plot(single, np.full(len(single), y[0]), "|", color=style.color, alpha=0.5)
                of_name = choices[(choices["name"] == name) & (choices["budget"] == budget)]
                chosen = {found["choice"].iloc[0], *of_name.loc[of_name["matters"], "choice"]}
                middle, matters = found["ratio"], found["choice"].isin(chosen).to_numpy()
                arms = np.stack([middle - found["ratio_low"], found["ratio_high"] - middle])
                for of, alpha in ((matters, 1.0), (~matters, _PALE)):
                    axis.errorbar(
                        middle[of],
                        y[of],
                        xerr=arms[:, of],
                        linestyle="",
                        **style.for_points(),
                        capsize=2,
                        alpha=alpha,
                        label=name if alpha == 1 else None,
                    )
                labels = [_level_name(x) for x in found.itertuples()]
            axis.set_yticks(range(len(labels)), labels, size="small")
            axis.set_xlabel("bits over the MLP's")
            axis.axvline(1, color="black", linewidth=1)
            axis.set_xscale("log")
            # Of these ticks, those among the data.
            axis.xaxis.set_major_locator(FixedLocator(_TICKS))
            axis.xaxis.set_major_formatter("{x:g}")
            axis.minorticks_off()
            axis.set_title(f"{budget:,} parameters")
            axis.invert_yaxis()
        if by_budget:
            figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.suptitle(
            f"{experiment.title}: small ticks are single designs,\n"
            f"pale points are of choices that may not matter (Holm's test of all {len(choices)})"
        )
        return figure

    def answer(self, table: pd.DataFrame) -> str:
        """See `Drawing`: attention over MLP in all designs, at the largest budget."""
        by_budget = split_budgets(ratios(table))
        if not by_budget:
            return ""
        budget = max(by_budget)
        every, wide, both = (effects(by_budget[budget], name).iloc[0] for name in COMPARED)
        return (
            f"At {budget:,} parameters, over {every['designs']} designs, attention alone holds "
            f"{format_ratio(every)} times the bits of the MLP (mean over choices), with wide heads "
            f"{format_ratio(wide)} times, attention + MLP {format_ratio(both)} times."
        )

    def sections(self, table: pd.DataFrame) -> list[str]:
        """See `Drawing`: the ratio in all designs, at each level, and by size of set."""
        all_ratios = ratios(table)
        by_budget = split_budgets(all_ratios)
        found = ["## Over designs"]
        if n_lacking := known_bits(table).groupby(["budget", *CHOICES]).ngroups - len(all_ratios):
            found.append(f"{pluralize(n_lacking, 'design')} left out, of which runs are missing.")
        if by_budget:
            found += [
                tabulate(by_budget),
                "Ratios are means over choices, and in how many designs: where a training failed a "
                "design does not count. The spread (standard deviation over designs) is of "
                "attention alone over the MLP; by chance is what label tables and initial weights "
                "alone would make it, and squares add up.",
            ]
        for budget, log_ratio in by_budget.items():
            found += [f"### {budget:,} parameters", tables.markdown(_format(log_ratio), {})]
        if by_budget:
            found += [
                "Ratios are means of logarithms over the levels of all choices (least squares, as "
                "some designs lack), each family at its best size of set and learning rate, which "
                "one label table chooses for the other: that costs a family "
                "some bits, the more its trainings vary. Intervals (95%) are made of the spread of "
                "designs that the choices, one by one, do not explain. They cover pairs of choices "
                "and label tables, not the shapes, which are those of the board scaled to each "
                "vocabulary, of both whole widths beside a scaled one. *p*: that all levels of a "
                "choice have equal ratios. Under Zipf's law bits are weighted by how often each is "
                f"asked, which grow with the set for ever: sets of {ZIPF_LOAD:g} bits of labels a "
                "parameter count.",
                "### Choices that matter",
                _tell_choices(by_budget),
                "### By size of set",
                _tell_largest(table),
                _tabulate("labels' bits / parameters", {f"{x:g}": ratios(table, x) for x in LOADS}),
                "### By width",
                "What the ratios are if of the two whole widths beside a scaled one only the lower "
                "or only the upper is trained.",
                _tabulate("widths", {x: ratios(table, widths=x) for x in WIDTHS}),
                "### By the tables that choose",
                "What the ratios are if both label tables choose the size of set and the learning "
                "rate at which both count. Where one chooses for the other a family loses bits, "
                "where both do it gains some by chance, the more its trainings vary.",
                _tabulate(
                    "tables",
                    {"one for the other": ratios(table), "both": ratios(table, all_choose=True)},
                ),
                "### Single designs",
                "Attention alone over the MLP in each design, with a 95% interval over label "
                "tables and initial weights, and on each of the two tables. Two are too few for a "
                "variance of their own, so each design has the mean of all of its budget: "
                "intervals are right on average, too wide where trainings vary little and too "
                "narrow where they vary much. – where a training failed.",
                tables.markdown(_format_designs(by_budget), {}),
            ]
        return found


def _level_name(row: Any) -> str:
    """A level in a few words, such as "2 layers"."""
    level = f"{row.level:,}" if isinstance(row.level, int) else str(row.level)
    return f"{CHOICES.get(row.choice, row.choice)} {level}".strip()


def tabulate(by_budget: Mapping[int, pd.DataFrame]) -> str:
    """A Markdown table of the ratios over all designs, and how they spread: a row a budget."""
    rows = []
    for budget, log_ratio in by_budget.items():
        single = np.exp(log_ratio["attention alone"].dropna())
        total, noise, left = map(math.expm1, spread(log_ratio))
        over_mlp = {f"{name} / MLP": effects(log_ratio, name).iloc[0] for name in COMPARED}
        of_sides = {**over_mlp, "attention + MLP / attention alone": _compare_sides(log_ratio)}
        rows.append(
            {"parameters": f"{budget:,}"}
            | {name: f"{format_ratio(row)} in {row['designs']}" for name, row in of_sides.items()}
            | {
                "attention alone is ahead in": f"{(single > 1).sum()} of {len(single)}",
                "lowest to highest": f"{single.min():.2f} to {single.max():.2f}",
                "spread": f"{total:.1%}",
                "by chance": f"{noise:.1%}",
                "left for designs": f"{left:.1%}",
            }
        )
    return tables.markdown(pd.DataFrame(rows), {})


def headline(table: pd.DataFrame) -> str:
    """A sentence on attention and attention + MLP over the MLP, in the designs of each budget."""
    found = {
        widths: [
            [effects(x, name).iloc[0] for name in COMPARED]
            for x in split_budgets(ratios(table, widths=widths)).values()
        ]
        for widths in WIDTHS
    }
    n_designs = [every["designs"] for every, _, _ in found["both"]]
    designs = format_range(n_designs, "d").replace(" to ", "–")
    by_budget = split_budgets(ratios(table))
    budgets = format_range([*by_budget], ",d")
    ratio, both = (format_range([each[i]["ratio"] for each in found["both"]]) for i in (0, 2))
    among = format_range([each["ratio"] for of in found.values() for each, _, _ in of])
    single = np.exp(pd.concat(by_budget.values())["attention alone"].dropna())
    every = (spread(of_budget)[:2] for of_budget in by_budget.values())
    spread_of, chance = (
        format_range([100 * math.expm1(x) for x in each], ".0f").replace(" to ", "–")
        for each in zip(*every, strict=True)
    )
    return (
        f"In {designs} other designs at {budgets} attention alone averages {ratio} times a GELU "
        f"MLP's (other widths {among}; singly {single.min():.2f} to {single.max():.2f}, "
        f"spread {spread_of}%, chance {chance}%), attention + MLP {both}{_tell_lead(by_budget)}."
    )


def _tell_lead(by_budget: Mapping[int, pd.DataFrame]) -> str:
    """At which budgets attention + MLP is ahead of attention alone; "" where at all of them."""
    ahead = [f"{n:,}" for n, of in by_budget.items() if _compare_sides(of)["ratio_low"] > 1]
    if len(ahead) == len(by_budget):
        return ""
    where = f"only at {enumerate_words(ahead)}" if ahead else "nowhere"
    return f", above attention alone {where}"


def _compare_sides(log_ratio: pd.DataFrame) -> Any:
    """Attention + MLP over attention alone in the designs of a budget, a row of `effects`."""
    over = log_ratio["attention + MLP"] - log_ratio["attention alone"]
    return effects(log_ratio.assign(over=over), "over").iloc[0]


def _tell_choices(by_budget: Mapping[int, pd.DataFrame]) -> str:
    """A sentence on how many choices matter among all, and a table of them."""
    found = compare_choices(by_budget)
    rows: list[Any] = found[found["matters"]].to_dict("records")
    shown = [
        {
            "budget": f"{row['budget']:,}",
            "choice": CHOICES[row["choice"]],
            "of": f"{row['name']} / MLP",
            "ratios": row["ratios"],
            "p": f"{row['p_value']:.2g}",
        }
        for row in rows
    ]
    said = (
        f"Of {len(found)} tests ({len(CHOICES)} choices, {pluralize(len(by_budget), 'budget')}, "
        f"{len(COMPARED)} ratios) {len(shown)} find unequal levels after Holm's correction for all."
    )
    return f"{said}\n\n{tables.markdown(pd.DataFrame(shown), {})}" if shown else said


def format_ratio(row: Any) -> str:
    """The ratio of a row of `effects`, with its interval."""
    return tables.interval(row["ratio"], row["ratio_low"], row["ratio_high"], digits=2)


def _format(log_ratio: pd.DataFrame) -> pd.DataFrame:
    found = {name: effects(log_ratio, name) for name in COMPARED}
    rows = found["attention alone"]
    shown = {"": [_level_name(x) for x in rows.itertuples()], "designs": rows["designs"]}
    for name, of in found.items():
        shown[f"{name} / MLP"] = [format_ratio(row) for row in of.to_dict("records")]
        p_values = of["p_value"]
        shown[f"p, {name}"] = ["" if pd.isna(p) else f"{p:.2g}" for p in p_values]
    return pd.DataFrame(shown)


def _tabulate(name: str, parts: Mapping[str, pd.DataFrame]) -> str:
    """A Markdown table with a row for each budget and part of the runs."""
    rows = [
        {"n": budget, "budget": f"{budget:,}", name: part}
        | {"designs (attention alone)": int(log_ratio["attention alone"].count())}
        | {f"{x} / MLP": format_ratio(effects(log_ratio, x).iloc[0]) for x in COMPARED}
        for part, of_part in parts.items()
        for budget, log_ratio in split_budgets(of_part).items()
    ]
    found = pd.DataFrame(rows).sort_values("n", kind="stable", ignore_index=True)
    return tables.markdown(found.drop(columns="n"), {})


def _format_designs(by_budget: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """A row for each design, with the ratio of attention alone to the MLP."""
    return pd.DataFrame(
        {
            "budget": f"{budget:,}",
            **{name: row[column] for column, name in CHOICES.items()},
            "attention alone / MLP": tables.interval(
                math.exp(row["attention alone"]), row["low"], row["high"], digits=2
            ),
            "by table": ", ".join(f"{x:.2f}" for x in row["by_table"]),
        }
        for budget, log_ratio in by_budget.items()
        for row in estimate_designs(log_ratio).to_dict("records")
    )


def _tell_largest(table: pd.DataFrame) -> str:
    """A sentence on the designs in which a side knows most of the largest set that was tried."""
    rows = known_bits(table)
    rows = rows[rows["zipf_exponent"] == EQUAL]
    n_equal = sum(not x.zipf_exponent for x in designs(min(VOCAB_SIZES)))
    largest = rows.groupby(["budget", *CHOICES])["load"].transform("max")
    of = ["budget", *CHOICES, "side", "largest"]
    means = rows.assign(largest=largest).groupby([*of, *_SETTING])["bits_per_parameter"].mean()
    best = means.reset_index().loc[lambda x: x.groupby(of)["bits_per_parameter"].idxmax()]
    at_largest = best[best["load"] == best["largest"]]
    counts = [
        f"at {budget:,} parameters in "
        + enumerate_words(
            f"{((at_largest['budget'] == budget) & (at_largest['side'] == side)).sum()} ({side})"
            for side in (ATTENTION, MLP, BOTH)
        )
        for budget in sorted(set(best["budget"]))
    ]
    sizes = " or ".join(f"{x:g}" for x in sorted(set(largest)))
    return (
        f"The largest set of a design, of {sizes} bits a parameter, is the one of most bits "
        f"{'; '.join(counts)} of the {n_equal} designs of equal frequencies: of larger ones, where "
        "there are so many contexts, each may know more. All of the table is about these designs."
    )


EXPERIMENT = Experiment(
    name="board/design",
    title="Bits over the MLP's in 36 designs",
    presets={
        "quick": functools.partial(runs, (512,)),
        "full": functools.partial(runs, (512, 1024)),
        "large": functools.partial(runs, (512, 1024, 2048)),
    },
    of_full="512 parameters of 512 and 1,024",
    figure=Effects(),
)
