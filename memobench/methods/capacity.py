"""Capacity: many trainings of one architecture, over label tables, initial weights and steps.

The spec; `trial_schedule` says which trainings come next, `capacity_policy` has them made. For each
rung of a ladder of budgets pilots choose the learning rate, and models over label tables and
initial weights are trained; then trials on parts of the set find the largest that is known
completely.

One trunk of constant rate with a decay for every rung would take fewer steps (Hu et al. 2024,
MiniCPM). At the learning rates that are best here its models know 1 to 4% less in the end and
spread more, so that an interval takes more of them: every rung has trainings of its own.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from memobench.common.errors import require
from memobench.core import columns as col
from memobench.core.checkpoints import Checkpoints
from memobench.core.columns import Column, by_name, choice, declare, integer
from memobench.core.module import Module
from memobench.core.run import Cost, Pack, Run
from memobench.core.spec import kind, nested
from memobench.engine import Policy
from memobench.methods.capacity_policy import CapacityPolicy
from memobench.methods.subset_methods import TablesMethod
from memobench.methods.training import Training
from memobench.methods.trial_schedule import PILOT_ROUNDS, ROUNDS
from memobench.store.rows import parse_list

# Raised whenever a run would make other trainings: ids then differ, and results never mix.
RULES = 1
# The columns of trials with a learning rate of their own.
_OF_TRIAL_PILOTS = ("pilot_trials", "trial_rate")
# Steps of a rung over those of the one before.
GROWTH = 4


@kind("capacity")
class Capacity(TablesMethod):
    """The capacity of an architecture: means over label `tables` and `inits` of each.

    Every model is one `training` on all examples of the task, with the labels of one table and
    initial weights of its own. `rungs` budgets are measured, each four times the one before, the
    last of `training.steps`; a model begins each of them with the same weights. The learning rate
    of a rung is the one with which `pilots`, whose initial weights nothing else has, know most. On
    the first rung they try `rate_factors` times the training's, on each further one the best of the
    rung before and its neighbours; the grid is extended where the best is at its edge. Then
    `threshold_trials` trainings on the first so many examples find the largest set of which half of
    them know 99%. Their learning rate is that of the last rung, or is found as a rung's is: the one
    with which `trial_pilots` further trials find the largest set. See `methods.thresholds`.
    """

    training: Training = nested(Training, "of every model", Training().exact())
    rate_factors: tuple[float, ...] = declare(
        col.numbers(16), "factors of the learning rate that are tried", default=(1.0, 3.0, 10.0)
    )
    tables: int = integer("label tables", 1, default=24, most=2**16)
    inits: int = integer("initial weights of each label table", 1, default=1, most=2**16)
    pilots: int = integer("trainings that choose the learning rate", 1, default=4, most=2**16)
    rungs: int = integer("numbers of steps, each four times the one before", 1, default=3, most=16)
    threshold_trials: int = integer(
        "trainings that find the largest set known completely", 0, default=0, most=2**16
    )
    trial_pilots: int | None = integer(
        "trials of each learning rate that choose that of the others; none for the last rung's",
        1,
        default=None,
        most=2**16,
        omit=None,
    )
    give_up: str | None = choice(
        "trials that end though they do not know all: those far from it late, as "
        "memobench.methods.thresholds.GIVE_UP has it; none for no trials",
        "late",
        default=None,
        omit=None,
    )
    rules: int = integer("version of the rules by which trials are chosen", 1, default=RULES)

    def check(self) -> None:
        super().check()
        epochs, rungs = self.training.epochs, self.rungs
        require(
            self.threshold_trials or not self.trial_pilots,
            f"trial_pilots={self.trial_pilots} choose nothing without threshold_trials; give both",
        )
        require(
            self.rules == RULES,
            f"rules={self.rules!r} are not those of this version, {RULES}; leave rules out",
        )
        require(
            epochs % GROWTH ** (rungs - 1) == 0,
            f"epochs={epochs} are not a multiple of {GROWTH}^{rungs - 1}, as rungs={rungs} "
            "need; fix one of them",
        )
        # The first rung is the shortest.
        self.training.schedule.check_epochs(epochs // GROWTH ** (rungs - 1))

    @property
    def ladder(self) -> list[int]:
        """The numbers of steps of the rungs, rising."""
        return [self.steps // GROWTH**k for k in range(self.rungs)][::-1]

    @property
    def lanes(self) -> int:
        """The number of models that are trained for every rung."""
        return self.tables * self.inits

    def cost(self, run: Run, module: Module | None = None) -> Cost:
        """Trainings that know all before the end are not foreseen."""
        rates = len(self.rate_factors)
        models = (self.lanes + rates * self.pilots) * sum(self.ladder)
        trials = self.threshold_trials + rates * (self.trial_pilots or 0)
        # Pilots, the last rung's models, and rounds of trials wait for one another.
        rounds = PILOT_ROUNDS * bool(self.trial_pilots) + ROUNDS * bool(self.threshold_trials)
        return dataclasses.replace(
            super().cost(run, module),
            steps=models + trials * self.steps,
            sequential_steps=sum(self.ladder) + (1 + rounds) * self.steps,
            lanes=self.lanes,
        )

    def pack_key(self, run: Run) -> Hashable:
        return super().pack_key(run), self.tables

    def policy(self, pack: Pack, checkpoints: Checkpoints | None) -> Policy:
        return CapacityPolicy(pack, checkpoints)

    def check_lists(self, run: Run, row: Mapping[str, Any]) -> None:
        """Raises UserError unless a row's lists are of the rungs, models and trials of its run."""
        for name, column in self.row_columns().items():
            column.domain.validate(name, column.domain.read(row[name]))
        task: Any = run.task
        most = task.n_examples * math.log2(task.n_choices) * (1 + 1e-6)
        require(
            row["rung_steps"] == self.ladder
            and len(row["rung_rates"]) == self.rungs
            and self._are_of_models(row["rung_bits"], most)
            and self._are_of_models(row["rung_known"], task.n_examples),
            f"rung_steps, rung_rates, rung_bits, rung_known are not what {self.rungs} rungs of "
            f"{self.lanes} models have; fix them",
        )
        trials = row["complete_trials"]
        require(
            len(trials) == self.threshold_trials
            and all(len(trial) == 2 for trial in trials)
            and _are_parts(trials, task.n_examples),
            f"complete_trials are not {self.threshold_trials} parts of the task, each with 1 or 0; "
            "fix them",
        )
        if self.trial_pilots:
            pilots = row["pilot_trials"]
            rates = collections.Counter(pilot[0] for pilot in pilots if len(pilot) == 3)
            require(
                sum(rates.values()) == len(pilots)
                and set(rates.values()) == {self.trial_pilots}
                and _are_parts([pilot[1:] for pilot in pilots], task.n_examples),
                f"pilot_trials are not, for every factor, {self.trial_pilots} parts of the task, "
                "each with 1 or 0; fix them",
            )

    def _are_of_models(self, value_KxL: Any, most: float) -> bool:
        """True where there is a number from 0 to `most` for every rung and model."""
        whole = [len(value_L) for value_L in value_KxL] == [self.lanes] * self.rungs
        return whole and all(0 <= value <= most for value_L in value_KxL for value in value_L)

    def all_trials(self, row: Mapping[str, Any]) -> list[tuple[float, int, int]]:
        """Learning rate, examples, and whether 99% came to be known, of every trial of a row.

        In the order of their initial weights: the pilots are the last.
        """
        trials = parse_list(row["complete_trials"])
        if not self.trial_pilots:
            return [(parse_list(row["rung_rates"])[-1], n, known) for n, known in trials]
        pilots, rate = parse_list(row["pilot_trials"]), self.training.learning_rate
        return [
            *((row["trial_rate"], n, known) for n, known in trials),
            *((rate * factor, n, known) for factor, n, known in pilots),
        ]

    def row_columns(self) -> dict[str, Column]:
        left_out = () if self.trial_pilots else _OF_TRIAL_PILOTS
        return {x: column for x, column in super().row_columns().items() if x not in left_out}

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        bits, rate, whole = (
            col.float_between(0),
            col.float_between(above=0),
            col.int_between(0, 2**40),
        )

        def lists(domain: col.Domain) -> col.Domain:
            return col.list_of(col.list_of(domain, 2**16), 64)

        return by_name(
            Column("rung_rates", "learning rate of each rung", col.list_of(rate, 64)),
            Column(
                "edge_of_rates", "whether that of the last is the edge of its grid", col.boolean()
            ),
            Column(
                "pilot_bits",
                "factor of the learning rate and bits of each pilot, for each rung",
                col.list_of(lists(col.float_between(0)), 64),
            ),
            Column("rung_steps", "optimiser steps of each rung", col.list_of(whole, 64)),
            Column("rung_bits", "bits of each model, for each rung", lists(bits)),
            Column(
                "rung_known",
                "examples known of each model, for each rung",
                lists(whole),
            ),
            Column(
                "complete_trials",
                "examples, and whether 99% came to be known, of each trial",
                col.list_of(col.list_of(whole, 2), 2**16),
            ),
            Column(
                "pilot_trials",
                "factor of the learning rate, examples, and whether 99% came to be known, of each "
                "trial that chose the rate of the others",
                col.list_of(col.list_of(col.float_between(0), 3), 2**16),
            ),
            Column("trial_rate", "learning rate of trials, if they have their own", rate),
            Column("best_bits", "bits of the best weights found", bits, "bits"),
            Column("best_complete", "largest set known completely by any weights found", whole),
        )


def means_of_tables(row: Mapping[str, Any], measure: str) -> np.ndarray | None:
    """value_T: what a row's models measured, a mean for each label table; None for one model.

    Where it is there, intervals are over tables, as those of other rows are over seeds.
    """
    lists = {"bits": ("rung_bits", 1), "accuracy": ("rung_known", row["n_examples"])}
    if row["method"] != Capacity.name or measure not in lists:
        return None
    name, whole = lists[measure]
    value_TxS = np.reshape(parse_list(row[name])[-1], (int(row["tables"]), int(row["inits"])))
    return value_TxS.mean(axis=1) / whole


def _are_parts(trials: Any, n_examples: int) -> bool:
    """True where trials are of so many examples at most, each with 1 or 0."""
    return all(0 < n <= n_examples and known in (0, 1) for n, known in trials)
