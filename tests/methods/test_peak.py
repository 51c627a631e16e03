"""A Peak trains every size, rate and label table as it would be trained alone, and resumes."""

import dataclasses
import shutil

import numpy as np
import pytest

import memobench
from memobench.common.errors import UserError
from memobench.core.run import Run
from memobench.methods.peak import Grid, Peak
from memobench.methods.training import Training
from memobench.methods.trial_schedule import Proposal
from memobench.models.transformer import MLP
from memobench.runtime import verify
from memobench.store.rows import parse_list
from memobench.tasks.associations import Associations
from tests.small import reseal

TASK = Associations(vocab_size=6, n_sequences=32)
METHOD = Peak(
    training=Training(n_batches=8, epochs=8, learning_rate=0.03).exact(),
    shares=(0.25, 0.5, 1.0),
    rate_factors=(0.1, 1.0),
    tables=3,
)
RUN = Run(task=TASK, architecture=MLP(d_model=4, d_head=2, d_mlp=6), method=METHOD)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("peak")
    memobench.run([RUN], results=found, progress=False)
    return found


@pytest.fixture(scope="module")
def row(folder):
    (found,) = memobench.load_results(folder).to_dict("records")
    return found


def values(row, name):
    return np.array(parse_list(row[name]), float)


def test_a_row_has_every_size_rate_and_table(row):
    bits_JxRxT, known_JxRxT = values(row, "size_bits"), values(row, "size_known")
    assert bits_JxRxT.shape == known_JxRxT.shape == (3, 2, 3)
    # No more than there is to know of each set, and of few examples all comes to be known.
    entropy_J = np.array([8, 16, 32]) * np.log2(6)
    assert (bits_JxRxT <= entropy_J[:, None, None] + 1e-3).all()
    assert known_JxRxT[0, 1].tolist() == [8, 8, 8]
    assert bits_JxRxT[0, 1].mean() > 0.9 * entropy_J[0]
    # At a tenth of the rate next to nothing is learnt in so few steps.
    assert (bits_JxRxT[:, 0] < bits_JxRxT[:, 1]).all()
    rate = bits_JxRxT[-1].mean(axis=-1).argmax()
    assert row["accuracy"] == pytest.approx(known_JxRxT[-1, rate].mean() / 32)
    assert row["bits"] == pytest.approx(bits_JxRxT[-1, rate].mean(), abs=1e-2)


def test_label_tables_of_other_seeds_are_those_of_a_run_of_their_own(row):
    """Tables are paired between runs: the second of seed 0 has the labels of seed 1."""
    labels = [task.sample() for task in METHOD.tasks(RUN)]
    own = TASK.replace(seed=1).sample()
    assert all(np.array_equal(x, y) for x, y in zip(labels[1], own, strict=True))


def test_the_number_of_tables_changes_no_training(row):
    fewer = dataclasses.replace(RUN, method=METHOD.replace(tables=2))
    # Another run has other initial weights; the same one in a pack of others has not.
    packed = memobench.run([fewer, RUN], progress=False).set_index("run_id")
    again = values(packed.loc[RUN.run_id], "size_bits")
    np.testing.assert_allclose(again, values(row, "size_bits"), atol=0.05)


def test_the_weights_that_are_kept_are_the_best_of_the_whole_set(folder, tmp_path):
    assert verify.verify(folder, recompute=True).errors == ()
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (path,) = tmp_path.glob("*.json")

    def better(shard):
        (of,) = shard["rows"]
        of["size_bits"][-1][0][0] = 80.0

    reseal(path, better)
    (error,) = verify.verify(tmp_path, recompute=True).errors
    assert "size_bits of the whole set are at most 80.0, but the weights" in error


def test_findings_survive_a_checkpoint():
    found = Grid(RUN)
    first, *others = found.propose()
    assert first.n_examples == 32
    assert len(others) == METHOD.lanes - 1
    found.keep(first, 12.5, 7)
    found.best = 12.5, 1, {}
    again = Grid.from_arrays(RUN, found.to_arrays())
    assert again.made == found.made
    assert again.best == found.best
    assert again.propose() == others
    assert isinstance(others[0], Proposal)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shares": (0.5, 0.25, 1.0)}, "must rise to 1"),
        ({"shares": (0.25, 0.5)}, "must rise to 1"),
        ({"tables": 0}, "tables"),
        ({"rate_factors": ()}, "rate_factors"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(changes, said):
    with pytest.raises(UserError, match=said):
        METHOD.replace(**changes)


def test_sizes_that_are_equal_or_empty_are_refused():
    told = {(0.25, 0.26, 1.0): "must be different sets, got sizes", (0.001, 1.0): "set of 0 exam"}
    for shares, said in told.items():
        with pytest.raises(UserError, match=said):
            dataclasses.replace(RUN, method=METHOD.replace(shares=shares))
