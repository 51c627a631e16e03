import copy
import json
import logging
import os
import pickle
import random
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from memobench import bisection, board, metrics, submissions, theory
from memobench.bisection import Trial
from memobench.constructions.dana2025 import Dana2025
from memobench.errors import UserError
from memobench.experiments import EXPERIMENTS
from memobench.methods.annealing import Annealing
from memobench.methods.optimum import Optimum
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.linear_memory import LinearMemory
from memobench.models.query_attention import QueryAttention
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.models.transformer import AttentionOnly
from memobench.runs import Run, cells, from_cells
from memobench.submissions import checks
from memobench.table import replay, results
from memobench.table import rows as declared
from memobench.tasks.associations import Associations
from memobench.tasks.bijection import Bijection
from memobench.tasks.distributions import Distributions
from memobench.tasks.labelled_contexts import LabelledContexts
from tests.command_line import command_line
from tests.small import PROVENANCE

TASK = Associations(vocab_size=8, n_sequences=40)
HEADS = AttentionOnly(d_model=2, d_head=2, n_heads=2, heads="full")
METHOD = Training(n_batches=8, epochs=2).exact()
SEARCH = Search(training=METHOD, sizes=2, doublings=1)
# What no other column tells: only the file's name says that it was changed.
UNTOLD = {"commit", "jax", "jaxlib", "memobench", "platform", "device", "date", "pack_size"}
UNTOLD |= {"compile_seconds", "run_seconds"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder of real results: a search and two runs that were trained."""
    from memobench.engine import compiling
    from memobench.runtime import sweep

    folder = tmp_path_factory.mktemp("runs")
    runs = [
        Run(task=TASK, architecture=HEADS, method=method, seed=seed)
        for method, seed in ((SEARCH, 0), (METHOD, 0), (METHOD, 1))
    ]
    with pytest.MonkeyPatch.context() as patch:
        # Code that runs a few times is not optimised.
        patch.setitem(compiling.OPTIONS, "xla_backend_optimization_level", 0)
        sweep.run(runs, results=folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def document(trained, tmp_path_factory):
    """A submission of them as JSON; the search first."""
    rows = sorted(results.load_rows(trained).values(), key=lambda row: row["method"])
    folder = tmp_path_factory.mktemp("submissions")
    path = submissions.write(rows, "Zoë & Co.", folder, url="https://example.org/~zoe")
    return json.loads(path.read_text())


def _put(folder, document, name=None):
    """The document as a file, by default under the name of its content."""
    named = isinstance(document, dict) and isinstance(document.get("submitter"), str)
    path = folder / (name or (submissions._name(document) if named else "x.json"))
    path.write_text(json.dumps(document))
    return path


def _refused(path):
    """What `read` says of a file that it refuses: one short line that names it."""
    with pytest.raises(UserError) as error:
        submissions.read(path)
    line = str(error.value)
    assert path.name in line
    assert line.isprintable()
    assert len(line) < 1000
    return line


def _refuses(folder, document):
    return _refused(_put(folder, document))


def _row(run, **measured):
    """A row as `sweep` would write it."""
    from memobench.models import base as models

    module, length = run.module(), run.task.context_length
    n_params, n_params_memory = models.count_parameters(module, length)
    counts = {"n_params": n_params, "n_params_memory": n_params_memory, "status": "ok"}
    counts["n_params_distinct"] = models.count_distinct(module, length)
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


def test_all_columns_of_a_spec_may_be_submitted():
    assert set(cells(OTHERS[0])) < set(checks.columns())
    kept_back = set(declared.all_columns()) - set(checks.columns())
    assert kept_back == {"largest_attention", "n_devices", "spec_version"}


# Files that are what they say.


def test_what_is_written_is_read(trained, tmp_path):
    rows = results.load_rows(trained)
    folder = tmp_path / "submissions"
    path = submissions.write(rows.values(), "Zoë", folder, note="two cores, 3 minutes")
    found = submissions.read(path)
    assert path.name == found.file
    assert path.name.startswith("zoe-")
    assert [path] == list(folder.iterdir())
    assert {row["run_id"]: row["trials"] for row in found.rows} == {
        run_id: row.get("trials") for run_id, row in rows.items()
    }
    # The project's own measures, to the last bit.
    for row in found.rows:
        assert all(row[name] == rows[row["run_id"]][name] for name in declared.MEASURES)
    assert len(found.aggregates) == 2
    assert submissions.load_folder(folder) == [found]
    table = results.load_results(trained)
    from_table = submissions.write(table.to_dict("records"), "Zoë", tmp_path, note=found.note)
    assert submissions.read(from_table) == found


def test_nothing_is_overwritten_and_nothing_unfinished_stays(trained, tmp_path, monkeypatch):
    rows = results.load_rows(trained).values()
    path = submissions.write(rows, "me", tmp_path)
    before = path.read_bytes()
    with pytest.raises(UserError, match="already exists"):
        submissions.write(rows, "me", tmp_path)
    assert path.read_bytes() == before

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        submissions.write(rows, "you", tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_runs_of_every_method_can_be_submitted(tmp_path):
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
    path = submissions.write(rows, "me", tmp_path)
    document = json.loads(path.read_text())
    assert len(submissions.read(path).rows) == 3
    changed = copy.deepcopy(document)
    changed["rows"][2]["start_losses"].reverse()
    assert "row 3: loss=0.5 but 0.6 follows" in _refuses(tmp_path, changed)
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
        changed = copy.deepcopy(document)
        changed["rows"][i][name] = value
        assert name in _refuses(tmp_path, changed)


def test_a_diverged_run_has_no_measures(tmp_path):
    row = {**_trained_row(), "status": "diverged", **dict.fromkeys(declared.MEASURES)}
    path = submissions.write([row], "me", tmp_path)
    document = json.loads(path.read_text())
    document["rows"][0]["accuracy"] = 0.5
    assert "accuracy=0.5 with status='diverged'" in _refuses(tmp_path, document)


def test_an_entry_of_the_board_is_submitted_with_all_its_seeds(tmp_path):
    architecture = next(x for x, theorem in board.standard(32, 256) if theorem == "dana2025")
    runs = board.constructions(architecture, "dana2025", 32)
    n = runs[0].task.n_examples
    bits = float(metrics.memorized_bits(1e-9, n, 32))
    known = {"accuracy": 1.0, "memorized": float(n), "loss": 1e-9, "bits": bits}
    known |= {"aimed_accuracy": 1.0, "aimed_loss": 1e-9, "promises": n, "stored_bits": 64.0}
    rows = [_row(run, **known) for run in runs]
    for seeds in (range(5), range(3), range(1)):
        submissions.write([rows[seed] for seed in seeds], f"me {len(seeds)}", tmp_path)
    with pytest.raises(UserError, match=r"seeds are 0, 2, 4; an entry has all .*; submit all of"):
        submissions.write(rows[::2], "me", tmp_path)


# Files that are not.


def _other(value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, list):
        return value[1:]
    return "dana2025" if value is None else f"{value}0"


@pytest.mark.parametrize("name", sorted(checks.columns()))
def test_a_change_of_any_field_of_a_row_is_noticed(document, tmp_path, name):
    own_name = submissions._name(document)
    for i in (0, 2):
        changed = copy.deepcopy(document)
        row = changed["rows"][i]
        row[name] = _other(row.get(name))
        assert f"row {i + 1}" in _refused(_put(tmp_path, changed, own_name)) or name in UNTOLD
        # Of curves only the last point of a search stands elsewhere too.
        if name not in UNTOLD and not (name.startswith("curve_") and i == 2):
            found = _refuses(tmp_path, changed)
            assert f"row {i + 1}: " in found


WRONG = [True, "1", [], [[1]], {}, {"a": 1}, 1.5, -1, 2**53, "", "x" * 10_000, "\x1b[2J", None]


@pytest.mark.parametrize("name", sorted(checks.columns()))
def test_a_value_of_another_type_is_refused(document, tmp_path, name):
    row = document["rows"][0]
    for wrong in WRONG:
        same = type(wrong) is type(row.get(name)) or {type(wrong), type(row.get(name))} == {
            int,
            float,
        }
        optional = wrong is None and name not in checks.required()
        if (same and not isinstance(wrong, str)) or optional:
            continue
        if name in UNTOLD and wrong == "1":
            continue
        changed = {**document, "rows": [{**row, name: wrong}]}
        assert "row 1: " in _refuses(tmp_path, changed)


def _without(key, document):
    return {name: value for name, value in document.items() if name != key}


def _with_run(document, **changes):
    """The first row made another run's, whose id is right."""
    document = copy.deepcopy(document)
    row = document["rows"][0]
    row |= changes
    row["run_id"] = from_cells(_without("run_id", row)).run_id
    return document


def _first_row(**changes):
    def change(document):
        first, *others = document["rows"]
        return {**document, "rows": [{**first, **changes}, *others]}

    return change


def _mean(change):
    def changed(document):
        document = copy.deepcopy(document)
        change(document["aggregates"])
        return document

    return changed


TAMPERED = {
    "no object": (lambda d: [d], "not a submission"),
    "another version": (lambda d: {**d, "submission": 2}, "submission=2 is not 1"),
    "true for 1": (lambda d: {**d, "submission": True}, "submission=True is not 1"),
    "another board": (lambda d: {**d, "board": "v2"}, "board='v2' is not 'v1'"),
    "other specs": (lambda d: {**d, "spec_version": 1}, "spec_version=1"),
    "no submitter": (lambda d: _without("submitter", d), "submitter is missing"),
    "no rows": (lambda d: _without("rows", d), "rows is missing"),
    "empty rows": (lambda d: {**d, "rows": []}, "a list of 1 to"),
    "no means": (lambda d: _without("aggregates", d), "aggregates is missing"),
    "a field more": (lambda d: {**d, "price": 1}, "'price' is unknown"),
    "rows of numbers": (lambda d: {**d, "rows": [1]}, "row 1: 1 is not an object"),
    "a column more": (_first_row(price=1), "row 1: the column 'price' is unknown"),
    "no row left out": (lambda d: {**d, "rows": d["rows"][1:]}, "aggregates: "),
    "a row twice": (lambda d: {**d, "rows": [*d["rows"], d["rows"][0]]}, "row 4: run_id="),
    "a mean changed": (_mean(lambda m: m[0].update(accuracy=0.9)), "number 1 has accuracy=0.9"),
    "a mean's text": (_mean(lambda m: m[0].update(device="GPU")), "number 1 has device='GPU'"),
    "a mean's type": (_mean(lambda m: m[0].update(seeds=True)), "number 1 has seeds=True"),
    "a mean less": (_mean(lambda m: m.pop()), "aggregates: 1 means but 2"),
    "a mean's field": (_mean(lambda m: m[0].pop("bits")), "number 1 has bits=None"),
    "a mean's field more": (_mean(lambda m: m[1].update(rank=1)), "number 2 has rank=1"),
    "no mean": (_mean(lambda m: m.__setitem__(0, 3)), "number 1 is not an object"),
    "another size": (lambda d: _with_run(d, n_heads=3), "n_params="),
    "another rate": (lambda d: _with_run(d, rate_factors="1.0 2.0"), "trials: the search would"),
    "fewer rounds": (lambda d: _with_run(d, sizes=1), "trials: "),
    "another file's model": (_first_row(architecture="mine"), "architecture='mine' is unknown"),
    "a long search": (_first_row(sizes=10**9), "sizes=1000000000 is not"),
    "a deep search": (_first_row(doublings=10**9), "doublings=1000000000 is not"),
    "a coarse search": (_first_row(resolution=1), "resolution=1.0 is not a share"),
    "many rates": (_first_row(rate_factors=" ".join(map(str, range(1, 18)))), "1 to 16 distinct"),
    "other rules": (_first_row(rules=2), "rules=2 are not those of this version"),
    "no rules": (_first_row(rules=None), "rules is missing"),
    "other bits before": (_first_row(previous_bits=1.5), "previous_bits=1.5"),
    "no distinct parameters": (_first_row(n_params_distinct=None), "n_params_distinct is missing"),
    "too few distinct ones": (_first_row(n_params_distinct=1), "n_params_distinct=1"),
    "accuracy of no example": (_first_row(accuracy=0.3141), "not a whole number of answers"),
    "accuracy above 1": (_first_row(accuracy=1.025), "accuracy=1.025 is not a number from 0"),
    "no measure": (_first_row(accuracy=None), "accuracy=None with status='ok'"),
    "a day ahead": (_first_row(date="2999-01-01T00:00:00+00:00"), "or in the future"),
    "long ago": (_first_row(date="2001-01-01T00:00:00+00:00"), "before 2025"),
    "no day": (_first_row(date="2026-02-31T00:00:00+00:00"), "is not a date"),
    "local time": (_first_row(date="2026-01-31T00:00:00+01:00"), "a UTC date"),
    "another machine": (_first_row(platform="abacus"), "platform='abacus'"),
    "no device": (_first_row(device=""), "device=''"),
    "no version": (_first_row(jax="newest"), "jax='newest'"),
}


@pytest.mark.parametrize(("change", "said"), TAMPERED.values(), ids=TAMPERED.keys())
def test_what_was_tampered_with_is_refused_in_one_line(document, tmp_path, change, said):
    assert said in _refuses(tmp_path, change(document))


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
def test_trials_that_no_search_makes_are_refused(document, tmp_path, forge, said):
    forged = copy.deepcopy(document)
    forge(forged["rows"][0]["trials"])
    found = _refuses(tmp_path, forged)
    assert "row 1: " in found
    assert said in found


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


def test_what_a_theorem_forbids_is_refused(tmp_path):
    # All is consistent, but so few weights cannot hold so many bits.
    task = Associations(vocab_size=1024, n_sequences=2**18)
    run = Run(task=task, architecture=HEADS, method=METHOD)
    row = _row(run, accuracy=1.0, memorized=2.0**18, loss=0.0, bits=10 * 2.0**18)
    with pytest.raises(UserError, match=r"row 2: run .* is beyond a proven limit \(counting"):
        submissions.write([_trained_row(), row], "me", tmp_path)
    assert list(tmp_path.iterdir()) == []


# Files that are hardly any.


def _text(document):
    return json.dumps(document)


HOSTILE = {
    "empty": (lambda d: b"", "is not JSON"),
    "half": (lambda d: _text(d)[: len(_text(d)) // 2].encode(), "is not JSON"),
    "no unicode": (lambda d: _text(d).replace("0.1.0", "\xff").encode("latin-1"), "is not UTF-8"),
    "another unicode": (lambda d: _text(d).encode("utf-16"), "is not UTF-8"),
    "a mark before": (lambda d: _text(d).encode("utf-8-sig"), "is not JSON"),
    "pickle": (lambda d: pickle.dumps(d), ""),
    "zip": (lambda d: b"PK\x03\x04" + bytes(100), ""),
    "NaN": (lambda d: _text(d).replace('"loss": ', '"loss": NaN, "x": ').encode(), "NaN is no"),
    "infinity": (lambda d: b'{"rows": [Infinity]}', "Infinity is not a JSON number"),
    "minus infinity": (lambda d: b'{"rows": [-Infinity]}', "-Infinity is not a JSON number"),
    "1e999": (lambda d: b'{"rows": [{"loss": 1e999}]}', "'1e999' is too large"),
    "-1e999": (lambda d: b'{"rows": [{"loss": -1e999}]}', "'-1e999' is too large"),
    "many digits": (lambda d: b'{"rows": ' + b"9" * 5000 + b"}", "beyond 2^53"),
    "many decimals": (lambda d: b'{"rows": 0.' + b"9" * 10**6 + b"}", "too large or too long"),
    "deep lists": (lambda d: b"[" * 100_000, "100000 deep"),
    "deep and whole": (lambda d: b'{"rows": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", "100001 deep"),
    "deep objects": (lambda d: b'{"a":' * 100_000, "100000 deep"),
    "a million rows": (lambda d: b'{"rows": [' + b"{}," * 10**6 + b"{}]}", "than 100,000 rows"),
    "many rows": (lambda d: b'{"rows": [' + b"{}," * 10**5 + b"{}]}", "missing"),
    "many lists": (lambda d: b'{"rows": [' + b"[]," * 4_000_001 + b"[]]}", "than 4,000,000 lists"),
    "a key twice": (lambda d: b'{"board": "v1", "board": "v1"}', "'board' is there twice"),
    "an open string": (lambda d: b'"' + rb"\"" * 500_000, "is not JSON"),
    "brackets in a string": (lambda d: b'{"board": "' + b"[" * 10**6 + b'"}', "missing"),
    "a surrogate": (lambda d: rb'{"board": "\ud800"}', "submission is missing"),
}


@pytest.mark.parametrize(("spoil", "said"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_file_that_is_none_is_refused(document, tmp_path, monkeypatch, spoil, said):
    data = spoil(document)
    if "rows" in said and "missing" not in said:  # Refused before anything is built.
        monkeypatch.setattr(json, "loads", None)
    path = tmp_path / "x.json"
    path.write_bytes(data)
    assert said in _refused(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "large.json"
    with open(path, "wb") as file:
        file.truncate(200 * 2**20)
    assert "209,715,200 bytes are more than 67,108,864" in _refused(path)


def test_a_file_that_grows_meanwhile_is_not_read_beyond_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "MAX_BYTES", 10)
    path = tmp_path / "x.json"
    path.write_bytes(b" " * 11)
    assert "11 bytes are more than 10" in _refused(path)


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "<b>me</b>", "<script>alert(1)</script>", "=1+1", "+1", "-1", "@SUM(A1)"),
        *("a\nb", "a\tb", "a\x00b", "a\x1b[31mb", "a\u202eb", "a\u2066b", "a\u200bb", "a\ud800b"),
        *("x" * 81, "x" * 1_000_000, "../../etc/passwd", "/etc/passwd", "..", "a\\b", "C:\\a"),
        *("[me](javascript:alert(1))", "a|b", "`a`", "$x$", "memobench", "MemoBench", "…", 7, None),
        *(["me"], True, "me ", " me"),
        # Letters of several scripts: a Cyrillic e, a Greek omicron, a Latin a among Cyrillic ones.
        *("m\u0435", "memob\u0435nch", "Ann \u03bfNeil", "\u0418v\u0430n", "\uff4de"),
        # What reads as the project's name, all of one alphabet or not, with more around it.
        *("The memobench team", "memo-bench", "m.e.m.o bench", "Mem0bench", "rnemobench"),
        *("mernobench", "m\u00e9mobench", "memobenc\u0127", "\u1d0demobench", "mem\u0585bench"),
        *(
            "\u043c\u0435\u043c\u043e\u0432\u0435\u043f\u0441\u043d",
            "\u039c\u0395\u039c\u039f\u0392\u0395\u039d\u03f9\u0397",
        ),
        # A cell of its own where semicolons separate cells.
        *("Ada;=1+1;x", "Ada; Lovelace"),
    ],
)
def test_a_hostile_name_is_refused_and_writes_nothing(document, trained, tmp_path, name):
    inside = tmp_path / "inside"
    with pytest.raises(UserError) as error:
        submissions.write(results.load_rows(trained).values(), name, inside)
    assert "submitter=" in str(error.value)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1000
    assert not inside.exists()
    assert list(tmp_path.iterdir()) == []
    changed = {**document, "submitter": name}
    assert "submitter=" in _refused(_put(tmp_path, changed, "x.json"))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "Ω",
            "山田 太郎",
            "O Neil-Smith, 3rd",
            "a_b",
            "Zoë Łański",
            "Иван 2",
            "김철수",
            "山田 Taro",
        ),
        *("さくら 花子", "Mnemosyne", "Rembrandt", "Đỗ Thị Hà", "Նարեկ", "משה", "Ελένη", "bench 3"),
    ],
)
def test_names_of_the_world_stay_in_their_folder(name, tmp_path):
    path = submissions.write([_trained_row()], name, tmp_path)
    assert path.parent == tmp_path
    assert path.name.isascii()
    assert submissions.read(path).submitter == name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("url", f"{scheme}:alert(1)") for scheme in ("javascript", "data", "file", "HTTPS")),
        *(("url", url) for url in ("ftp://a.b", "https://", "https://a.b/ c", "//a.b", "a.b", 7)),
        *(("url", f"https://a.b/{x}") for x in ('"onload=', "<b>", "\n", "\u202e", "x" * 1000)),
        *(("url", url) for url in ("https://me:pw@a.b", "https://a.b\x00", "https://ä.b")),
        *(("note", note) for note in ("", "<b>", "=cmd|' /C calc'!A0", "a\x00", "x" * 1001, 7)),
    ],
)
def test_hostile_addresses_and_notes_are_refused(document, tmp_path, field, value):
    assert f"{field}=" in _refuses(tmp_path, {**document, field: value})


