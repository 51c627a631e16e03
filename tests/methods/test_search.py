"""Searches: the same in any pack, every trial a plain training, and what becomes of their rows.

Compilations dominate: code that runs a few times is not optimised, and packs share few shapes.
"""

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import memobench
from memobench import engine
from memobench.core import module as models
from memobench.core.run import Run
from memobench.engine import batches, compiling, initializing, loop, program
from memobench.methods import bisection, training
from memobench.methods import search as searching
from memobench.methods.bisection import Trial
from memobench.methods.search import Search
from memobench.models.linear_memory import LinearMemory
from memobench.planner import packing
from memobench.runtime import checkpoints
from memobench.store import results, rows
from memobench.tasks.bijection import Bijection
from memobench.tasks.tokens import Instance
from tests import small
from tests.searches import EXACT, SEARCH, run_of
from tests.stopping import Memory, Stop, stopping_after

PUBLISHED = dataclasses.replace(EXACT, protocol="published", batch_size=8)
QUICK = {"xla_backend_optimization_level": 0}

# Sizes, families, seeds, learning rates and numbers of sequences that one program must hold.
OTHER_RATE = dataclasses.replace(SEARCH, training=dataclasses.replace(EXACT, learning_rate=0.06))
MIX = (
    run_of(n=36, seed=50),
    run_of("mlp", n=33, seed=51, d_model=2, d_head=2, n_heads=3, d_mlp=3, method=OTHER_RATE),
)


@dataclasses.dataclass
class Recorded:
    """What was compiled, and at every look the jobs, which were due, and the weights."""

    shapes: list
    looks: list

    def clear(self):
        for made in (self.shapes, self.looks):
            made.clear()


@pytest.fixture(scope="module", autouse=True)
def recorded():
    record = Recorded([], [])
    compile_program, evaluate = loop.compile_program.__wrapped__, loop.Lanes.evaluate

    @functools.lru_cache
    def compiling_once(*shape):
        record.shapes.append(shape)
        return compile_program(*shape)

    def looking(lanes):
        due = [job is not None and lanes.policy.is_due(job) for job in lanes.jobs]
        if any(due):
            params = jax.tree.map(np.asarray, lanes.state.variables["params"])
            record.looks.append((list(lanes.jobs), due, params))
        return evaluate(lanes)

    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK.items():
            patch.setitem(compiling.OPTIONS, name, value)
        # Nor is what runs outside of programs.
        jax.config.update("jax_disable_most_optimizations", True)
        patch.setattr(loop, "compile_program", compiling_once)
        patch.setattr(loop.Lanes, "evaluate", looking)
        yield record
        jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def mixed_and_recorded(recorded):
    recorded.clear()
    result = small.train(packing.make_pack(MIX))
    return result, dataclasses.replace(recorded, **{k: list(v) for k, v in vars(recorded).items()})


@pytest.fixture(scope="module")
def mixed(mixed_and_recorded):
    return mixed_and_recorded[0]


@pytest.fixture(scope="module")
def alone(recorded):
    """The second of the mixed runs, whose own program others need too."""
    return small.train(packing.make_pack([MIX[1]]))


def _trials(result, i=0):
    """All trials of a run, losses that are not finite as NaN."""
    return [
        Trial(*x[:-1], math.nan if x[-1] is None else x[-1]) for x in result.columns[i]["trials"]
    ]


def _assert_same_trials(ours, theirs):
    assert [x[:3] for x in ours] == [x[:3] for x in theirs]
    for here, there in zip(ours, theirs, strict=True):
        assert abs(here.known - there.known) <= 1
        assert abs(here.last_known - there.last_known) <= 1
    np.testing.assert_allclose([x.loss for x in ours], [x.loss for x in theirs], atol=1e-4)


@pytest.mark.rounding
def test_packed_equals_alone(mixed, alone):
    _assert_same_trials(_trials(mixed, 1), _trials(alone))
    np.testing.assert_allclose(mixed.loss_R[1], alone.loss_R[0], atol=1e-4)
    assert len(_trials(alone)) > 4


