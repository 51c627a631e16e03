"""Strict JAX for all tests, and the small runs that many of them share."""

import collections
import dataclasses
import sys
import threading

import jax
import pytest
from jax._src import compiler
from jax._src.interpreters import mlir

import memobench
from memobench import claims
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.methods.training import Training
from memobench.numerics import lookup
from memobench.tasks.associations import Associations
from tests import registries, small

jax.config.update("jax_numpy_rank_promotion", "raise")

# What other platforms would do takes a third of all tracing.
lookup.PLATFORM.set_global("cpu")

# To make MLIR's context anew for every program takes as long as to compile the smallest. A JAX that
# has no function of this name does so.
_make_context, _of_thread = getattr(mlir, "make_ir_context", None), threading.local()


def _share_context():
    if not hasattr(_of_thread, "context"):
        _of_thread.context = _make_context()
    return _of_thread.context


mlir.make_ir_context = _share_context

# Many tests make the same program anew, from functions of their own: its text is compiled once. A
# JAX that has no function of this name compiles all.
_compile = getattr(compiler, "backend_compile_and_load", None)
_compiled: collections.OrderedDict = collections.OrderedDict()
MOST_COMPILED = 512


def _compile_once(backend, module, devices, options, callbacks):
    if callbacks or backend.platform != "cpu":
        return _compile(backend, module, devices, options, callbacks)
    text, ids = mlir.module_to_bytecode(module), tuple(device.id for device in devices)
    key = text, ids, options.SerializeAsString()
    made = _compiled.get(key)
    if made is None:
        made = _compiled[key] = _compile(backend, module, devices, options, callbacks)
        if len(_compiled) > MOST_COMPILED:
            _compiled.popitem(last=False)
    return made


if _compile is not None:
    compiler.backend_compile_and_load = _compile_once


@pytest.fixture
def every_platform():
    """Programs have the forms of all platforms, as without these tests."""
    with lookup.PLATFORM(None):
        yield


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    """Folders of users' files, which may import what lies beside them, are forgotten."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture(autouse=True)
def restore_registries():
    """What a test registers is gone after it, whatever the order of tests."""
    with registries.restore():
        yield


@pytest.fixture
def make_run():
    """A small run of an architecture by its name; other keyword arguments are its fields."""

    def make(name="attention_only", *, seed=0, task=None, method=None, **sizes):
        kind = Architecture.get_kind(name)
        known = {field.name for field in dataclasses.fields(kind)}
        small = {"d_model": 4, "d_head": 4, "n_heads": 2}
        sizes = {field: size for field, size in small.items() if field in known} | sizes
        return Run(
            task=task or Associations(vocab_size=7),
            architecture=kind(**sizes),
            method=method or Training(batch_size=16, n_batches=5, epochs=4),
            seed=seed,
        )

    return make


@pytest.fixture(scope="session")
def measured():
    """A tiny experiment with a claim, and the table of its runs, of which one diverged."""
    task = Associations(vocab_size=5)
    method = Training(batch_size=8, n_batches=8, epochs=16)
    wild = dataclasses.replace(method, learning_rate=1e30)

    def run(method, seed, **sizes):
        name = "mlp" if "d_mlp" in sizes else "attention_only"
        architecture = Architecture.get_kind(name)(d_model=3, d_head=3, **sizes)
        return Run(task=task, architecture=architecture, method=method, seed=seed)

    runs = [
        run(m, seed, **sizes)
        for m in (method, method.exact())
        for sizes in ({"n_heads": 1}, {"n_heads": 4}, {"d_mlp": 6})
        for seed in range(2)
    ]
    runs.append(run(wild, 2, n_heads=1))
    experiment = small.experiment(
        "test/tiny",
        runs,
        of_full="nothing to speak of",
        claims=(
            claims.Claim(
                name="knows something",
                statement="Every model knows all.",
                source="tests",
                test=claims.every_run("accuracy", claims.compared_accuracy, (0.99, 1)),
            ),
        ),
        published=tuple(
            {
                "architecture": "attention_only",
                "n_heads": n_heads,
                "published": 0.4,
                "published_steps": steps,
            }
            for n_heads, steps in ((1, 128), (4, 99))
        ),
    )
    return experiment, memobench.run(runs, progress=False)
