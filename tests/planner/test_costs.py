import collections
import dataclasses

import numpy as np
import pytest

from memobench.cli.commands.run import plan_table
from memobench.constructions.dana2025 import Dana2025
from memobench.core.cells import cells
from memobench.methods.capacity import Capacity
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.planner import costs, packing
from memobench.store import published
from memobench.tasks.associations import Associations

MEASURED = "AMD EPYC, 2 cores"


def _rows(pack, seconds, compile_seconds, date="2026-01-01", device="D"):
    """The rows of a pack's shard, of what `costs` looks at."""
    about = {"date": date, "device": device, "platform": "cpu", "jax": "0", "commit": "c"}
    about |= {"compile_seconds": compile_seconds, "run_seconds": seconds}
    return [{**cells(run), **about, "pack_size": len(pack.runs)} for run in pack.runs]


@pytest.fixture
def packs(make_run):
    return [
        packing.make_pack([make_run(n_heads=h, method=Training(epochs=e))])
        for h in (2, 4, 6)
        for e in (8, 32)
    ]


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu", "unheard of"])
def test_a_device_never_measured_is_guessed_and_one_of_the_table_is_not(make_run, platform):
    pack = packing.make_pack([make_run()], platform=platform)
    for name, factor in (("another", None), *costs.FACTORS.items()):
        predicted = costs.predict([pack], f"{name} 80GB", workers=1)
        assert predicted.guessed == (factor is None)
        expected = (factor or 1) * costs.estimate_seconds(pack, 1)
        assert predicted.wall_seconds == predicted.seconds[0] == pytest.approx(expected)
        assert expected > 0


@pytest.mark.parametrize(("device", "known"), [("another CPU", 0), (MEASURED, 1)])
def test_the_factor_is_the_median_of_what_was_measured_on_the_device(packs, device, known):
    factors = [7.0, 8.0, 9.0, 10.0, 11.0, 1000.0]
    rows = [
        row
        for pack, factor in zip(packs, factors, strict=True)
        for row in _rows(pack, factor * costs.estimate_seconds(pack, 0), 0.0, device=device)
    ]
    learned = costs.learn_factor(rows, device)
    assert learned == pytest.approx(np.sqrt(90) if not known else 9.0)
    predicted = costs.predict(packs, device, workers=1, rows=rows)
    assert not predicted.guessed
    before = costs.predict(packs, device, workers=1)
    np.testing.assert_allclose(predicted.seconds, learned * np.array(before.seconds))
    # What was measured elsewhere says nothing of this device.
    assert costs.learn_factor(rows, "a third") is None


def test_whole_shards_that_the_planner_would_make_are_measured(make_run):
    first = packing.make_pack([make_run(seed=seed) for seed in range(3)])
    second = packing.make_pack([make_run(seed=seed) for seed in range(3, 6)])
    rows = _rows(first, 5.0, 2.0) + _rows(second, 3.0, 0.0)
    found = {seconds: (set(pack.runs), n) for pack, n, seconds in costs.measured_packs(rows, "D")}
    assert found == {7.0: (set(first.runs), 1), 3.0: (set(second.runs), 0)}
    # Of an installed package no commit is known.
    installed = [{**row, "commit": None} for row in rows]
    assert len(costs.measured_packs(installed, "D")) == 2
    # Of a shard whose other runs are in another folder nobody knows what they took.
    torn = _rows(packing.make_pack([make_run(seed=7), make_run(seed=8)]), 1.0, 0.0)[:1]
    of_other_runs = [{**row, "d_model": 10**6} for row in rows]
    unfinished = [{**row, "run_seconds": None} for row in rows]
    apart = [{**row, "vocab_size": 5 + i} for i, row in enumerate(_rows(first, 1.0, 0.0))]
    for none in ([], torn, of_other_runs, unfinished, apart):
        assert costs.measured_packs(none, "D") == []


def test_a_compilation_counts_once(make_run):
    same = [packing.make_pack([make_run(seed=seed)]) for seed in range(2)]
    wider = packing.make_pack([make_run(d_model=8, d_head=8)])
    solved = packing.make_pack([make_run(method=Dana2025(n_aimed=0))])
    packs = [*same, wider, solved]
    seconds = costs.predict(packs, "D", workers=1).seconds
    compiled = [x - costs.estimate_seconds(pack, 0) for x, pack in zip(seconds, packs, strict=True)]
    once = costs.PROGRAM_SECONDS
    assert compiled == pytest.approx([once, 0, once, 0])


