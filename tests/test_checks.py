"""Rows are those of one run: whatever can be derived is derived again."""

import copy
import dataclasses
import json
import random

import pandas as pd
import pytest

from memobench.common.errors import UserError
from memobench.constructions.dana2025 import Dana2025
from memobench.core.cells import cells, from_cells
from memobench.core.optimizer import Optimizer
from memobench.core.run import Run
from memobench.experiments import EXPERIMENTS
from memobench.methods import bisection
from memobench.methods.annealing import Annealing
from memobench.methods.bisection import Trial
from memobench.methods.optimum import Optimum
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.linear_memory import LinearMemory
from memobench.models.query_attention import QueryAttention
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.models.transformer import AttentionOnly
from memobench.numerics import metrics
from memobench.store import rows as declared
from memobench.table import replay
from memobench.tasks.associations import Associations
from memobench.tasks.bijection import Bijection
from memobench.tasks.distributions import Distributions
from memobench.tasks.labelled_contexts import LabelledContexts
from tests.small import PROVENANCE, checked_row

TASK = Associations(vocab_size=8, n_sequences=40)
HEADS = AttentionOnly(d_model=2, d_head=2, n_heads=2, heads="full")
METHOD = Training(n_batches=8, epochs=2).exact()
SEARCH = Search(training=METHOD, sizes=2, doublings=1)
# What no other column tells.
UNTOLD = {"commit", "jax", "jaxlib", "memobench", "platform", "device", "pack_size"}
UNTOLD |= {"compile_seconds", "run_seconds", "n_devices", "instruction_set", "spec_version"}
UNTOLD |= {"weights_digest", "largest_attention"}


@pytest.fixture(scope="module")
def trained():
    """Rows of a search and of a run that was trained, as they come out."""
    from memobench.engine import compiling
    from memobench.runtime import sweep

    runs = [Run(task=TASK, architecture=HEADS, method=method) for method in (SEARCH, METHOD)]
    with pytest.MonkeyPatch.context() as patch:
        # Code that runs a few times is not optimised.
        patch.setitem(compiling.OPTIONS, "xla_backend_optimization_level", 0)
        table = sweep.run(runs, progress=False)
    assert isinstance(table, pd.DataFrame)
    rows = table.to_dict("records")
    return [
        {name: _exact(x) for name, x in row.items() if isinstance(x, list) or not pd.isna(x)}
        for row in rows
    ]


def _exact(value):
    value = value.item() if hasattr(value, "item") else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


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

    module, length = run.module(), run.task.context_length
    counts = models.counts(module, length) | {"status": "ok"}
    known = {**dict.fromkeys(declared.MEASURES), "accuracy_protocol": measured.get("accuracy")}
    return {**cells(run), **counts, **known, **measured, **PROVENANCE}


def _trained_row(seed=0, date=PROVENANCE["date"], accuracy=0.25, loss=2.0):
    memorized = metrics.chance_corrected(accuracy, 40, TASK.chance)
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


def test_rows_of_every_method_are_checked():
    labelled = LabelledContexts(n_examples=20, context_length=3, input_dim=4, n_classes=5)
    query = QueryAttention(d_model=4, d_head=4, n_heads=2)
    annealed = Run(
        task=labelled,
        architecture=query,
        method=Annealing(batch_size=8, steps=40, evaluate_every=20),
    )
    full = AttentionOnly(d_model=4, d_head=4, n_heads=2, heads="full")
    constructed = Run(
        task=Associations(vocab_size=8, n_sequences=10),
        architecture=full,
        method=Dana2025(),
    )
    optimal = Run(
        task=Distributions(vocab_size=4, conditional="uniform", n_next=2),
        architecture=SequenceEncoder(d_model=2),
        method=Optimum(starts=2, polished=2),
    )
    of_attention = {"saturated": 0.5, "saturated_by_head": [0.0, 1.0]}
    of_attention["examples_by_serving_heads"] = [0, 20, 0]
    known = {"accuracy": 0.5, "memorized": 7.5, "loss": 1.0, "stopped_at": 40, "best_step": 20}
    bits = float(metrics.memorized_bits(1.0, 20, 5))
    promise = {"aimed_accuracy": 1.0, "aimed_loss": 1e-9, "promises": 12, "stored_bits": 64.0}
    all_of_it = {"accuracy": 1.0, "memorized": 10.0, "loss": 1e-9, "bits": 30.0, **promise}
    rows = [
        _row(annealed, **known, **of_attention, bits=bits),
        _row(constructed, **all_of_it, condition=3.0, feature_rank=10),
        _row(optimal, loss=0.5, start_losses=[0.5, 0.6], gradient_norm=1e-9, iterations=7),
    ]
    for row in rows:
        checked_row(row)
    assert "loss=0.5 but 0.6 follows" in _refuses({**rows[2], "start_losses": [0.6, 0.5]})
    changes = [
        *((0, name, value) for name, value in (("stopped_at", 60), ("best_step", 41))),
        *((0, name, value) for name, value in (("saturated", 0.4), ("best_step", 10**6))),
        *((0, name, [1, 19, 0]) for name in ("examples_by_serving_heads",)),
        *((1, name, 2.5) for name in ("stored_bits", "promises", "aimed_accuracy", "aimed_loss")),
        *((1, name, 1) for name in ("stopped_at", "complete_99", "iterations")),
        (1, "promises", 13),
        (2, "accuracy", 1.0),
        (2, "stored_bits", 64),
    ]
    for i, name, value in changes:
        assert name in _refuses({**rows[i], name: value})


