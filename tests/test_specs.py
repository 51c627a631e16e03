"""Specs as properties: equal models have equal ids, other models other ids, and rows lead back.

What is drawn follows from the declarations of the fields, of every kind of every family.
"""

import contextlib
import dataclasses
import functools
import io
import json
import math
from typing import ClassVar

import hypothesis
import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st

from memobench import columns, kinds, runs, spec
from memobench.columns import declared, integer, number, text_of
from memobench.errors import UserError
from memobench.methods.annealing import Annealing
from memobench.methods.base import Method
from memobench.methods.construction import Construction
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.base import Architecture
from memobench.models.transformer import MLP, AttentionOnly
from memobench.optimizers import Adam, Optimizer
from memobench.runs import Run, cells, from_cells
from memobench.spec import Spec, kind, nested
from memobench.table import results
from memobench.tasks.associations import Associations
from memobench.tasks.base import Task
from memobench.tasks.factual_recall import FactualRecall

KINDS = [
    made
    for family in kinds.FAMILIES
    for made in family.kinds().values()
    # Rows of the methods name every construction so; its own kinds are those of theorems.
    if made is not Construction
]
TASKS, ARCHITECTURES = list(Task.kinds().values()), list(Architecture.kinds().values())
METHODS = [made for made in KINDS if issubclass(made, Method)]
every_kind = pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)


def cases(quick, strategy):
    """A test of so many examples, always the same ones, and of 20 times as many in the slow suite.

    What is drawn is the test's one argument.
    """

    def settings(n):
        return hypothesis.settings(
            max_examples=n,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )

    def twice(test):
        few, many = (settings(n)(hypothesis.given(strategy)(test)) for n in (quick, 20 * quick))

        def check(of_examples):
            of_examples()

        both = [pytest.param(few, id="few"), pytest.param(many, id="many", marks=pytest.mark.slow)]
        return pytest.mark.parametrize("of_examples", both)(check)

    return twice


# --- What is drawn ---------------------------------------------------------------------------


@functools.cache
def values(field):
    """Values that a field's declaration allows, small ones and the bounds more often."""
    made, *about = field.metadata["domain"].made
    if made is columns.whole:
        least, most = about
        near = st.integers(least, min(most, least + 12))
        drawn = st.one_of(near, near, near, st.sampled_from([least, most]), st.integers(*about))
    elif made is columns.real:
        least, most, above = about
        least = max(least, -1e6) if above is None else above
        wide = st.floats(least, most, exclude_min=above is not None)
        near = st.floats(least, min(most, least + 3), exclude_min=above is not None)
        whole = st.integers(math.floor(least) + 1, math.floor(min(most, least + 3)))
        drawn = st.one_of(near, wide, *([whole] if least + 1 <= most else []))
    elif made is columns.one_of:
        drawn = st.sampled_from(about)
    elif made is columns.truth:
        drawn = st.booleans()
    elif made is columns.numbers:
        most, above = about
        each = st.floats(above, 1e9, exclude_min=True)
        drawn = st.lists(each, min_size=1, max_size=most, unique=True).map(tuple)
    else:
        assert made is spec.is_spec
        (family,) = about
        of_family = [family] if family in KINDS else list(family.kinds().values())
        drawn = st.sampled_from(of_family).flatmap(specs)
    return st.none() | drawn if field.metadata["optional"] else drawn


@st.composite
def specs(draw, cls):
    """A spec of a kind, with some of its fields as they are by default."""
    fields = dataclasses.fields(cls)
    optional = {x.name for x in fields if x.default is not dataclasses.MISSING}
    given = {x.name: draw(values(x)) for x in fields if x.name not in optional}
    more = {x.name: draw(values(x)) for x in fields if x.name in optional and draw(st.booleans())}
    # What does not go together is left as it is by default.
    for _ in range(len(more) + 1):
        try:
            return cls(**given, **more)
        except UserError:
            if more:
                more.popitem()
    hypothesis.reject()


