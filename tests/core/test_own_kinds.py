"""Kinds of one's own: what their names and fields may be, and how ids and rows hold them."""

import dataclasses
import inspect
import json
import sys
from typing import Any, ClassVar

import pytest

from memobench.common.errors import UserError
from memobench.constructions.base import Construction
from memobench.core import cells as runs
from memobench.core import columns
from memobench.core.architecture import Architecture
from memobench.core.cells import cells, from_cells
from memobench.core.columns import declare, integer, number, numbers
from memobench.core.run import Method, Run
from memobench.core.spec import Spec, kind, nested
from memobench.core.task import Task
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.models.transformer import MLP, AttentionOnly
from memobench.optimizers import Adam, Optimizer
from memobench.tasks.associations import Associations
from tests import registries
from tests.drawn import assert_one_line


def test_kinds_alike_in_all_but_their_name_have_other_ids():
    ids = set()
    for name in ("one", "another"):

        @kind(name)
        class Mine(Architecture):
            width: int = integer("of it", 1, default=3)

        ids |= {Run(task=Associations(), architecture=Mine(d_model=w)).run_id for w in (1, 2)}
        ids.add(Run(task=Associations(), architecture=Mine(d_model=1, width=2)).run_id)
    assert len(ids) == 6


def test_a_subclass_that_is_no_kind_makes_no_spec():
    """It would have the id of the kind from which it derives."""

    class Mine(Associations):
        pass

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Wider(MLP):
        width: int = 3

    class Narrower(Architecture):
        rank: int = integer("of it", 1)

    for build in (
        *(Mine, lambda: Wider(d_model=4, d_head=4, d_mlp=0), Task, Construction),
        *(lambda: Narrower(d_model=4, rank=3), lambda: Wider(d_model=4, depth=3)),
    ):
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


def test_fields_are_those_that_are_annotated_wherever_python_keeps_that(monkeypatch):
    """Python 3.14 works annotations out when they are asked for: no class has them in its body."""
    asked = inspect.get_annotations

    def lazily(thing, **more):
        return asked(thing, **more) or {"width": int}

    with monkeypatch.context() as patched:
        patched.setattr(inspect, "get_annotations", lazily)
        body = {"__module__": __name__, "width": integer("of it", 1)}
        made = kind("mine")(type("Mine", (Architecture,), body))
    assert {"width", "code"} <= made(d_model=1, width=7).canonical().keys()


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python works annotations out at once")
def test_an_annotation_may_name_what_is_not_there_yet():
    @kind("mine")
    class Mine(Architecture):
        later: ClassVar[NotYet]  # noqa: F821
        width: int = integer("of it", 1)

    assert Mine(d_model=1, width=7).canonical()["width"] == 7


def test_names_that_a_row_could_not_hold_are_refused():
    for name in ("", "a b", "<b>", "x" * 101, None):
        with pytest.raises(UserError) as error:
            kind(name)(type("Mine", (Task,), {}))
        assert_one_line(error.value, "name=")


def test_a_kind_without_a_name_is_told_how_to_give_one():
    with pytest.raises(UserError, match=r'^@kind needs a name: @kind\("..."\)$'):

        @kind
        class Mine(Architecture):
            rank: int = integer("of it", 1)


@pytest.mark.parametrize("own", [type("Mine", (), {}), Spec, len])
def test_a_kind_of_no_family_is_told_to_derive_from_one(own):
    with pytest.raises(UserError, match="is not of a family; derive from one") as error:
        kind("mine")(own)
    assert_one_line(error.value)


def test_a_kind_that_is_a_dataclass_already_is_one_line():
    with pytest.raises(UserError, match=r"makes .*Mine a dataclass, which it is; remove @data"):

        @kind("mine")
        @dataclasses.dataclass(frozen=True)
        class Mine(Architecture):
            rank: int = integer("of it", 1)


@pytest.mark.parametrize("value", [float("nan"), b"ab", 1j])
def test_a_value_that_no_id_can_hold_is_one_line(value):
    @kind("mine")
    class Mine(AttentionOnly):
        more: Any = declare(columns.value_where("anything", lambda x: True), "of it", 1)

    run = Run(task=Associations(), architecture=Mine(d_model=1, d_head=1, more=value))
    with pytest.raises(UserError, match=r"^a field of mine, associations or .* no id can") as error:
        _ = run.run_id
    assert_one_line(error.value)


@pytest.mark.parametrize("default", [[1.0], {}, set()])
def test_a_default_that_could_be_changed_is_refused(default):
    with pytest.raises(UserError, match=r"^default=.* could be changed; give a tuple"):
        declare(numbers(3), "of it", default)


@pytest.mark.parametrize(
    ("base", "field", "said"),
    [
        (Task, "learning_rate", "the task 'mine_and_yours' and of the method"),
        (Architecture, "learning_rate", "the architecture 'mine_and_yours' and of the method"),
        (Task, "protocol", "the task 'mine_and_yours' and of the method"),
        (Architecture, "solve", "the architecture 'mine_and_yours' and of the method '\\w+'"),
        (Task, "d_model", "the task 'mine_and_yours' and of the architecture"),
        (Architecture, "vocab_size", "every task and of the architecture 'mine_and_yours'"),
        (Task, "run_id", "all runs and of the task 'mine_and_yours'"),
    ],
)
def test_a_column_of_two_families_is_refused(base, field, said, make_run):
    body = {"__annotations__": {field: float}, field: number("mine", default=1.0)}
    kind("mine_and_yours")(type("Mine", (base,), body))
    with pytest.raises(UserError, match=f"{field} is a column of {said}") as error:
        cells(make_run())
    assert_one_line(error.value)


def test_a_value_that_cannot_be_a_key_is_refused():
    @kind("mine")
    class Mine(Architecture):
        widths: list = columns.declare(
            columns.value_where("a list", lambda x: isinstance(x, list)), "of layers"
        )

    with pytest.raises(UserError, match=r"widths=\[3, 4\] must be hashable, got a list") as error:
        Mine(d_model=2, widths=[3, 4])
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

    with registries.restore():
        before = made()()
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

    @kind("sized")
    class Sized(Construction):
        size: int = integer("a size")

    made = Sized(size=2)
    assert str(made) == "sized size=2"
    assert Construction.parse("sized size=2") == made
    for text in ("", "mine width", "mine width=3", "mine  width=2", "mine width=02", "mine x=1"):
        with pytest.raises(UserError) as error:
            Construction.parse(text)
        assert_one_line(error.value)


def test_a_field_of_a_single_kind_takes_no_other():
    """Its columns do not say which kind it is."""

    @kind("another")
    class Another(Training):
        more: ClassVar[int] = 1

    @kind("outer")
    class Outer(Method):
        protocol, steps = "none", 1
        check_run = train = lambda *_: None
        inner: Training = nested(Training, "of every trial")

    with pytest.raises(UserError, match=r"training=.* is not a Training"):
        Search(training=Another())
    with pytest.raises(UserError, match=r"inner=.* is not a Training"):
        Outer(inner=Annealing())
    assert Outer(inner=Training()).canonical()["inner"]["name"] == "trained"
