"""What is checked of a row that somebody submits: its columns, and that they are one run's.

Whatever can be derived again is: the run and its id, the number of parameters, one measure from
another, all that a search found from its trials. JAX is imported to count parameters, no sooner.
"""

import contextlib
import datetime
import itertools
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from memobench import capacity
from memobench import results as store
from memobench.capacity import Proposal, Trial
from memobench.errors import UserError
from memobench.specs import (
    TOLERANCE,
    Annealing,
    Architecture,
    LabelledContexts,
    Method,
    Run,
    Search,
    Task,
    Training,
)
from memobench.submissions.rebuild import from_columns, shown
from memobench.submissions.strict_json import MAX_WHOLE, require

# Float32 arithmetic stands behind some measures; the others are written as they were.
MEASURED = 1e-4
REPEATED = 1e-6
FIRST_YEAR = 2025
# Characters of a text with a pattern.
LONGEST = 400
# Beyond it even counting parameters takes seconds.
MAX_CELLS = 2**22


def is_list(value: Any, most: int) -> bool:
    """Whether it is a list that is not too long."""
    return isinstance(value, list) and len(value) <= most


class Kind(NamedTuple):
    """What a value has to be; `told` completes "is not .."."""

    told: str
    holds: Callable[[Any], bool]


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


def whole(least: int = 0, most: int = 2**40) -> Kind:
    return Kind(
        f"a whole number from {least} to {most}", lambda x: type(x) is int and least <= x <= most
    )


def number(least: float = -1e300, most: float = 1e300) -> Kind:
    bounds = "" if abs(most) >= 1e300 and abs(least) >= 1e300 else f" from {least:g} to {most:g}"
    return Kind(
        f"a number{bounds}",
        lambda x: type(x) in (int, float) and least <= x <= most,
    )


def matching(pattern: str, told: str) -> Kind:
    compiled = re.compile(pattern, re.ASCII)
    # A pattern is tried on no more than it could fit.
    return Kind(
        told,
        lambda x: isinstance(x, str) and len(x) <= LONGEST and compiled.fullmatch(x) is not None,
    )


def text_of(most: int, forbidden: str = "<>|`*[]{}\\$#~") -> Kind:
    def holds(value: Any) -> bool:
        return (
            isinstance(value, str)
            and 0 < len(value) <= most
            # Neither control characters nor what turns the direction of writing is printable.
            and value.isprintable()
            and value == value.strip()
            and not value.startswith(("=", "+", "-", "@"))
            and not set(value) & set(forbidden)
        )

    return Kind(f"a plain text of 1 to {most} characters without markup or formula", holds)


def list_of(kind: Kind, most: int) -> Kind:
    def holds(value: Any) -> bool:
        return isinstance(value, list) and len(value) <= most and all(map(kind.holds, value))

    return Kind(f"a list of at most {most}, each {kind.told}", holds)


def or_null(kind: Kind) -> Kind:
    return Kind(f"{kind.told} or null", lambda x: x is None or kind.holds(x))


def _each(kind: Kind, *names: str) -> dict[str, Kind]:
    return dict.fromkeys(names, kind)


_FLAG = Kind("true or false", lambda x: type(x) is bool)
_SHARE = number(0, 1)
_WORD = matching(r"[\w.=+ -]{1,200}", "a name or a list of numbers of at most 200 characters")
_VERSION = matching(r"\d+(\.\d+)+([.+-]?[a-z][a-z0-9.+-]*)?", "a version such as 0.1.0")
# Losses are divergences or squares; rounding may take them below zero.
_LOSS = number(-1e-5, 1e300)
_CURVE = 64

# A spec's fields by name, whatever they are; what the fields of several specs share they agree on.
_FIELDS: dict[str, Any] = {
    name: hint
    for spec in (Task, LabelledContexts, Architecture, *typing.get_args(Method))
    for name, hint in typing.get_type_hints(spec).items()
    if name not in ("name", "training")
}


def _kind(hint: Any) -> Kind:
    hints = typing.get_args(hint) or (hint,)
    if bool in hints or float in hints:
        return _FLAG if bool in hints else number(0)
    return whole(0, 2**20) if int in hints else _WORD