@st.composite
def drawn_runs(draw):
    """A run of any task, architecture and method that go together."""
    task, architecture = (
        draw(st.sampled_from(family).flatmap(specs)) for family in (TASKS, ARCHITECTURES)
    )
    seed = draw(st.integers(0, 2**32 - 1))
    fitting = []
    for made in METHODS:
        by_default = {"training": Training()} if made is Search else {}
        with contextlib.suppress(UserError):
            fitting.append(Run(task=task, architecture=architecture, method=made(**by_default)))
    run = dataclasses.replace(draw(st.sampled_from(fitting)), seed=seed)
    try:
        return dataclasses.replace(run, method=draw(specs(type(run.method))))
    except UserError:
        return run


def spelled(draw, value):
    """The same value, spelled in another way."""
    if isinstance(value, Spec):
        return respelled(draw, value)
    if isinstance(value, tuple):
        return draw(st.sampled_from([tuple, list]))(spelled(draw, x) for x in value)
    ways = {
        bool: [bool, np.bool_],
        int: [int, np.int64, *([np.uint32] if 0 <= (value or 0) < 2**32 else [])]
        if isinstance(value, int)
        else [],
        float: [float, np.float64, *([int] if value == math.floor(value) else [])]
        if isinstance(value, float)
        else [],
        str: [str, np.str_],
        type(None): [lambda x: x],
    }
    return draw(st.sampled_from(ways[type(value)]))(value)


def respelled(draw, made):
    """An equal spec: defaults given or left out, numbers and texts of other types."""
    given = {}
    for field in dataclasses.fields(made):
        value = getattr(made, field.name)
        if value != field.default or draw(st.booleans()):
            given[field.name] = spelled(draw, value)
    return type(made)(**given)


