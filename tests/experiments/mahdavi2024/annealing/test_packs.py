"""Which annealed runs share a pack, how many lanes it has, and how they are used."""

import dataclasses
import functools

import numpy as np
import pandas as pd
import pytest

import memobench
from memobench.core import module as models
from memobench.engine import compiling, loop
from memobench.planner import packing
from memobench.runtime import verify
from tests import small
from tests.experiments.mahdavi2024.annealing.runs import (
    FILLING,
    MIX,
    TASK,
    assert_close,
    assert_identical,
    pack_of,
    part_of,
    run_of,
)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_queue_gives_what_all_at_once_give(slots, mixed):
    assert_close(small.train(pack_of(MIX, slots)), mixed)


def _easy(seed, steps=400, **fields):
    """A run that knows its four examples after 30 to 80 steps, whatever its seed."""
    return run_of(seed, n_examples=4, learning_rate=3e-2, n_heads=4, steps=steps, **fields)


@pytest.mark.rounding
def test_runs_that_know_all_stop_and_free_their_slot(rounds):
    patient = _easy(0, steps=200, stop_early=False, context_length=2)
    runs = [FILLING, *map(_easy, range(1, 5)), patient]
    counted = []
    result = small.train(pack_of(runs, slots=2), counted.append)
    stopped = [certificate["stopped_at"] for certificate in result.columns]
    assert stopped[0] == 20
    assert max(stopped[1:5]) < 400
    assert stopped[5] == 200
    assert (result.accuracy_R[1:] == 1).all()
    assert 1 in result.columns[5]["curve_accuracy"][:-1]
    for certificate in result.columns[1:5]:
        *before, last = certificate["curve_accuracy"]
        assert last == 1
        assert max(before, default=0) < 1
        assert certificate["best_step"] == certificate["stopped_at"]
    # A slot that is free takes the next run that waits; idle, it is given up.
    ends = [0, 0]
    for steps in stopped:
        ends[ends.index(min(ends))] += steps
    assert rounds == [sum(step < end for end in ends) for step in range(0, max(ends), 10)]
    assert {1, 2} == set(rounds)
    # No model-step is counted that was not needed.
    assert counted == [10 * width for width in rounds]
    assert sum(counted) == sum(stopped)


def test_the_pack_narrows_as_runs_finish_and_compiles_each_width_once(rounds, monkeypatch):
    made, compile_program = [], loop.compile_program

    @functools.lru_cache
    @compiling.time_calls
    def compile_noted(*shape):
        made.append(shape)
        return compile_program(*shape)

    monkeypatch.setattr(loop, "compile_program", compile_noted)
    first = small.train(pack_of(MIX))
    # Runs end after 20, 40 and 60 steps; three slots become two and one.
    assert rounds == [3, 3, 2, 2, 1, 1]
    assert [loop.narrow_width(3, n) for n in (3, 2, 1)] == [3, 2, 1]
    assert [width for _, width, _ in made] == [3, 2, 1]
    assert first.compile_seconds > 0
    # Other sizes, seeds and rates are data; the longest run waits until a slot is free.
    rounds.clear()
    other_data = dataclasses.replace(TASK, seed=5)
    others = [
        dataclasses.replace(run, task=dataclasses.replace(run.task, seed=5))
        for run in (FILLING, run_of(9, n_heads=1, learning_rate=0.1, warmup=0), MIX[1])
    ]
    assert others[1].task == other_data
    again = small.train(pack_of(others, slots=2))
    assert rounds == [2] * 4 + [1] * 4
    assert len(made) == 3
    assert again.compile_seconds == 0


def test_a_pack_of_seconds_is_not_worth_another_width(rounds, monkeypatch, mixed):
    monkeypatch.setattr(loop, "NARROWED_FROM_SECONDS", 60)
    assert_close(small.train(pack_of(MIX)), mixed)
    assert rounds == [3] * 6
    rounds.clear()
    lasting = dataclasses.replace(pack_of(MIX), weight=60.0)
    assert_identical(small.train(lasting), mixed)
    assert rounds == [3, 3, 2, 2, 1, 1]


def test_runs_of_several_sets_share_a_pack_and_read_each_their_own():
    other = dataclasses.replace(TASK, seed=4, n_examples=30)
    runs = [
        run_of(0, other, d_model=8),
        run_of(0, n_examples=30),
        run_of(1, other, context_length=4),
    ]
    (pack,) = packing.plan(runs, "cpu")
    assert len(pack.runs) == 3
    packed = small.train(pack_of(runs, slots=1))
    assert packed.loss_R[0] != packed.loss_R[1]
    for i, run in enumerate(runs):
        assert_close(small.train(pack_of([run])), part_of(packed, i))


