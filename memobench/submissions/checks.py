"""What is checked of a row that somebody submits: its columns, and that they are one run's.

Whatever can be derived again is: the run and its id, the number of parameters, one measure from
another, all that a search found from its trials. JAX is imported to count parameters, no sooner.
"""

import contextlib
import datetime
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from memobench import capacity, rows
from memobench.capacity import Proposal, Trial
from memobench.columns import Column, Kind, or_null, require, shown, whole
from memobench.columns import real as number
from memobench.errors import UserError
from memobench.methods.search import Search
from memobench.runs import Run, from_cells, spec_columns

# Float32 arithmetic stands behind some measures; the others are written as they were.
MEASURED = 1e-4
REPEATED = 1e-6
FIRST_YEAR = 2025
# Beyond it even counting parameters takes seconds.
MAX_CELLS = 2**22


@contextlib.contextmanager
def within(place: str) -> Iterator[None]:
    """Mistakes inside are told with their place."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{place}: {error}") from error


def check_kind(name: str, kind: Kind, value: Any) -> None:
    require(
        kind.holds(value), f"{name}={shown(value)} is not {kind.told}; give {name} such a value"
    )


def _kinds(columns: Mapping[str, Column]) -> dict[str, Kind]:
    return {name: column.kind for name, column in columns.items()}


SPEC_COLUMNS = _kinds(spec_columns())
# A picture is too large for what it tells.
_LEFT_OUT = ("largest_attention",)
METHOD_COLUMNS = {
    method: {name: kind for name, kind in _kinds(columns).items() if name not in _LEFT_OUT}
    for method, columns in rows.method_columns().items()
}
PROVENANCE_COLUMNS = {
    name: kind for name, kind in _kinds(rows.PROVENANCE).items() if name != "n_devices"
}
# No checkout of git, no commit; a GPU, or a shard from before it was recorded, no instruction set.
OPTIONAL_PROVENANCE = ("commit", "instruction_set")
COLUMNS: dict[str, Kind] = {
    name: kind
    for name, kind in (_kinds(rows.row_columns()) | PROVENANCE_COLUMNS).items()
    if name not in _LEFT_OUT
}
REQUIRED = (
    *("run_id", "task", "n_examples", "architecture", "method", "protocol", "steps"),
    *("n_params", "n_params_memory", "n_params_distinct", "status"),
    *(name for name in PROVENANCE_COLUMNS if name not in OPTIONAL_PROVENANCE),
)


def checked_row(row: Any) -> dict[str, Any]:
    require(isinstance(row, dict), f"{shown(row)} is no object of columns; make it one")
    for name, value in row.items():
        require(name in COLUMNS, f"the column {shown(name)} is unknown; leave it out")
        if value is not None:
            check_kind(name, COLUMNS[name], value)
    row = {name: row.get(name) for name in COLUMNS}
    for name in REQUIRED:
        require(row[name] is not None, f"{name} is missing; put it in")
    run = from_cells(row)
    check_date(row["date"])
    for check in CONSISTENCY:
        check(run, row)
    return row


class Unchecked(UserError):
    """A model of which nothing can be derived here: it may be right nevertheless."""


def _check_model(run: Run, row: Mapping[str, Any]) -> None:
    """The run could be made, and its model has as many parameters as it says."""
    from memobench import constructions
    from memobench.models import base as models

    length = run.task.context_length
    module = run.module()
    if module.cells_to_trace(length) > MAX_CELLS:
        raise Unchecked(
            f"context_length={length} is too long for such a model to be checked; lower it"
        )
    run.method.check_module(module)
    constructions.check(run)
    n_params, n_params_memory = models.count_parameters(module, length)
    counts = {
        "n_params": n_params,
        "n_params_memory": n_params_memory,
        "n_params_distinct": models.count_distinct(module, length),
    }
    # Rows that are no submissions may be older than a count.
    _check_derived(row, {name: x for name, x in counts.items() if row[name] is not None}, 0)


def check_date(text: str) -> None:
    try:
        date = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError(f"date={text!r} is no date ({error}); mend it") from error
    latest = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    require(
        date.year >= FIRST_YEAR and date <= latest,
        f"date={text!r} is before {FIRST_YEAR} or in the future; mend it",
    )


def _check_derived(row: Mapping[str, Any], derived: Mapping[str, Any], within: float) -> None:
    """What the row says is what follows from its other columns."""
    for name, value in derived.items():
        if not agree(row[name], value, within):
            raise UserError(
                f"{name}={shown(row[name])} but {shown(value)} follows from the other columns; "
                "mend the one that is wrong"
            )


def agree(a: Any, b: Any, within: float, zero: float = 0.0) -> bool:
    """Whether two JSON values are the same, numbers up to a share, or `zero` where they cancel."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(
            agree(x, y, within, zero) for x, y in zip(a, b, strict=True)
        )
    if {type(a), type(b)} <= {int, float}:
        return math.isclose(a, b, rel_tol=within, abs_tol=zero)
    return type(a) is type(b) and a == b


