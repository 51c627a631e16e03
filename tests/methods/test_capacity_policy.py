"""Capacity runs: every model a plain training, the same in any pack and after a kill."""

import dataclasses
import pathlib
import shutil

import jax
import numpy as np
import pandas as pd
import pytest

import memobench
from memobench import certificates, engine
from memobench.board import capacity_summary
from memobench.certificates import counting
from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.cells import from_cells
from memobench.core.run import Run
from memobench.core.spec import MOST_SEED
from memobench.engine import initializing, lanes, loop
from memobench.engine.program import compile_program
from memobench.experiments.board import certified
from memobench.methods import thresholds, training
from memobench.methods.capacity import Capacity, means_of_tables
from memobench.methods.capacity_policy import CapacityPolicy
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.methods.trial_schedule import Findings
from memobench.models.transformer import MLP, AttentionOnly
from memobench.planner import packing
from memobench.runtime import verify, worker
from memobench.store import results
from memobench.tasks.associations import Associations
from memobench.tasks.bijection import Bijection
from memobench.tasks.distributions import Distributions
from tests.stopping import Memory, Stop, stopping_after

TABLE = pathlib.Path(__file__).parents[2] / "results/board/typical_runs.csv"
EXACT = Training(n_batches=4, epochs=16, learning_rate=0.03, final_learning_rate=0.01).exact()
METHOD = Capacity(
    training=EXACT,
    rate_factors=(1.0, 3.0),
    tables=3,
    inits=2,
    pilots=2,
    rungs=3,
    threshold_trials=4,
    trial_pilots=2,
)


PLAIN = METHOD.replace(threshold_trials=0, trial_pilots=None)


def run_of(**changes):
    about = {
        "task": Associations(vocab_size=6, n_sequences=18),
        "architecture": MLP(d_model=3, d_head=3, d_mlp=4, heads="full"),
        "method": METHOD,
    }
    return Run(**(about | changes))


OTHER = run_of(
    task=Associations(vocab_size=6, n_sequences=17, seed=7),
    architecture=MLP(d_model=2, d_head=2, d_mlp=2, heads="full"),
    seed=5,
)


def trained(runs, checkpoints=None, on_steps=lambda steps: None):
    """The rows of a pack, and the bits that the weights it keeps are counted to know."""
    pack = packing.make_pack(runs)
    result = METHOD.train(pack, on_steps, checkpoints)
    files = map(certificates.decode, worker.weights_of(pack, result))
    counted = [counting.count(each, ["float32"]) for each in files]
    return worker.rows_of(pack, result), counted


@pytest.fixture(scope="module")
def made():
    """Two runs of a pack, of unlike sizes, tasks and seeds."""
    return trained([run_of(), OTHER])


@pytest.fixture(scope="module")
def rows(made):
    return made[0]


def test_the_weights_of_most_bits_are_kept(made):
    """With the task of their own label table."""
    for row, counted in zip(*made, strict=True):
        verify.check_weights(from_cells(row), row, counted)
        assert counted["bits"] >= np.max(row["rung_bits"]) - 1e-2
        best = row["best_bits"]
        # Rows hold some digits, which are all that is known of a few bits.
        few = {**row, "best_bits": 0.07, "bits": 0.07, "rung_bits": [[0.07]]}
        verify.check_weights(from_cells(row), few, {**counted, "bits": 0.0702})
        for edit, told in (
            ({"best_bits": 1.01 * best}, "but the weights that were kept have"),
            ({"bits": best + 1}, "must be the most of all models"),
            ({"rung_bits": [*row["rung_bits"][:-1], [best + 1]]}, "must be the most of all models"),
        ):
            with pytest.raises(UserError, match=told):
                verify.check_weights(from_cells(row), {**row, **edit}, counted)