def test_a_diverged_run_has_no_measures():
    row = {**_trained_row(), "status": "diverged", **dict.fromkeys(declared.MEASURES)}
    checked_row(row)
    assert "accuracy=0.5 with status='diverged'" in _refuses({**row, "accuracy": 0.5})


def _other(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, list):
        return value[1:]
    return "dana2025" if value is None else f"{value}0"


@pytest.mark.parametrize("name", sorted(declared.all_columns()))
def test_a_change_of_any_column_of_a_row_is_noticed(trained, name):
    for i, row in enumerate(trained):
        changed = {**row, name: _other(row.get(name))}
        # Of curves only the point of a search stands elsewhere too.
        if name not in UNTOLD | {"date"} and not (name.startswith("curve_") and i == 1):
            _refuses(changed)


WRONG = [True, "1", [], [[1]], {}, {"a": 1}, 1.5, -1, 2**53, "", "x" * 10_000, "\x1b[2J"]


@pytest.mark.parametrize("name", sorted(declared.all_columns()))
def test_a_value_of_another_type_is_refused(trained, name):
    row = trained[0]
    for wrong in WRONG:
        same = type(wrong) is type(row.get(name)) or {type(wrong), type(row.get(name))} == {
            int,
            float,
        }
        if (same and not isinstance(wrong, str)) or (name in UNTOLD and wrong in ("1", [])):
            continue
        if not declared.all_columns()[name].domain.holds(wrong) or name not in UNTOLD:
            _refuses({**row, name: wrong})


def _with_run(row, **changes):
    """The row made another run's, whose id is right."""
    row = {**row, **changes}
    row["run_id"] = from_cells({x: y for x, y in row.items() if x != "run_id"}).run_id
    return row


def _but(**changes):
    return lambda row: {**row, **changes}


TAMPERED = {
    "another size": (lambda row: _with_run(row, n_heads=3), "n_params="),
    "another rate": (
        lambda row: _with_run(row, rate_factors="1.0 2.0"),
        "trials: the search would",
    ),
    "fewer rounds": (lambda row: _with_run(row, sizes=1), "trials: "),
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
    "other bits before": (_but(previous_bits=1.5), "previous_bits=1.5"),
    "too few distinct ones": (
        _but(n_params_distinct=1),
        "n_params_distinct=1",
    ),
    "accuracy of no example": (
        _but(accuracy=0.3141),
        "not a whole number of answers",
    ),
    "no measure": (_but(accuracy=None), "accuracy=None with status='ok'"),
    "local time": (_but(date="2026-01-31T00:00:00+01:00"), "a UTC date"),
    "another machine": (_but(platform="abacus"), "platform='abacus'"),
    "no device": (_but(device=""), "device=''"),
    "no version": (_but(jax="newest"), "jax='newest'"),
}


@pytest.mark.parametrize(("change", "said"), TAMPERED.values(), ids=TAMPERED.keys())
def test_a_row_that_was_tampered_with_is_refused_in_one_line(trained, change, said):
    assert said in _refuses(change(trained[0]))


