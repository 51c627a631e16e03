"""Specs of searches: mistakes, ids, columns, and who shares a program."""

import dataclasses
import math

import pytest

from memobench.common.errors import UserError
from memobench.constructions.dana2025 import Dana2025
from memobench.core.cells import cells
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.methods.search import RULES, Search
from memobench.planner import packing
from memobench.tasks.associations import Associations
from memobench.tasks.labelled_contexts import LabelledContexts
from memobench.tasks.sequences import Sequences
from tests.searches import EXACT, SEARCH, run_of

WHOLE = Associations(vocab_size=7)


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: Search(training=EXACT, sizes=0), "sizes"),
        (lambda: Search(training=EXACT, sizes=65), "sizes"),
        (lambda: Search(training=EXACT, doublings=33), "doublings"),
        (lambda: Search(training=EXACT, resolution=1), "resolution"),
        (lambda: Search(training=EXACT, rules=RULES + 1), "rules"),
        (lambda: Search(training=EXACT, rules=None), "rules"),
        (lambda: Search(training=EXACT, doublings=-1), "doublings"),
        (lambda: Search(training=EXACT, doublings=1.0), "doublings"),
        (lambda: Search(training=EXACT, resolution=0), "resolution"),
        (lambda: Search(training=EXACT, resolution=math.nan), "resolution"),
        (lambda: Search(training=EXACT, rate_factors=()), "rate_factors"),
        (lambda: Search(training=EXACT, rate_factors=(1.0, 1)), "rate_factors"),
        (lambda: Search(training=EXACT, rate_factors=1.0), "rate_factors"),
        (lambda: Search(training=EXACT, rate_factors=(0.0,)), "rate_factors"),
        (lambda: Search(training=EXACT, rate_factors=(math.inf,)), "rate_factors"),
        (lambda: Search(training=EXACT, rate_factors=("1",)), "rate_factors"),
        (lambda: Search(training=EXACT, rate_factors=(True,)), "rate_factors"),
        (lambda: Search(training=EXACT, rate_factors=tuple(range(1, 18))), "rate_factors"),
        (lambda: Search(training=Annealing()), "training"),
        (lambda: Search(training=SEARCH), "training"),
        (
            lambda: Search(training=dataclasses.replace(EXACT, start=Dana2025())),
            "training",
        ),
        (lambda: dataclasses.replace(run_of(), task=WHOLE), "n_sequences"),
        (
            lambda: dataclasses.replace(
                run_of(), task=dataclasses.replace(WHOLE, n_sequences=9, zipf_exponent=1.0)
            ),
            "zipf_exponent",
        ),
        (lambda: dataclasses.replace(run_of(), task=LabelledContexts(n_examples=9)), "method"),
        (
            lambda: dataclasses.replace(run_of(), task=Sequences(n_sequences=9)),
            "method",
        ),
    ],
)
def test_a_mistake_gets_one_line_that_names_the_field(build, field):
    with pytest.raises(UserError, match=rf"\b{field}\b") as error:
        build()
    assert "\n" not in str(error.value)


def test_the_largest_search():
    most = {"sizes": 64, "doublings": 32, "resolution": 0.999}
    found = Search(training=EXACT, rate_factors=tuple(range(1, 17)), **most)
    assert found.lanes == 64 * 16


def test_the_rules_of_a_search_are_a_column():
    assert SEARCH.rules == RULES == cells(run_of())["rules"]
    assert cells(run_of(method=EXACT))["rules"] is None


def test_only_runs_of_one_size_share_a_program():
    packing.make_pack([run_of(n=33), run_of(n=40)])
    with pytest.raises(ValueError, match="differ in more"):
        packing.make_pack([run_of(n=20), run_of(n=40)])
    plans = packing.plan([run_of(n=n, seed=n) for n in (20, 24, 33, 40)], "cpu")
    assert sorted(sorted(run.task.n_examples for run in pack.runs) for pack in plans) == [
        [20, 24],
        [33, 40],
    ]
