"""Families: every budget has shapes of each, and all of them meet it."""

import pytest

from memobench import families
from memobench.experiments.board import shapes
from memobench.models import base as models


@pytest.mark.parametrize("of", [families.shapes, families.blocks], ids=["shapes", "blocks"])
@pytest.mark.parametrize("budget", families.VOCAB_SIZES)
def test_every_family_has_shapes_that_meet_a_budget(budget, of):
    task, found = families.task(budget), of(budget)
    assert len(set(found)) == len(found)
    assert {shape.family for shape in found} == {shape.family for shape in of(256)}
    for shape in found:
        n_params, _ = models.count_parameters(shape.build(task), task.context_length)
        assert abs(n_params - budget) <= families.TOLERANCE * budget
    # More associations than any memorizes, all of them different.
    assert task.n_examples == budget <= families.VOCAB_SIZES[budget] ** 2


def test_chosen_shapes_are_among_those_tried():
    """One of each family, at budgets of which all shapes were tried."""
    budgets = [budget for budget in families.VOCAB_SIZES if shapes.standard(budget)]
    assert budgets
    for budget in budgets:
        tried, chosen = families.shapes(budget), shapes.standard(budget)
        assert set(chosen) <= set(tried)
        assert sorted(x.family for x in chosen) == sorted({x.family for x in tried})