def plain(value):
    """Whether a value is Python's own, as far down as it goes."""
    if isinstance(value, Spec):
        return all(plain(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, tuple):
        return all(map(plain, value))
    return type(value) in (bool, int, float, str, type(None))


# --- Equal means equal id ----------------------------------------------------------------------


@cases(250, st.data())
def test_a_spec_is_the_same_however_it_is_spelled(data):
    made = data.draw(st.sampled_from(KINDS).flatmap(specs))
    again = respelled(data.draw, made)
    assert again == made
    assert hash(again) == hash(made)
    assert json.dumps(again.canonical()) == json.dumps(made.canonical())
    assert again.cells() == made.cells()
    assert str(again) == str(made)
    assert plain(made)
    assert plain(again)


@cases(150, st.data())
def test_equal_runs_have_equal_ids(data):
    run = data.draw(drawn_runs())
    parts = {name: getattr(run, name) for name in ("task", "architecture", "method", "seed")}
    again = Run(**{name: spelled(data.draw, part) for name, part in parts.items()})
    assert again == run
    assert again.run_id == run.run_id
    assert cells(again) == cells(run)


@cases(250, st.data())
def test_another_value_of_any_field_is_another_id(data):
    run = data.draw(drawn_runs())
    name = data.draw(st.sampled_from(["task", "architecture", "method"]))
    part = getattr(run, name)
    inner = None
    # A field of a field: of the optimiser, or of the training that a search repeats.
    deep = [x for x in dataclasses.fields(part) if isinstance(getattr(part, x.name), Spec)]
    if deep and data.draw(st.booleans()):
        inner, part = part, getattr(part, (chosen := data.draw(st.sampled_from(deep))).name)
    field = data.draw(st.sampled_from(dataclasses.fields(part)))
    value = data.draw(values(field))
    try:
        changed = part.replace(**{field.name: value})
        if inner is not None:
            changed = inner.replace(**{chosen.name: changed})
        other = dataclasses.replace(run, **{name: changed})
    except UserError:
        hypothesis.reject()
    if other == run:
        assert other.run_id == run.run_id
    else:
        assert other.run_id != run.run_id
        assert cells(other) != cells(run)


SEEN: dict[str, Run] = {}


@cases(150, drawn_runs())
def test_no_two_runs_share_an_id(run):
    assert SEEN.setdefault(run.run_id, run) == run


def test_the_canonical_form_of_kinds_differs_by_name():
    """With all fields alike: of such kinds the name alone tells one from another."""
    seen = {}
    for cls in KINDS:
        # Of a construction the method's own field says so.
        family = next(x for x in kinds.FAMILIES if issubclass(cls, x))
        try:
            made = cls(**{x.name: least(x) for x in dataclasses.fields(cls)})
        except UserError:
            continue
        form = family.noun, json.dumps({**made.canonical()}, sort_keys=True)
        assert seen.setdefault(form, cls) is cls
    assert len(seen) > len(KINDS) / 2


# --- Rows lead back to runs ----------------------------------------------------------------------


def back(row):
    """The run of a row, of which the id says that it is the same."""
    run = from_cells(row)
    assert run.run_id == row["run_id"]
    return run


@cases(150, drawn_runs())
def test_a_row_leads_back_to_its_run(run):
    row = cells(run)
    assert back(row) == run
    assert back(json.loads(json.dumps(row))) == run
    # What follows from other columns and what does not apply may be missing.
    assert back({name: x for name, x in row.items() if x is not None}) == run
    known = runs.spec_columns()
    assert row.keys() == known.keys()
    for name, value in row.items():
        assert value is None or known[name].domain.holds(value), name


@cases(25, st.lists(drawn_runs(), min_size=1, max_size=4))
def test_tables_lead_back_to_their_runs(drawn):
    rows = [cells(run) for run in drawn]
    for table in (pd.DataFrame(rows), results.to_table([{**row, **MEASURED} for row in rows])):
        assert [back(row) for row in table.to_dict("records")] == drawn
        assert [back(row) for _, row in table.iterrows()] == drawn
        text = io.StringIO(table.to_csv(index=False))
        again = pd.read_csv(text, dtype={"run_id": str})
        assert [back(row) for row in again.to_dict("records")] == drawn


MEASURED = {"accuracy": 0.5, "accuracy_protocol": 0.5, "memorized": 1, "bits": 1.5, "loss": 0.1}
JUNK = [
    *(True, False, -1, 0, 1, 1.5, 2**63, 10**400, math.inf, -math.inf, "", "no", "nan", "1"),
    *("adam", "exact", "constructed", "mlp", [], [1], {}, {"name": "mlp"}, [[[]]], "a b=c d=e"),
]


@cases(200, st.data())
def test_an_edited_row_is_another_run_or_one_line(data):
    run = data.draw(drawn_runs())
    row = json.loads(json.dumps(cells(run)))
    for name in data.draw(st.lists(st.sampled_from(sorted(row)), min_size=1, max_size=3)):
        row[name] = data.draw(st.sampled_from([None, *JUNK]) | st.text(max_size=5))
    try:
        found = from_cells(row)
    except UserError as error:
        assert_one_line(error)
    else:
        # Only what follows from other columns may be left out.
        assert found.run_id == row["run_id"] or row["run_id"] is None
        own = {name: value for name, value in cells(found).items() if row[name] is not None}
        assert all(row[name] == value for name, value in own.items())


# --- What is refused -----------------------------------------------------------------------------


def assert_one_line(error, name=""):
    message = str(error)
    assert message.startswith(name)
    assert "\n" not in message
    assert len(message) < 500


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
    if made is columns.whole:
        return type(value) is int and about[0] <= value <= about[1]
    if made is columns.real:
        least, most, above = about
        if type(value) not in (int, float) or value != value:
            return False
        return least <= value <= most and (above is None or value > above)
    if made is columns.one_of:
        return type(value) is str and value in about
    if made is columns.truth:
        return type(value) is bool
    if made is columns.numbers:
        sequence = isinstance(value, tuple | list) and len(value) == len(set(value)) > 0
        return sequence and all(type(x) is float and x > 0 for x in value)
    return isinstance(value, about[0])


def least(field):
    """A value that a field may hold."""
    if field.default is not dataclasses.MISSING:
        return field.default
    made, *about = field.metadata["domain"].made
    return Training() if made is spec.is_spec else about[0]


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


@cases(100, st.data())
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
    assert_one_line(error.value, f"{part}=")


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: MLP(d_model=4, d_head=5, d_mlp=0, heads="full"), "d_head=5 exceeds d_model=4"),
        (lambda: MLP(d_model=4, d_head=4, d_mlp=0, activation="relu"), "activation='relu' means"),
        (lambda: Associations(vocab_size=100, context_length=5), "context_length=5: all 100^5"),
        (lambda: Training(protocol="exakt"), "protocol='exakt' is not one of published, passes"),
        (lambda: Training(protocol="exact"), "batch_size must be None"),
        (lambda: Training(batch_size=None), "batch_size=None is not an integer >= 1"),
        (lambda: Adam(b1=1), "b1=1.0 never forgets"),
        (lambda: Task.named("poems"), "task='poems' is unknown; choose one of associations, "),
        (lambda: Architecture.named([]), r"architecture=[] is unknown; choose one of "),
        (lambda: Optimizer.named(None), "optimizer=None is unknown; choose one of adam"),
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


