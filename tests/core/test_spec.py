"""Specs as properties: equal models have equal ids, other models other ids, and rows lead back."""

import dataclasses
import io
import json

import hypothesis
import pandas as pd
from hypothesis import strategies as st

from memobench.common.errors import UserError
from memobench.constructions.base import Construction
from memobench.core import cells as runs
from memobench.core.cells import cells, from_cells
from memobench.core.run import Run
from memobench.core.spec import Spec
from memobench.store import results
from tests.drawn import (
    JUNK,
    KINDS,
    assert_one_line,
    cases,
    drawn_runs,
    plain,
    respelled,
    specs,
    spelled,
    values,
)


@cases(100, st.data())
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


@cases(60, st.data())
def test_equal_runs_have_equal_ids(data):
    run = data.draw(drawn_runs())
    parts = {name: getattr(run, name) for name in ("task", "architecture", "method", "seed")}
    again = Run(**{name: spelled(data.draw, part) for name, part in parts.items()})
    assert again == run
    assert again.run_id == run.run_id
    assert cells(again) == cells(run)


@cases(100, st.data())
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


def back(row):
    """The run of a row, of which the id says that it is the same."""
    run = from_cells(row)
    assert run.run_id == row["run_id"]
    return run


@cases(60, drawn_runs())
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


@cases(80, st.data())
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


@cases(40, st.data())
def test_every_construction_is_a_text_and_back(data):
    theorems = list(Construction.kinds().values())
    made = data.draw(st.sampled_from(theorems).flatmap(specs))
    assert Construction.parse(str(made)) == made
