import dataclasses
import pathlib

import numpy as np
import pandas as pd
import pytest

from memobench.cli.commands.run import plan_table
from memobench.constructions.dana2025 import Dana2025
from memobench.core.cells import cells
from memobench.methods.annealing import Annealing
from memobench.methods.optimum import Optimum
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.planner import costs, packing
from memobench.tasks.associations import Associations

OTHER_METHODS = (Annealing(), Search(training=Training()), Optimum(), Dana2025())
SAMPLE = pathlib.Path(__file__).with_name("measured_packs.csv")
KINDS = {
    ("trained", "exact", "mlp"): costs.Rates(2.0, 1e-3, 5e-11, 1e-8),
    ("trained", "published", "mlp"): costs.Rates(4.0, 3e-4, 2e-10, 2e-9),
    ("searched", "exact", "attention_only"): costs.Rates(1.0, 1e-2, 1e-11, 5e-9),
}


def _packs(device="D", factor=1.0, n=240):
    """Packs that take exactly what KINDS say, on a device as many times slower as `factor`."""
    rng, rows = np.random.default_rng(0), []
    for kind, rates in KINDS.items():
        for _ in range(n):
            amounts = rng.integers(0, 3), *10 ** rng.uniform([1, 8, 5], [4, 12, 10])
            seconds = factor * float(np.array(amounts) @ rates.seconds)
            rows.append((*kind, *amounts, seconds, device, "cpu"))
    return pd.DataFrame(
        rows, columns=[*costs.KEY_COLUMNS, *costs.AMOUNTS, "seconds", "device", "platform"]
    )


def _rows(pack, seconds, compile_seconds, date="2026-01-01", device="D"):
    """The rows of a pack's shard, of what `costs` looks at."""
    about = {"date": date, "device": device, "platform": "cpu", "jax": "0", "commit": "c"}
    about |= {"compile_seconds": compile_seconds, "run_seconds": seconds}
    return [{**cells(run), **about, "pack_size": len(pack.runs)} for run in pack.runs]


def test_rates_are_found_again():
    derived = costs.derive(_packs(), "D")
    for kind, rates in KINDS.items():
        assert derived[kind].seconds == pytest.approx(rates.seconds, rel=0.03)
        assert (derived[kind].device, derived[kind].packs) == ("D", 240)


def test_disturbed_packs_hardly_move_a_rate():
    packs = _packs()
    packs.loc[::10, "seconds"] *= 8
    derived = costs.derive(packs, "D")
    for kind, rates in KINDS.items():
        assert derived[kind].seconds == pytest.approx(rates.seconds, rel=0.2)


def test_few_packs_stay_near_what_is_known_and_none_tell_nothing():
    known = costs.derive(_packs("D"), "D")
    slower = _packs("E", factor=4.0, n=costs.ENOUGH)
    few = costs.derive(slower, "E", known)
    many = costs.derive(_packs("E", factor=4.0), "E", known)
    for kind in KINDS:
        before, near, there = (np.log(x[kind].seconds).sum() for x in (known, few, many))
        assert before < near <= there + 0.1
        assert there - before == pytest.approx(4 * np.log(4.0), rel=0.05)
    assert costs.derive(slower, "D", known) == {}
    assert costs.derive(slower.groupby("method").head(1), "E", known) == {}


def test_a_device_never_measured_is_guessed_from_the_nearest(make_run):
    pack = packing.make_pack([make_run()])
    device = costs.packaged()["device"].iloc[0]
    for name, platform, source, guessed in (
        (device, "cpu", (), False),
        ("another CPU", "cpu", (device,), True),
        ("some GPU", "gpu", ("",), True),
        ("something", "unheard of", ("",), True),
    ):
        predicted = costs.predict([pack], costs.known(name, platform), name, workers=1)
        assert (predicted.sources, predicted.guessed) == (source, (guessed,))
        assert predicted.wall_seconds == predicted.seconds[0] > 0


