"""What the scripts of performance share, and that they still measure what they say."""

import doctest
import functools
import importlib
import itertools
import json
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from memobench.core import module as models
from memobench.engine import batches, initializing, lanes
from memobench.engine.lanes import Lane
from memobench.engine.program import step as take_step
from memobench.engine.program import to_compile
from memobench.planner import packing

pytestmark = pytest.mark.accelerators


@pytest.fixture
def measuring(folder):
    return importlib.import_module("measuring")


def test_rates_count_calls_after_the_first(measuring):
    def steps():
        time.sleep(0.2)  # As compilation would.
        while True:
            time.sleep(0.01)
            yield

    waited = []
    rate = measuring.steady(steps(), 0.1, warm_up=1, wait=lambda: waited.append(1))
    assert 0 < rate <= 100
    assert len(waited) == 2


def test_works_side_by_side_keep_their_order(measuring):
    assert measuring.side_by_side([lambda: "a", lambda: "b"]) == ["a", "b"]


def test_a_folder_that_cannot_be_written_ends_the_script_in_a_line(measuring, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"^name: output=.* is a file; name a folder"):
        measuring.begin("name", str(tmp_path / "file"))


def test_rows_go_on_where_they_stopped(folder, tmp_path):
    kept = importlib.import_module("rows")
    count = itertools.count()
    path, of = tmp_path / "rows.jsonl", {"device": "a"}
    first = kept.Rows(path, of, minutes=1)
    row = first.add({"kind": "rate", "runs": 1}, lambda: {"rate": next(count)})
    assert row["rate"] == 0
    # A process that is killed may leave half a row.
    with open(path, "a") as file:
        file.write('{"kind": "ra')
    # What is there is not measured again, by this process or the next; another device's does not
    # count; and nothing begins after the end.
    again = kept.Rows(path, of, minutes=1)
    assert again.add({"kind": "rate", "runs": 1}, lambda: {"rate": next(count)})["rate"] == 0
    assert again.add({"kind": "rate", "runs": 2}, lambda: {"rate": next(count)})["rate"] == 1
    other = kept.Rows(path, {"device": "b"}, minutes=0)
    assert other.add({"kind": "rate", "runs": 1}, lambda: {"rate": next(count)}) == {}
    assert other.left == 1
    assert [json.loads(line)["rate"] for line in path.read_text().splitlines()] == [0, 1]
    assert [row["runs"] for row in again.all] == [1, 2]


def train_engine(run, variables, draws_LxB, rate_L):
    """loss_L and variables of steps on these examples, by the engine."""
    signature = packing.make_pack([run]).signature
    lane = Lane(*map(jnp.int32, (0, run.task.n_examples, 2, 0)))
    # Draws in place of an order: every example is drawn once, in its place.
    data = {
        "instances": jax.tree.map(lambda x: x[None], run.task.sample()),
        "draws": jnp.arange(run.task.n_examples)[None],
    }

    def step(state, of_step):
        rate, order_B = of_step
        reader = batches.reader_for(signature)
        loss, parts = functools.partial(reader.steps(data, lane), order_B), reader.parts(data, lane)
        of_lane = state.variables, state.opt_state, rate, lane.of_shapes, parts
        variables, opt_state, seen = take_step(signature, loss, *of_lane)
        return state._replace(variables=variables, opt_state=opt_state), seen[0]

    start = lanes.begin(run.method.optimizer, lambda _: True, False, variables)
    state, loss_L = jax.jit(lambda x: jax.lax.scan(step, start, x))((rate_L, draws_LxB))
    return loss_L, state.variables


@pytest.mark.parametrize("size", [(4, 1), (10, 21)])
def test_plain_jax_trains_the_model_of_packs(folder, size):
    associations = importlib.import_module("associations")
    plain = importlib.import_module("plain")
    run = associations.run(*size, associations.METHOD)
    variables = models.init(run.module(), 2, initializing.init_key(run))
    params = {
        name.removeprefix("layer0_"): weight
        for name, weight in variables["params"].items()
        if "mlp" not in name
    }
    state, _ = plain.begin(plain.Transformer(run.task.vocab_size, *size), jax.random.key(0))
    assert jax.tree.map(jnp.shape, state.params) == jax.tree.map(jnp.shape, params)

    instance, draws_LxB = run.task.sample(), jnp.tile(run.task.sample_draws(256), (8, 1))
    batches = run.task.tokens(instance, draws_LxB), instance.next_TxK[draws_LxB, 0]
    _, theirs_L = jax.lax.scan(plain.train_step, state.replace(params=params), batches)
    ours_L, _ = train_engine(run, variables, draws_LxB, jnp.full(8, 0.01))
    np.testing.assert_allclose(theirs_L, ours_L, rtol=1e-5)
    assert ours_L[-1] < ours_L[0]