@pytest.mark.parametrize("value", ["<b>", "=1+1", "a\x1b", "a\u202eb", "x" * 1_000_000, "a|b"])
@pytest.mark.parametrize("name", ["device", "commit", "architecture", "task", "start", "price<b>"])
def test_hostile_texts_in_rows_are_refused(document, tmp_path, name, value):
    assert "row 1: " in _refuses(tmp_path, _first_row(**{name: value})(document))


def test_links_and_what_is_no_file_are_not_followed(trained, tmp_path, caplog):
    rows = results.load_rows(trained).values()
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    path = submissions.write(rows, "me", outside)
    inside.mkdir()
    link = inside / path.name
    link.symlink_to(path)
    assert "symbolic link" in _refused(link)
    os.mkfifo(inside / "fifo.json")
    assert "not a regular file" in _refused(inside / "fifo.json")
    (inside / "folder.json").mkdir()
    assert "not a regular file" in _refused(inside / "folder.json")
    assert "No such file" in _refused(inside / "none.json")
    with pytest.raises(UserError, match="cannot be read"):
        submissions.read(inside / "a\0b.json")
    with caplog.at_level(logging.WARNING):
        assert submissions.load_folder(inside) == []
    assert all(name in caplog.text for name in (link.name, "fifo.json", "folder.json"))
    # A name that is taken by a link to nowhere is taken.
    link.unlink()
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="already exists"):
        submissions.write(rows, "me", inside)
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "elsewhere").symlink_to(outside)
    with pytest.raises(UserError, match="symbolic link"):
        submissions.write(rows, "you", tmp_path / "elsewhere")
    assert list(outside.iterdir()) == [path]