def test_the_result_is_what_the_trials_say(mixed):
    for i, run in enumerate(MIX):
        n, trials = run.task.n_examples, _trials(mixed, i)
        assert mixed.columns[i] == bisection.columns(n, trials, run.task.vocab_size)
        assert (mixed.accuracy_R[i], mixed.loss_R[i]) == bisection.best_of_whole(trials, n)
        low, high = (mixed.columns[i][f"{x}complete_99"] for x in ("", "in"))
        assert low + 1 == high


@functools.cache
def _plain_epoch(run, n):
    """Eight steps of plain training on a run's first n examples, by training's own step."""
    method = run.method.training
    task = dataclasses.replace(run.task, n_sequences=n)
    module = run.module()
    signature = method.signature(module, task)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def epoch(state, instance, rate, draws_LxB):
        def one(state, draws_B):
            examples_B = draws_B if method.batch_size else None
            before = task.objective(module, state[0], instance)[1]
            *state, _ = program.step(
                signature, lambda x: task.objective(module, x, instance, examples_B), *state, rate
            )
            return tuple(state), before

        state, accuracy_L = jax.lax.scan(one, state, draws_LxB)
        return state, accuracy_L, task.objective(module, state[0], instance)

    return epoch


@functools.cache
def _beginning(run):
    """A run's instance, and the state in which plain training begins."""
    module = run.module()
    variables = models.init(module, 2, initializing.init_key(run))
    moments = run.method.training.optimizer.transform().init(variables["params"])
    return jax.tree.map(np.asarray, run.task.sample()), (variables, moments)


@functools.cache
def _plainly(run, trial):
    """Accuracy before every step and at the end, and the last loss, of a trial's plain training.

    Batches of the published protocol are draws from the subset, made of the same uniform numbers
    whatever its size, and shuffled by the run's seed.
    """
    method, n = run.method.training, trial.n_examples
    whole, state = _beginning(run)
    prior_T = np.full(n, 1 / n, np.float32)
    instance = Instance(*(x[:n] for x in whole[:2]), prior_T, whole.tokens_TxS[:n])
    n_draws = method.n_batches * (method.batch_size or 0)
    key = jax.random.fold_in(jax.random.key(run.task.seed), 1)
    draws_M = jnp.floor(jax.random.uniform(key, (n_draws,)) * n).astype(jnp.int32)
    epochs = trial.steps // method.n_batches
    first, last = (trial.factor * x for x in (method.learning_rate, method.final_learning_rate))
    accuracies = []
    for i in range(epochs):
        examples_LxB = jnp.zeros((8, 0), jnp.int32)
        if n_draws:
            assert 0 <= draws_M.min() <= draws_M.max() < n
            order = batches.epoch_order(batches.shuffle_key(run), jnp.int32(i), 8, 8)
            examples_LxB = draws_M[order]
        rate = jnp.float32(first + (last - first) * i / epochs)
        state, accuracy_L, (loss, accuracy) = _plain_epoch(run, n)(
            state, instance, rate, examples_LxB
        )
        accuracies += accuracy_L.tolist()
    return [*accuracies, float(accuracy)], float(loss)


@pytest.mark.rounding
@pytest.mark.parametrize(
    ("run", "method"),
    [
        pytest.param(MIX[1], MIX[1].method.training, id="exact"),
        pytest.param(run_of(n=36, seed=3), PUBLISHED, id="published"),
    ],
)
def test_every_trial_is_a_plain_training_of_the_first_examples(run, method, monkeypatch):
    searched = Search(training=method, rate_factors=(1.0, 0.1), sizes=1, doublings=1)
    run, n = dataclasses.replace(run, method=searched), run.task.n_examples
    forgot = []
    # Checks in every chunk, and chunks that have none.
    for check_every in (3, 20):
        monkeypatch.setattr(searching, "CHECK_EVERY", check_every)
        trials = _trials(small.train(packing.make_pack([run])))
        # The whole with both budgets and rates, and a smaller set.
        chosen = [x for x in trials if x.n_examples in (n, trials[2].n_examples)]
        assert {trial.steps for trial in chosen} == {16, 32}
        assert len({trial.n_examples for trial in chosen}) == 2
        for trial in chosen:
            (*before, last), loss = _plainly(run, Trial(*trial[:3], 0, 0, 0.0))
            np.testing.assert_allclose(trial.loss, loss, atol=1e-4)
            assert trial.last_known == round(last * trial.n_examples)
            # Batches do not say what is known of all: only the final weights are looked at.
            checked = before[::check_every] if method.protocol == "exact" else []
            assert trial.known == round(max([last, *checked]) * trial.n_examples)
            forgot.append(trial.known > trial.last_known)
    assert any(forgot) == (method.protocol == "exact")


