"""What programs ask of accelerators, counted in what JAX lowers for them; needs none of them.

A gradient of a gather would be a scatter: GPUs sort for it and TPUs loop (`models/lookup.py`).
"""

import re

import jax
import pytest

from memobench.engine import program
from memobench.errors import UserError
from memobench.methods.annealing import Annealing
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.planner import packing
from memobench.runs import Run
from tests import small

PUBLISHED = Training(batch_size=4, n_batches=2, epochs=1)
METHODS = {
    "published": PUBLISHED,
    "exact": PUBLISHED.exact(),
    "annealed": Annealing(steps=4, evaluate_every=4, batch_size=4),
    "searched": Search(training=PUBLISHED.exact()),
}


def _programs():
    """A run of every method for every registered architecture with every task that it serves."""
    for pair in small.pairs():
        architecture, task = pair.values
        for name, method in METHODS.items():
            try:
                run = Run(task=task, architecture=architecture, method=method)
            except UserError:
                continue
            yield pytest.param(run, id=f"{pair.id}-{name}")


def _count(text, name):
    return len(re.findall(rf'"?\bstablehlo\.{name}"?\(', text))


@pytest.mark.parametrize("run", list(_programs()))
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_steps_scatter_and_sort_nothing_and_hold_no_inner_loop(run, platform):
    pack = packing.make_pack([run], platform={"cuda": "gpu"}.get(platform, platform))
    ((signature, n_lanes, n_instances),) = run.method.programs(pack)
    part = program.to_compile(signature, n_lanes, n_instances)["chunk"]
    traced = jax.jit(part.function).trace(*part.arguments)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("stablehlo.scatter") == text.count("stablehlo.sort") == 0
    # One loop over the chunk's steps.
    assert text.count("stablehlo.while") == 1
