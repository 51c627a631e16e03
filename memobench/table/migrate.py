"""Results of earlier versions, rewritten as this version writes them.

Shards without a digest get one. Version 1 of the specs had one class for all tasks and one for all
architectures. An empty field meant a default, some fields meant nothing to some kinds, and
annealing was a protocol of `trained`. Ids and spec columns change; what was measured stays as it
is.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

from memobench.common import strict_json
from memobench.common.errors import UserError, in_a_line, printable, reason, require, shown
from memobench.constructions.base import Construction
from memobench.core.architecture import Architecture
from memobench.core.cells import cells
from memobench.core.run import Method, Run
from memobench.core.spec import SPEC_VERSION
from memobench.core.task import Task
from memobench.store import results

_VERSION = 1
# Its fields, by class, as its canonical form wrote them.
_TOKENS = (
    *("vocab_size", "context_length", "n_sequences", "conditional", "n_next"),
    *("conditional_parameter", "zipf_exponent", "n_subjects", "n_relations", "n_answers"),
)
_CONTEXTS = ("n_examples", "context_length", "contexts", "n_classes", "input_dim", "n_bag")
_ARCHITECTURE = (
    *("d_model", "d_head", "n_heads", "n_layers", "d_mlp", "heads", "positions", "d_value"),
    *("score_scale", "residual", "activation", "embeddings"),
)
_TRAINING = (
    *("protocol", "batch_size", "n_batches", "epochs", "learning_rate", "final_learning_rate"),
    *("start", "trained"),
)
_ANNEALING = (
    *("protocol", "batch_size", "steps", "learning_rate", "first_share", "warmup"),
    *("evaluate_every", "stop_early"),
)
_OPTIMUM = ("protocol", "starts", "adam_steps", "polished", "steps")
_CONSTRUCTION = ("protocol", "theorem", "n_aimed", "solve", "scale", "weights")
_SEARCH = ("rate_factors", "sizes", "resolution", "doublings", "rules")
COLUMNS = tuple(
    dict.fromkeys(
        (
            *("run_id", "task", "task_seed", *_TOKENS, *_CONTEXTS, "architecture", *_ARCHITECTURE),
            *("method", *_TRAINING, *_ANNEALING, *_OPTIMUM, *_CONSTRUCTION, *_SEARCH, "seed"),
        )
    )
)

# What an empty field stood for.
_MEANT = {
    **{"positions": "sinusoidal", "d_value": 1, "score_scale": "d_model", "residual": False},
    **{"embeddings": "unit", "optimizer": "adam", "b1": 0.9, "b2": 0.999, "eps": 1e-8},
}
_ACTIVATIONS = {"mlp": "gelu", "gpt": "gelu", "mlp_memory": "relu", "recall_transformer": "relu"}
# Columns of every row that meant nothing to some kinds, with the values that they had there.
_MEANT_NOTHING = {"heads": ("full", "compressed"), "solve": ("exact",)}


def migrate_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of version 1 as this version writes it; columns that are not the spec's are kept.

    Numbers may have come through JSON or a table, which make 2 a 2.0 and None a NaN. Columns that
    were added to tables later may be missing.

    Raises:
      UserError: no run has these columns, or another run than that of `run_id`.
    """
    old = {name: _plain(row.get(name)) for name in COLUMNS}
    expected = _id(old)
    require(
        old["run_id"] == expected,
        f"run_id={shown(old['run_id'])} is not that of its columns in version 1, {expected!r}; "
        "the row was changed",
    )
    new = cells(_run(old))
    for name, value in old.items():
        if value is None or name in ("run_id", "method", "start") or new[name] == value:
            continue
        nothing = new[name] is None and value in _MEANT_NOTHING.get(name, ())
        no_neurons = name == "activation" and old["d_mlp"] == 0
        require(
            nothing or no_neurons,
            f"{name}={shown(value)} is {shown(new[name])} in this version; the row has no run",
        )
    return {**new, **{name: x for name, x in row.items() if name not in {*COLUMNS, *new}}}


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of a folder: counts, and a line for each row that is no longer a run."""

    shards: int
    runs: int
    errors: tuple[str, ...]


def migrate_folder(folder: results.Path) -> Report:
    """Rewrites shards of version 1, and those without a digest, as new files in the same folder.

    The old files are kept as they are, and no longer count. Shards that were migrated before are
    skipped. Raises UserError where there is no folder.
    """
    folder = results.require_folder(folder, "name one of shards")
    known = results.migrated(folder)
    n_shards, n_runs, errors = 0, 0, []
    for path in results.shard_paths(folder):
        name = printable(path.name)
        try:
            rows, provenance, sealed = results.read_shard(path, oldest=_VERSION)
        except Exception as error:
            errors.append(f"{name}: {reason(error)}; none of its rows is read")
            continue
        old = provenance["spec_version"] == _VERSION
        if path.stem in known or (sealed and not old):
            continue
        new = []
        for i, row in enumerate(rows, start=1):
            try:
                new.append(migrate_row(row) if old else row)
            except Exception as error:
                errors.append(f"{name}, row {i} ({row['run_id']}): {in_a_line(error)}")
        if new:
            provenance = {**provenance, "spec_version": SPEC_VERSION}
            results.write_shard(folder, new, provenance, migrated=path.name)
            n_shards, n_runs = n_shards + 1, n_runs + len(new)
    return Report(n_shards, n_runs, tuple(errors))


def _plain(value: Any) -> Any:
    """A value as version 1 wrote it into its canonical form; NaN, of tables, as None."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        if value != value:
            return None
        return int(value) if value.is_integer() else value
    return value