def test_a_pack_of_seconds_compiles_one_program(mixed_and_recorded):
    result, record = mixed_and_recorded
    ((_, n_lanes, n_instances),) = record.shapes
    assert n_lanes == sum(run.method.lanes for run in MIX) == 4
    assert n_instances == 2
    assert result.compile_seconds > 0


def test_the_padding_stays_exactly_zero(mixed_and_recorded):
    _, record = mixed_and_recorded
    n_looked_at = 0
    for jobs, _, params in record.looks:
        for lane, job in enumerate(jobs):
            if job is None:
                continue
            n_looked_at += 1
            true = models.shapes(job.run.module(), 2)["params"]
            for shape, padded in zip(*map(jax.tree.leaves, (true, params)), strict=True):
                assert np.any(padded[lane]) == (shape.size > 0)
            small.assert_padding_is_zero(params, lane, true)
    assert n_looked_at > 20


@pytest.mark.parametrize("slots", [1, 3])
def test_trials_that_wait_for_a_lane_are_the_same(mixed, slots, recorded):
    recorded.clear()
    pack, counted = dataclasses.replace(packing.make_pack(MIX), slots=slots), []
    result = small.train(pack, counted.append)
    for i in range(len(MIX)):
        _assert_same_trials(_trials(result, i), _trials(mixed, i))
    runs = [{job.run for job in jobs if job is not None} for jobs, _, _ in recorded.looks]
    assert (set(MIX) in runs) == (slots > 1)
    # Nothing is trained but the trials, each once.
    assert sum(counted) == sum(x.steps for i in range(len(MIX)) for x in _trials(result, i))


def test_trials_of_unequal_budgets_train_side_by_side(mixed, recorded):
    recorded.clear()
    longer = MIX[1].method.replace(training=MIX[1].method.training.replace(epochs=3))
    pack = packing.make_pack([MIX[0], dataclasses.replace(MIX[1], method=longer)])
    result = small.train(pack)
    assert recorded.shapes == []
    steps = [{job.steps for job in jobs if job is not None} for jobs, _, _ in recorded.looks]
    assert {16, 24} in steps
    _assert_same_trials(_trials(result, 0), _trials(mixed, 0))
    assert {trial.steps for trial in _trials(result, 1)} == {24, 48}


def test_another_pack_of_the_shape_compiles_nothing(mixed, recorded):
    """Seeds, rates, instances, numbers of steps and of examples are data."""
    recorded.clear()
    training_ = dataclasses.replace(EXACT, epochs=1, learning_rate=0.05)
    method = dataclasses.replace(SEARCH, training=training_)
    others = [run_of(n=n, seed=n, method=method, n_heads=h) for n, h in ((36, 1), (34, 2))]
    result = small.train(packing.make_pack(others, packing.make_pack(MIX).module))
    assert recorded.looks
    assert recorded.shapes == []
    assert result.compile_seconds == 0
    # Nor does the same pack need anything but its trials.
    assert [len(x["trials"]) > 2 for x in result.columns] == [True] * 2