def test_a_folder_with_weights_of_another_table_is_sound(tmp_path):
    """`verify` and `weights` take those of any table of the run, and of no other."""
    method = PLAIN.replace(rungs=1, tables=2, inits=1, pilots=1)
    method = method.replace(training=EXACT.replace(epochs=1))
    made = [run_of(method=method, seed=seed) for seed in range(6)]
    memobench.run(made, results=tmp_path, progress=False)
    files = [certificates.load(path) for path in (tmp_path / "weights").glob("*")]
    assert {each.task.seed for each in files} == {0, 1}
    report = verify.verify(tmp_path, recompute=True)
    assert not report.errors
    for run in made:
        assert set(memobench.weights(run, results=tmp_path)) == {"params", "constants"}


@pytest.mark.parametrize("n_examples", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_few_examples_that_are_known_make_a_sound_row(n_examples, tmp_path):
    """Rounded bits are never more than there are."""
    quick = EXACT.replace(n_batches=32)
    run = run_of(
        task=Associations(vocab_size=6, n_sequences=n_examples),
        method=METHOD.replace(training=quick, tables=2, inits=1),
    )
    (row,) = memobench.run([run], results=tmp_path, progress=False).to_dict("records")
    assert row["accuracy"] == 1
    assert row["bits"] == pytest.approx(n_examples * np.log2(6), abs=2e-2)
    assert not verify.verify(tmp_path, recompute=True).errors


@pytest.mark.parametrize("method", [PLAIN, Search(training=EXACT)])
@pytest.mark.parametrize(
    "task", [Bijection(vocab_size=12), Distributions(vocab_size=6, conditional="uniform", n_next=2)]
)
def test_tasks_without_the_measures_that_a_method_takes_are_refused(method, task):
    model = AttentionOnly(d_model=3, d_head=3)
    if set(method.needs) <= set(task.measures):
        assert Run(task=task, architecture=model, method=method).run_id
        return
    with pytest.raises(UserError, match=f"{task.name!r}; use another method"):
        Run(task=task, architecture=model, method=method)


def test_a_row_holds_every_model_and_what_follows_from_them(rows):
    row = rows[0]
    bits_KxTxS = capacity_summary.models(row, "rung_bits")
    assert bits_KxTxS.shape == (3, 3, 2)
    assert row["rung_steps"] == [4, 16, 64]
    assert row["bits"] == pytest.approx(bits_KxTxS[-1].mean(), abs=1e-2)
    assert row["accuracy"] == pytest.approx(np.mean(row["rung_known"][-1]) / 18)
    assert row["best_bits"] >= bits_KxTxS.max() - 1e-2
    assert len(row["complete_trials"]) == 4
    # More steps teach more, on the whole.
    assert bits_KxTxS[-1].mean() > bits_KxTxS[0].mean()
    for each in rows:
        METHOD.check_lists(from_cells(each), each)


EDITS = (
    ("rung_bits", lambda bits_KxM: bits_KxM[:-1]),
    ("rung_steps", lambda steps: [4, 16, 65]),
    ("rung_rates", lambda rates: rates[:-1]),
    ("rung_known", lambda known_KxM: [[19, *known_KxM[0][1:]], *known_KxM[1:]]),
    ("complete_trials", lambda trials: [[19, 1], *trials[1:]]),
    ("pilot_trials", lambda trials: trials[1:]),
    ("pilot_trials", lambda trials: [[], *trials[1:]]),
)


@pytest.mark.parametrize(("name", "edit"), EDITS)
def test_lists_of_other_rungs_models_or_trials_are_found(rows, name, edit):
    with pytest.raises(UserError, match="fix"):
        METHOD.check_lists(run_of(), {**rows[0], name: edit(rows[0][name])})


def test_every_model_is_a_plain_training_with_a_table_and_weights_of_its_own(rows):
    """The models of the first rung, whose few steps leave no room for rounding to grow."""
    run = run_of()
    factor = rows[0]["rung_rates"][0] / EXACT.learning_rate
    plain = EXACT.replace(
        epochs=1,
        learning_rate=factor * EXACT.learning_rate,
        final_learning_rate=factor * EXACT.final_learning_rate,
    )
    runs = [
        Run(task=task, architecture=run.architecture, method=plain) for task in METHOD.tasks(run)
    ]
    for init in range(2):
        numbers = [METHOD.pilots + table * METHOD.inits + init for table in range(3)]
        keys = [jax.random.fold_in(initializing.init_key(run), number) for number in numbers]
        trees = [models.init_on_host(run.module(), 2, key) for key in keys]
        initial = jax.tree.map(lambda *xs: np.stack(xs), *trees)
        result = engine.train(training.TrainingPolicy(packing.make_pack(runs), initial))
        bits_T = (np.log(6) - result.loss_R) * 18 / np.log(2)
        mine_T = capacity_summary.models(rows[0], "rung_bits")[0, :, init]
        np.testing.assert_allclose(mine_T, np.maximum(bits_T, 0), atol=2e-3)


def test_the_best_of_a_grid_of_rates_is_used(rows):
    for row in rows:
        for rate, grid in zip(row["rung_rates"], row["pilot_bits"], strict=True):
            known = {factor * EXACT.learning_rate: np.mean(bits) for factor, *bits in grid}
            assert len(known) >= 2
            assert known[rate] == max(known.values())


def test_packed_equals_alone(rows):
    """Up to rounding, on the first rung; what is decided by it is the same there."""
    (alone,), _ = trained([run_of()])
    np.testing.assert_allclose(alone["rung_bits"][0], rows[0]["rung_bits"][0], atol=2e-2)
    assert alone["rung_rates"][0] == rows[0]["rung_rates"][0]


def test_packed_with_a_larger_set_and_other_tables_equals_alone(rows):
    """As accelerators pack them: the set is padded to the larger one."""
    larger = run_of(
        task=Associations(vocab_size=6, n_sequences=36), method=METHOD.replace(tables=2), seed=3
    )
    with pytest.raises(ValueError, match="differ"):
        packing.make_pack([run_of(), larger])
    pack = packing.make_pack([run_of(), larger], platform="gpu")
    assert pack.slots == run_of().method.lanes + larger.method.lanes
    found = worker.rows_of(pack, METHOD.train(pack))[0]
    np.testing.assert_allclose(found["rung_bits"][0], rows[0]["rung_bits"][0], atol=2e-2)
    assert found["rung_rates"][0] == rows[0]["rung_rates"][0]


LISTS = ("rung_bits", "rung_known", "rung_rates", "pilot_bits", "complete_trials", "pilot_trials")


def test_a_killed_run_goes_on_and_finds_the_same(rows):
    memory, stops = Memory(), 0
    while True:
        try:
            found, counted = trained([run_of(), OTHER], memory, stopping_after(41))
            break
        except Stop:
            stops += 1
        assert stops < 200
    assert stops > 2
    for before, after in zip(rows, found, strict=True):
        for name in LISTS:
            assert after[name] == before[name], name
    for row, of_weights in zip(found, counted, strict=True):
        verify.check_weights(from_cells(row), row, of_weights)


def test_trials_of_an_open_round_are_not_trained_again():
    """Every save has one training more, and what is left is without those that have ended."""
    few = {"tables": 1, "inits": 1, "pilots": 1, "rungs": 1, "rate_factors": (1.0,)}
    method = METHOD.replace(**few, threshold_trials=12, trial_pilots=4)
    run, memory = run_of(method=method), Memory()
    pack = packing.make_pack([run])
    whole = method.train(pack, lambda steps: None, memory)
    n_ended, within = [], 0
    for kept in memory.saves:
        found = Findings.from_arrays(run, kept[run.run_id])
        trials = len(found.trials) + len(found.pilot_trials)
        n_ended.append(len(found.pilot_bits) + len(found.rungs) + trials + len(found.round))
        made = [proposal for proposal, _ in found.round.values()]
        left = found.propose()
        assert not set(made) & set(left)
        if made and {each.stage for each in left} == {made[0].stage} and found.round:
            within += 1
            assert len(made) + len(left) in (2, 3)
            middle = kept
    assert n_ended == list(range(1, len(memory.saves) + 1))
    assert within > 4
    resumed = method.train(pack, lambda steps: None, Memory(middle))
    assert resumed.columns == whole.columns


@pytest.mark.parametrize("trials", [{}, {"threshold_trials": 8}, {"trial_pilots": 4}])
def test_steps_in_turn_are_those_of_rounds_that_wait_for_one_another(trials):
    """By a run whose pilots prefer the middle rate: the longest training of every round."""
    trials = {"threshold_trials": 16, **trials} if trials else {}
    run = run_of(method=PLAIN.replace(rate_factors=(1.0, 3.0, 9.0), **trials))
    found, in_turn = Findings(run), 0
    while proposals := found.propose():
        in_turn += max(proposal.steps for proposal in proposals)
        for each in proposals:
            best = each.factor == 3.0
            found.keep(each, bits=1.0 + best, known=each.n_examples * best if each.tries else 9)
    cost = run.method.cost(run)
    assert cost.steps > cost.sequential_steps == in_turn


def test_weights_of_a_rung_may_know_the_largest_set():
    """Where no trial knows its set, but a model of the rungs that of the whole task."""
    run = run_of()
    found = Findings(run)
    while proposals := found.propose():
        for each in proposals:
            found.keep(each, bits=1.0, known=0 if each.tries else each.n_examples)
    assert found.columns()["best_complete"] == run.task.n_examples


def test_a_trial_ends_when_it_knows_all():
    """Two associations are known long before the steps are over."""
    method = PLAIN.replace(training=EXACT.replace(epochs=256), rungs=1)
    steps = []
    run = run_of(method=method.replace(tables=1, inits=1, pilots=1, threshold_trials=8))
    row = worker.rows_of(pack := packing.make_pack([run]), run.method.train(pack, steps.append))[0]
    trials = [n for n, complete in row["complete_trials"] if complete]
    assert trials
    assert row["best_complete"] >= max(trials)
    longest = 1024 * (len(row["complete_trials"]) + 1 + sum(map(len, row["pilot_bits"])))
    assert sum(steps) < longest


def test_trials_that_are_far_from_complete_are_given_up():
    """At a rate that teaches nothing, half of their steps are enough to see it."""
    still = EXACT.replace(epochs=256, learning_rate=1e-9, final_learning_rate=1e-9)
    plain = PLAIN.replace(training=still, rate_factors=(1.0,), tables=1, inits=1, pilots=1, rungs=1)
    taken, trials = [], []
    for method in (plain.replace(threshold_trials=n, give_up="late") for n in (0, 8)):
        steps = []
        run = run_of(method=method)
        row = worker.rows_of(pack := packing.make_pack([run]), method.train(pack, steps.append))[0]
        taken.append(sum(steps))
        trials.append(row["complete_trials"])
    assert not all(complete for _, complete in trials[1])
    assert taken[1] - taken[0] <= 8 * 512


def test_specs_that_mean_nothing_are_refused():
    with pytest.raises(UserError, match="rungs"):
        METHOD.replace(rungs=4)
    with pytest.raises(UserError, match="protocol"):
        METHOD.replace(training=Training(protocol="passes", batch_size=9))
    with pytest.raises(UserError, match="n_sequences"):
        run_of(task=Associations(vocab_size=6))


def test_the_last_table_may_have_the_last_seed():
    """Tables have consecutive seeds, the first that of the task."""
    task = Associations(vocab_size=6, n_sequences=18, seed=MOST_SEED - METHOD.tables + 1)
    assert METHOD.tasks(run_of(task=task))[-1].seed == MOST_SEED
    with pytest.raises(UserError, match="no room for tables=3"):
        run_of(task=task.replace(seed=task.seed + 1))


def test_rows_of_published_tables_are_summarised(rows, tmp_path):
    """From lists and from the text of lists, as a table has them."""
    found = [{**row, "device": "a", "compile_seconds": 0.0} for row in rows]
    table = results.to_table(found)
    summary = capacity_summary.summarize(table)
    table.to_csv(tmp_path / "runs.csv", index=False)
    again = capacity_summary.summarize(pd.read_csv(tmp_path / "runs.csv"))
    assert len(summary) == 2
    np.testing.assert_allclose(summary["bits_low"], again["bits_low"])
    assert (summary["rank_low"] <= summary["rank_high"]).all()
    assert set(summary["family"]) == {"MLP"}


def test_the_best_models_of_a_row_are_trained_again_and_certified(rows, tmp_path):
    """From nothing but the row; what a certificate counts is near what the row says."""
    row = rows[0]
    chosen = certified.best_models(METHOD, row, 18)
    bits_KxM = np.array(row["rung_bits"])
    places = [(METHOD.ladder.index(x.steps), x.number - METHOD.pilots) for x in chosen]
    known = [bits_KxM[place] for place in places]
    assert known == sorted(bits_KxM.ravel(), reverse=True)[: certified.CANDIDATES]
    assert all(model.table == (model.number - METHOD.pilots) // METHOD.inits for model in chosen)
    runs = tmp_path / "runs"
    found = {each["of"]: each for each in certified.certify(row, tmp_path, runs)}
    whole = found[certified.WHOLE]
    assert whole["bits"] == pytest.approx(max(known), rel=0.2)
    assert (tmp_path / whole["file"]).exists()
    parts = [n for _, n, complete in METHOD.all_trials(row) if complete]
    if certified.PART in found:
        part = found[certified.PART]
        assert part["first"] in (*parts, None)
        assert thresholds.is_complete(part["known"], part["first"] or 18)
    assert "Certified" in certified.page(pd.DataFrame(list(found.values())))
    # Weights that the run has kept are taken as they are.
    path = results.weights_path(runs, row["run_id"])
    path.parent.mkdir(parents=True)
    shutil.copy(tmp_path / whole["file"], path)
    again = next(certified.certify(row, tmp_path, runs))
    assert again == whole


@pytest.mark.rounding
@pytest.mark.parametrize(("n_examples", "n_read"), [((10, 5), 18), ((9, 5), 9), ((4, 3), 5)])
def test_small_parts_are_trained_the_same_by_programs_of_fewer_examples(n_examples, n_read):
    pack = packing.make_pack([run_of()])
    policy = CapacityPolicy(pack)
    first = policy.next()
    jobs = [
        dataclasses.replace(first, number=i, proposal=first.proposal._replace(n_examples=n))
        for i, n in enumerate(n_examples)
    ]
    signature, data = policy.program_inputs(jobs)
    assert signature.task.n_examples == data["instances"].next_TxK.shape[1] == n_read

    shapes = signature.shapes()
    variables = lanes.place_rows(
        {i: policy.variables(job) for i, job in enumerate(jobs)}, len(jobs), shapes.variables
    )
    lane_R = policy.lane_inputs(jobs)._replace(of_shapes={})

    def ends(signature, data):
        program = compile_program(signature, len(jobs), policy.n_instances)
        step_R = np.zeros(len(jobs), int)
        rate_RxC, order_RxCxB = policy.feed(program, step_R)
        state, curve = program.chunk(program.begin(variables), data, lane_R, rate_RxC, order_RxCxB)
        _, *seen = program.evaluate(state.variables, state.best, data, lane_R, np.ones(2, bool))
        return curve, seen

    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-5),
        ends(signature, data),
        ends(policy.signature, policy.data),
    )