def _trial(i, j, value):
    return lambda trials: trials[i].__setitem__(j, value)


FORGED = {
    "more known than there are": (_trial(0, 3, 41), "knows more examples"),
    "more at the end": (_trial(0, 4, 40), "knows more examples"),
    "another size": (_trial(1, 1, 21), "the search would have tried 20"),
    "a fraction": (_trial(0, 1, 40.5), "is not [steps"),
    "other steps": (_trial(-1, 0, 64), "the search would have tried"),
    "another rate": (_trial(0, 2, 2.0), "the search would have tried 40"),
    "true": (_trial(0, 3, True), "is not [steps"),
    "a loss too small": (_trial(0, 5, 0.0), "loss=0.0 is too small"),
    "a loss below zero": (_trial(0, 5, -1.0), "is not [steps"),
    "no loss": (_trial(0, 5, None), "has no loss"),
    "a trial less": (lambda trials: trials.pop(), "trials: the search would"),
    "a trial more": (lambda trials: trials.append(trials[-1]), "trials: the search was done"),
    "another order": (lambda trials: trials.reverse(), "trials: the search would"),
    "no trials": (lambda trials: trials.clear(), "trials are missing"),
    "no trial": (lambda trials: trials.insert(0, 5), "is not [steps"),
    "a short trial": (lambda trials: trials[0].pop(), "is not [steps"),
}


@pytest.mark.parametrize(("forge", "said"), FORGED.values(), ids=FORGED.keys())
def test_trials_that_no_search_makes_are_refused(trained, forge, said):
    forged = copy.deepcopy(trained[0])
    forge(forged["trials"])
    assert said in _refuses(forged)


def _played(search, n_examples, capacity_of, chance):
    """The trials of a search whose model knows so many of any set; some are there twice."""
    made = []
    while proposals := bisection.next_trials(search, n_examples, made):
        now = []
        for steps, n, factor in proposals:
            known = min(n, int(capacity_of(steps)))
            trial = Trial(steps, n, factor, known, known, 5.0)
            if trial not in now or chance.random() < 0.2:
                now.append(trial)
        made += now
    return made


def test_whatever_a_search_does_can_be_replayed_and_nothing_else():
    chance = random.Random(0)
    for _ in range(40):
        n_examples = chance.randrange(1, 300)
        factors = tuple(chance.sample([0.3, 1.0, 3.0], chance.randrange(1, 4)))
        sizes, doublings = chance.randrange(1, 5), chance.randrange(4)
        search = Search(training=METHOD, rate_factors=factors, sizes=sizes, doublings=doublings)
        most, growth = chance.uniform(0, 400), chance.choice([0, 0.1, 1])
        trials = _played(search, n_examples, lambda steps: most * (steps / 16) ** growth, chance)  # noqa: B023
        replay.replay(search, n_examples, trials)
        i = chance.randrange(len(trials))
        forged = [*trials]
        forged[i] = trials[i]._replace(n_examples=n_examples + 1)
        with pytest.raises(UserError, match="trials"):
            replay.replay(search, n_examples, forged)


_VALUES = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    7,
    2**31,
    2**53,
    0.5,
    -0.0,
    1e300,
    1e-300,
    "",
    "x",
    "1.0",
]
_VALUES += [
    "nan",
    [],
    {},
    [[]],
    [0] * 6,
    {"a": []},
    "associations",
    "exact",
    "searched",
    "dana2025",
]


def test_a_row_of_random_sizes_ends_in_one_line(trained):
    chance, row = random.Random(1), trained[0]
    # From these no measure follows: with another of them a row is that of another run.
    free = {"run_id", "seed", "task_seed", "learning_rate", "final_learning_rate", "rate_factors"}
    free |= {"warmup", "resolution"}
    free |= {x.name for kind in Optimizer.kinds().values() for x in dataclasses.fields(kind)}
    names = [name for name in cells(OTHERS[0]) if name not in free]
    for _ in range(80):
        changes = {name: chance.choice(_VALUES) for name in chance.sample(names, 2)}
        try:
            changed = _with_run(row, **changes)
        except UserError:
            continue
        # A column without a value says nothing that could be wrong.
        if any(row.get(name) != x for name, x in changed.items() if x is not None):
            _refuses(changed)
