"""What programs ask of accelerators, counted in what JAX lowers for them; needs none of them.

A gradient of a gather would be a scatter: GPUs sort for it and TPUs loop (`models/lookup.py`).
"""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.optimizer import Optimizer
from memobench.core.run import Run
from memobench.engine import devices, program
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.transformer import MLP, AttentionOnly
from memobench.numerics import lookup, metrics
from memobench.planner import packing
from memobench.tasks.associations import Associations
from memobench.tasks.labelled_contexts import LabelledContexts
from tests import small

pytestmark = [pytest.mark.accelerators, pytest.mark.usefixtures("every_platform")]
PUBLISHED = Training(batch_size=4, n_batches=2, epochs=1)
SIZES = {"d_model": 4, "d_head": 3, "n_heads": 2}
LEVEL = PUBLISHED.replace(final_learning_rate=PUBLISHED.learning_rate)
METHODS = {
    "published": PUBLISHED,
    "exact": PUBLISHED.exact(),
    "annealed": Annealing(steps=4, evaluate_every=4, batch_size=4),
    "searched": Search(training=PUBLISHED.exact()),
}


def _programs():
    """A run of every architecture with every task that it serves, and of all methods with one."""
    seen = set()
    for pair in small.pairs():
        architecture, task = pair.values
        for name, method in METHODS.items():
            with contextlib.suppress(UserError):
                run = Run(task=task, architecture=architecture, method=method)
                # What a method adds to a step does not depend on both, model and task.
                parts = {(architecture, task), (architecture, name), (task, name)}
                if not parts <= seen:
                    seen |= parts
                    yield pytest.param(run, id=f"{pair.id}-{name}")
    many = AttentionOnly(**SIZES | {"n_heads": 12, "n_layers": 2})
    run = Run(task=Associations(vocab_size=4), architecture=many, method=PUBLISHED)
    yield pytest.param(run, id="many heads")
    steps = {name: LEVEL.replace(optimizer=of()) for name, of in Optimizer.kinds().items()}
    steps |= {name: PUBLISHED.replace(precision=name) for name in ("bfloat16", "int4")}
    for name, method in steps.items():
        run = Run(
            task=Associations(vocab_size=4), architecture=MLP(**SIZES, d_mlp=9), method=method
        )
        yield pytest.param(run, id=name)


@pytest.mark.parametrize("run", list(_programs()))
def test_steps_scatter_and_sort_nothing_loop_once_and_multiply_in_float32(run):
    pack = packing.make_pack([run], platform="gpu")
    ((signature, n_lanes, n_instances),) = packing.programs(pack)
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


N_DEVICES = 8
COLLECTIVE = re.compile(r"all_|collective|reduce_scatter|send|recv|custom_call_target")


@pytest.mark.parametrize("name", ["published", "annealed", "searched"])
def test_no_device_waits_for_another_or_the_host_within_a_program(name, monkeypatch):
    labelled = isinstance(METHODS[name], Annealing)
    task, architecture = (
        (LabelledContexts(n_examples=6, context_length=2, n_classes=3), QueryAttention(**SIZES))
        if labelled
        else (Associations(vocab_size=4, n_sequences=8), AttentionOnly(**SIZES))
    )
    runs = [
        Run(task=task, architecture=architecture, method=METHODS[name], seed=seed)
        for seed in range(2 * N_DEVICES)
    ]
    pack = packing.make_pack(runs, platform="tpu", n_devices=N_DEVICES)
    ((signature, n_lanes, n_instances),) = packing.programs(pack)
    mesh = AbstractMesh((N_DEVICES,), ("runs",), axis_types=(AxisType.Auto,))
    monkeypatch.setattr(devices, "count", lambda: N_DEVICES)
    monkeypatch.setattr(devices, "_mesh", lambda: mesh)
    assert n_lanes % N_DEVICES == 0
    for part in program.to_compile(signature, n_lanes, n_instances).values():
        traced = devices.jit(part.function, part.specs).trace(*part.arguments)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
        # What a device does is written out for its share of the lanes alone.
        assert f"num_partitions = {N_DEVICES}" in text
        assert "manual_computation" in text
        assert not COLLECTIVE.findall(text)
        # Nor for the host: how often a loop runs is known.
        assert not re.findall(r"compare +LT, %iterArg\w*, %iterArg", text)


