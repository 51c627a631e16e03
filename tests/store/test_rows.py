"""Rows are those of one run: whatever can be derived is derived again."""

import json

import pandas as pd
import pytest

from memobench.common.errors import UserError
from memobench.constructions.dana2025 import Dana2025
from memobench.core.cells import cells, from_cells, spec_columns
from memobench.core.run import Run
from memobench.experiments import EXPERIMENTS
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.linear_memory import LinearMemory
from memobench.models.transformer import AttentionOnly
from memobench.numerics import metrics
from memobench.store import rows as declared
from memobench.tasks.associations import Associations
from memobench.tasks.bijection import Bijection
from memobench.tasks.distributions import Distributions
from tests.small import PROVENANCE, checked_row

TASK = Associations(vocab_size=8, n_sequences=40)
HEADS = AttentionOnly(d_model=2, d_head=2, n_heads=2, heads="full")
METHOD = Training(n_batches=8, epochs=2).exact()
SEARCH = Search(training=METHOD, sizes=2, doublings=1)


def _refuses(row):
    """What is said of a row that is refused: one short line."""
    with pytest.raises(UserError) as error:
        checked_row(row)
    line = str(error.value)
    assert line.isprintable()
    assert len(line) < 1000
    return line


def _row(run, **measured):
    """A row as `sweep` would write it."""
    from memobench.core import module as models

    counts = models.counts(run.module(), run.task) | {"status": "ok"}
    known = {**dict.fromkeys(declared.MEASURES), "accuracy_protocol": measured.get("accuracy")}
    return {**cells(run), **counts, **known, **measured, **PROVENANCE}


def _trained_row(seed=0, date=PROVENANCE["date"], accuracy=0.25, loss=2.0):
    memorized = metrics.correct_for_chance(accuracy, 40, TASK.chance)
    bits = float(metrics.memorized_bits(loss, 40, 8))
    run = Run(task=TASK, architecture=HEADS, method=METHOD, seed=seed)
    measures = {"accuracy": accuracy, "loss": loss, "memorized": memorized, "bits": bits}
    return {**_row(run, **measures), "date": date}


# A run from its columns.


def _registered():
    presets = (runs for experiment in EXPERIMENTS.values() for runs in experiment.presets.values())
    return list(dict.fromkeys(run for runs in presets for run in runs))


def test_every_registered_run_is_rebuilt_from_its_columns():
    registered = _registered()
    # Of every kind of task, architecture and method one, and some of all.
    kinds = {(run.task.name, run.architecture.name, type(run.method)): run for run in registered}
    for run in {*kinds.values(), *registered[::29]}:
        rebuilt = from_cells(cells(run))
        assert rebuilt == run
        assert rebuilt.run_id == run.run_id


OTHERS = [
    Run(task=TASK, architecture=HEADS, method=SEARCH),
    Run(
        task=Bijection(vocab_size=9),
        architecture=LinearMemory(d_model=3),
        method=Search(training=Training(trained="memory"), rate_factors=(1, 0.1), resolution=1e-3),
    ),
    Run(
        task=Distributions(conditional="dirichlet", conditional_parameter=2, n_next=3),
        architecture=HEADS,
        method=Training(start=Dana2025(solve="least_squares", scale=1e-7, n_aimed=3)),
    ),
    Run(task=TASK, architecture=HEADS, method=Training(learning_rate=1, n_batches=1)),
]