SPEC_COLUMNS: dict[str, Kind] = {
    **{name: _kind(hint) for name, hint in _FIELDS.items()},
    "run_id": matching("[0-9a-f]{16}", "a run id of 16 hexadecimal digits"),
    **_each(_WORD, "task", "architecture", "method", "start", "rate_factors"),
    **_each(whole(0, MAX_WHOLE), "task_seed", "seed"),
    **_each(whole(1, 2**24), "vocab_size", "n_sequences", "n_next", "n_classes", "n_examples"),
    **_each(whole(0, 2**24), "n_aimed", "d_mlp"),
    **_each(whole(1), "batch_size", "n_batches", "epochs", "steps", "evaluate_every"),
    **_each(whole(1), "starts", "adam_steps", "polished"),
    "context_length": whole(1, 4096),
    "n_layers": whole(1, 64),
    # These say how many trials a search proposes, and checking it proposes them again.
    "sizes": whole(1, 64),
    "doublings": whole(0, 32),
    "resolution": _SHARE,
}
MEASURE_COLUMNS: dict[str, Kind] = {
    **_each(whole(0, MAX_WHOLE), "n_params", "n_params_memory", "n_params_distinct"),
    "status": Kind(f"one of {', '.join(store.STATUSES)}", lambda x: x in store.STATUSES),
    **_each(_SHARE, "accuracy", "accuracy_protocol"),
    **_each(number(), "memorized"),
    "bits": number(0),
    "loss": _LOSS,
    "curve_steps": list_of(whole(1), _CURVE),
    "curve_accuracy": list_of(_SHARE, _CURVE),
    "curve_loss": list_of(or_null(_LOSS), _CURVE),
}
# What only runs of one method have. Of annealed runs `largest_attention`, a picture, is left out.
METHOD_COLUMNS: dict[str, dict[str, Kind]] = {
    "trained": {},
    "annealed": {
        **_each(whole(0), "stopped_at", "best_step", "attention_rank"),
        "saturated": _SHARE,
        "saturated_by_head": list_of(_SHARE, 2**20),
        "examples_by_serving_heads": list_of(whole(0), 2**20),
        "stream_ranks": list_of(whole(0), 256),
    },
    "optimised": {
        "gradient_norm": number(0),
        "iterations": whole(0),
        "start_losses": list_of(_LOSS, 100_000),
    },
    "constructed": {
        **_each(number(), *store.CERTIFICATE),
        **_each(number(0), "condition", "fit_error", "largest_weight", "seconds"),
        **_each(whole(0), "feature_rank", "promises"),
        "aimed_accuracy": _SHARE,
        "aimed_loss": _LOSS,
    },
    "searched": {
        **_each(whole(0, 2**25), "complete_99", "complete_100"),
        **_each(whole(0, 2**25), "incomplete_99", "incomplete_100"),
        "best_accuracy": _SHARE,
        "rate_factor": number(0),
        "final_steps": whole(1),
        **_each(whole(0, 2**25), "previous_99", "previous_known"),
        "previous_bits": number(0),
        "gain": number(-1),
        **_each(_FLAG, "converged", "lower_bound"),
        "trials": Kind("a list of at most 10000 trials", lambda x: is_list(x, 10_000)),
    },
}
PROVENANCE_COLUMNS: dict[str, Kind] = {
    **_each(_VERSION, "memobench", "jax", "jaxlib"),
    "commit": matching(r"[0-9a-f]{7,40}\+?", "a commit of 7 to 40 hexadecimal digits"),
    "platform": Kind("one of cpu, gpu, tpu", lambda x: x in ("cpu", "gpu", "tpu")),
    "device": text_of(200),
    "instruction_set": matching(
        r"SSE4_2|AVX2?|AVX512(_VNNI|_BF16)?|AMX(_FP16)?|[a-z]+_?64\w*",
        "an instruction set such as AVX2 or a kind of machine such as arm64",
    ),
    "date": matching(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", "a UTC date such as 2026-01-31T12:00:00+00:00"
    ),
    "pack_size": whole(1, 2**20),
    **_each(number(0, 1e9), "compile_seconds", "run_seconds"),
}
# No checkout of git, no commit; a GPU, or a shard from before it was recorded, no instruction set.
OPTIONAL_PROVENANCE = ("commit", "instruction_set")
COLUMNS: dict[str, Kind] = {
    **SPEC_COLUMNS,
    **MEASURE_COLUMNS,
    **{name: kind for kinds in METHOD_COLUMNS.values() for name, kind in kinds.items()},
    **PROVENANCE_COLUMNS,
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
    run = from_columns(row)
    check_date(row["date"])
    for check in CONSISTENCY:
        check(run, row)
    return row


class Unchecked(UserError):
    """A model of which nothing can be derived here: it may be right nevertheless."""


def _check_model(run: Run, row: Mapping[str, Any]) -> None:
    """The run could be made, and its model has as many parameters as it says."""
    from memobench import constructions, models, tasks
    from memobench.models import transformer

    tasks.check(run.task)
    name, length = run.architecture.name, run.task.context_length
    if name not in models.ARCHITECTURES:
        raise Unchecked(
            f"architecture={shown(name)} is not part of memobench; submit its file first: one "
            "module in memobench/models and its line in ARCHITECTURES, see CONTRIBUTING.md"
        )
    module = models.build(run)
    if _cells(run, unrolled=isinstance(module, transformer.Transformer)) > MAX_CELLS:
        raise Unchecked(
            f"context_length={length} is too long for such a model to be checked; lower it"
        )
    constructions.check(run)
    n_params, n_params_memory = models.count_parameters(module, length)
    counts = {
        "n_params": n_params,
        "n_params_memory": n_params_memory,
        "n_params_distinct": models.count_distinct(module, length),
    }
    # Rows that are no submissions may be older than a count.
    _check_derived(row, {name: x for name, x in counts.items() if row[name] is not None}, 0)


def _cells(run: Run, unrolled: bool) -> int:
    """What counting a model's parameters writes out: positions, or attention token by token."""
    length, model = run.task.context_length, run.architecture
    if unrolled:
        return 8192 * length * (1 + (model.n_layers - 1) * length)
    return length * model.d_model


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
    from memobench import metrics, worker

    task, accuracy = run.task, row["accuracy"]
    n_examples, n_answers = _answers(task)
    known = () if row["status"] == "diverged" else worker.meaningful(task)
    for name in store.MEASURES:
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
    if getattr(task, "zipf_exponent", None) is None:
        _check_count("accuracy", accuracy, n_examples)
    if "memorized" in known:
        memorized = metrics.chance_corrected(accuracy, n_examples, task.chance)
        require(
            agree(row["memorized"], memorized, MEASURED, REPEATED * n_examples),
            f"memorized={row['memorized']} but {memorized:.6g} follows from accuracy; "
            "mend the one that is wrong",
        )
    # The accuracy of a search is that of its best check, its loss that of final weights.
    if not isinstance(run.method, Search):
        _check_loss(row["loss"], accuracy, _least_loss(task))
    if not isinstance(run.method, Training):
        _check_derived(row, {"accuracy_protocol": accuracy}, REPEATED)


def _answers(task: Task | LabelledContexts) -> tuple[int, int | None]:
    """How many answers are asked for, and among how many each was drawn."""
    if isinstance(task, Task):
        return task.n_predicted, task.n_choices
    return task.n_examples, task.n_classes


def _check_count(name: str, share: float, n_examples: int) -> None:
    count = share * n_examples
    require(
        abs(count - round(count)) <= max(1e-3, REPEATED * n_examples),
        f"{name}={share} of {n_examples} is no whole number of examples; mend {name}",
    )


def _least_loss(task: Task | LabelledContexts) -> float:
    """The least that an example costs that is not known.

    The answer is not the likeliest, its probability 1/2 or less; or a scalar's error is TOLERANCE.
    """
    scalar = isinstance(task, LabelledContexts) and task.n_classes is None
    return TOLERANCE**2 if scalar else math.log(2)


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
    last = run.method.steps if isinstance(run.method, Training) else 1
    require(
        steps
        and all(a < b for a, b in itertools.pairwise(steps))
        and (steps[-1] <= run.method.steps if _is_annealed(run) else steps[-1] == last)
        and all(len(curve) == len(steps) for curve in curves),
        f"curve_steps={shown(steps)} do not rise to the last step, or other curves have other "
        "lengths; mend the one that is wrong",
    )
    if last == 1 and len(steps) == 1 and not isinstance(run.method, Training | Annealing):
        measured = {"curve_accuracy": row["accuracy"], "curve_loss": row["loss"]}
        given = {name: [x] for name, x in measured.items() if x is not None and row[name]}
        _check_derived(row, given, REPEATED)


def _is_annealed(run: Run) -> bool:
    return isinstance(run.method, Annealing)


def _check_method(run: Run, row: Mapping[str, Any]) -> None:
    """What runs of its method say beside their measures, and that it says nothing else."""
    method = "annealed" if _is_annealed(run) else row["method"]
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
    stopped, best, heads = row["stopped_at"], row["best_step"], run.architecture.n_heads
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
    whole = row["n_aimed"] is None and getattr(run.task, "zipf_exponent", None) is None
    if whole and row["accuracy"] is not None:
        derived |= {"aimed_accuracy": row["accuracy"], "aimed_loss": row["loss"]}
    # Where there are no weights there is no certificate.
    told = {name: x for name, x in derived.items() if row["status"] == "ok"}
    _check_derived(row, told, REPEATED)


def _check_search(run: Run, row: Mapping[str, Any]) -> None:
    """The trials are those that such a search makes, and all else follows from them."""
    assert isinstance(run.method, Search)
    n_examples = run.task.n_examples
    require(row["trials"], "trials are missing; put them in")
    trials = [_trial(run, i, values) for i, values in enumerate(row["trials"])]
    _replay(run.method, n_examples, trials)
    _check_derived(row, capacity.columns(n_examples, trials, row["vocab_size"]), REPEATED)
    accuracy, loss = capacity.best_of_whole(trials, n_examples)
    if not math.isfinite(loss):
        require(row["status"] == "diverged", "status='ok' but no trial of all examples has a loss")
        return
    _check_derived(row, {"status": "ok", "accuracy": accuracy, "loss": loss}, REPEATED)


_TRIAL = (whole(1), whole(1), number(0), whole(0), whole(0), or_null(_LOSS))


def _trial(run: Run, number: int, values: Any) -> Trial:
    """A trial from its list, whose counts can be those of such a run."""
    with within(f"trials[{number}]={shown(values)}"):
        require(
            is_list(values, 6)
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