def test_xla_text_is_counted(folder):
    done = doctest.testmod(importlib.import_module("xla_text"))
    assert done.attempted
    assert not done.failed


@pytest.mark.parametrize(
    "name", ["heads, published", "heads, exact", "shared contexts", "random contexts"]
)
def test_the_work_of_a_step_is_about_what_the_planner_counts(folder, name):
    """XLA counts the loop over steps once: one without its examples would do far less."""
    programs = importlib.import_module("programs")
    pack, signature, n_lanes, n_instances = programs.packed(name, 2, "cpu")
    part = to_compile(signature, n_lanes, n_instances)["chunk"]
    counted = jax.jit(part.function).lower(*part.arguments).cost_analysis()["flops"]
    planned = 2 * pack.runs[0].method.cost(pack.runs[0], pack.module).flops_per_step
    assert 0.5 < counted / planned < 1.1


def test_plans_are_within_a_factor_of_what_compiled_programs_hold(folder):
    programs = importlib.import_module("programs")
    table = pd.read_csv(folder.parents[1] / "results" / "performance" / "accelerators.csv")
    table = table[(table["runs"] == 256) & (table["accelerator"] != "NVIDIA H100 SXM")]
    assert len(table) == 2 * len(programs.FIRST)
    targets = {x.name: x for x in importlib.import_module("hardware").TARGETS.values()}
    for row in table.to_dict("records"):
        target, held = targets[row["accelerator"]], row["held MB"] * 1e6
        planned = programs.packed(row["program"], 256, target.planned_as)[0].memory_bytes
        # What a TPU keeps on its chip is not held in its memory.
        assert held < planned * 3, row
        assert held > planned / 3 or held < target.on_chip, row


COMPILED = """
import accelerators, associations, programs
from absl import flags
from memobench.methods.training import Training
compiled = []
def compile_one(target, part):
    compiled.append(target)
    step = dict(launches=90, sorts=len(compiled) - 1, loops=0, products={}, bytes=1.0)
    return {**step, "flop": 1.0, "held": 1, "compile s": 1.0}
accelerators.compile_one = compile_one
def tiny(batch_size):
    run = associations.run(2, 1, Training(batch_size=batch_size, n_batches=2, epochs=1))
    programs.FIRST = {"tiny": lambda: run}
argv = flags.FLAGS(["accelerators", "--sizes=2", "--targets=v5e", "--output=FOLDER"])
for batch_size in (4, 4, 5):
    tiny(batch_size)
    print(len(compiled))
    accelerators.main(argv)
"""


def test_programs_are_compiled_for_accelerators_once_until_the_code_asks_for_others(
    folder, tmp_path
):
    command = [sys.executable, "-c", COMPILED.replace("FOLDER", str(tmp_path))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert [x for x in done.stdout.splitlines() if x.isdigit()] == ["0", "1", "1"]
    rows = [json.loads(x) for x in (tmp_path / "accelerators.jsonl").read_text().splitlines()]
    assert [row["sorts"] for row in rows] == [0, 1]
    # The page has today's program alone, and the bar that it misses.
    assert pd.read_csv(tmp_path / "accelerators.csv")["sorts"].tolist() == [1]
    assert done.returncode != 0
    assert "- TPU v5e, tiny, 2 runs: 1 sorts" in done.stdout
    assert done.stderr.endswith("1 bars are missed\n")


COUNTED = """
import registers
from absl import flags
from memobench.engine import cuda
def compile_source(source, words, architecture):
    assert "--ptxas-options=-v" in words
    n_threads = int(words[-2].removeprefix("-DB="))
    return b"", f"0 bytes stack frame, {n_threads} bytes spill stores\\nUsed 80 registers" * 2
cuda.compile_source = compile_source
registers.main(flags.FLAGS(["registers", "--output=FOLDER"]))
"""


def test_registers_of_kernels_are_counted_for_every_number_of_threads(folder, tmp_path):
    command = [sys.executable, "-c", COUNTED.replace("FOLDER", str(tmp_path))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "registers.csv")
    assert (table["registers"] == 80).all()
    assert (table["spilled"] == table["threads"]).all()
    assert set(table["threads"]) == {256, 128}
    by_default = table.groupby("models")["default"].first().notna()
    assert by_default["attention-only, narrow heads"]
    assert not by_default["attention-only, narrow heads, 4 tokens"]
