import dataclasses
import random
import re

import jax
import numpy as np
import pytest
from flax import linen as nn

import memobench
from memobench import engine
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.module import Module
from memobench.core.run import Run
from memobench.core.spec import kind
from memobench.engine import initializing, resident
from memobench.experiments import EXPERIMENTS
from memobench.experiments.board import peak
from memobench.methods.capacity import Capacity
from memobench.methods.checked import Checked
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.planner import packing
from memobench.tasks.associations import Associations
from tests import searches, small


def _grid(make_run, **options):
    method = Training(**options)
    return [
        make_run(d_model=d, d_head=d, n_heads=h, seed=seed, method=method)
        for d in (3, 5, 9)
        for h in (1, 4, 30)
        for seed in range(3)
    ]


def test_a_pack_is_a_line(make_run):
    """As an interactive session shows a plan."""
    (pack,) = memobench.plan([make_run(seed=seed) for seed in range(2)])
    sizes = r"2 runs of attention_only, d_model=4, d_head=4, n_heads=2, d_mlp=0, slots=2"
    assert re.fullmatch(rf"Pack\({sizes}, [\d.]+ MB, waste=0%, [\d.]+ s\)", repr(pack))


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu", "unheard of"])
def test_a_plan_holds_every_run_once_in_a_module_that_encloses_it(make_run, platform):
    runs = _grid(make_run) + _grid(make_run, batch_size=32)
    packs = packing.plan(runs, platform)
    planned = [run.run_id for pack in packs for run in pack.runs]
    assert sorted(planned) == sorted(run.run_id for run in runs)
    for pack in packs:
        assert 0 <= pack.waste < 1
        assert pack.memory_bytes > 0
        for run in pack.runs:
            module = run.module()
            assert packing.enclose([module, pack.module]) == pack.module


def test_short_runs_share_one_program_and_long_ones_are_not_padded(make_run, monkeypatch):
    short = packing.plan(_grid(make_run, batch_size=8, n_batches=2, epochs=1), "gpu")
    assert len(short) == 1
    long = _grid(make_run, batch_size=2**14, n_batches=2**18, epochs=64)
    monkeypatch.setitem(packing.STEP_SECONDS, "gpu", 0.0)
    packs = packing.plan(long, "gpu")
    assert len(packs) == 9
    assert all(pack.waste == 0 for pack in packs)
    # Where a step costs the same however much is in it, everything goes into it.
    monkeypatch.setitem(packing.STEP_SECONDS, "gpu", 1e9)
    monkeypatch.setitem(packing.MEMORY_BYTES, "gpu", 2**60)
    (pack,) = packing.plan(long, "gpu")
    assert pack.weight > 1e9 * long[0].method.steps


def test_packs_fit_the_memory_and_share_their_size(make_run, monkeypatch):
    runs = [make_run(seed=seed) for seed in range(12)]
    five = packing.make_pack(runs[:5], platform="gpu").memory_bytes
    monkeypatch.setitem(packing.MEMORY_BYTES, "gpu", five)
    packs = packing.plan(runs, "gpu")
    assert [len(pack.runs) for pack in packs] == [4, 4, 4]
    assert all(pack.memory_bytes <= five for pack in packs)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_packs_fit_the_share_of_a_worker(make_run, platform):
    """Lanes that train together, and those that others wait for; what is left of a plan, too."""
    runs = _grid(make_run) + [searches.run_of(n=n, seed=n) for n in range(20, 36)]
    whole = packing.plan(runs, platform)
    assert packing.plan(runs, platform, 1, packing.MEMORY_BYTES[platform]) == whole
    share = max(pack.memory_bytes for pack in whole) / 3
    packs = packing.plan(runs, platform, 1, share)
    assert {run for pack in packs for run in pack.runs} == set(runs)
    least = packing.LEAST_TRIALS.get(platform, 1)
    assert all(pack.memory_bytes <= share or pack.slots <= least for pack in packs)
    assert max(pack.memory_bytes for pack in packs) < max(pack.memory_bytes for pack in whole)
    left = {run.run_id for pack in packs[1:] for run in pack.runs}
    assert packing.plan_rest(runs, left, platform, 1, share) == packs[1:]


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_trainings_on_tokens_hold_as_much_whether_they_may_end_early_or_not(make_run, platform):
    """Logits are of one model at a time."""
    tasks = [Associations(vocab_size=50, seed=seed) for seed in range(3)]
    plain, checked = (
        packing.make_pack([make_run(task=task, method=method) for task in tasks], platform=platform)
        for method in (Training(), Checked())
    )
    assert checked.memory_bytes == plain.memory_bytes