def _run(old: Mapping[str, Any]) -> Run:
    """The run that a row describes."""
    spec = {**old, **{name: x for name, x in _MEANT.items() if old.get(name) is None}}
    if old["task"] == "factual_recall":
        others = old["n_relations"] * old["n_answers"] + old["n_subjects"] + old["n_relations"] + 1
        spec["n_noise"] = old["vocab_size"] - others
    if old["activation"] is None or old["d_mlp"] == 0:
        spec["activation"] = _ACTIVATIONS.get(str(old["architecture"]))
    if old["architecture"] != "query_attention":
        spec["score_scale"] = None
    if old["start"] is not None:
        spec["start"] = str(_start(old["start"]))
    if old["protocol"] == "annealed":
        spec["method"] = "annealed"
    return Run(
        task=Task.of_row(spec),
        architecture=Architecture.of_row(spec),
        method=Method.of_row(spec),
        seed=spec["seed"],
    )


def _start(text: str) -> Construction:
    """The construction that version 1 wrote as this text."""
    given = _options(text)
    return Construction.named(given.pop("theorem"))(**given)


def _options(text: str) -> dict[str, Any]:
    """The options that differ from a construction's defaults."""
    try:
        theorem, *options = text.split(" ")
        given: dict[str, Any] = dict(option.split("=") for option in options)
        numbers = {name: float(given[name]) for name in ("n_aimed", "scale") if name in given}
    except (AttributeError, ValueError) as error:
        raise UserError(f"start={shown(text)} is not a construction") from error
    return {"theorem": theorem, **given, **{name: _plain(x) for name, x in numbers.items()}}


def _id(old: Mapping[str, Any]) -> str:
    """The id that version 1 gave to the run of these columns."""

    def given(*names: str) -> dict[str, Any]:
        return {name: old[name] for name in names if old[name] is not None}

    of_tokens = old["task"] != "labelled_contexts"
    spec = {
        "task": {"name": old["task"], "seed": old["task_seed"]}
        | given(*(_TOKENS if of_tokens else _CONTEXTS)),
        "architecture": {"name": old["architecture"], **given(*_ARCHITECTURE)},
        "method": _canonical_method(old, given),
        "seed": old["seed"],
        "spec_version": _VERSION,
    }
    text = strict_json.canonical(spec)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _canonical_method(old: Mapping[str, Any], given: Any) -> dict[str, Any]:
    if old["method"] == "trained" and old["protocol"] == "annealed":
        return given(*_ANNEALING)
    if old["method"] in ("trained", "searched"):
        training = given(*_TRAINING)
        if "start" in training:
            default = {"protocol": "constructed", "solve": "exact", "weights": "float64"}
            training["start"] = {**default, **_options(training["start"])}
        if old["method"] == "trained":
            return training
        factors = [_plain(float(factor)) for factor in str(old["rate_factors"]).split(" ")]
        return {**given(*_SEARCH), "training": training, "rate_factors": factors}
    return given(*(_OPTIMUM if old["method"] == "optimised" else _CONSTRUCTION))