@pytest.mark.parametrize("run", OTHERS)
def test_what_json_or_a_table_made_of_numbers_is_rebuilt_too(run):
    row = cells(run)
    through_table = pd.DataFrame([row, cells(OTHERS[0])]).to_dict("records")[0]
    floats = {k: float(v) if type(v) is int else v for k, v in row.items()}
    known = {k: v for k, v in row.items() if v is not None}
    derived = {k: v for k, v in row.items() if k not in ("run_id", "n_examples", "steps")}
    for other in (json.loads(json.dumps(row)), through_table, floats, known, derived):
        assert from_cells(other) == run
        assert from_cells(other).run_id == run.run_id


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": None}, "method=None"),
        ({"method": "guessed"}, "method='guessed'"),
        ({"task": None}, "task=None"),
        ({"architecture": 3}, "architecture=3"),
        ({"d_model": True}, "d_model=True"),
        ({"d_model": 2.5}, "d_model=2.5"),
        ({"d_model": "2"}, "d_model='2'"),
        ({"d_model": None}, "d_model is missing"),
        ({"d_model": [2]}, "d_model=[2]"),
        ({"learning_rate": float("inf")}, "learning_rate=inf"),
        ({"learning_rate": 10**400}, "learning_rate=10"),
        ({"learning_rate": 10**5000}, "learning_rate=a number of thousands"),
        ({"seed": 2**70}, "seed="),
        ({"seed": 5}, "run_id="),
        ({"steps": 17}, "steps=17"),
        ({"n_examples": 41}, "n_examples=41"),
        ({"theorem": "dana2025"}, "theorem='dana2025'"),
        ({"stop_early": False}, "stop_early=False"),
        ({"residual": 0}, "residual=0"),
        ({"rate_factors": "1"}, "rate_factors='1'"),
        ({"rate_factors": "1.0 x"}, "rate_factors="),
        ({"rate_factors": ""}, "rate_factors="),
        ({"rate_factors": None}, "rate_factors is missing"),
        ({"context_length": 2**40}, "context_length="),
        *(
            ({"method": "trained", "rate_factors": None, "start": start}, "start=")
            for start in (
                *("", " ", "dana2025 ", "dana2025 n_aimed=x", "dana2025 n_aimed=1_0", 7),
                *("dana2025 n_aimed=None", "dana2025 n_aimed", "dana2025 n_aimed=0 n_aimed=0"),
                *("dana2025 scale=1 n_aimed=0", "dana2025 protocol=exact", "dana2025 solve=exact"),
                *("dana2025 scale=nan", "dana2025 scale=1e999", f"dana2025 n_aimed={'9' * 5000}"),
            )
        ),
    ],
)
def test_what_makes_no_run_is_refused(changes, said):
    with pytest.raises(UserError) as error:
        from_cells({**cells(OTHERS[0]), **changes})
    assert said in str(error.value)
    assert str(error.value).isprintable()


def _other(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, list):
        return value[1:]
    return "dana2025" if value is None else f"{value}0"


@pytest.mark.parametrize("name", sorted({**spec_columns(), **declared.COUNTS}))
def test_a_change_of_any_column_of_a_run_is_noticed(name):
    for row in (_trained_row(), _row(OTHERS[0])):
        _refuses({**row, name: _other(row.get(name))})


WRONG = [True, "1", [], [[1]], {}, {"a": 1}, 1.5, -1, 2**53, "", "x" * 10_000, "\x1b[2J"]


@pytest.mark.parametrize("name", sorted(spec_columns()))
def test_a_value_of_another_type_is_refused(name):
    row = _row(OTHERS[0])
    for wrong in WRONG:
        types = {type(wrong), type(row.get(name))}
        if len(types) == 2 and types != {int, float}:
            _refuses({**row, name: wrong})


def _with_run(row, **changes):
    """The row made another run's, whose id is right."""
    row = {**row, **changes}
    row["run_id"] = from_cells({x: y for x, y in row.items() if x != "run_id"}).run_id
    return row


def _but(**changes):
    return lambda row: {**row, **changes}


TAMPERED = {
    "another size": (lambda row: _with_run(row, n_heads=3), "n_params must be"),
    "another file's model": (
        _but(architecture="mine"),
        "architecture='mine' is unknown",
    ),
    "a long search": (_but(sizes=10**9), "sizes=1000000000 is not"),
    "a deep search": (_but(doublings=10**9), "doublings=1000000000 is not"),
    "a coarse search": (_but(resolution=1), "resolution=1.0 is not a share"),
    "many rates": (
        _but(rate_factors=" ".join(map(str, range(1, 18)))),
        "1 to 16 distinct",
    ),
    "other rules": (_but(rules=2), "rules=2 are not those of this version"),
    "no rules": (_but(rules=None), "rules is missing"),
    "too few distinct ones": (
        _but(n_params_distinct=1),
        "n_params_distinct must be",
    ),
    "too few degrees of freedom": (
        _but(degrees_of_freedom=1),
        "degrees_of_freedom must be",
    ),
    "local time": (_but(date="2026-01-31T00:00:00+01:00"), "a UTC date"),
    "another machine": (_but(platform="abacus"), "platform='abacus'"),
    "no device": (_but(device=""), "device=''"),
    "no version": (_but(jax="newest"), "jax='newest'"),
}


@pytest.mark.parametrize(("change", "said"), TAMPERED.values(), ids=TAMPERED.keys())
def test_a_row_that_was_tampered_with_is_refused_in_one_line(change, said):
    assert said in _refuses(change(_row(OTHERS[0])))
