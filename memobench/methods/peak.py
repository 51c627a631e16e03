"""The most that an architecture knows of sets of several sizes: a grid of trainings.

Every size, learning rate and label table has one training, and none waits for what others find:
what is best is chosen afterwards, on label tables that then do not count (`memobench.board.peak`).

Shape letters: J set sizes, R learning rates, T label tables.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from memobench.common.errors import require
from memobench.core import columns as col
from memobench.core.checkpoints import Checkpoints
from memobench.core.columns import Column, by_name, declare, integer
from memobench.core.module import Module
from memobench.core.run import Cost, Pack, Run
from memobench.core.spec import kind, nested
from memobench.engine import Policy
from memobench.methods.capacity_policy import CapacityPolicy
from memobench.methods.subset_methods import TablesMethod
from memobench.methods.training import Training
from memobench.methods.trial_schedule import (
    Best,
    Proposal,
    arrays_of_best,
    best_of_arrays,
    method_of,
)

SIZE = "size"


@kind("peak")
class Peak(TablesMethod):
    """Bits of sets of several sizes: a training of each size, learning rate and label table.

    Every model is one `training` on the first examples of the task, `shares` of them, with the
    labels of one of the `tables` and `rate_factors` times the training's learning rate. Models of
    one label table begin with the same weights.
    """

    training: Training = nested(Training, "of every model", Training().exact())
    shares: tuple[float, ...] = declare(
        col.numbers(64),
        "shares of the examples that sets have, rising to 1",
        default=(0.5, 0.75, 1.0),
    )
    rate_factors: tuple[float, ...] = declare(
        col.numbers(16), "factors of the learning rate that are tried", default=(1.0, 3.0, 10.0)
    )
    tables: int = integer("label tables", 1, default=24, most=2**16)

    def check(self) -> None:
        super().check()
        require(
            list(self.shares) == sorted(self.shares) and self.shares[-1] == 1,
            f"shares={self.shares} must rise to 1. Sort them, and end with 1.",
        )

    @property
    def lanes(self) -> int:
        """The number of models that are trained."""
        return math.prod(self.shape)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of set sizes J, learning rates R and label tables T."""
        return len(self.shares), len(self.rate_factors), self.tables

    def sizes(self, run: Run) -> list[int]:
        """The examples of each set, rising."""
        task: Any = run.task
        return [round(share * task.n_examples) for share in self.shares]

    def check_run(self, run: Run) -> None:
        super().check_run(run)
        sizes = self.sizes(run)
        require(
            sizes[0] > 0,
            f"shares={self.shares} give a smallest set of {sizes[0]} examples. Raise the first "
            "share.",
        )
        require(
            len(set(sizes)) == len(sizes),
            f"shares={self.shares} must be different sets, got sizes {sizes}. Choose others.",
        )

    def cost(self, run: Run, module: Module | None = None) -> Cost:
        return dataclasses.replace(
            super().cost(run, module),
            steps=self.lanes * self.steps,
            sequential_steps=self.steps,
            lanes=self.lanes,
        )

    def policy(self, pack: Pack, checkpoints: Checkpoints | None) -> Policy:
        return CapacityPolicy(pack, checkpoints, Grid)

    def check_lists(self, run: Run, row: Mapping[str, Any]) -> None:
        """Raises UserError unless a row's lists are of the sizes, rates and tables of its run."""
        task: Any = run.task
        size_Jx1x1 = np.reshape(self.sizes(run), (-1, 1, 1))
        limits = {"size_bits": size_Jx1x1 * math.log2(task.n_choices) * (1 + 1e-6)}
        limits |= {"size_known": size_Jx1x1}
        for name, most_Jx1x1 in limits.items():
            column = self.row_columns()[name]
            column.domain.validate(name, column.domain.read(row[name]))
            value_JxRxT = np.array(row[name], float)
            require(
                value_JxRxT.shape == self.shape and bool((value_JxRxT <= most_Jx1x1).all()),
                f"{name} must have {self.shape} numbers, by set size, learning rate and label "
                f"table, none above what its set has, got shape {value_JxRxT.shape}. Delete the "
                "row.",
            )

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        bits, whole = col.float_between(0), col.int_between(0, 2**40)
        of_each = "of each set size, learning rate and label table"

        def lists(domain: col.Domain) -> col.Domain:
            return col.list_of(col.list_of(col.list_of(domain, 2**16), 16), 64)

        return by_name(
            Column("size_bits", f"bits {of_each}", lists(bits)),
            Column("size_known", f"examples known {of_each}", lists(whole)),
        )


@dataclasses.dataclass
class Grid:
    """The bits and examples that the trainings of a Peak know.

    Attributes:
      run: of a Peak.
      made: bits and examples known, by place on the grid.
      best: of the weights that know most bits of the whole.
    """

    run: Run
    made: dict[int, tuple[float, int]] = dataclasses.field(default_factory=dict)
    best: Best = (0.0, 0, {})

    def keep(self, made: Proposal, bits: float, known: int) -> None:
        """Writes down what the final weights of a training know."""
        self.made[made.place] = bits, known

    def propose(self) -> list[Proposal]:
        """The trainings that are left, those of the largest sets first."""
        method, sizes = method_of(self.run), method_of(self.run).sizes(self.run)
        found = []
        for place in reversed(range(method.lanes)):
            size, rate, table = map(int, np.unravel_index(place, method.shape))
            if place not in self.made:
                factor = method.rate_factors[rate]
                found.append(Proposal(SIZE, place, table, table, method.steps, factor, sizes[size]))
        return found

    def ends(self) -> tuple[float, float]:
        """Loss and accuracy of the whole set at its best learning rate, means over label tables.

        The same tables choose the rate, so that both are a little too good: by no more than what
        rates differ by chance. `memobench.board.peak` chooses on half of the tables.
        """
        task: Any = self.run.task
        bits_R, known_R = (self._values(value)[-1].mean(axis=-1) for value in range(2))
        rate = int(bits_R.argmax())
        loss = math.log(task.n_choices) - bits_R[rate] * math.log(2) / task.n_examples
        return max(loss, 0.0), known_R[rate] / task.n_examples

    def columns(self) -> dict[str, Any]:
        """The columns of the row, once all is done."""
        return {
            "size_bits": self._values(0).tolist(),
            "size_known": self._values(1).astype(int).tolist(),
        }

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Arrays that a checkpoint holds of it."""
        made = np.array([(place, *of) for place, of in self.made.items()], np.float64)
        return {"made": made.reshape(-1, 3), **arrays_of_best(self.best)}

    @classmethod
    def from_arrays(cls, run: Run, arrays: Mapping[str, np.ndarray]) -> Grid:
        """The inverse of `to_arrays`."""
        made = {int(place): (bits, int(known)) for place, bits, known in arrays["made"].tolist()}
        return cls(run, made, best_of_arrays(run, arrays))

    def _values(self, value: int) -> np.ndarray:
        """value_JxRxT: bits (0) or examples known (1)."""
        shape = method_of(self.run).shape
        return np.array([self.made[x][value] for x in range(math.prod(shape))]).reshape(shape)