def test_a_renamed_file_is_refused(document, tmp_path):
    assert "changed or renamed" in _refused(_put(tmp_path, document, "mine.json"))


def _mutated_bytes(text, chance):
    data = bytearray(text.encode())
    for _ in range(chance.randrange(1, 4)):
        i = chance.randrange(len(data))
        data[i : i + chance.randrange(3)] = bytes(chance.choices(range(256), k=chance.randrange(3)))
    return bytes(data)


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


def _mutated_json(document, chance):
    document = copy.deepcopy(document)
    at, key = document, chance.choice(list(document))
    while isinstance(at[key], (dict, list)) and at[key] and chance.random() < 0.9:
        at = at[key]
        key = chance.choice(list(at)) if isinstance(at, dict) else chance.randrange(len(at))
    if chance.random() < 0.2:
        del at[key]
    else:
        at[key] = chance.choice(_VALUES)
    return document


def test_no_mutation_gets_through_or_ends_in_another_error(document, tmp_path):
    chance = random.Random(0)
    text = json.dumps(document)
    path = _put(tmp_path, document)
    whole = submissions.read(path)
    for i in range(100):
        mutated = _mutated_json(document, chance)
        data = _mutated_bytes(text, chance) if i % 2 else json.dumps(mutated).encode()
        path.write_bytes(data)
        assert _read_or_told(path) in (whole, None)
        # Even under the name of what it holds now nothing else is raised.
        if isinstance(mutated.get("submitter"), str):
            _read_or_told(_put(tmp_path, mutated))