def _check_measures(run: Run, row: Mapping[str, Any]) -> None:
    """The measures are those of such a task, and consistent with each other."""
    from memobench import metrics

    task, accuracy = run.task, row["accuracy"]
    n_examples, n_answers = task.n_predicted, task.n_choices
    known = () if row["status"] == "diverged" else task.measures
    for name in rows.MEASURES:
        require(
            (row[name] is not None) == (name in known),
            f"{name}={shown(row[name])} with status={row['status']!r}; such runs have "
            f"{', '.join(known) or 'no measures'}",
        )
    if "bits" in known:
        bits = float(metrics.memorized_bits(row["loss"], n_examples, n_answers))
        require(
            agree(row["bits"], bits, MEASURED, REPEATED * n_examples),
            f"bits={row['bits']} but {bits:.6g} follows from loss; mend the one that is wrong",
        )
    if "accuracy" not in known:
        return
    if task.counts_examples:
        _check_count("accuracy", accuracy, n_examples)
    if "memorized" in known:
        memorized = metrics.chance_corrected(accuracy, n_examples, task.chance)
        require(
            agree(row["memorized"], memorized, MEASURED, REPEATED * n_examples),
            f"memorized={row['memorized']} but {memorized:.6g} follows from accuracy; "
            "mend the one that is wrong",
        )
    # The accuracy of a search is that of its best check, its loss that of final weights.
    if run.method.accuracy_of_final_weights:
        _check_loss(row["loss"], accuracy, task.least_loss_unknown)
    if not run.method.has_curve:
        _check_derived(row, {"accuracy_protocol": accuracy}, REPEATED)


def _check_count(name: str, share: float, n_examples: int) -> None:
    count = share * n_examples
    require(
        abs(count - round(count)) <= max(1e-3, REPEATED * n_examples),
        f"{name}={share} of {n_examples} is no whole number of examples; mend {name}",
    )


def _check_loss(loss: float, accuracy: float, least: float) -> None:
    require(
        loss >= (1 - accuracy) * least * (1 - 1e-3) - REPEATED,
        f"loss={loss} is too small for an accuracy of {accuracy}: an example that is not known "
        f"costs {least:.3g} at least; mend the one that is wrong",
    )


def _check_curve(run: Run, row: Mapping[str, Any]) -> None:
    steps = row["curve_steps"]
    curves = [row[name] for name in ("curve_accuracy", "curve_loss") if row[name] is not None]
    if steps is None:
        require(not curves, "curve_steps is missing; put it in")
        return
    # Optima, constructions and searches have a single point; annealed runs may end early.
    last = run.method.steps if run.method.has_curve else 1
    require(
        steps
        and all(a < b for a, b in itertools.pairwise(steps))
        and (steps[-1] <= run.method.steps if run.method.queues else steps[-1] == last)
        and all(len(curve) == len(steps) for curve in curves),
        f"curve_steps={shown(steps)} do not rise to the last step, or other curves have other "
        "lengths; mend the one that is wrong",
    )
    if not (run.method.has_curve or run.method.queues):
        measured = {"curve_accuracy": row["accuracy"], "curve_loss": row["loss"]}
        given = {name: [x] for name, x in measured.items() if x is not None and row[name]}
        _check_derived(row, given, REPEATED)


def _check_method(run: Run, row: Mapping[str, Any]) -> None:
    """What runs of its method say beside their measures, and that it says nothing else."""
    method = run.method.row_name
    for other, kinds in METHOD_COLUMNS.items():
        for name in kinds:
            if other != method and row[name] is not None:
                raise UserError(
                    f"{name}={shown(row[name])} is of {other} runs and this one is {method}; "
                    f"leave {name} out"
                )
    checks: dict[str, Callable[[Run, Mapping[str, Any]], None]] = {
        "searched": _check_search,
        "annealed": _check_annealed,
        "optimised": _check_optimum,
        "constructed": _check_construction,
    }
    if method in checks:
        checks[method](run, row)


