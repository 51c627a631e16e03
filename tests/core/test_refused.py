"""Every value, spec and run that means nothing is refused in one line that names the field."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from hypothesis import strategies as st

import memobench
from memobench import claims
from memobench.common.errors import UserError, short_repr
from memobench.core import columns
from memobench.core.architecture import Architecture
from memobench.core.columns import declare, text_of
from memobench.core.run import Run
from memobench.core.task import Task
from memobench.experiment import Drawing, Experiment, grid
from memobench.experiments.capacity.own_tasks import FactualRecall
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.transformer import MLP, AttentionOnly
from memobench.optimizers import Adam, Optimizer
from memobench.report.figure import Figure
from memobench.tasks.associations import Associations
from tests.drawn import KINDS, TASKS, assert_one_line, cases, least, values

every_kind = pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
WRONG = [
    *(True, False, np.True_, "no", "yes", "", "1", b"1", None, math.nan, math.inf, -math.inf),
    *(np.float64("nan"), np.float32("inf"), 10**400, -(10**400), 10**5000, -1, -1.5, 1.5, 2**63),
    *(-(2**63), 2**64, np.int64(-1), np.uint64(2**63), 1e301, 0, 0.0, 1, 1j, np.complex64(1)),
    *([], [1.0, 1.0], [-1.0], (), {}, {1}, object(), np.ones(3), np.ones((30, 30)), int, Training),
    *(Training(), Adam(), Associations(), AttentionOnly(d_model=1, d_head=1), "x\ny", "\u202e"),
]


def allowed(field, value):
    """Whether a field may hold a value: written once more, as its declaration tells it."""
    if value is None:
        return field.metadata["optional"]
    made, *about = field.metadata["domain"].made
    value = value.item() if isinstance(value, np.generic) else value
    if made is columns.int_between:
        return type(value) is int and about[0] <= value <= about[1]
    if made is columns.float_between:
        least, most, above = about
        if type(value) not in (int, float) or value != value:
            return False
        return least <= value <= most and (above is None or value > above)
    if made is columns.one_of:
        return type(value) is str and value in about
    if made is columns.boolean:
        return type(value) is bool
    if made is columns.numbers:
        sequence = isinstance(value, tuple | list) and len(value) == len(set(value)) > 0
        return sequence and all(type(x) is float and x > 0 for x in value)
    return isinstance(value, about[0])


@every_kind
def test_a_field_refuses_every_other_type_and_range(cls):
    n_refused = 0
    for field in dataclasses.fields(cls):
        for value in WRONG:
            given = {x.name: least(x) for x in dataclasses.fields(cls)} | {field.name: value}
            if allowed(field, value):
                # Together with the others it may still mean nothing.
                try:
                    cls(**given)
                except UserError as error:
                    assert_one_line(error)
                continue
            with pytest.raises(UserError) as error:
                cls(**given)
            assert_one_line(error.value, f"{field.name}=")
            n_refused += 1
    assert n_refused >= len(WRONG) // 2 * len(dataclasses.fields(cls))


@cases(40, st.data())
def test_what_does_not_go_together_is_one_line_that_names_a_field(data):
    cls = data.draw(st.sampled_from(KINDS))
    fields = dataclasses.fields(cls)
    given = {field.name: data.draw(values(field)) for field in fields}
    try:
        cls(**given)
    except UserError as error:
        assert_one_line(error)
        told = str(error)
        assert any(field.name in told for field in fields)


@pytest.mark.parametrize("seed", [0, 2**32 - 1, np.uint32(7)])
def test_seeds_of_32_bits_are_taken(seed, make_run):
    assert make_run(seed=seed, task=Associations(vocab_size=7, seed=seed)).seed == int(seed)


@pytest.mark.parametrize("seed", [-1, 2**32, 2**63, 10**400, True, 1.0, "1", None, math.nan])
def test_other_seeds_are_refused(seed, make_run):
    with pytest.raises(UserError) as error:
        make_run(seed=seed)
    assert_one_line(error.value, "seed=")
    for task in TASKS:
        given = {x.name: least(x) for x in dataclasses.fields(task)} | {"seed": seed}
        with pytest.raises(UserError) as error:
            task(**given)
        assert_one_line(error.value, "seed=")


@pytest.mark.parametrize("part", ["task", "architecture", "method"])
@pytest.mark.parametrize("value", [None, "mlp", Associations, 1, Adam()], ids=repr)
def test_a_run_takes_specs_of_its_families_only(part, value, make_run):
    with pytest.raises(UserError) as error:
        dataclasses.replace(make_run(), **{part: value})
    assert_one_line(error.value, f"{part} must be of class ")


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: MLP(d_model=4, d_head=5, d_mlp=0, heads="full"), "d_head=5 exceeds d_model=4"),
        (lambda: MLP(d_model=4, d_head=4, d_mlp=0, activation="relu"), "activation='relu' means"),
        (
            lambda: Associations(vocab_size=100, context_length=5),
            "vocab_size=100, context_length=5: all 100^5",
        ),
        (
            lambda: Associations(vocab_size=2_000_000),
            "vocab_size=2000000, context_length=2: all 20",
        ),
        (
            lambda: Associations(vocab_size=8, n_sequences=100),
            "n_sequences=100 exceeds all 8^2 sequences; give at most 64",
        ),
        (
            lambda: Associations(vocab_size=2000, n_sequences=2**21),
            "n_sequences=2097152 exceeds 2^20; give at most 1048576",
        ),
        (
            lambda: Training(optimizer="adam"),
            "optimizer='adam' is not one of the optimizers, such as ",
        ),
        (lambda: Training(lr=1e-3), "Training: unexpected keyword argument 'lr'; choose one of"),
        (
            lambda: Associations(vocabsize=8),
            "Associations: unexpected keyword argument 'vocabsize'; did you mean vocab_size?",
        ),
        (lambda: MLP(d_model=4, d_mlp=8), "MLP: d_head is missing; give d_head a value"),
        (lambda: Adam(0.9), "Adam takes fields by name only: clip, b1"),
        (lambda: Adam().replace(b3=0.9), "Adam: unexpected keyword argument 'b3'; did you mean b2"),
        (lambda: Run(task=Associations()), "Run: architecture is missing; give architecture a"),
        (lambda: Training(protocol="exakt"), "protocol='exakt' is not one of published, passes"),
        (lambda: Training(protocol="exact"), "batch_size must be None"),
        (
            lambda: Training(learning_rate=1e-4),
            "learning_rate=0.0001 is below final_learning_rate",
        ),
        (lambda: Training(batch_size=None), "batch_size=None is not an integer >= 1"),
        (lambda: Adam(b1=1), "b1=1.0 never forgets"),
        (lambda: Task.get_kind("poems"), "task='poems' is unknown; choose one of associations, "),
        (lambda: Architecture.get_kind([]), r"architecture=[] is unknown; choose one of "),
        (lambda: Optimizer.get_kind(None), "optimizer=None is unknown; choose one of adam"),
    ],
)
def test_a_mistake_is_told_with_the_field_and_the_fix(build, said):
    with pytest.raises(UserError) as error:
        build()
    assert_one_line(error.value, said)


PASSES = {"protocol": "passes", "batch_size": 36}


@pytest.mark.parametrize(
    ("task", "method"),
    [
        (Associations(vocab_size=6), {**PASSES, "batch_size": 10, "n_batches": 4}),
        (Associations(vocab_size=6, zipf_exponent=1.0), PASSES),
        (
            FactualRecall(n_subjects=4, n_relations=4, n_answers=2, n_noise=4),
            {**PASSES, "batch_size": 16},
        ),
    ],
    ids=["parts of a pass", "frequent examples", "fresh noise"],
)
def test_passes_are_refused_where_examples_are_not_seen_equally_often(task, method):
    with pytest.raises(UserError, match="passes") as error:
        Run(
            task=task,
            architecture=AttentionOnly(d_model=4, d_head=4),
            method=Training(**method),
        )
    assert_one_line(error.value)


def test_a_search_in_passes_is_refused():
    with pytest.raises(UserError, match="training must be of protocol='exact' or") as error:
        Search(training=Training(**PASSES))
    assert_one_line(error.value)


def test_compressed_heads_may_be_wider_than_the_stream():
    AttentionOnly(d_model=5, d_head=10, heads="compressed")


def test_messages_show_any_value_in_one_short_line():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, 10**5000, np.ones((30, 30)), "a\nb" * 1000, "\u202e\x00", object()):
        assert_one_line(short_repr(value))
        assert len(short_repr(value)) <= 100
        assert short_repr(value).isprintable()


@pytest.mark.parametrize(
    ("text", "holds"),
    [("Ada", True), ("", False), ("=1", False), (" a", False), ("a\nb", False), ("a" * 21, False)],
)
def test_plain_text_is_one_line_without_markup(text, holds):
    assert text_of(20).holds(text) == holds
    assert declare(text_of(20), "a text").metadata["domain"].holds(text) == holds


LISTS = {
    "tasks": [Associations(vocab_size=5)],
    "architectures": [AttentionOnly(d_model=2, d_head=2)],
    "methods": [Training(epochs=1)],
    "seeds": 2,
}
CLAIM = claims.Claim(name="mine", statement="", source="", test=lambda table: None)
FIGURE = Figure(x="n_params", hue="architecture")
POINT = {"n_heads": 1, "published": 0.5, "published_steps": 2}


class Undrawn(Drawing):
    """A kind of figures without a method draw."""


DECLARED = {
    "name": "mine/widths",
    "title": "",
    "presets": {"quick": grid(**LISTS)},
    "figure": FIGURE,
}


@pytest.mark.parametrize(
    ("build", "said"),
    [
        *(
            (functools.partial(grid, **LISTS | wrong), said)
            for wrong, said in (
                ({"tasks": LISTS["tasks"][0]}, "tasks must be a list of Tasks, got "),
                ({"architectures": []}, "architectures is empty. Give some."),
                ({"methods": [3]}, "methods must be a list of Methods, got 3 among them."),
                ({"seeds": 0}, "seeds=0 is not an integer >= 1"),
                ({"seeds": [1, 2]}, "seeds=[1, 2] is not"),
            )
        ),
        *(
            (functools.partial(Experiment, **DECLARED | wrong), said)
            for wrong, said in (
                ({"name": "widths"}, "name='widths' is not a folder and a name"),
                ({"titel": ""}, "Experiment: unexpected keyword argument 'titel'; did you mean"),
                ({"presets": DECLARED["presets"]["quick"]}, "mine/widths: presets must be named, "),
                (
                    {"presets": {"quick": [3]}},
                    "mine/widths: preset 'quick' must be a list of Runs",
                ),
                ({"presets": {"quick": []}}, "mine/widths: preset 'quick' is empty"),
                ({"presets": {"qu/ick": LISTS}}, "preset='qu/ick' is not a name"),
                ({"title": 3}, "mine/widths: title must be a text, got 3."),
                ({"title": "a $\\x$"}, "mine/widths: title must be a text with formulas of"),
                ({"figure": None}, "mine/widths: figure must be a Drawing, got None."),
                ({"figure": Undrawn()}, "mine/widths: figure must have a method draw, got"),
                *(
                    ({"published": published}, f"mine/widths: published{said}")
                    for published, said in (
                        (
                            [POINT | {"d_modl": 3}],
                            ": 'd_modl' is not a column of runs; did you",
                        ),
                        (
                            [POINT | {"publishd": 1}],
                            ": 'publishd' is not a column of runs; did y",
                        ),
                        ([POINT | {3: 4}], ": 3 is not a column of runs; leave it out"),
                        ([{"published": 0.5}], ": {'published': 0.5} lacks published_steps. Give"),
                        (POINT, " must be a list of Mappings, got 'n_heads' among"),
                    )
                ),
                ({"claims": CLAIM}, "mine/widths: claims must be a list of Claims, got Claim("),
                ({"claims": [CLAIM, CLAIM]}, "mine/widths: two claims are 'mine'. Rename one."),
                ({"too_short": ("quik",)}, "mine/widths: too_short must be a tuple of its presets"),
                ({"too_short": "quick"}, "mine/widths: too_short must be a tuple of its presets"),
                ({"too_short": ([],)}, "mine/widths: too_short must be a tuple of its presets"),
            )
        ),
        (lambda: Figure(x="n_params", hue="n_heads", y="bit"), "figure: y='bit' is not a measure"),
        (lambda: Figure(x="n_params"), "Figure: hue is missing; give hue a value"),
        (
            lambda: claims.Claim(name="mine", statement="", source="", test=3),
            "claim 'mine': test must be callable, got 3. Give a function",
        ),
    ],
)
def test_a_declaration_is_checked_before_anything_trains(build, said):
    with pytest.raises(UserError) as error:
        build()
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_an_experiment_keeps_the_runs_of_a_generator():
    presets = {"quick": (run for run in grid(**LISTS))}
    experiment = Experiment(**DECLARED | {"presets": presets})
    assert experiment.runs("quick") == experiment.runs("quick") == grid(**LISTS)


@pytest.fixture(scope="module")
def table():
    return memobench.published("board/typical")


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda table: memobench.plan([], done=table), "done"),
        (lambda table: memobench.plan([], done="abc"), "done"),
        (lambda table: memobench.check("attention_only"), "architecture"),
        (lambda table: memobench.check(AttentionOnly), "architecture"),
        (lambda table: memobench.check(AttentionOnly(d_model=2, d_head=2), "bijection"), "task"),
        (lambda table: memobench.weights(None), "run"),
        (lambda table: memobench.weights([table]), "run"),
        (lambda table: memobench.weights("0123", results=5), "results"),
        (lambda table: memobench.load_results(5), "results"),
        (lambda table: memobench.run([]), "runs"),
        (lambda table: memobench.run([], results=5), "results"),
        (lambda table: memobench.run([], on=5), "on"),
        (lambda table: memobench.run([], processes="2"), "processes"),
        (lambda table: memobench.run([], processes=0), "processes"),
        (lambda table: memobench.run([], seconds="10"), "seconds"),
        (lambda table: memobench.run([], seconds=float("nan")), "seconds"),
        (lambda table: memobench.plot(table, x="d_model", y="n_params"), "y must be"),
        (lambda table: memobench.plot(table, y=["bits"]), "y must be"),
        (lambda table: memobench.plot(table, x=None), "x must be"),
        (lambda table: memobench.plot(table[["bits", "n_params"]]), "the table lacks architecture"),
        (lambda table: memobench.published(["board/typical"]), "name"),
        (lambda table: memobench.certify(["x"]), "path"),
        (lambda table: memobench.weights("0123", results="nothere"), "results='nothere' is not a"),
        (lambda table: claims.verdicts(CLAIM, table), "claims must be"),
    ],
)
def test_what_is_of_another_type_is_refused(call, field, table):
    with pytest.raises(UserError, match=f"^{field}") as error:
        call(table)
    assert_one_line(error.value, field)
