"""The columns of a row: of its spec, its measures, its method and its provenance.

Each is declared where it is produced; here they are put together. Tables, boards, submissions and
checks take the columns from here, and so do readers of shards: `require_whole`.
"""

import collections
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from memobench.common.errors import UserError, require, short_repr
from memobench.core import columns as col
from memobench.core.architecture import Architecture
from memobench.core.cells import OF_RUNS, spec_columns
from memobench.core.columns import Column, by_name, merge
from memobench.core.run import Method
from memobench.core.spec import SPEC_VERSION, Spec, cached_until_new_kind
from memobench.core.task import Task
from memobench.store import measures as extra

STATUSES = ("ok", "diverged")
# The most points of a training curve.
_CURVE = 64
_SHARE = col.float_between(0, 1)
# Losses are divergences or squares; rounding may take them below zero.
LOSS = col.float_between(-1e-5)

MEASURES = by_name(
    Column("accuracy", "share of all examples known in the end", _SHARE, "", 3, "mean"),
    Column("accuracy_protocol", "accuracy as the published code reports it", _SHARE, "", 3, "mean"),
    Column("memorized", "examples known beyond guessing", col.float_between(), "", 0, "mean"),
    Column("bits", "bits memorized of all examples", col.float_between(0), "bits", 1, "mean"),
    Column("loss", "mean over all examples, by their prior", LOSS, "nats", over_seeds="mean"),
)
COUNTS = by_name(
    Column("n_params", "parameters", col.int_between(), over_seeds="same"),
    Column(
        "n_params_memory",
        "parameters but token embeddings and unembedding",
        col.int_between(),
        over_seeds="same",
    ),
    Column(
        "n_params_distinct",
        "parameters less those that products make redundant, no fewer than degrees of freedom",
        col.int_between(),
    ),
    Column(
        "n_params_active", "parameters less those that a token does not meet", col.int_between()
    ),
    Column(
        "degrees_of_freedom",
        "dimensions of the set of functions that the weights can have; none without a formula",
        col.int_between(),
    ),
)
OTHERS = by_name(
    Column("status", "`ok`, or `diverged`: then there are no measures", col.one_of(*STATUSES)),
    Column(
        "weights_digest",
        "SHA-256 of the file of the run's weights; none where they were not kept",
        col.text_matching("[0-9a-f]{64}", "a SHA-256 of 64 hexadecimal digits"),
        in_csv=False,
    ),
    Column(
        "curve_steps",
        "steps of the curve's points",
        col.list_of(col.int_between(1), _CURVE),
        in_csv=False,
    ),
    Column(
        "curve_accuracy",
        "mean accuracy of batches since the last",
        col.list_of(_SHARE, _CURVE),
        in_csv=False,
    ),
    Column(
        "curve_loss",
        "mean loss of batches since the last",
        col.list_of(col.or_null(LOSS), _CURVE),
        "nats",
        in_csv=False,
    ),
)
_VERSION = col.text_matching(r"\d+(\.\d+)+([.+-]?[a-z][a-z0-9.+-]*)?", "a version such as 0.1.0")
PROVENANCE = by_name(
    Column("spec_version", "version of specs and their ids", col.int_between(1, SPEC_VERSION)),
    Column("memobench", "version of memobench", _VERSION),
    Column("jax", "version of JAX", _VERSION),
    Column("jaxlib", "version of jaxlib", _VERSION),
    Column(
        "commit",
        "commit of the code, with + where files differed from it",
        col.text_matching(r"[0-9a-f]{7,40}\+?", "a commit of 7 to 40 hexadecimal digits"),
    ),
    Column("platform", "of the device", col.one_of("cpu", "gpu", "tpu")),
    Column(
        "device", "that trained the run; if several did in turn, all of them", col.text_of(1000)
    ),
    Column(
        "instruction_set",
        "widest instructions that XLA may use on a CPU",
        col.text_matching(
            r"SSE4_2|AVX2?|AVX512(_VNNI|_BF16)?|AMX(_FP16)?|[a-z]+_?64\w*",
            "an instruction set such as AVX2 or a kind of machine such as arm64",
        ),
    ),
    Column("n_devices", "that shared the pack", col.int_between(1, 2**20)),
    Column(
        "date",
        "when the shard was written",
        col.text_matching(
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00",
            "a UTC date such as 2026-01-31T12:00:00+00:00",
        ),
    ),
    Column("pack_size", "runs trained together", col.int_between(1, 2**20)),
    Column("compile_seconds", "of the pack", col.float_between(0, 1e9), "s", 1),
    Column("run_seconds", "of the pack", col.float_between(0, 1e9), "s", 1),
)
# Missing without a git checkout, on a GPU, or in shards written before the column was recorded.
OPTIONAL_PROVENANCE = ("commit", "instruction_set", "n_devices")
# The columns that `seeds.add_theory` adds to those of rows, and all that tables have beside these.
OF_THEORY = ("promised", "load", "proven_ratio", "t_eps", "floor", "certified_floor")
FAMILY = "family"
ADDED = (*OF_THEORY, FAMILY, "seeds", "diverged")
# Columns that must have a value in every row, and columns that must be present, even if empty.
_REQUIRED = (*OF_RUNS, "task_seed", "status", "n_examples", "n_params", "n_params_memory")
_PRESENT = (*_REQUIRED, *Task.shared_columns, *Architecture.shared_columns, *MEASURES)