def _read_or_told(path):
    try:
        return submissions.read(path)
    except UserError as error:
        told = str(error)
    assert told.isprintable()
    return None


def test_a_row_of_random_sizes_ends_in_one_line(document, tmp_path):
    chance = random.Random(1)
    # No measure follows from the seed of initial weights: another one is another run, on no board.
    names = [name for name in cells(OTHERS[0]) if name not in ("run_id", "seed")]
    for _ in range(80):
        changes = {name: chance.choice(_VALUES) for name in chance.sample(names, 2)}
        try:
            changed = _with_run(document, **changes)
        except UserError:
            continue
        # A column without a value says no more than none.
        if _values(changed) != _values(document):
            _refuses(tmp_path, changed)


def _values(document):
    """What a submission's rows say."""
    return [{k: x for k, x in row.items() if x is not None} for row in document["rows"]]


# A folder of them.


def test_a_bad_file_is_named_and_skipped(document, tmp_path, caplog):
    path = _put(tmp_path, document)
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "notes.txt").write_text("{")
    below = tmp_path / "below"
    below.mkdir()
    _put(below, document)
    with caplog.at_level(logging.WARNING):
        found = submissions.load_folder(tmp_path)
    assert [submission.file for submission in found] == [path.name]
    assert "bad.json" in caplog.text
    assert "notes.txt" not in caplog.text
    assert submissions.load_folder(tmp_path / "none") == []