def test_accelerators_that_nothing_ran_on_are_modelled_and_say_so(make_run):
    seconds, method = [], Training(batch_size=4096, n_batches=5, epochs=4)
    for device, platform in (
        ("NVIDIA H100 80GB HBM3", "gpu"),
        ("NVIDIA H200", "gpu"),
        ("TPU v5 lite", "tpu"),
    ):
        # Bound by bandwidth, which differs, not by launches.
        runs = [make_run(n_heads=64, method=method, seed=seed) for seed in range(99)]
        pack = packing.make_pack(runs, platform=platform)
        predicted = costs.predict([pack], costs.known(device, platform), device, workers=1)
        (source,) = predicted.sources
        assert predicted.guessed == (True,)
        assert source.startswith("a model of ")
        seconds += predicted.seconds
    h100, h200, v5e = seconds
    assert h200 < h100 < v5e


def test_what_a_folder_holds_of_this_device_improves_the_prediction(make_run):
    device = "another CPU"
    packs = [
        packing.make_pack([make_run(n_heads=h, method=Training(epochs=e))])
        for h in (2, 4, 6)
        for e in (8, 32)
    ]
    before = costs.predict(packs, costs.known(device, "cpu"), device, workers=1)
    rows = [
        row
        for pack, seconds in zip(packs, before.seconds, strict=True)
        for row in _rows(pack, 10 * seconds, 0.0, device=device)
    ]
    after = costs.predict(packs, costs.here(rows, device, "cpu"), device, workers=1)
    assert not any(after.guessed)
    assert before.wall_seconds < 4 * before.wall_seconds < after.wall_seconds
    # What was measured elsewhere says nothing of this device.
    other = [{**row, "device": "a third"} for row in rows]
    assert costs.here(other, device, "cpu") == costs.known(device, "cpu")


def test_shards_become_packs(make_run):
    first = packing.make_pack([make_run(seed=seed) for seed in range(3)])
    second = packing.make_pack([make_run(seed=seed) for seed in range(3, 6)])
    rows = _rows(first, 5.0, 2.0) + _rows(second, 4.0, 0.0)
    rows += _rows(second, 3.0, 0.0, date="2026-01-02")
    # Of a shard whose other runs are in another folder nobody knows what they took.
    rows += _rows(packing.make_pack([make_run(seed=7), make_run(seed=8)]), 1.0, 0.0)[:1]
    table = costs.measured(rows).sort_values("seconds")
    assert list(table["seconds"]) == [3.0, 7.0]
    assert list(table["programs"]) == [0, 1]
    assert set(table[list(costs.KEY_COLUMNS)].itertuples(index=False, name=None)) == {
        ("trained", "published", "attention_only")
    }
    steps, flops, floats = costs.amounts(first, 1)[1:]
    assert list(table[["steps", "flops", "floats"]].iloc[1]) == [steps, flops, floats]
    assert steps == make_run().method.steps
    assert costs.measured([]).empty
    assert costs.measured([{**row, "d_model": 10**6} for row in rows]).empty


def test_a_compilation_counts_once(make_run):
    same = [packing.make_pack([make_run(seed=seed)]) for seed in range(2)]
    wider = packing.make_pack([make_run(d_model=8, d_head=8)])
    rates = {(): costs.Rates(100.0, 1e-9, 1e-15, 1e-15)}
    seconds = costs.predict([*same, wider], rates, "D", workers=1).seconds
    assert seconds == pytest.approx([100, 0, 100], abs=1e-3)


