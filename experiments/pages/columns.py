"""The page of all columns of the results table, from their declarations.

`python -m memobench.experiments.pages.columns` prints it; `make docs` writes it to docs/columns.md.
"""

from collections.abc import Mapping

import pandas as pd

from memobench.core.architecture import Architecture
from memobench.core.cells import OF_RUNS
from memobench.core.columns import Column
from memobench.core.run import Method
from memobench.core.spec import Spec
from memobench.core.task import Task
from memobench.report import tables
from memobench.store import measures, rows

INTRODUCTION = """\
# Columns

A run is a row of the results table, and this is what its columns say. Each is declared once, where
it is produced: fields of specs beside their kind in `memobench/tasks`, `memobench/models` and
`memobench/methods`, measures in `memobench/store/rows.py` and by `measure` of
`memobench/store/measures.py`.

*Over seeds*: `same` for what tells configurations apart, of which runs that agree in all are
repetitions of each other; `seed` for what tells repetitions apart; `mean` for what is averaged over
them; nothing for all else. A column that does not apply to a run is empty.

Written by `make docs`; never edited by hand.
"""


# What declares columns, and these.
_Declared = list[tuple[str, Mapping[str, Column]]]


def page() -> str:
    """The page as Markdown."""
    sections: dict[str, _Declared] = {
        "Every run": [("all", OF_RUNS)],
        "Tasks": _family_columns(Task),
        "Architectures": _family_columns(Architecture),
        "Methods": _family_columns(Method),
        "Parameters": [("all", rows.COUNTS)],
        "Measures": _measure_columns(),
        "Status and curves": [("all", rows.OTHERS)],
        "What methods say of their runs": list(rows.method_columns().items()),
        "Provenance": [("all", rows.PROVENANCE)],
    }
    parts = [INTRODUCTION]
    for title, declared in sections.items():
        parts += [f"## {title}\n", tables.markdown(_table(declared), {}), ""]
    return "\n".join(parts)


def _family_columns(family: type[Task] | type[Architecture] | type[Method]) -> _Declared:
    shared = family.shared_columns
    kinds: Mapping[str, type[Spec]] = family.kinds()
    own = ((name, kind.columns()) for name, kind in sorted(kinds.items()))
    # What rows of all kinds have is said once.
    return [
        ("all", shared),
        *((name, {x: y for x, y in of_kind.items() if x not in shared}) for name, of_kind in own),
    ]


def _measure_columns() -> _Declared:
    own = [
        (", ".join(task.name for task in each.tasks), {name: each.column})
        for name, each in measures.registered_measures().items()
    ]
    return [("all to which it applies", rows.MEASURES), *own]


def _table(declared: _Declared) -> pd.DataFrame:
    """A row for each declaration, with the kinds that share it."""
    applies: dict[tuple[str, ...], list[str]] = {}
    for kind, columns in declared:
        for column in columns.values():
            over = "" if column.over_seeds == "none" else column.over_seeds
            values = column.domain.description
            shown = (column.name, column.unit, column.meaning, values, over)
            applies.setdefault(shown, []).append(kind)
    names = ["column", "unit", "what it is", "values", "over seeds"]
    table = pd.DataFrame(list(applies), columns=names)
    table["of"] = [", ".join(kinds) for kinds in applies.values()]
    return table.sort_values("column", kind="stable", ignore_index=True)


if __name__ == "__main__":
    print(page(), end="")