def test_all_numbers_of_steps_share_a_program(make_run):

    methods = [Training(n_batches=8, epochs=epochs) for epochs in (2, 4)]
    runs = [run for method in methods for run in _grid(make_run, **vars(method))]
    packs = packing.plan(runs, "cpu")
    assert all(len({run.method for run in pack.runs}) == 1 for pack in packs)
    shapes = [
        {pack.signature for pack in packs if pack.runs[0].method == method} for method in methods
    ]
    assert shapes[0] == shapes[1] != set()


def test_a_pack_may_be_halved_in_size_to_share_its_program(make_run, monkeypatch):
    monkeypatch.setitem(packing.MAX_RUNS, "gpu", 10)
    for n_runs, sizes in ((18, [9, 9]), (15, [5] * 3), (11, [6, 5])):
        runs = [make_run(seed=seed) for seed in range(n_runs)]
        assert [len(pack.runs) for pack in packing.plan(runs, "gpu")] == sizes


def test_predicted_memory_is_that_of_the_compiled_program_within_a_factor_of_three(make_run):

    sizes = {"d_model": 10, "d_head": 10, "n_heads": 21}
    for method in (Training(), Training().exact()):
        run = make_run(task=Associations(vocab_size=50), method=method, **sizes)
        pack = packing.make_pack([run, dataclasses.replace(run, seed=1)])
        program = engine.compile_program(pack.signature, len(pack.runs), 1)
        measured = program.chunk.memory_analysis()
        used = measured.temp_size_in_bytes + measured.argument_size_in_bytes
        assert 1 / 3 < pack.memory_bytes / used < 3


def test_smaller_packs_keep_the_runs_and_the_program(make_run):
    pack = packing.make_pack([make_run(seed=seed, n_heads=1 + seed) for seed in range(5)])
    first, second = packing.halve_pack(pack)
    assert first.runs + second.runs == pack.runs
    assert first.module == second.module == pack.module
    (alone,) = {len(each.runs) for each in packing.halve_pack(second)}
    assert alone == second.slots - 1 == 1
    assert packing.halve_pack(packing.halve_pack(second)[0]) == []
    # A capacity has many models, of which fewer can train at a time.
    task = Associations(vocab_size=7, n_sequences=20)
    many = packing.make_pack([make_run(task=task, method=Capacity(tables=12))])
    sizes = [many.slots]
    while packs := packing.halve_pack(many):
        (many,) = packs
        sizes.append(many.slots)
    assert sizes == [8, 4, 2, 1]


def test_runs_that_no_padding_unites_are_refused(make_run):
    with pytest.raises(ValueError, match="differ in more"):
        packing.make_pack([make_run(), make_run(task=Associations(vocab_size=8))])


def test_initial_weights_are_those_of_each_model_alone(make_run):
    runs = [
        make_run(n_heads=3, seed=5),
        make_run("mlp", d_mlp=6, seed=5),
        make_run(n_heads=1, d_model=2, d_head=2, seed=7),
        make_run(n_heads=3, seed=9),
    ]
    stacked = small.init_pack(packing.make_pack(runs))
    for i, run in enumerate(runs):
        alone = models.init(run.module(), 2, initializing.init_key(run))
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(stacked), strict=True):
            inside = tuple(slice(0, size) for size in a.shape)
            np.testing.assert_allclose(b[i][inside], a, atol=1e-7)
        small.assert_padding_is_zero(stacked, i, alone)