@cached_until_new_kind
def measures() -> dict[str, Column]:
    """The measures of runs: those that all tasks may have, then those of a user's own."""
    own = {name: each.column for name, each in extra.registered_measures().items()}
    return _unite(MEASURES, own)


def averaged_own_measures() -> list[str]:
    """A user's own measures that have means over seeds."""
    columns = extra.registered_measures().items()
    return [name for name, each in columns if each.column.over_seeds == "mean"]


@cached_until_new_kind
def method_columns() -> dict[str, dict[str, Column]]:
    """The columns that only rows of one method have, by the method's name."""
    return {name: kind.columns_of_rows() for name, kind in Method.kinds().items()}


@cached_until_new_kind
def row_columns() -> dict[str, Column]:
    """Every column of a row except its provenance, in the order of the table."""
    groups = (spec_columns(), COUNTS, measures(), OTHERS, *method_columns().values())
    return _unite(*groups)


@cached_until_new_kind
def all_columns() -> dict[str, Column]:
    """Every column of the results table.

    Raises:
      UserError: two columns have the same name: a measure, say, and a field of a spec.
    """
    return _unite(row_columns(), PROVENANCE)


def require_whole(rows: Sequence[Any], provenance: Any) -> None:
    """Raises UserError unless these may be the rows and the provenance of a shard.

    Columns that this version does not know, as those of other people's kinds, are not checked.
    """
    require(isinstance(rows, list | tuple), "rows are missing")
    require(isinstance(provenance, Mapping), "provenance is missing")
    known = row_columns()
    places: dict[str, int] = {}
    for i, row in enumerate(rows, start=1):
        require(isinstance(row, Mapping), f"row {i} is not an object")
        for name in _PRESENT:
            if name not in row or (row[name] is None and name in _REQUIRED):
                raise UserError(f"row {i} lacks {name}")
        _require_domains(f"row {i}", row, known)
        first = places.setdefault(row["run_id"], i)
        require(first == i, f"row {i} is of the same run as row {first}")
    _require_apart(rows, provenance)
    for name in PROVENANCE:
        lacks = provenance.get(name) is None and name not in OPTIONAL_PROVENANCE
        require(not lacks, f"its provenance lacks {name}")
    _require_domains("its provenance", provenance, PROVENANCE)


def _require_apart(rows: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any]) -> None:
    """Raises UserError where the provenance has a column that is not its own: one of rows, say.

    A row of the table holds both, so one would be taken for the other.
    """
    for name in provenance.keys() - PROVENANCE:
        raise UserError(
            f"its provenance has {short_repr(name)}, which is not a column of provenance"
        )
    for name in set(itertools.chain(*rows)) & PROVENANCE.keys():
        raise UserError(f"its rows have {name}, a column of provenance")


def _require_domains(place: str, cells: Mapping[str, Any], known: Mapping[str, Column]) -> None:
    for name, value in cells.items():
        if value is not None and name in known and not known[name].domain.holds(value):
            if name in spec_columns() and not _is_of_known_kinds(cells):
                continue
            raise UserError(
                f"{place} has {name}={short_repr(value)}, not {known[name].domain.description}"
            )


def _is_of_known_kinds(cells: Mapping[str, Any]) -> bool:
    """True unless a row names a kind that nobody loaded, or one that has other code now.

    The fields of such a kind may hold other values than those of a kind that is loaded.
    """
    for noun, family in Spec.families.items():
        if cells.get(noun) is None:
            continue
        kind: Any = family.kinds().get(cells[noun])
        if kind is None or getattr(kind, "code", None) != cells.get(f"{noun}_code"):
            return False
    return True


def _unite(*groups: dict[str, Column]) -> dict[str, Column]:
    counts = collections.Counter(name for group in groups for name in group)
    for name, count in counts.items():
        if count > 1 or name in ADDED:
            # A session in which it is renamed goes on.
            extra.forget(name)
            raise UserError(f"two columns are named {name!r}; rename yours")
    return {name: column for group in groups for name, column in group.items()}


@cached_until_new_kind
def configuration() -> list[str]:
    """The columns that are equal for repetitions of a run: all but the seeds of run and task."""
    columns = {**spec_columns(), **COUNTS}
    return [name for name, column in columns.items() if column.over_seeds == "same"]


@cached_until_new_kind
def task_columns() -> list[str]:
    """The columns that tell tasks apart, except the seed of their instance."""
    return _same_columns(Task)


def parse_list(cell: Any) -> Any:
    """A list, or the text of one as published tables have it."""
    return json.loads(cell) if isinstance(cell, str) else cell


@cached_until_new_kind
def architecture_columns() -> list[str]:
    """The columns that tell architectures apart."""
    return _same_columns(Architecture)


def _same_columns(family: type[Task] | type[Architecture]) -> list[str]:
    kinds = (kind.columns() for kind in family.kinds().values())
    columns = merge(family.shared_columns, *kinds)
    same = (name for name, column in columns.items() if column.over_seeds == "same")
    return [family.noun, *same]


@cached_until_new_kind
def digits() -> dict[str, int]:
    """The digits that pages show of numbers, of their means and of half their intervals."""
    found = {name: x.digits for name, x in all_columns().items() if x.digits is not None}
    return found | {f"{name}_interval": number for name, number in found.items()}


def lists() -> list[str]:
    """Columns that a spreadsheet cannot use."""
    return [name for name, column in all_columns().items() if not column.in_csv]