def test_an_architecture_without_attention_has_no_saturation(monkeypatch, tmp_path):
    monkeypatch.setattr(models, "has_attention", lambda module: False)
    (row,) = memobench.run([run_of(0)], tmp_path, progress=False).to_dict("records")
    assert row["stopped_at"] == run_of(0).method.steps
    assert pd.isna(row["saturated"])
    assert not verify.verify(tmp_path).errors


def test_sets_that_fill_the_memory_are_in_packs_of_their_own(monkeypatch):
    runs = [run_of(i, dataclasses.replace(TASK, seed=i % 2)) for i in range(4)]
    assert packing.memory_shared(runs) == 2 * packing.memory_shared(runs[:1])
    monkeypatch.setitem(packing.MEMORY_BYTES, "gpu", 2 * packing.memory_shared(runs) - 1)
    packs = packing.plan(runs, "gpu")
    assert sorted(sorted(run.task.seed for run in pack.runs) for pack in packs) == [[0, 0], [1, 1]]


UNITED = [
    {"d_model": 9},
    {"d_head": 3},
    {"n_heads": 7},
    {"d_value": 3},
    {"context_length": 9},
    {"n_examples": 99},
    {"steps": 70},
    {"learning_rate": 1.0},
    {"warmup": 0.3},
    {"first_share": 0.5},
    {"stop_early": False},
]
DIVIDED = [
    {"n_classes": 5},
    {"n_classes": None},
    {"contexts": "random"},
    {"input_dim": 7},
    {"n_layers": 2},
    {"positions": "learned"},
    {"residual": True},
    {"batch_size": 9},
    {"evaluate_every": 20},
]


@pytest.mark.parametrize("platform", ["cpu", "gpu", "unheard of"])
def test_a_plan_unites_what_padding_unites_longest_first(platform):
    runs = [run_of(i, **fields) for i, fields in enumerate(UNITED)]
    (pack,) = packing.plan(runs, platform)
    assert sorted(run.run_id for run in pack.runs) == sorted(run.run_id for run in runs)
    steps = [run.method.steps for run in pack.runs]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == 70 > steps[1]
    assert 1 <= pack.slots <= len(runs)
    # 99 examples, rounded up to share a compilation with other packs.
    assert pack.signature.task == dataclasses.replace(TASK, n_examples=128, context_length=9)
    assert 0 < pack.waste < 1
    apart = [run_of(0), *(run_of(0, **fields) for fields in DIVIDED)]
    packs = packing.plan(apart, platform)
    assert len(packs) == len(apart)
    assert all(pack.slots == 1 for pack in packs)


def test_what_does_not_fit_waits(monkeypatch):
    runs = [run_of(seed) for seed in range(6)]
    (pack,) = packing.plan(runs, "gpu")
    assert pack.slots == 6
    shared = packing.memory_shared(runs)
    one = (pack.memory_bytes - shared) / 6
    for fits, slots in ((3.5, 3), (0.1, 1)):
        monkeypatch.setitem(packing.MEMORY_BYTES, "gpu", shared + fits * one)
        (pack,) = packing.plan(runs, "gpu")
        assert (len(pack.runs), pack.slots) == (6, slots)
        assert pack.memory_bytes == pytest.approx(shared + slots * one)


@pytest.mark.parametrize("n_examples", [1, 2, 3, 5, 96, 97, 1000, 1025])
def test_few_sizes_of_the_set_hold_all_runs(n_examples):
    largest = packing.make_pack([run_of(n_examples=n_examples)]).signature.task.n_examples
    assert n_examples <= largest < 1.5 * n_examples
    powers = 2 ** np.arange(12)
    assert largest in {*powers, *(3 * powers)}


def test_a_part_of_a_pack_keeps_the_shapes_of_its_module(monkeypatch):
    """Runs of short contexts alone in a module that was made for long ones."""
    short = [run_of(0), run_of(1), FILLING, run_of(2)]
    first, second = packing.halve_pack(packing.make_pack(short))
    assert first.module == second.module == packing.make_pack(short).module
    monkeypatch.setitem(packing.MAX_RUNS, "cpu", 2)
    for pack in [first, second, *packing.plan(short, "cpu")]:
        assert pack.signature.task.context_length == pack.module.context_length
    part, filled = run_of(0, n_examples=30), [run_of(0, n_examples=30), FILLING]
    alone = small.train(pack_of([part]))
    assert_close(alone, part_of(small.train(pack_of(filled)), 0))