def test_the_same_run_counts_once_and_what_is_dropped_is_told(tmp_path):
    early, late = "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"
    given = {
        "bob": [_trained_row(0, early), _trained_row(1, late), _trained_row(2, late)],
        "amy": [_trained_row(1, early), _trained_row(2, late), _trained_row(3, late)],
    }
    found = [
        submissions.read(submissions.write(rows, name, tmp_path)) for name, rows in given.items()
    ]
    files = {submission.submitter: submission.file for submission in found}
    own = results.to_table([_trained_row(0, late), _trained_row(4, late)])
    for order in (found, found[::-1]):
        table, dropped = submissions.merge(order, own)
        whose = dict(zip(table["seed"], table["submitter"], strict=True))
        assert whose == {0: "memobench", 1: "amy", 2: "amy", 3: "amy", 4: "memobench"}
        sources = dict(zip(table["seed"], table["source"], strict=True))
        assert sources == {0: "", 1: files["amy"], 2: files["amy"], 3: files["amy"], 4: ""}
        ids = {seed: _trained_row(seed)["run_id"] for seed in range(3)}
        assert sorted(dropped) == sorted(
            [
                submissions.Dropped(ids[0], "memobench", files["bob"]),
                submissions.Dropped(ids[1], files["amy"], files["bob"]),
                submissions.Dropped(ids[2], files["amy"], files["bob"]),
            ]
        )
    theory.check(table)
    means = submissions.aggregates(table)
    assert means["seeds"].tolist() == [5]
    assert np.isclose(means["accuracy"], 0.25).all()
    alone, none = submissions.merge([], own)
    assert alone["submitter"].tolist() == ["memobench"] * 2
    assert alone["source"].tolist() == ["", ""]
    assert none == []
    assert len(submissions.merge(found, results.to_table([]))[0]) == 4


