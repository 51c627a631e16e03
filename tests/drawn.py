"""Specs and runs of any kind, drawn as the declarations of their fields allow."""

import contextlib
import dataclasses
import functools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from memobench.analysis import kinds
from memobench.common.errors import UserError
from memobench.constructions.base import Construction
from memobench.core import columns, spec
from memobench.core.architecture import Architecture
from memobench.core.run import Method, Run
from memobench.core.spec import Spec
from memobench.core.task import Task
from memobench.methods.search import Search
from memobench.methods.training import Training

KINDS = [
    made
    for family in kinds.FAMILIES
    for made in family.kinds().values()
    # Rows of the methods name every construction so; its own kinds are those of theorems.
    if made is not Construction
]
TASKS, ARCHITECTURES = list(Task.kinds().values()), list(Architecture.kinds().values())
METHODS = [made for made in KINDS if issubclass(made, Method)]


def cases(quick, strategy):
    """A test of so many examples, always the same ones, and of 50 times as many in the slow suite.

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
        few, many = (settings(n)(hypothesis.given(strategy)(test)) for n in (quick, 50 * quick))

        def check(of_examples):
            of_examples()

        both = [pytest.param(few, id="few"), pytest.param(many, id="many", marks=pytest.mark.slow)]
        return pytest.mark.parametrize("of_examples", both)(check)

    return twice


@functools.cache
def values(field):
    """Values that a field's declaration allows, small ones and the bounds more often."""
    made, *about = field.metadata["domain"].made
    if made is columns.int_between:
        least, most = about
        near = st.integers(least, min(most, least + 12))
        drawn = st.one_of(near, near, near, st.sampled_from([least, most]), st.integers(*about))
    elif made is columns.float_between:
        least, most, above = about
        least = max(least, -1e6) if above is None else above
        wide = st.floats(least, most, exclude_min=above is not None)
        near = st.floats(least, min(most, least + 3), exclude_min=above is not None)
        whole = st.integers(math.floor(least) + 1, math.floor(min(most, least + 3)))
        drawn = st.one_of(near, wide, *([whole] if least + 1 <= most else []))
    elif made is columns.one_of:
        drawn = st.sampled_from(about)
    elif made is columns.boolean:
        drawn = st.booleans()
    elif made is columns.numbers:
        (most,) = about
        each = st.floats(0, 1e9, exclude_min=True)
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


JUNK = [
    *(True, False, -1, 0, 1, 1.5, 2**63, 10**400, math.inf, -math.inf, "", "no", "nan", "1"),
    *("adam", "exact", "constructed", "mlp", [], [1], {}, {"name": "mlp"}, [[[]]], "a b=c d=e"),
]


def assert_one_line(error, name=""):
    message = str(error)
    assert message.startswith(name)
    assert "\n" not in message
    assert len(message) < 500


def least(field):
    """A value that a field may hold."""
    if field.default is not dataclasses.MISSING:
        return field.default
    made, *about = field.metadata["domain"].made
    return Training() if made is spec.is_spec else about[0]