def test_only_long_packs_have_programs_of_fewer_examples(monkeypatch):
    sizes = []

    def compiled(signature, *shape):
        sizes.append(signature.task.n_examples)
        return compile_program(signature, *shape)

    compiled.cache_info = compile_program.cache_info
    monkeypatch.setattr(loop, "compile_program", compiled)
    short, _ = trained([run_of()])
    assert set(sizes) == {18}
    monkeypatch.setattr(loop, "NARROWED_FROM_SECONDS", 0)
    long, _ = trained([run_of()])
    assert {18, 9} <= set(sizes) <= {18, 9, 5}
    np.testing.assert_allclose(long[0]["rung_bits"], short[0]["rung_bits"], rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("narrowed_from", [0, np.inf])
def test_lanes_grow_again_for_jobs_that_come_later(narrowed_from, monkeypatch):
    """One pilot at first, then six models: all of them at a time."""
    monkeypatch.setattr(loop, "NARROWED_FROM_SECONDS", narrowed_from)
    busy, fill = [], loop.Lanes.fill

    def noted(self):
        any_busy = fill(self)
        busy.append((sum(job is not None for job in self.jobs), len(self.jobs)))
        return any_busy

    monkeypatch.setattr(loop.Lanes, "fill", noted)
    runs = [
        run_of(method=PLAIN.replace(pilots=1, rungs=1, rate_factors=(1.0,)), seed=seed)
        for seed in range(2)
    ]
    pack = packing.make_pack(runs)
    policy = CapacityPolicy(dataclasses.replace(pack, slots=8))
    loop.train(policy)
    narrow, wide = (2, 2) if narrowed_from == 0 else (2, 8), (8, 8)
    assert busy[0] == narrow
    assert wide in busy
    assert all(width <= 8 for _, width in busy)
    alone, _ = trained(runs[:1])
    ends = policy.result(0.0).columns[0]["rung_bits"]
    np.testing.assert_allclose(ends, alone[0]["rung_bits"], rtol=1e-3, atol=1e-2)


# On no example, and without the whole on which every search begins.
NO_TRIAL = np.array([[16, 0, 1.0, 0, 0, 1.0]])


@pytest.mark.parametrize("method", [METHOD, Search(training=EXACT, sizes=1, doublings=0)])
def test_a_checkpoint_of_another_version_is_told_and_left(method, caplog):
    run, memory = run_of(method=method), Memory()
    fresh = method.train(packing.make_pack([run]), lambda steps: None, memory)
    old = Memory({run.run_id: {"of_another_version": np.zeros(3)}})
    made = method.train(packing.make_pack([run]), lambda steps: None, old)
    assert f"the checkpoint of run {run.run_id} is of another version" in caplog.text
    np.testing.assert_allclose(made.loss_R, fresh.loss_R, rtol=1e-3)
    # As it is where any of its arrays has another shape or type, or nothing can come next.
    kept = memory.saves[0][run.run_id]
    last = memory.kept[run.run_id]
    for nonsense in (
        [{"pilots": np.full((1, 4), np.nan)}]
        if "pilots" in kept
        else [{"trials": NO_TRIAL}, {"trials": np.concatenate([last["trials"], NO_TRIAL])}]
    ):
        caplog.clear()
        method.policy(packing.make_pack([run]), Memory({run.run_id: kept | nonsense}))
        assert "is of another version" in caplog.text
    for name, x in kept.items():
        for wrong in (x[None], x[..., :1], x.astype(np.float16), np.array([None])):
            caplog.clear()
            method.policy(packing.make_pack([run]), Memory({run.run_id: kept | {name: wrong}}))
            assert "is of another version; it starts anew" in caplog.text, (name, wrong)


def test_means_of_tables_are_what_a_row_has(rows):
    for row in rows:
        for measure in ("bits", "accuracy"):
            value_T = means_of_tables(row, measure)
            assert len(value_T) == METHOD.tables
            assert value_T.mean() == pytest.approx(row[measure])
        assert means_of_tables(row, "loss") is None