def test_two_files_of_one_name_keep_their_sources(tmp_path):
    found = [
        submissions.read(submissions.write([_trained_row(seed)], "amy", tmp_path, note=f"{seed}"))
        for seed in (0, 1)
    ]
    table, _ = submissions.merge(found, results.to_table([]))
    assert table["submitter"].tolist() == ["amy"] * 2
    assert sorted(table["source"]) == sorted(x.file for x in found)
    assert len(set(table["source"])) == 2
    nothing, _ = submissions.merge([], results.to_table([]))
    assert nothing.empty
    assert {"submitter", "source"} <= set(nothing)


def test_runs_of_another_file_of_the_folder_are_not_new(tmp_path):
    bob, amy = (
        submissions.write([_trained_row(seed) for seed in seeds], name, tmp_path)
        for name, seeds in (("bob", (0, 1)), ("amy", (1, 2)))
    )
    for path, other in ((bob, amy), (amy, bob)):
        with pytest.raises(UserError, match=f"1 of its runs are in {other.name}") as error:
            submissions.require_new(path, submissions.read(path))
        assert str(path) in str(error.value)
        assert str(error.value).isprintable()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "bad.json").write_text("{")
    alone = bob.rename(tmp_path / "elsewhere" / bob.name)
    for path in (alone, amy):
        submissions.require_new(path, submissions.read(path))