class NormalisedModule(Module):
    """Layer norm sees its width: zero-padding would change it."""

    vocab_size: int
    d_model: int

    @nn.compact
    def __call__(self, tokens_S):
        x_D = nn.Embed(self.vocab_size, self.d_model)(tokens_S).sum(0)
        return nn.Dense(self.vocab_size)(nn.LayerNorm()(x_D))


def test_an_architecture_that_padding_would_change_is_packed_by_size(make_run):
    @kind("normalised")
    class Normalised(Architecture):
        def module(self, task):
            return NormalisedModule(vocab_size=task.vocab_size, d_model=self.d_model)

    runs = [make_run("normalised", d_model=d, seed=seed) for d in (2, 3) for seed in range(2)]
    packs = packing.plan(runs, "cpu")
    assert sorted((pack.module.d_model, len(pack.runs)) for pack in packs) == [(2, 2), (3, 2)]


def _plain_cuts(modules, work, total, longest, platform, skipped):
    """The recurrence that `_cuts` vectorises, as it is written down."""
    best = [(0.0, 0)]
    for stop in range(1, len(modules) + 1):
        options = []
        for start in range(stop):
            padded = packing.enclose([module for module, _ in modules[start:stop]])
            n_rows = max(n for _, n in modules[start:stop])
            trained = [
                padded.clone(**{name: getattr(own, name) for name in skipped})
                for own, _ in modules[start:stop]
            ]
            each = zip(trained, total[start:stop], strict=True)
            arithmetic = sum(work(module, n_rows) * steps for module, steps in each)
            seconds = packing._seconds(arithmetic, max(longest[start:stop]), platform)
            compiling = packing.COMPILE_SECONDS[platform]
            options.append((best[start][0] + compiling + seconds, start))
        best.append(min(options))
    stops = [len(modules)]
    while best[stops[-1]][1] > 0:
        stops.append(best[stops[-1]][1])
    return stops[::-1]


def _board(platform):
    runs = EXPERIMENTS["board/typical"].runs("full")
    return [x for x in packing.plan(runs, platform) if x.signature.protocol == "exact"]


def test_sets_of_several_budgets_share_a_program_where_a_step_costs_much():
    """Those of one vocabulary; on a CPU every entry has its own."""
    on_cpu, on_gpu = map(_board, ("cpu", "gpu"))
    counts = [
        sorted(len({x.task.n_examples for x in p.runs}) for p in of) for of in (on_cpu, on_gpu)
    ]
    assert counts[0][-1] == 1
    assert counts[1][-1] > 1
    assert len(on_gpu) < len(on_cpu) / 2
    for pack in on_gpu:
        assert pack.signature.task.n_examples == max(run.task.n_examples for run in pack.runs)
        assert packing.programs(pack)


def test_on_a_gpu_with_kernels_packs_are_padded_to_what_these_hold(monkeypatch):
    runs = [run for n in (2048, 4096) for run in peak.runs([n])]
    monkeypatch.setenv(resident.VARIABLE, "0")
    of_xla = packing.plan(runs, "gpu")
    monkeypatch.delenv(resident.VARIABLE)
    weights = [models.count_parameters(x.module, 2)[0] for x in packing.plan(runs, "gpu")]
    assert len(weights) < len(runs)
    assert max(weights) <= packing.KERNEL_WEIGHTS
    # Devices that share a pack have none.
    assert sum(x.weight for x in of_xla) > 2 * sum(x.weight for x in packing.plan(runs, "gpu"))
    monkeypatch.setenv(resident.VARIABLE, "0")
    on_two = [x.weight for x in packing.plan(runs, "gpu", 2)]
    monkeypatch.delenv(resident.VARIABLE)
    assert [x.weight for x in packing.plan(runs, "gpu", 2)] == on_two


def test_a_board_keeps_a_thousand_lanes_of_a_gpu_busy():
    runs = EXPERIMENTS["board/typical"].runs("quick")
    packs = packing.plan(runs, "gpu")
    assert len(runs) == 20
    assert sum(sorted(pack.slots for pack in packs)[-6:]) > 1000


