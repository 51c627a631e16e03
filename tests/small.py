"""Small specs of every registered kind, small experiments, and what tests of shards share."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest

from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.cells import from_cells
from memobench.core.spec import SPEC_VERSION
from memobench.core.task import Task
from memobench.engine import initializing
from memobench.experiment import Experiment
from memobench.report.figure import Figure
from memobench.runtime import verify
from memobench.store import results, rows

# Values of fields, wherever a kind has a field of this name.
TASK = {
    "vocab_size": 5,
    "context_length": 3,
    "conditional": "uniform",
    "n_next": 2,
    "n_sequences": 5,
    "n_examples": 6,
    "n_classes": 3,
    "input_dim": 5,
    "n_subjects": 3,
    "n_relations": 2,
    "n_answers": 2,
    "n_noise": 4,
    "n_pairs": 1,
}
ARCHITECTURE = {"d_model": 4, "d_head": 3, "n_heads": 2, "d_mlp": 5, "n_experts": 3}
ARCHITECTURE |= {"d_key": 2, "n_keys": 3}


def make(kind, values):
    """A spec of a kind with those of the values that it has a field for."""
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: x for name, x in values.items() if name in names})


def init_pack(pack):
    """Initial variables of every run of a pack, padded and stacked: axis R."""
    target = models.shapes(pack.module, pack.runs[0].task.context_length)
    drawn = (initializing.init_run(run) for run in pack.runs)
    return models.stack(models.pad_to(each, target) for each in drawn)


def experiment(name, runs, **fields):
    """An experiment whose presets are the same few runs."""
    few = {
        "title": name.rpartition("/")[2].title(),
        "presets": {"quick": tuple(runs), "full": tuple(runs)},
        "of_full": "nothing",
        "figure": Figure(x="n_params", hue="architecture"),
    }
    return Experiment(name=name, **few | fields)


def serves(architecture, task):
    """Whether the architecture builds a model for the task."""
    try:
        architecture.module_for(task)
    except UserError:
        return False
    return True


PROVENANCE = {
    **{"spec_version": SPEC_VERSION, "memobench": "0.1.0", "commit": "0123abc+", "jax": "0.10.2"},
    **{"jaxlib": "0.10.2", "platform": "cpu", "device": "AMD EPYC, 2 cores", "pack_size": 1},
    **{"date": "2026-01-31T12:00:00+00:00", "compile_seconds": 1.0, "run_seconds": 2.5},
}


def resealed(text):
    """A shard with the digest of what it holds now, all else as it is; what is none stays so."""
    try:
        shard = json.loads(text)
        digest = results.digest({name: shard[name] for name in ("provenance", "rows")})
    except (ValueError, TypeError, KeyError, RecursionError):
        return text
    return re.sub('"digest": "[0-9a-f]*"', f'"digest": "{digest}"', text)


def reseal(path, change):
    """Changes what a shard holds, and its digest as well."""
    shard = json.loads(path.read_text())
    change(shard)
    path.write_text(resealed(json.dumps(shard)))


def tasks(name):
    """A task of a kind with contexts of three tokens, and one with a single token if it can."""
    found = []
    for length in (3, 1):
        values = {**TASK, "context_length": length}
        try:
            task = make(Task.get_kind(name), values)
        except UserError:
            continue
        if task not in found:
            found.append(task)
    return found


def questions():
    """Every registered architecture with a task of each question it answers, and every task."""
    seen = set()
    for pair in pairs():
        architecture, task = pair.values
        parts = {(architecture, task.question), task}
        if not parts <= seen:
            seen |= parts
            yield pair


def every_task():
    """Every registered task with an architecture that it is served by."""
    return {pair.values[1].name: pair for pair in pairs()}.values()


def pairs():
    """Every registered architecture with every task that it serves."""
    for name, cls in Architecture.kinds().items():
        architecture = make(cls, ARCHITECTURE)
        for task_name in Task.kinds():
            served = [task for task in tasks(task_name) if serves(architecture, task)]
            if served:
                yield pytest.param(architecture, served[0], id=f"{name}-{task_name}")


def assert_padding_is_zero(tree, i, shapes):
    """Row i of a stacked tree is zero beyond these shapes."""

    def check(padded, shape):
        outside = np.array(padded[i])
        outside[tuple(map(slice, shape.shape))] = 0
        assert not outside.any()

    jax.tree.map(check, tree, shapes)


def checked_row(row):
    """Raises UserError unless a row and its provenance are those of one run."""
    known = rows.all_columns()
    for name, value in row.items():
        if value is not None:
            known[name].domain.validate(name, known[name].domain.read(value))
    row = {name: row.get(name) for name in known}
    verify._check_model(from_cells(row), row)


def markdown_rows(text):
    """The tables of a Markdown page, a dictionary for each row."""
    rows, head = [], None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
            continue
        cells = [x.strip() for x in re.split(r"(?<!\\)\|", line)[1:-1]]
        if head is None:
            head = cells
        elif not line.startswith("|:") and not line.startswith("|-"):
            rows.append(dict(zip(head, cells, strict=True)))
    return rows


def train(pack, *of_training, **by_name):
    """What the method of a pack's runs makes of them."""
    return pack.runs[0].method.train(pack, *of_training, **by_name)
