"""Infima with a certificate: what Propositions 1 to 3 of Dana et al. (2025) say must come out."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import memobench
from memobench.common.errors import UserError
from memobench.core.run import Run
from memobench.methods import optimum
from memobench.methods.optimum import Optimum
from memobench.methods.training import Training
from memobench.models.gpt import GPT
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.models.transformer import AttentionOnly
from memobench.planner import packing
from memobench.runtime.sweep import TimeUp
from memobench.tasks.associations import Associations
from memobench.tasks.distributions import Distributions
from tests.stopping import Stop, stopping_after

DIRICHLET = Distributions(
    vocab_size=5,
    conditional="dirichlet",
    n_next=5,
    conditional_parameter=1.0,
)


def _encoder(d_model, task=DIRICHLET, **method):
    architecture = SequenceEncoder(d_model=d_model)
    return Run(
        task=task,
        architecture=architecture,
        method=Optimum(**{"starts": 8, "adam_steps": 200, "polished": 2, **method}),
    )


@pytest.fixture(scope="module")
def floors():
    """Encoders of one to four dimensions."""
    return memobench.run([_encoder(d) for d in range(1, 5)], progress=False)


def test_the_encoders_floor_falls_and_vanishes_at_n_minus_one(floors):
    # Proposition 2: zero for d >= N - 1, positive for some distributions below.
    table = floors
    assert (np.diff(table["loss"]) < 0).all()
    assert table["loss"][2] > 1e-3
    assert abs(table["loss"][3]) < 1e-8
    assert (table["gradient_norm"][:3] < 1e-6).all()
    assert table["accuracy"].isna().all()
    for losses, best in zip(table["start_losses"], table["loss"], strict=True):
        assert len(losses) == 2
        assert losses[0] == best


@pytest.mark.slow
def test_two_dimensions_suffice_without_entropy():
    # Proposition 3: a circle of outputs.
    table = memobench.run([_encoder(d, Associations(vocab_size=5)) for d in (1, 2)], progress=False)
    assert table["loss"][1] < 1e-8
    assert table["accuracy"].tolist()[1] == 1
    assert table["loss"][0] > 0.01


@pytest.mark.slow
def test_no_transformer_comes_below_the_floor(floors):
    # Proposition 1, against the same optimiser on the attention-only Transformer.
    floor = floors["loss"][1]
    attention = AttentionOnly(d_model=2, d_head=2, n_heads=12)
    method = Optimum(starts=2, adam_steps=300, polished=2, steps=400)
    run = Run(task=DIRICHLET, architecture=attention, method=method)
    loss = memobench.run([run], progress=False)["loss"][0]
    assert floor - 1e-9 < loss < floor + 0.1


def test_the_optimum_is_below_what_training_reaches(floors):
    trained = dataclasses.replace(_encoder(2), method=Training(n_batches=64, epochs=4).exact())
    table = memobench.run([trained], progress=False)
    assert {*floors["method"], *table["method"]} == {"optimised", "trained"}
    assert 0 < floors["loss"][1] < table["loss"][0]


def test_a_search_can_be_stopped_at_any_of_its_parts_and_is_the_same_by_any(monkeypatch):
    runs = [_encoder(d, steps=25) for d in (1, 2)]
    pack, found = packing.make_pack(runs), {}
    for at_once in (optimum.AT_ONCE, 10):
        # A part's number of steps is compiled in.
        monkeypatch.setattr(optimum, "AT_ONCE", at_once)
        optimum._compile.cache_clear()
        counted = []
        found[at_once] = optimum.solve(pack, counted.append)
        assert counted == [0] * (-(-200 // at_once) + -(-25 // at_once))
    for n in (1, 20, 22):
        with pytest.raises(Stop):
            optimum.solve(pack, stopping_after(n))
        assert not jax.config.jax_enable_x64
    whole, in_parts = found.values()
    assert in_parts.columns == whole.columns
    jax.tree.map(np.testing.assert_array_equal, in_parts.variables, whole.variables)
    assert jax.numpy.ones(1).dtype == np.float32
    optimum._compile.cache_clear()


def test_what_starts_that_diverge_leave_is_kept(monkeypatch):
    draw = optimum._starts

    def spoil(pack, n_starts):
        """A start of the first run, and all of the second."""

        def one(x):
            x = np.array(x)
            x[0, 0], x[1] = np.nan, np.nan
            return x

        variables = draw(pack, n_starts)
        return variables | {"params": jax.tree.map(one, variables["params"])}

    monkeypatch.setattr(optimum, "_starts", spoil)
    runs = [_encoder(d, starts=2, adam_steps=20, steps=10) for d in (1, 2)]
    table = memobench.run(runs, progress=False)
    assert table["status"].tolist() == ["ok", "diverged"]
    assert list(map(len, table["start_losses"])) == [1, 0]
    assert table["gradient_norm"].isna().tolist() == [False, True]


def test_a_sweep_whose_time_is_up_does_not_wait_for_an_optimum(tmp_path, monkeypatch):
    # Its steps take no time, but there is no end of them.
    forever = optimum._Program(lambda descent, *_: (descent, None), None, None, None)
    monkeypatch.setattr(optimum, "_compile", functools.cache(lambda *shape: forever))
    endless = _encoder(1, starts=2, adam_steps=2**40)
    with pytest.raises(TimeUp, match="0 of 1 runs are saved"):
        memobench.run([endless], tmp_path, progress=False, seconds=1)


def test_an_optimum_that_would_take_minutes_to_compile_is_refused():
    deep = Run(
        task=DIRICHLET,
        architecture=GPT(d_model=2, d_head=2, n_layers=64),
        method=Optimum(),
    )
    with pytest.raises(UserError, match=r"^n_layers of an Optimum's model .* at most 8, got 64:"):
        memobench.plan([deep])
    shallow = deep.architecture.replace(n_layers=optimum.MOST_LAYERS)
    assert memobench.plan([dataclasses.replace(deep, architecture=shallow)])


@pytest.mark.rounding
def test_packed_equals_alone():
    tasks = [DIRICHLET, dataclasses.replace(DIRICHLET, seed=1)]
    runs = [_encoder(d, task, steps=30) for d in (1, 3) for task in tasks]
    (pack,) = packing.plan(runs, "cpu")
    packed = optimum.solve(pack)
    for i in (0, 1):
        alone = optimum.solve(packing.make_pack([pack.runs[i]]))
        np.testing.assert_allclose(packed.loss_R[i], alone.loss_R[0], atol=1e-6)
    padded = packed.variables["params"]["encoding"][0]
    assert not np.asarray(padded[:, 1:]).any()


def test_only_an_optimum_is_solved(make_run):
    with pytest.raises(AttributeError, match="'Training' object has no attribute"):
        optimum.solve(packing.make_pack([make_run()]))