def test_checking_files_starts_no_device():
    module = "memobench.submissions"
    code = f"import {module}; from jax._src import xla_bridge as x; assert not x._backends"
    subprocess.run([sys.executable, "-c", code], check=True)


# The commands.


def test_runs_are_submitted_and_checked_by_two_commands(trained, tmp_path):
    done = command_line("submit", "--submitter=Zoë", f"--results={trained}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "results" / "submissions").iterdir()
    assert str(path.relative_to(tmp_path)) in done.stdout
    assert "open a pull request" in done.stdout
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    # Another's file elsewhere, and a copy of the first's runs beside it.
    rows = results.load_rows(trained).values()
    copied = [submissions.write(rows, "Amy", x) for x in (tmp_path / "other", tmp_path / "beside")]
    beside = submissions.write(rows, "Bob", tmp_path / "beside")
    files = [str(x) for x in (bad, path, copied[0], beside)]
    done = command_line("check-submission", *files, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == f"ok: {path}: 3 runs by Zoë\nok: {copied[0]}: 3 runs by Amy\n"
    first, second = done.stderr.splitlines()
    assert f"{bad}: is not JSON" in first
    assert f"{beside}: 3 of its runs are in {copied[1].name} too" in second


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit"], "--submitter='Your Name'"),
        (["submit", "--submitter=me"], "holds no run; first: memobench run EXPERIMENT"),
        (["submit", "--submitter=me", "dana2025/head"], "did you mean dana2025/heads"),
        (["check-submission"], "name a file: memobench check-submission FILE"),
        (["check-submision"], "did you mean check-submission"),
    ],
)
def test_a_mistake_gets_a_clear_line_and_no_traceback(arguments, said, tmp_path):
    done = command_line(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
