"""Checks of a row: whether its columns are those of one run.

Whatever can be derived is derived again: the run and its id, the number of parameters, one measure
from another, all that a method says about its runs.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from memobench import metrics
from memobench.columns import require, shown
from memobench.errors import UserError, name_place
from memobench.runs import Run
from memobench.table import curves, measures, rows
from memobench.table.consistency import (
    MEASURED,
    REPEATED,
    Row,
    agree,
    check_derived,
    check_loss,
)

# The precision of means over steps in float32.
_OF_STEPS = 1e-5
# With more cells to trace, even counting parameters takes seconds.
MAX_CELLS = 2**22


class Unchecked(UserError):
    """A model about which nothing can be derived here; its row may still be right."""


def _check_model(run: Run, row: Row) -> None:
    """Raises UserError unless the run can be made and its model has the row's parameter counts."""
    from memobench.models import base as models

    length = run.task.context_length
    module = run.module()
    if models.cells_to_trace(module, length) > MAX_CELLS:
        raise Unchecked(
            f"context_length={length} is too long for this model to be checked; lower it"
        )
    run.method.check_model(run)
    counts = models.counts(module, length)
    # Rows may be older than a column of counts.
    check_derived(row, {name: x for name, x in counts.items() if row[name] is not None}, 0)


def _check_measures(run: Run, row: Row) -> None:
    """Raises UserError unless the measures are the task's and consistent with each other."""
    task, accuracy = run.task, row["accuracy"]
    known = () if row["status"] == "diverged" else task.measures
    for name in rows.MEASURES:
        require(
            (row[name] is not None) == (name in known),
            f"{name}={shown(row[name])} with status={row['status']!r}; such runs have "
            f"{', '.join(known) or 'no measures'}",
        )
    _check_own_measures(run, row)
    if "bits" in known:
        bits = metrics.memorized_bits(row["loss"], task.n_predicted, task.n_choices)
        require(
            agree(row["bits"], float(bits), MEASURED, REPEATED * task.n_predicted),
            f"bits={row['bits']} but {bits:.6g} follows from loss; fix the one that is wrong",
        )
    if "accuracy" not in known:
        return
    if task.counts_examples:
        _check_count("accuracy", accuracy, task.n_predicted * run.method.averaged)
    if "memorized" in known:
        memorized = metrics.chance_corrected(accuracy, task.n_predicted, task.chance)
        require(
            agree(row["memorized"], memorized, MEASURED, REPEATED * task.n_predicted),
            f"memorized={row['memorized']} but {memorized:.6g} follows from accuracy; "
            "fix the one that is wrong",
        )
    # The accuracy of a search is the best that it saw, its loss is that of the final weights.
    if run.method.accuracy_of_final_weights:
        check_loss(row["loss"], accuracy, task.least_loss_unknown)
    reported = row["accuracy_protocol"]
    if not run.method.has_curve:
        check_derived(row, {"accuracy_protocol": accuracy}, REPEATED)
    elif (answers := _answers_per_step(run)) and reported is not None:
        answers *= len(curves.reported(run.method.steps))
        _check_count("accuracy_protocol", reported, answers, _OF_STEPS)


def _check_own_measures(run: Run, row: Row) -> None:
    """Raises UserError where a row has a user's own measure that its task does not have."""
    for name in measures.registered():
        if row[name] is not None:
            own = name in measures.of(run.task) and row["status"] == "ok"
            cell = f"{name}={shown(row[name])} of task={run.task.name!r} with status="
            require(own, f"{cell}{row['status']!r}, which has no such measure; leave {name} out")


def _check_count(name: str, share: float, n_answers: int, within: float = REPEATED) -> None:
    count = share * n_answers
    require(
        abs(count - round(count)) <= max(1e-3, within * n_answers),
        f"{name}={share} of {n_answers} is not a whole number of answers; fix {name}",
    )


def _check_curve(run: Run, row: Row) -> None:
    steps = row["curve_steps"]
    points = [row[name] for name in ("curve_accuracy", "curve_loss") if row[name] is not None]
    if steps is None:
        require(not points, "curve_steps is missing; put it in")
        return
    # Optima, constructions and searches have a single point; annealed runs may end early.
    last = run.method.steps if run.method.has_curve else 1
    require(
        steps
        and all(a < b for a, b in itertools.pairwise(steps))
        and (steps[-1] <= run.method.steps if run.method.cost(run).queues else steps[-1] == last)
        and all(len(curve) == len(steps) for curve in points),
        f"curve_steps={shown(steps)} do not rise to the last step, or other curves have other "
        "lengths; fix the one that is wrong",
    )
    if run.method.has_curve:
        _check_points(run, row)
    elif not run.method.cost(run).queues:
        measured = {"curve_accuracy": row["accuracy"], "curve_loss": row["loss"]}
        given = {name: [x] for name, x in measured.items() if x is not None and row[name]}
        check_derived(row, given, REPEATED)


def _check_points(run: Run, row: Row) -> None:
    """Raises UserError unless points can be means of batches and allow the reported accuracy."""
    task, accuracies = run.task, row["curve_accuracy"]
    if "accuracy" not in task.measures or accuracies is None:
        return
    spans = curves.spans(row["curve_steps"])
    answers = _answers_per_step(run)
    for span, accuracy in zip(spans, accuracies, strict=True):
        if answers:
            _check_count("curve_accuracy", accuracy, answers * len(span), _OF_STEPS)
    for accuracy, loss in zip(accuracies, row["curve_loss"] or (), strict=False):
        if loss is not None:
            with name_place("curve_loss"):
                check_loss(loss, accuracy, task.least_loss_unknown)
    reported = row["accuracy_protocol"]
    if reported is None:
        return
    least, most = curves.bounds(row["curve_steps"], accuracies)
    require(
        least - MEASURED <= reported <= most + MEASURED,
        f"accuracy_protocol={reported} but curve_accuracy allows {least:.6g} to {most:.6g}; fix "
        "the one that is wrong",
    )


def _answers_per_step(run: Run) -> int | None:
    """How many equally weighted answers a step's accuracy averages; None where weights differ."""
    task, n_examples = run.task, run.method.batch_size
    if n_examples is None:
        return task.n_predicted if task.counts_examples else None
    return n_examples * task.n_predicted // task.n_examples


def _check_method(run: Run, row: Row) -> None:
    """Raises UserError for wrong columns of the run's method, or any of another method."""
    mine = run.method.columns_of_rows()
    for other, of_other in rows.method_columns().items():
        for name in of_other:
            if name not in mine and row.get(name) is not None:
                raise UserError(
                    f"{name}={shown(row[name])} is of {other} runs and this one is "
                    f"{run.method.row_name}; leave {name} out"
                )
    run.method.check_row(run, row)


# Each compares a run and its row, which has all columns, and raises UserError.
CONSISTENCY: tuple[Callable[[Run, Mapping[str, Any]], None], ...] = (
    _check_model,
    _check_measures,
    _check_curve,
    _check_method,
)