@pytest.mark.parametrize("heads", ["compressed", "full"])
def test_examples_are_the_rows_of_what_a_cpu_computes(heads):
    """Weights first in a product would make them columns, transposed in every pass over them."""
    task, architecture = Associations(vocab_size=13), MLP(heads=heads, d_mlp=23, **SIZES)
    module = architecture.module_for(task)
    variables = models.init_on_host(module, 2, jax.random.key(0))
    logits = jax.jit(jax.vmap(lambda tokens_S: module.apply(variables, tokens_S)))
    text = logits.trace(np.zeros((31, 2), int)).lower(lowering_platforms=("cpu",)).as_text()
    assert "tensor<31x23xf32>" in text
    assert "tensor<31x13xf32>" in text
    assert not re.findall(r"tensor<(?:23|13)x31xf32>", text)


@pytest.mark.parametrize(
    "architecture",
    [
        AttentionOnly(heads="compressed", **SIZES),
        AttentionOnly(heads="full", n_layers=3, **SIZES),
        AttentionOnly(d_model=4, d_head=3),
        AttentionOnly(d_model=4, d_head=3, n_heads=12, n_layers=2),
        MLP(n_layers=2, d_mlp=5, **SIZES),
    ],
    ids=str,
)
def test_logits_and_gradients_on_accelerators_are_those_on_cpus(architecture, monkeypatch):
    task = Associations(vocab_size=5, context_length=3)
    module = architecture.module_for(task)
    variables = models.init_on_host(module, 3, jax.random.key(0))
    tokens_BxS = jax.random.randint(jax.random.key(1), (8, 3), 0, 5)
    every_TxS = np.indices((5, 5, 5)).reshape(3, -1).T
    weight_BxN = jax.random.normal(jax.random.key(2), (8 + len(every_TxS), 5))

    def weighted(params):
        applied = {**variables, "params": params}
        sampled_BxN = jax.vmap(lambda tokens_S: module.apply(applied, tokens_S))(tokens_BxS)
        logits_BxN = jnp.concatenate([sampled_BxN, models.all_logits(module, applied, every_TxS)])
        return (weight_BxN * logits_BxN).sum(), logits_BxN

    def graded():
        # In float64 two forms of a function differ by nothing that float32 shows.
        with jax.enable_x64(True):
            params = jax.tree.map(np.float64, variables["params"])
            return jax.tree.leaves(jax.jit(jax.grad(weighted, has_aux=True))(params))

    on_cpu = graded()
    monkeypatch.setattr(lookup, "select_by_platform", lambda cpu, accelerator, *x: accelerator(*x))
    for x, y in zip(on_cpu, graded(), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9)


def test_losses_and_what_is_correct_on_accelerators_are_those_on_cpus(monkeypatch):
    # Of three values, with ties for the top and tokens that are never asked for.
    logits_TxN = np.random.default_rng(0).choice([-np.inf, 0.0, 1.5], (64, 4))
    logits_TxN[:, 0] = 1.5
    next_TxK = np.arange(64)[:, None] % 4

    def judged():
        return jax.vmap(lambda *x: metrics.kl_and_correct(*x, jnp.ones(1)))(logits_TxN, next_TxK)

    on_cpu = judged()
    monkeypatch.setattr(lookup, "select_by_platform", lambda _, other, *x: other(*x))
    np.testing.assert_array_equal(on_cpu, judged())
    assert 0 < on_cpu[1].sum() < 16