# --- Kinds of one's own ----------------------------------------------------------------------


def test_the_published_id_is_kept():
    # Results are found again by it: it may only change with SPEC_VERSION.
    run = Run(task=Associations(), architecture=AttentionOnly(d_model=10, d_head=10))
    assert (spec.SPEC_VERSION, run.run_id) == (2, "2fd71e98e44841dd")


def test_kinds_alike_in_all_but_their_name_have_other_ids():
    ids = set()
    for name in ("one", "another"):

        @kind(name)
        class Mine(Architecture):
            width: int = integer("of it", 1, default=3)

        ids |= {Run(task=Associations(), architecture=Mine(d_model=w)).run_id for w in (1, 2)}
        ids.add(Run(task=Associations(), architecture=Mine(d_model=1, width=2)).run_id)
        del Architecture.registry[name]
    assert len(ids) == 6


def test_a_subclass_that_is_no_kind_makes_no_spec():
    """It would have the id of the kind from which it derives."""

    class Mine(Associations):
        pass

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Wider(MLP):
        width: int = 3

    for build in (Mine, lambda: Wider(d_model=4, d_head=4, d_mlp=0), Task, Construction):
        with pytest.raises(UserError, match="put @kind") as error:
            build()
        assert_one_line(error.value)


def _refused(base, **fields):
    annotations = dict.fromkeys(fields, int)
    body = {"__annotations__": annotations, "__module__": __name__, **fields}
    with pytest.raises(UserError) as error:
        kind("mine")(type("Mine", (base,), body))
    assert_one_line(error.value)
    return str(error.value)


def test_fields_that_an_id_or_a_row_would_not_hold_are_refused():
    assert "Mine.width is not declared" in _refused(Architecture, width=3)
    assert "Mine.width is not declared" in _refused(Task, width=dataclasses.field(default=3))
    for base, name in ((Task, "name"), (Task, "task"), (Method, "cells"), (Method, "columns")):
        assert f"Mine.{name} has a name that every" in _refused(base, **{name: integer("a", 1)})
    assert "Mine.theorem has a name" in _refused(Construction, theorem=integer("a", 1))
    assert "Mine.a has a name" in _refused(Task, a=integer("a", 1, column="task"))
    assert "mine" not in {*Task.registry, *Architecture.registry, *Method.registry}


def test_names_that_a_row_could_not_hold_are_refused():
    for name in ("", "a b", "<b>", "x" * 101, None):
        with pytest.raises(UserError) as error:
            kind(name)(type("Mine", (Task,), {}))
        assert_one_line(error.value, "name=")


@pytest.mark.parametrize(
    ("base", "field"),
    [(Task, "learning_rate"), (Task, "d_model"), (Architecture, "vocab_size"), (Task, "run_id")],
)
def test_a_column_of_two_families_is_refused(base, field, make_run):
    body = {"__annotations__": {field: float}, field: number("mine", default=1.0)}
    kind("mine_and_yours")(type("Mine", (base,), body))
    with pytest.raises(UserError, match=f"{field} is a column of all runs or of another") as error:
        cells(make_run())
    assert_one_line(error.value)


def test_a_column_that_two_kinds_of_a_family_share_holds_what_either_may(make_run):
    """Each in its own range; the rows of both are read."""

    @kind("narrow")
    class Narrow(Architecture):
        d_mlp: int = integer("hidden neurons", 5, most=9)
        heads: str = columns.choice("of attention", "none", "some")
        activation: float = number("a number where others have words", default=0.5)

    narrow = dataclasses.replace(make_run(), architecture=Narrow(d_model=2, d_mlp=5, heads="none"))
    known = runs.spec_columns()
    for run in (narrow, make_run(), make_run("mlp", d_mlp=3, heads="full", activation="relu")):
        row = cells(run)
        assert from_cells(json.loads(json.dumps(row))) == run
        assert all(known[name].domain.holds(row[name]) for name in row if row[name] is not None)
    assert known["heads"].domain.description == "one of full, compressed, none, some"
    assert not known["heads"].domain.holds("fat")
    assert not known["activation"].domain.holds("fat")
    with pytest.raises(UserError, match="d_mlp=10 is not an integer from 5 to 9"):
        from_cells({**cells(narrow), "d_mlp": 10})


