"""What programs ask of accelerators, counted in what JAX lowers for them; needs none of them.

A gradient of a gather would be a scatter: GPUs sort for it and TPUs loop (`models/lookup.py`).
"""

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


@pytest.mark.parametrize("run", list(_programs()))
def test_steps_scatter_and_sort_nothing_loop_once_and_multiply_in_float32(run):
    pack = packing.make_pack([run], platform="gpu")
    ((signature, n_lanes, n_instances),) = run.method.programs(pack)
    part = program.to_compile(signature, n_lanes, n_instances)["chunk"]
    traced = jax.jit(part.function).trace(*part.arguments)
    for platform in ("cuda", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        counts = {x: text.count(f"stablehlo.{x}") for x in ("scatter", "sort", "while")}
        # The one loop is that over the chunk's steps.
        assert counts == {"scatter": 0, "sort": 0, "while": 1}
        # By default a TPU multiplies bfloat16, and a GPU numbers of 10 bits.
        products = text.count("stablehlo.dot_general")
        assert text.count("precision = [HIGHEST, HIGHEST]") == products > 0
        assert "bf16" not in text
