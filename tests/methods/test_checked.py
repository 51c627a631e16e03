"""Checked training: the best of plain training's checks, whenever it is stopped."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import memobench
from memobench.common.errors import UserError
from memobench.core.run import Run
from memobench.experiments.capacity.heat_figure import Heat
from memobench.experiments.capacity.own_models import RELEASED, RecallTransformer
from memobench.experiments.capacity.own_tasks import FactualRecall
from memobench.methods import training
from memobench.methods.checked import Checked
from memobench.methods.training import Training
from memobench.models.gpt import GPT
from memobench.models.transformer import AttentionOnly
from memobench.planner import packing
from memobench.runtime import verify
from memobench.tasks.associations import Associations
from memobench.tasks.sequences import Sequences
from tests import small
from tests.stopping import Memory, Stop, stopping_after

FACTS = FactualRecall(n_subjects=5, n_relations=3, n_answers=4, n_noise=8, context_length=6)
PLAIN = Training(
    batch_size=64, n_batches=32, learning_rate=2e-2, final_learning_rate=2e-2, trained="memory"
)
METHOD = Checked(training=PLAIN.replace(epochs=6), evaluate_every=64)


def _run(method=METHOD, seed=0):
    architecture = RecallTransformer(d_model=8, d_head=4, n_heads=2, d_mlp=8, **RELEASED)
    return Run(task=FACTS, architecture=architecture, method=method, seed=seed)


def _train(runs, on_steps=lambda steps: None, checkpoints=None):
    return METHOD.train(packing.make_pack(runs), on_steps, checkpoints)


@pytest.fixture(scope="module")
def plain():
    """Accuracy and loss of plain training after 2, 4 and 6 epochs, by seed."""
    packs = ([_run(PLAIN.replace(epochs=n), seed) for seed in (0, 1)] for n in (2, 4, 6))
    found = [small.train(packing.make_pack(runs)) for runs in packs]
    return [([x.accuracy_R[i] for x in found], [x.loss_R[i] for x in found]) for i in (0, 1)]


def test_the_largest_accuracy_of_the_checks_counts_and_the_last_loss(plain):
    whole = _train([_run(seed=seed) for seed in (0, 1)])
    early = METHOD.replace(enough=0.2)
    ended = _train([_run(early, seed=seed) for seed in (0, 1)])
    for i, (accuracy_C, loss_C) in enumerate(plain):
        ends = whole.columns[i]
        n_checks = ends["ended_at"] // 64
        assert n_checks == 3 or accuracy_C[n_checks - 1] == 1
        np.testing.assert_allclose(whole.accuracy_R[i], max(accuracy_C[:n_checks]), atol=1 / 15)
        np.testing.assert_allclose(whole.loss_R[i], loss_C[n_checks - 1], atol=1e-2)
        first = int(np.argmax(np.array(accuracy_C) >= 0.2))
        assert ended.columns[i]["ended_at"] == 64 * (first + 1)


@pytest.mark.parametrize(
    "task",
    [
        Associations(vocab_size=6, n_sequences=20, zipf_exponent=2.0),
        Sequences(vocab_size=6, context_length=3, n_sequences=5),
    ],
)
def test_checks_count_as_training_does(task):
    """Frequencies weigh examples unevenly, and sequences have several answers each."""
    plain = Training(n_batches=4, epochs=8, learning_rate=1e-2).exact()
    kind = GPT if task.question in GPT.answers else AttentionOnly
    model = kind(d_model=4, d_head=4)
    checked = Checked(training=plain, evaluate_every=32)
    run = Run(task=task, architecture=model, method=plain)
    once = training.train_one(run)
    again = checked.train(packing.make_pack([dataclasses.replace(run, method=checked)]), int)
    np.testing.assert_allclose(again.accuracy_R, once.accuracy_R, atol=1e-6)


@pytest.mark.parametrize("calls", [1, 2])
def test_a_stopped_training_resumes_with_the_same_checks(calls):
    memory, runs = Memory(), [_run(seed=seed) for seed in (0, 1)]
    with pytest.raises(Stop):
        _train(runs, stopping_after(calls), memory)
    assert memory.kept
    resumed, whole = _train(runs, checkpoints=memory), _train(runs)
    np.testing.assert_array_equal(resumed.accuracy_R, whole.accuracy_R)
    np.testing.assert_array_equal(resumed.loss_R, whole.loss_R)
    assert resumed.columns == whole.columns


def test_rows_are_verified(tmp_path):
    run = _run()
    (row,) = memobench.run([run], results=tmp_path, progress=False).to_dict("records")
    assert not verify.verify(tmp_path).errors
    assert row["best_check"] <= row["ended_at"] <= METHOD.steps
    with pytest.raises(UserError, match="not a multiple of n_batches=32"):
        dataclasses.replace(METHOD, evaluate_every=63)


def test_a_heat_map_has_a_cell_for_every_pair_of_sizes(tmp_path):
    table = pd.DataFrame(
        [
            {"n_heads": h, "d_mlp": m, "accuracy": a}
            for h, m, a in ((1, 8, 0.5), (2, 8, 0.75), (2, 16, 1.0), (2, 16, 0.5))
        ]
    )
    heat = Heat(x="n_heads", y="d_mlp", value="accuracy", line=("line", lambda h: 24 - 8 * h, 1))
    texts = [text.get_text() for text in heat.cells(table, "title").texts]
    assert texts == ["50.0", "75.0", "75.0"]