def _check_annealed(run: Run, row: Mapping[str, Any]) -> None:
    stopped, best, heads = row["stopped_at"], row["best_step"], row["n_heads"]
    if stopped is not None:
        require(
            stopped <= run.method.steps and (best is None or best <= stopped),
            f"stopped_at={stopped}, best_step={best}: not within {run.method.steps} steps; "
            "mend the one that is wrong",
        )
    by_head, serving = row["saturated_by_head"], row["examples_by_serving_heads"]
    if by_head is None or serving is None or row["saturated"] is None:
        return
    pairs = run.task.n_examples * heads
    require(
        len(by_head) == heads
        and len(serving) == heads + 1
        and sum(serving) == run.task.n_examples
        and agree(row["saturated"], sum(by_head) / heads, MEASURED, REPEATED)
        and agree(
            row["saturated"],
            1 - sum(k * count for k, count in enumerate(serving)) / pairs,
            MEASURED,
            REPEATED,
        ),
        "saturated, saturated_by_head and examples_by_serving_heads do not agree; "
        "mend the one that is wrong",
    )


def _check_optimum(run: Run, row: Mapping[str, Any]) -> None:
    losses = row["start_losses"]
    if losses and row["loss"] is not None:
        _check_derived(row, {"loss": losses[0]}, REPEATED)


def _check_construction(run: Run, row: Mapping[str, Any]) -> None:
    from memobench import constructions
    from memobench.constructions import precision

    derived = {
        "stored_bits": precision.BITS_PER_WEIGHT[row["weights"]],
        "promises": constructions.promises(run),
    }
    # Who aims at all examples, equally often, says accuracy and loss twice.
    if row["n_aimed"] is None and run.task.is_even and row["accuracy"] is not None:
        derived |= {"aimed_accuracy": row["accuracy"], "aimed_loss": row["loss"]}
    # Where there are no weights there is no certificate.
    told = {name: x for name, x in derived.items() if row["status"] == "ok"}
    _check_derived(row, told, REPEATED)


def _check_search(run: Run, row: Mapping[str, Any]) -> None:
    """The trials are those that such a search makes, and all else follows from them."""
    method: Any = run.method
    n_examples = run.task.n_examples
    require(row["trials"], "trials are missing; put them in")
    trials = [_trial(run, i, values) for i, values in enumerate(row["trials"])]
    _replay(method, n_examples, trials)
    _check_derived(row, capacity.columns(n_examples, trials, run.task.n_choices or 2), REPEATED)
    accuracy, loss = capacity.best_of_whole(trials, n_examples)
    if not math.isfinite(loss):
        require(row["status"] == "diverged", "status='ok' but no trial of all examples has a loss")
        return
    _check_derived(row, {"status": "ok", "accuracy": accuracy, "loss": loss}, REPEATED)


_TRIAL = (whole(1), whole(1), number(0), whole(0), whole(0), or_null(rows.LOSS))


def _trial(run: Run, number: int, values: Any) -> Trial:
    """A trial from its list, whose counts can be those of such a run."""
    with within(f"trials[{number}]={shown(values)}"):
        require(
            isinstance(values, list)
            and len(values) == 6
            and all(kind.holds(x) for kind, x in zip(_TRIAL, values, strict=True)),
            "is not [steps, n_examples, factor, known, last_known, loss]; mend it",
        )
        trial = Trial(*values)
        require(
            trial.last_known <= trial.known <= trial.n_examples,
            "knows more examples than there are, or in the end more than ever; mend it",
        )
        require(
            run.method.protocol == "exact" or trial.known == trial.last_known,
            "knew more than in the end, which only the exact protocol sees; mend it",
        )
        if trial.loss is None:
            require(trial.last_known == 0, "has no loss and knows something; mend it")
            return trial._replace(loss=math.nan)
        _check_loss(trial.loss, trial.last_known / trial.n_examples, math.log(2))
        return trial


def _replay(search: Search, n_examples: int, trials: Sequence[Trial]) -> None:
    """Proposes the trials of a search again, each round from the outcomes of those before."""
    made: list[Trial] = []
    while proposals := capacity.next_trials(search, n_examples, made):
        made += _round(proposals, trials[len(made) :])
    require(
        len(made) == len(trials),
        f"trials: the search was done after {len(made)} of {len(trials)}; leave the others out",
    )


def _round(proposals: Sequence[Proposal], left: Sequence[Trial]) -> list[Trial]:
    """The trials of a round; one proposed twice that ended alike is kept once."""
    made: list[Trial] = []
    known: set[tuple] = set()
    for proposal in proposals:
        if len(made) < len(left) and left[len(made)][:3] == proposal:
            made.append(left[len(made)])
            known.add(proposal)
        elif proposal not in known:
            steps, size, factor = proposal
            raise UserError(
                f"trials: the search would have tried {size} examples for {steps} steps, rates "
                f"times {factor:g}, and did not; submit searches as they came out"
            )
    return made


# Each compares a run and its row, which has all of COLUMNS, and raises UserError.
CONSISTENCY: tuple[Callable[[Run, Mapping[str, Any]], None], ...] = (
    _check_model,
    _check_measures,
    _check_curve,
    _check_method,
)
