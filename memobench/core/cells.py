"""The columns of a run: a spec as the cells of a row, and the spec of such cells."""

from collections.abc import Iterable, Mapping
from typing import Any

from memobench.common.errors import UserError, require, short_repr
from memobench.core import columns as col
from memobench.core import spec
from memobench.core.architecture import Architecture
from memobench.core.columns import Column, by_name, is_empty, merge
from memobench.core.run import SEED, Method, Run
from memobench.core.spec import cached_until_new_kind
from memobench.core.task import Task


def check_code(runs: Iterable[Run]) -> None:
    """Raises UnknownKind where a spec of a run is of other code than its kind has here, by now."""
    spec.check_code(x for run in runs for x in run.specs)


# Columns of every run beside those of its task, architecture and method.
OF_RUNS = by_name(
    Column(
        "run_id", "id of the run", col.text_matching("[0-9a-f]{16}", "a run id of 16 hex digits")
    ),
    Column("task", "what is to be memorized", col.NAME, over_seeds="same"),
    Column("architecture", "who memorizes", col.NAME, over_seeds="same"),
    Column("method", "how the weights come about", col.NAME, over_seeds="same"),
    Column("protocol", "whose rules the method follows", col.NAME, over_seeds="same"),
    Column("steps", "optimiser steps of one model", col.int_between(1), over_seeds="same"),
    Column("seed", "seed of initial weights and shuffles", SEED, over_seeds="seed"),
)
# What follows from the other columns may be missing.
_DERIVED = ("run_id", "n_examples", "steps", "protocol")


@cached_until_new_kind
def spec_columns() -> dict[str, Column]:
    """Every column that a spec of a known kind has, by name, in the order of the table."""
    found = {"run_id": OF_RUNS["run_id"]}
    # The owner of each column, in words.
    owners = dict.fromkeys(OF_RUNS.keys() - _OF_METHODS, "all runs")
    for family in (Task, Architecture, Method):
        others = dict(owners)
        found[family.noun] = OF_RUNS[family.noun]
        found |= family.shared_columns
        owners |= dict.fromkeys(family.shared_columns, f"every {family.noun}")
        for name_of_kind, kind in family.kinds().items():
            columns = kind.columns()
            for name in columns:
                mine = f"the {family.noun} {name_of_kind!r}"
                owners.setdefault(name, mine)
                # A row has one cell of a name.
                require(
                    name not in others,
                    f"{name} is a column of {others.get(name)} and of {mine}; rename your field, "
                    "or give it column='another_name'",
                )
            # A value that one kind refuses another may have.
            found = merge(found, columns)
    return found | OF_RUNS


# Columns of every run that some methods have as fields.
_OF_METHODS = {"protocol", "steps"}


def cells(run: Run) -> dict[str, Any]:
    """The spec as the flat columns of the results table; what does not apply is None."""
    return {
        **dict.fromkeys(spec_columns()),
        "run_id": run.run_id,
        "task": run.task.name,
        **run.task.shared_cells(),
        **run.task.cells(),
        "architecture": run.architecture.name,
        **run.architecture.shared_cells(),
        **run.architecture.cells(),
        "method": run.method.canonical()["name"],
        **run.method.cells(),
        "protocol": run.method.protocol,
        "steps": run.method.steps,
        "seed": run.seed,
    }


def from_cells(row: Mapping[str, Any]) -> Run:
    """The run of which `cells` makes this row; other columns are ignored.

    Missing columns count as None. Numbers may have come through JSON or a table, where 2.0 stands
    for 2 and NaN for None. Nothing in a row is trusted: rows come from files that others wrote.

    Raises:
      UserError: no run has such columns; the line names the first that is wrong.

    >>> from memobench.models.transformer import MLP
    >>> from memobench.tasks.associations import Associations
    >>> run = Run(task=Associations(), architecture=MLP(d_model=4, d_head=4, d_mlp=8))
    >>> from_cells(cells(run)) == run
    True
    """
    row = {name: None if is_empty(value) else value for name, value in row.items()}
    run = Run(
        task=Task.from_row(row),
        architecture=Architecture.from_row(row),
        method=Method.from_row(row),
        seed=SEED.read(row.get("seed")),
    )
    known = spec_columns()
    # The id last: that it is another one does not say why.
    for name, value in sorted(cells(run).items(), key=lambda x: x[0] == "run_id"):
        given = row.get(name)
        if given is None and (name in _DERIVED or value is None):
            continue
        # Texts have one spelling; of numbers tables may have made others.
        read = (lambda x: x) if isinstance(given, str) else known[name].domain.read
        found, expected = (None if x is None else col.to_tuple(read(x)) for x in (given, value))
        # True equals 1, but is not a number.
        if found != expected or isinstance(found, bool) != isinstance(expected, bool):
            raise UserError(
                f"{name}={short_repr(row.get(name))} is not that of such a run, "
                f"{short_repr(value)}; all columns of a row must be those of one run"
            )
    return run
