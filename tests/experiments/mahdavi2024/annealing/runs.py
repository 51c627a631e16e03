"""Small annealed runs of unlike sizes, and how their results are compared.

Compilations dominate: packs share one padded shape and its widths 1, 2 and 3.
"""

import dataclasses
import functools
import json

import jax
import numpy as np

from memobench.core import module as models
from memobench.core.run import Run
from memobench.engine import lanes
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.planner import packing
from memobench.tasks.labelled_contexts import LabelledContexts
from tests import small

ARCHITECTURE = QueryAttention(d_model=6, d_head=5, n_heads=2)
METHOD = Annealing(batch_size=8, steps=40, evaluate_every=10, learning_rate=1e-2)
TASK = LabelledContexts(n_examples=24, context_length=3, n_classes=4, input_dim=6)


def run_of(seed=0, task=TASK, **fields):
    """A small run; keyword arguments go to the spec that knows them."""
    own = {
        spec: {name: value for name, value in fields.items() if hasattr(spec, name)}
        for spec in (task, ARCHITECTURE, METHOD)
    }
    assert sum(map(len, own.values())) == len(fields)
    specs = [dataclasses.replace(spec, **changed) for spec, changed in own.items()]
    return Run(task=specs[0], architecture=specs[1], method=specs[2], seed=seed)


# The last fills the largest set, so that every pack with it has the same shapes.
FILLING = run_of(2, n_examples=30, context_length=4, d_model=5, d_head=4, n_heads=4, steps=20)
MIX = (
    run_of(0),
    run_of(
        1, n_examples=20, context_length=4, d_model=8, d_head=3, n_heads=1, steps=60, warmup=0.5
    ),
    FILLING,
)
LARGEST = packing.enclose([run.module() for run in MIX])


def pack_of(runs, slots=None):
    pack = packing.make_pack(runs, LARGEST)
    return dataclasses.replace(pack, slots=slots or len(runs))


QUICK = {"xla_backend_optimization_level": 0}
quick_jit = functools.partial(jax.jit, compiler_options=QUICK)


def assert_close(ours, theirs, atol=1e-5):
    np.testing.assert_allclose(ours.loss_R, theirs.loss_R, atol=atol)
    np.testing.assert_array_equal(ours.accuracy_R, theirs.accuracy_R)
    for here, there in zip(ours.columns, theirs.columns, strict=True):
        np.testing.assert_allclose(here["curve_loss"], there["curve_loss"], atol=atol)
        for name in ("curve_steps", "curve_accuracy", "stopped_at", "best_step"):
            assert here[name] == there[name], name
        np.testing.assert_allclose(here["largest_attention"], there["largest_attention"], atol=2e-3)


def assert_identical(ours, theirs):
    assert json.dumps(ours.columns) == json.dumps(theirs.columns)
    for name in ("loss_R", "accuracy_R", "step_loss_RxL"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    jax.tree.map(np.testing.assert_array_equal, ours.variables, theirs.variables)


def part_of(result, i):
    """The result of one run of a pack as that of a pack of one."""
    return dataclasses.replace(
        result,
        loss_R=result.loss_R[i : i + 1],
        accuracy_R=result.accuracy_R[i : i + 1],
        columns=result.columns[i : i + 1],
    )


def variables_of(result, i, run):
    """The weights of one run of a pack at their true size; outside of it all must be zero."""
    shapes = models.shapes(run.module(), 0)
    small.assert_padding_is_zero(result.variables, i, shapes)
    return lanes.crop(result.variables, i, shapes)