def test_floats_are_counted_where_examples_share_nothing(make_run):
    method = Training(batch_size=8, n_batches=4, epochs=2)

    def floats(task, **sizes):
        run = make_run(task=task, method=method, n_heads=3, d_model=4, d_head=2, **sizes)
        return costs.amounts(packing.make_pack([run]), 0)[3]

    pairs, listed = Associations(vocab_size=6), Associations(vocab_size=6, n_sequences=9)
    assert floats(pairs) == 0
    # 8 steps of 8 examples, at 2 places in every layer the 2 floats of 3 heads.
    assert floats(listed) == 8 * 8 * 2 * 6
    assert floats(pairs, n_layers=2) == 2 * floats(listed)
    assert floats(dataclasses.replace(listed, context_length=5)) == 2.5 * floats(listed)


def test_searches_of_all_budgets_share_a_program(make_run):
    task = Associations(vocab_size=7, n_sequences=20)
    methods = [Search(training=Training(n_batches=8, epochs=n).exact()) for n in (2, 4)]
    packs = [
        packing.make_pack([make_run(task=task, method=method, seed=seed) for seed in range(5)])
        for method in methods
    ]
    first, second = (pack.runs[0].method.programs(pack) for pack in packs)
    assert len(first) == 1
    assert first == second
    (pack,) = packing.plan([run for pack in packs for run in pack.runs], "gpu")
    assert pack.slots == sum(run.method.lanes for run in pack.runs) == 20
    assert packing.make_pack(pack.runs).slots == packing.TRIALS["cpu"]


def test_a_dry_run_tells_what_it_costs(make_run):
    packs = [packing.make_pack([make_run(seed=seed)]) for seed in range(3)]
    predicted = costs.predict(packs, {(): costs.GUESSES["gpu"]}, "my device", workers=2)
    head, *lines, last = plan_table(packs, predicted).splitlines()
    assert head.split()[:5] == ["pack", "runs", "waste", "memory", "seconds"]
    assert all("?" in line for line in lines)
    assert last.startswith("3 runs in 3 packs of at most")
    for words in (
        "2 at a time on my device",
        "s with compilation",
        "core-hours",
        "3 packs (?) guessed",
    ):
        assert words in last
    (one,) = packs[:1]
    line = plan_table([one], costs.predict([one], {(): costs.GUESSES["cpu"]}, "my device", 2))
    assert "\n1 run in 1 pack of at most" in line
    sure = dataclasses.replace(predicted, guessed=(False,) * 3)
    assert plan_table(packs, sure).endswith("before the code became faster: likely too long")
    assert "?" not in plan_table(packs, sure)
    gpu = [dataclasses.replace(pack, platform="gpu") for pack in packs]
    assert "accelerator-hours" in plan_table(gpu, predicted)


def test_packaged_rates_predict_what_was_measured():
    packs = pd.read_csv(SAMPLE)
    (device,) = packs["device"].unique()
    rates = costs.known(device, "cpu")
    keys = packs[list(costs.KEY_COLUMNS)].itertuples(index=False, name=None)
    rate_PxA = np.array([costs.lookup(rates, key)[1].seconds for key in keys])
    predicted_P = (packs[list(costs.AMOUNTS)].to_numpy(float) * rate_PxA).sum(axis=1)
    assert 1 / 1.5 < predicted_P.sum() / packs["seconds"].sum() < 1.5
    # Of each method the median, for single packs were disturbed and took eight times as long.
    off = packs.assign(off=np.log(predicted_P / packs["seconds"])).groupby("method")["off"].median()
    assert len(off) == 5
    assert (off.abs() < np.log(1.5)).all(), off


def test_packaged_rates_are_of_methods_that_there_are():
    names = {method.row_name for method in (Training(), *OTHER_METHODS)}
    assert set(costs.packaged()["method"]) - {""} <= names
    assert set(pd.read_csv(SAMPLE)["method"]) == names


def test_the_packaged_table_is_what_its_rates_make():
    table = costs.packaged()
    for device, of_device in table.groupby("device"):
        rates = costs.from_table(of_device)
        assert () in rates
        assert all(device == of_kind.device for of_kind in rates.values())
        made = costs.to_table(rates)
        pd.testing.assert_frame_equal(made, of_device[made.columns].reset_index(drop=True))