def test_what_a_wide_pack_holds_and_wastes_is_that_of_its_largest_set(make_run):
    method = Capacity(training=Training(n_batches=4, epochs=4).exact(), rungs=1, tables=2)
    small, large = (
        make_run(task=Associations(vocab_size=50, n_sequences=n), method=method)
        for n in (100, 2000)
    )
    with pytest.raises(ValueError, match="differ"):
        packing.make_pack([small, large])
    both = packing.make_pack([small, large], platform="gpu")
    alone = packing.make_pack([large], platform="gpu")
    shared = packing.memory_shared([large])
    assert both.memory_bytes - shared == pytest.approx(2 * (alone.memory_bytes - shared))
    assert both.waste > 0.4
    assert both.signature == alone.signature


@pytest.mark.parametrize(
    ("platform", "skipped"), [("cpu", ()), ("gpu", ()), ("cpu", ("n_heads", "d_mlp"))]
)
@pytest.mark.parametrize("steps", [1, 10**4, 10**6, 10**8])
def test_cuts_are_those_of_the_plain_recurrence(make_run, platform, skipped, steps):
    chance = random.Random(steps)
    sizes = {(chance.randint(2, 40), chance.randint(1, 30)) for _ in range(20)}
    runs = [make_run(d_model=d, d_head=d, n_heads=h, heads="full") for d, h in sizes]

    def work(module, n_rows):
        return runs[0].method.cost(runs[0], module).flops_per_step * n_rows

    sizes = [(run.module(), chance.choice([100, 300, 1000])) for run in runs]
    modules = sorted(sizes, key=lambda size: work(*size))
    longest = [chance.randint(1, steps) for _ in modules]
    total = [chance.randint(1, 9) * steps for _ in modules]
    cuts = packing._cuts(modules, work, total, longest, platform, 1, lambda module: skipped)
    assert cuts == _plain_cuts(modules, work, total, longest, platform, skipped)


def test_what_a_kernel_skips_of_padding_costs_nothing(make_run, monkeypatch):
    """Heads are padded, for they are skipped; the width is not."""
    sizes = [(d, n_heads) for d in (3, 12) for n_heads in (1, 30)]
    runs = [
        make_run(d_model=d, d_head=d, n_heads=n_heads, heads="full", seed=seed)
        for d, n_heads in sizes
        for seed in range(4)
    ]
    runs = [
        dataclasses.replace(run, method=dataclasses.replace(run.method, epochs=10**6))
        for run in runs
    ]
    monkeypatch.setattr(packing, "takes_kernel", lambda run, module: True)
    packs = packing.plan(runs, "cpu")
    assert {(x.module.d_model, x.module.n_heads) for x in packs} == {(12, 30), (3, 30)}
    assert [pack.waste for pack in packs] == pytest.approx([0.0] * len(packs))


def _sizes(n_heads, d_models, seeds=2):
    return [
        Run(
            task=Associations(vocab_size=50),
            architecture=AttentionOnly(d_model=d_model, d_head=d_model, n_heads=n, heads="full"),
            method=Training(batch_size=256, n_batches=16, epochs=64),
            seed=seed,
        )
        for d_model in d_models
        for n in n_heads
        for seed in range(seeds)
    ]


def test_what_is_left_trains_in_the_packs_that_were_planned_first():
    """A sweep that was killed ends in the bits of one that was not."""
    runs = _sizes([7, 17, 35], [10, 15, 20, 34, 36, 39])
    packs = packing.plan(runs, "cpu")
    anew = 0
    for i in range(len(packs)):
        others = packs[:i] + packs[i + 1 :]
        left = {run.run_id for pack in others for run in pack.runs}
        assert packing.plan_rest(runs, left, "cpu") == others
        anew += packing.plan([run for run in runs if run.run_id in left], "cpu") != others
    assert anew, "planning what is left alone would have done"


@pytest.mark.parametrize("part", [0, 1, 7, 20, 36])
def test_each_run_that_is_left_is_planned_once(part):
    runs = _sizes([7, 17, 35], [10, 15, 20, 34, 36, 39])
    left = {run.run_id for run in np.random.default_rng(part).permutation(np.array(runs))[:part]}
    planned = [run.run_id for pack in packing.plan_rest(runs, left, "cpu") for run in pack.runs]
    assert sorted(planned) == sorted(left)