def test_a_column_of_two_fields_is_refused():
    @kind("mine")
    class Mine(Optimizer):
        learning_rate: float = number("a second one", default=1.0)

    with pytest.raises(UserError, match="learning_rate is a column of two fields of trained"):
        Training(optimizer=Mine()).cells()


def test_optimisers_of_ones_own_are_part_of_ids_and_rows():
    @kind("momentum")
    class Momentum(Optimizer):
        decay: float = number("of the mean of gradients", default=0.9, least=0, most=1)

    ids = set()
    for optimizer in (Adam(), Adam(b1=0.8), Momentum(), Momentum(decay=0.8)):
        run = Run(
            task=Associations(),
            architecture=AttentionOnly(d_model=4, d_head=4),
            method=Training(optimizer=optimizer),
        )
        assert from_cells(cells(run)) == run
        ids.add(run.run_id)
    assert len(ids) == 4


def test_a_field_that_is_younger_than_ids_is_left_out_at_the_value_it_had():
    def made(**more):
        @kind("mine")
        class Mine(Optimizer):
            decay: float = number("of gradients", default=0.9)
            if more:
                nesterov: float = number("of steps", default=0.0, **more)

        return Mine

    before = made()()
    del Optimizer.registry["mine"]
    after = made(omit=0.0)
    assert after().canonical() == before.canonical()
    assert after(nesterov=0.5).canonical() != before.canonical()
    # So do tables: rows of before are read, and rows of after are beside them.
    assert after.from_cells(before.cells()) == after()
    assert after().cells() == {**before.cells(), "nesterov": None}
    assert after.from_cells(after(nesterov=0.5).cells()) == after(nesterov=0.5)


def test_a_construction_is_a_text_and_back():
    @kind("mine")
    class Mine(Construction):
        width: int = integer("a width", 1, default=3)
        share: float | None = number("a share", default=0.5, optional=True)
        flip: bool = columns.flag("a flip", default=False)

    for made in (
        Mine(),
        Mine(width=7),
        Mine(share=None),
        Mine(share=2),
        Mine(flip=True, n_aimed=0),
    ):
        assert Construction.parse(str(made)) == made
    assert str(Mine(flip=True, share=None, width=2)) == "mine width=2 share=None flip=True"
    for text in ("", "mine width", "mine width=3", "mine  width=2", "mine width=02", "mine x=1"):
        with pytest.raises(UserError) as error:
            Construction.parse(text)
        assert_one_line(error.value)


@cases(100, st.data())
def test_every_construction_is_a_text_and_back(data):
    theorems = list(Construction.kinds().values())
    made = data.draw(st.sampled_from(theorems).flatmap(specs))
    assert Construction.parse(str(made)) == made


def test_a_field_of_a_single_kind_takes_no_other():
    """Its columns do not say which kind it is."""

    @kind("another")
    class Another(Training):
        more: ClassVar[int] = 1

    @kind("outer")
    class Outer(Method):
        inner: Training = nested(Training, "of every trial")

    with pytest.raises(UserError, match=r"training=.* is not a Training"):
        Search(training=Another())
    with pytest.raises(UserError, match=r"inner=.* is not a Training"):
        Outer(inner=Annealing())
    assert Outer(inner=Training()).canonical()["inner"]["name"] == "trained"


def test_messages_show_any_value_in_one_short_line():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, 10**5000, np.ones((30, 30)), "a\nb" * 1000, "\u202e\x00", object()):
        assert_one_line(columns.shown(value))
        assert len(columns.shown(value)) <= 100
        assert columns.shown(value).isprintable()


@pytest.mark.parametrize(
    ("text", "holds"),
    [("Ada", True), ("", False), ("=1", False), (" a", False), ("a\nb", False), ("a" * 21, False)],
)
def test_plain_text_is_one_line_without_markup(text, holds):
    assert text_of(20).holds(text) == holds
    assert declared(text_of(20), "a text").metadata["domain"].holds(text) == holds