def test_more_steps_lanes_and_examples_take_longer(make_run):
    task = Associations(vocab_size=7, n_sequences=20)
    plain, longer = Training(n_batches=8, epochs=2).exact(), Training(n_batches=8, epochs=9).exact()

    def seconds(method, task=task, seeds=1, platform="cpu", **sizes):
        runs = [make_run(task=task, method=method, seed=seed, **sizes) for seed in range(seeds)]
        return costs.estimate_seconds(packing.make_pack(runs, platform=platform), 1)

    for platform in ("cpu", "gpu"):
        least = seconds(plain, platform=platform)
        for more in (
            seconds(longer, platform=platform),
            seconds(plain, seeds=3, platform=platform),
            seconds(plain, task.replace(n_sequences=49), platform=platform),
            seconds(plain, n_heads=30, platform=platform),
            seconds(Search(training=plain), platform=platform),
            seconds(Capacity(training=plain, rungs=1), platform=platform),
        ):
            assert more > least


def test_searches_of_all_budgets_share_a_program(make_run):
    task = Associations(vocab_size=7, n_sequences=20)
    methods = [Search(training=Training(n_batches=8, epochs=n).exact()) for n in (2, 4)]
    packs = [
        packing.make_pack([make_run(task=task, method=method, seed=seed) for seed in range(5)])
        for method in methods
    ]
    first, second = map(packing.programs, packs)
    assert len(first) == 1
    assert first == second
    (pack,) = packing.plan([run for pack in packs for run in pack.runs], "gpu")
    assert pack.slots == sum(run.method.cost(run).lanes for run in pack.runs) == 20
    assert packing.make_pack(pack.runs).slots == packing.TRIALS["cpu"]


def test_a_dry_run_tells_what_it_costs(make_run):
    packs = [packing.make_pack([make_run(seed=seed)]) for seed in range(3)]
    predicted = costs.predict(packs, "my device", workers=2)
    head, *lines, last = plan_table(packs, predicted).splitlines()
    assert head.split()[:5] == ["pack", "runs", "waste", "memory", "seconds"]
    assert all("?" in line for line in lines)
    assert last.startswith("3 runs in 3 packs of at most")
    for words in ("2 at a time on my device", "s with compilation", "core-hours", "guessed"):
        assert words in last
    (one,) = packs[:1]
    line = plan_table([one], costs.predict([one], "my device", 2))
    assert "\n1 run in 1 pack of at most" in line
    sure = dataclasses.replace(predicted, guessed=False)
    assert "measured on this device" in plan_table(packs, sure)
    assert "?" not in plan_table(packs, sure)
    gpu = [dataclasses.replace(pack, platform="gpu") for pack in packs]
    assert "accelerator-hours" in plan_table(gpu, predicted)


def test_a_kernel_of_tiny_models_takes_what_lies_between_its_chunks(make_run, monkeypatch):
    monkeypatch.setattr(packing, "takes_kernel", lambda run, module: True)
    method = Training(batch_size=4, n_batches=4, epochs=10**5)
    run = make_run(task=Associations(vocab_size=3), method=method)
    seconds = costs.estimate_seconds(packing.make_pack([run]), 0)
    assert seconds / method.epochs == pytest.approx(costs.CHUNK_SECONDS, rel=0.5)


def test_published_packs_took_about_what_is_predicted():
    """Of every device in the table half of the packs within a factor of three."""
    devices = collections.defaultdict(list)
    for name in ("board/typical", "dana2025/heads", "mahdavi2024/classification-heads"):
        for row in published.published(name).to_dict("records"):
            devices[row["device"]].append(row)
    checked = 0
    for device, rows in devices.items():
        known = [factor for name, factor in costs.FACTORS.items() if device.startswith(name)]
        found = costs.measured_packs(rows, device)
        if known and "then" not in device and len(found) > 9:
            off = [np.log(known[0] * costs.estimate_seconds(p, n) / s) for p, n, s in found]
            assert np.median(np.abs(off)) < np.log(3)
            checked += 1
    assert checked
