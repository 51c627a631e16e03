"""Every registered schedule: rates rise and fall as it says, as data of a pack; refusals."""

import contextlib

import numpy as np
import optax
import pytest

from memobench.checks import schedules as checking
from memobench.common.errors import UserError
from memobench.core.cells import cells, from_cells
from memobench.core.columns import integer
from memobench.core.run import Run
from memobench.core.schedule import Schedule
from memobench.core.spec import kind
from memobench.methods.capacity import Capacity
from memobench.methods.epochs import RatesOfLanes
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.optimizers import Adam
from memobench.planner import packing
from memobench.schedules.cosine import CosineSchedule
from memobench.schedules.linear import LinearSchedule
from memobench.schedules.wsd import WSDSchedule
from memobench.tasks.associations import Associations
from tests import small

EPOCHS = 32
# Of a kind with fields one of their values.
FIELDS = {"wsd": {"decay_share": 0.5}}
SCHEDULES = [made(**FIELDS.get(name, {})) for name, made in Schedule.kinds().items()]
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda each: each.name)


def rates_of(method: Training, n: int | None = None) -> np.ndarray:
    """The rates of the first `n` epochs of a method, or of all and after them."""
    n = method.epochs + 1 if n is None else n
    return RatesOfLanes([method.rates] * n, [method.epochs] * n).compute(np.arange(n))


def _rates(**options):
    return rates_of(Training(epochs=EPOCHS, learning_rate=0.3, final_learning_rate=0.02, **options))


def test_rates_fall_as_their_schedule_says():
    epoch = np.arange(EPOCHS + 1)
    np.testing.assert_allclose(_rates(), 0.3 + (0.02 - 0.3) * epoch / EPOCHS, rtol=1e-14)
    cosine = optax.cosine_decay_schedule(0.3, EPOCHS, alpha=0.02 / 0.3)
    found = _rates(schedule=CosineSchedule())
    np.testing.assert_allclose(found, [cosine(i) for i in epoch], rtol=1e-5)
    stable = _rates(schedule=WSDSchedule(decay_share=0.25))
    assert (stable[:25] == 0.3).all()
    np.testing.assert_allclose(stable[24:], 0.3 - 0.28 * np.sqrt(np.arange(9) / 8))


@every_schedule
@pytest.mark.parametrize("warmup", [0.125, 0.25, 0.5])
def test_a_rate_rises_to_the_first_and_then_falls_to_the_last(schedule, warmup):
    rate_E = _rates(warmup=warmup, schedule=schedule)
    top = rate_E.argmax()
    assert EPOCHS * warmup - 1 <= top <= EPOCHS * warmup + 1
    np.testing.assert_allclose([rate_E.max(), rate_E[-1]], [0.3, 0.02], rtol=0.01)
    assert (np.diff(rate_E[: top + 1]) > 0).all()
    assert (np.diff(rate_E[top:]) <= 0).all()
    assert rate_E[0] == pytest.approx(0.3 / (1 + EPOCHS * warmup))


def test_lanes_of_all_schedules_have_the_rates_that_each_has_alone():
    methods = [
        Training(epochs=epochs, warmup=warmup, schedule=schedule)
        for schedule in SCHEDULES
        for epochs, warmup in ((9, None), (12, 0.25))
    ]
    lanes = RatesOfLanes([x.rates for x in methods], [x.epochs for x in methods])
    alone = np.stack([rates_of(x, 9) for x in methods])
    for epoch in range(9):
        np.testing.assert_array_equal(lanes.compute(np.full(len(methods), epoch)), alone[:, epoch])


def test_schedules_of_a_pack_are_data():
    """A line and half a cosine agree at the start and midway, the only rates of two epochs."""
    linear = Training(n_batches=2, epochs=2, learning_rate=0.3, final_learning_rate=0.1).exact()
    cosine = linear.replace(schedule=CosineSchedule())
    architecture = AttentionOnly(d_model=3, d_head=3)
    longer = linear.replace(epochs=3)
    stable = longer.replace(schedule=WSDSchedule(decay_share=0.5))
    pairs = [
        [
            Run(task=Associations(vocab_size=5), architecture=architecture, method=method)
            for method in pair
        ]
        for pair in ((linear, cosine), (longer, stable))
    ]
    equal, other = (small.train(packing.make_pack(pair)).step_loss_RxL for pair in pairs)
    np.testing.assert_array_equal(*equal)
    assert other[0, -1] != other[1, -1]