@pytest.mark.parametrize("calls", [1, 3, 6])
def test_killed_and_resumed_is_uninterrupted(mixed, calls, tmp_path):
    folder = checkpoints.Folder(tmp_path / "unfinished")
    pack = packing.make_pack(MIX)
    with pytest.raises(Stop):
        small.train(pack, stopping_after(calls), folder)
    saved = [folder.load(run.run_id) for run in MIX]
    # A trial is 16 steps in two chunks: what was in flight is done before the search stops.
    assert [x is not None for x in saved] == [True] * 2
    counted = []
    resumed = small.train(pack, counted.append, folder)
    assert json.dumps(resumed.columns) == json.dumps(mixed.columns)
    for name in ("accuracy_R", "loss_R"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(mixed, name))
    whole = []
    again = small.train(pack, whole.append, folder)
    # All is done: nothing is trained.
    assert whole == []
    assert json.dumps(again.columns) == json.dumps(mixed.columns)
    from_the_start = []
    small.train(pack, from_the_start.append)
    assert sum(counted) < sum(from_the_start)


def test_every_trial_that_ended_is_kept():
    memory = Memory()
    run = MIX[1]
    result = small.train(packing.make_pack([run]), checkpoints=memory)
    saves = [kept[run.run_id] for kept in memory.saves]
    made = [len(kept["trials"]) + len(kept["round"]) for kept in saves]
    assert made == list(range(1, len(_trials(result)) + 1))
    assert len({len(kept["trials"]) for kept in saves}) > 3
    table = memory.kept[run.run_id]["trials"]
    assert table.tolist() == [list(map(float, x)) for x in _trials(result)]


def test_a_learning_rate_that_diverges_spoils_nothing():
    run = MIX[1]
    one = dataclasses.replace(run.method, sizes=1)
    wild = dataclasses.replace(run, method=dataclasses.replace(one, rate_factors=(1.0, 1e30)))
    beside = small.train(packing.make_pack([wild]))
    trials = _trials(beside)
    diverged = [trial for trial in trials if trial.factor == 1e30]
    assert len({trial[:3] for trial in trials}) == len(trials) == 2 * len(diverged)
    assert all(math.isnan(x.loss) and x.last_known == 0 for x in diverged)
    # A search by the sane rate alone.
    sane, n = dataclasses.replace(run, method=one), run.task.n_examples
    alone = _trials(small.train(packing.make_pack([sane])))
    assert len(alone) > 4
    _assert_same_trials([trial for trial in trials if trial.factor == 1.0], alone)
    found = bisection.columns(n, alone, run.task.vocab_size)
    theirs = beside.columns[0]
    assert theirs["previous_bits"] == pytest.approx(found["previous_bits"], abs=1e-3)
    rounded = dict.fromkeys(("previous_bits", "trials"))
    assert {**theirs, **rounded} == {**found, **rounded}
    np.testing.assert_allclose(beside.loss_R[0], bisection.best_of_whole(alone, n)[1], atol=1e-5)


def test_where_all_diverge_the_run_does():
    wild = dataclasses.replace(SEARCH, rate_factors=(1e29, 1e30), sizes=1, doublings=0)
    table = memobench.run([dataclasses.replace(MIX[1], method=wild)], progress=False)
    (row,) = table.to_dict("records")
    assert row["status"] == "diverged"
    assert all(math.isnan(row[name]) for name in rows.MEASURES)


# Bijections.

MEMORY = dataclasses.replace(EXACT, trained="memory")


def _bijection(n, method, seed=0):
    return Run(
        task=Bijection(vocab_size=n),
        architecture=LinearMemory(d_model=3),
        method=method,
        seed=seed,
    )


def test_a_memory_of_nothing_guesses_among_the_answers_of_the_trial(monkeypatch):
    initial = initializing.init_run

    def nothing(run):
        return jax.tree.map(np.zeros_like, initial(run))

    monkeypatch.setattr(initializing, "init_run", nothing)
    still = dataclasses.replace(MEMORY, learning_rate=0, final_learning_rate=0)
    method = dataclasses.replace(SEARCH, training=still)
    runs = [_bijection(n, method, seed=n) for n in (30, 25)]
    result = small.train(packing.make_pack(runs))
    for i, run in enumerate(runs):
        trials = _trials(result, i)
        assert {trial.n_examples for trial in trials} >= {run.task.n_examples, 1}
        for trial in trials:
            np.testing.assert_allclose(trial.loss, math.log(trial.n_examples), atol=1e-5)
            # Ties are not known, but one answer alone is.
            assert trial.known == (trial.n_examples == 1)