@every_schedule
def test_ids_and_cells_hold_a_schedule_as_before_it_was_a_kind(schedule):
    method = Training(schedule=schedule)
    run = Run(
        task=Associations(vocab_size=5),
        architecture=AttentionOnly(d_model=3, d_head=3),
        method=method,
    )
    assert from_cells(cells(run)) == run
    assert Training.from_canonical(method.canonical()) == method
    own = {"schedule": schedule.name, **FIELDS.get(schedule.name, {})}
    younger = {"schedule", "warmup", "decay_share"}
    found = {name: method.canonical()[name] for name in younger & method.canonical().keys()}
    assert found == ({} if schedule == LinearSchedule() else own)
    assert {name: x for name, x in cells(run).items() if name in younger and x} == found
    assert "clip" not in Adam().canonical()


def test_a_canonical_form_has_the_fields_of_its_schedule_alone():
    found = Training().canonical()
    for schedule in ({}, {"schedule": "cosine"}):
        with pytest.raises(UserError, match="trained has no field 'decay_share'"):
            Training.from_canonical({**found, **schedule, "decay_share": 0.2})
    with pytest.raises(UserError, match="schedule='falling' is unknown"):
        Training.from_canonical({**found, "schedule": "falling"})


def test_a_users_schedule_may_compute_in_place_and_not_have_the_methods_columns():
    @kind("mine")
    class Mine(Schedule):
        """A schedule of a user's, whose field is one of a Training, too."""

        epochs: int = integer("of another kind", default=3)

        def fraction(self, time_R, warmup_R):
            time_R -= warmup_R
            return np.maximum(time_R, 0)

    checking.require_sound([Mine()])
    for asked in (Training.canonical, Training.cells):
        with pytest.raises(UserError, match="epochs is a column of two fields of trained"):
            asked(Training(schedule=Mine()))


@pytest.mark.parametrize("epochs", range(1, 12))
@pytest.mark.parametrize(
    "schedule", [WSDSchedule(decay_share=0.2), WSDSchedule(decay_share=0.5), CosineSchedule()]
)
def test_a_schedule_that_is_declared_moves_the_rate(schedule, epochs):
    """What is refused would never leave the first rate."""
    any_epochs = Training(epochs=64, schedule=schedule)
    lanes = RatesOfLanes([any_epochs.rates] * epochs, [epochs] * epochs)
    never = (lanes.compute(np.arange(epochs)) == any_epochs.learning_rate).all()
    with pytest.raises(UserError, match="must be over 1") if never else contextlib.nullcontext():
        any_epochs.replace(epochs=epochs)
    two_rungs = Capacity(training=any_epochs.replace(protocol="exact", batch_size=None), rungs=2)
    with pytest.raises(UserError, match="must be over 1") if never else contextlib.nullcontext():
        two_rungs.replace(training=two_rungs.training.replace(epochs=4 * epochs))


def test_a_single_epoch_stays_at_the_first_rate():
    assert rates_of(Training(epochs=1), 1) == [1e-2]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Training(schedule="cosine"), "schedule='cosine' is not one of the schedules"),
        (lambda: WSDSchedule(), "decay_share"),
        (lambda: WSDSchedule(decay_share=0.8), "decay_share=0.8"),
        (
            lambda: Training(learning_rate=1, final_learning_rate=1, schedule=CosineSchedule()),
            "schedule=CosineSchedule() means nothing",
        ),
    ],
)
def test_what_no_schedule_means_is_refused_in_one_line(build, said):
    with pytest.raises(UserError) as error:
        build()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fraction", "said"),
    [
        (None, "has no method fraction"),
        (lambda time_R, warmup_R: 2 * time_R, "must be between 0 and 1, got 0 to 2"),
        (lambda time_R, warmup_R: np.nan * time_R, "must be between 0 and 1, got nan"),
        (lambda time_R, warmup_R: 0.5, "must give one number for each of 64 lanes"),
        (
            lambda time_R, warmup_R: np.where(time_R > 0.99, 5, 0),
            "must be between 0 and 1, got 0 to 5",
        ),
        (lambda time_R, warmup_R: time_R * time_R[0], "depends on other lanes"),
        (lambda time_R, warmup_R: time_R / max(time_R.max(), 1e-9), "depends on other lanes"),
        (lambda time_R, warmup_R: time_R.fall(), "its code"),
    ],
)
def test_a_users_schedule_that_no_lane_could_follow_is_refused(fraction, said):
    @kind("mine")
    class Mine(Schedule):
        """A schedule of a user's."""

    if fraction:
        Mine.fraction = lambda self, time_R, warmup_R: fraction(time_R, warmup_R)
    with pytest.raises(UserError, match=said) as error:
        checking.require_sound([Mine()])
    assert "\n" not in str(error.value)