def test_a_trial_of_a_bijection_is_a_smaller_bijection():
    """With the keys and values of its tokens, and the same memory to begin with."""
    runs = [_bijection(n, dataclasses.replace(SEARCH, training=MEMORY)) for n in (30, 25)]
    result = small.train(packing.make_pack(runs))
    by_size = {trial.n_examples: trial for trial in _trials(result, 1) if trial.steps == 16}
    sizes = sorted(by_size)
    initial = models.init(runs[1].module(), 1, initializing.init_key(runs[1]))["params"]
    n = sizes[len(sizes) // 2]
    assert 1 < n < 25
    cut = {name: initial[name][:n] for name in ("token_embedding", "unembedding")}
    variables = {"params": {**initial, **cut}, "constants": {}}
    plain = packing.make_pack([_bijection(n, MEMORY)])
    found = engine.train(training.TrainingPolicy(plain, jax.tree.map(lambda x: x[None], variables)))
    np.testing.assert_allclose(by_size[n].loss, found.loss_R[0], atol=1e-4)
    assert by_size[n].last_known == round(found.accuracy_R[0] * n)


# Rows.


def test_searches_have_rows_like_any_run(tmp_path):
    full = run_of(n=36, d_model=3, d_head=2, n_heads=2, heads="full")
    encoder = run_of("sequence_encoder", n=36, d_model=2)
    runs = [full, MIX[1], encoder]
    table = memobench.run(runs, results=tmp_path, progress=False)
    assert (tmp_path / ".checkpoints").exists()
    assert not list((tmp_path / ".checkpoints").iterdir())
    loaded = results.load_results(tmp_path).set_index("run_id").loc[[run.run_id for run in runs]]
    for run, row, read in zip(
        runs, table.to_dict("records"), loaded.to_dict("records"), strict=True
    ):
        n = run.task.n_examples
        assert row["method"] == "searched"
        assert row["rate_factors"] == "1.0"
        assert (row["protocol"], row["sizes"], row["resolution"]) == ("exact", 2, 0.02)
        assert (row["doublings"], row["steps"], row["epochs"]) == (1, 16, 2)
        trials = [Trial(*x) for x in row["trials"]]
        found = bisection.columns(n, trials, run.task.vocab_size)
        for name in Search.columns_of_rows():
            assert row[name] == found[name] == read[name], name
        accuracy, loss = bisection.best_of_whole(trials, n)
        assert row["loss"] == loss
        assert row["accuracy"] == pytest.approx(accuracy) == row["best_accuracy"]
        memorized = n * (accuracy - 1 / 7) / (1 - 1 / 7)
        assert row["memorized"] == pytest.approx(memorized)
        assert read["bits"] == pytest.approx(row["bits"])
    n_params, distinct = table["n_params"], table["n_params_distinct"]
    # Two products of each head, 3 x 2 by 2 x 3: of 2 * 2 * 3 numbers 2 (2 * 3 - 2) are distinct.
    assert n_params[0] == 2 * 7 * 3 + 2 * 3 + 2 * 4 * 2 * 3
    assert distinct[0] == 2 * 7 * 3 + 2 * 3 + 2 * 2 * (2 * (2 * 3 - 2))
    # Heads as wide as the stream are any matrix; neurons and their biases stand for themselves.
    assert n_params[1] == 2 * 7 * 2 + 2 * 2 + 3 * 4 * 2 * 2 + 3 * (2 * 2 + 1)
    assert distinct[1] == n_params[1] - 3 * 2 * 2 * 2
    # A single product of 49 x 2 by 2 x 7.
    assert n_params[2] == (49 + 7) * 2
    assert distinct[2] == 2 * (49 + 7 - 2)
    # Nothing is searched again.
    again = memobench.run(runs, results=tmp_path, progress=False)
    assert again["date"].tolist() == table["date"].tolist()
