"""Construction: weights by the recipe of a proof, without training.

Every theorem is a kind of its own, in `memobench.constructions` or, where one paper alone uses it,
in `own_constructions.py` beside its experiments.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from memobench import theory
from memobench.common.errors import UnknownKind, UserError, require, short_repr
from memobench.constructions import making
from memobench.constructions.problem import Constructed, Problem
from memobench.core import columns as col
from memobench.core import module as models
from memobench.core import own_code
from memobench.core.checkpoints import Checkpoints
from memobench.core.columns import NAME, Column, by_name, choice, integer, merge, number
from memobench.core.module import Module
from memobench.core.run import Cost, Method, OnSteps, Pack, PackResult, Run
from memobench.numerics import precision

# The labels of rows, by whether the weights solve for the examples exactly or nearly.
CONSTRUCTED, NEAREST = "construction", "construction, least squares"
# The name of every construction's method in ids and rows, beside which the theorem stands.
ROW_NAME = "constructed"
# How weights are stored; arithmetic is in double precision for the first, in float32 for the rest.
WEIGHTS = precision.PRECISIONS
# What the smallest takes, much of it to compile its check: 0.15 s of a CPU.
_LEAST_FLOPS = 5e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Construction(
    Method,
    noun="theorem",
    package="memobench.constructions",
    order=(
        "bubeck2020",
        "dana2025",
        "hebbian",
        "hebbian_whitened",
        "hebbian_data_dependent",
        "ntk",
        "linear_least_squares",
        "outer_products",
        "gradient_step",
        "muon_step",
        "mahdavi2024",
        "dana2025_proposition3",
        "random_features",
    ),
):
    """Weights by the recipe of a proof, without training.

    The weights are made for `n_aimed` of the task's examples, the most frequent, ties at random;
    None aims at all. `weights` says how weights are stored; those that are random are rounded
    before the others are solved for. A kind gives `bound`, what its theorem promises, and
    `construct`.

    Attributes:
      bound: what its theorem promises.
      scales: tried in turn where a kind has a field `scale` that is None; None stands for the
        construction's own.
      approximates: whether it can come near more examples than its theorem promises.
    """

    protocol: ClassVar[str] = "constructed"
    bound: ClassVar[theory.Bound]
    scales: ClassVar[tuple[float | None, ...]] = ()
    approximates: ClassVar[bool] = False
    # Solving counts as one step.
    steps: ClassVar[int] = 1  # type: ignore[misc]

    n_aimed: int | None = integer("examples aimed at; none for all", 0, default=None, most=2**24)
    weights: str = choice("how weights are stored", *WEIGHTS, default="float64")

    # Fields of some kinds, and constants of others.
    if TYPE_CHECKING:

        @property
        def solve(self) -> str:
            """`exact` or `least_squares`."""

        @property
        def scale(self) -> float | None:
            """The size of attention scores, or of what neurons read."""

    else:
        solve, scale = "exact", None

    def construct(self, problem: Problem) -> Constructed:
        """The weights. Raises UserError where the theorem says nothing of them."""
        raise NotImplementedError

    @classmethod
    def variant(cls, row: Mapping[str, Any]) -> str:
        return NEAREST if row["solve"] == "least_squares" else CONSTRUCTED

    def canonical(self) -> dict[str, Any]:
        return {**super().canonical(), "name": ROW_NAME, "theorem": self.name}

    def cells(self) -> dict[str, Any]:
        return {"theorem": self.name, **super().cells()}

    @classmethod
    def columns(cls) -> dict[str, Column]:
        kinds = cls.kinds().values() if cls is Construction else ()
        own = super().columns()
        return merge({"theorem": _THEOREM}, own, *(kind.columns() for kind in kinds))

    @classmethod
    def from_cells(cls, row: Mapping[str, Any]) -> Self:
        if cls is Construction:
            return cls.from_row(row)
        return super().from_cells(row)

    def __str__(self) -> str:
        """The theorem, then the fields that differ from their defaults.

        >>> from memobench.constructions.dana2025 import Dana2025
        >>> str(Dana2025(n_aimed=0))
        'dana2025 n_aimed=0'
        """
        # Who has the kind knows its code.
        fields = [x for x in dataclasses.fields(self) if x.name != "code"]
        values = {x.name: getattr(self, x.name) for x in fields}
        changed = {x.name: values[x.name] for x in fields if values[x.name] != x.default}
        return " ".join([self.name, *(f"{name}={x}" for name, x in changed.items())])

    @classmethod
    def parse(cls, text: str) -> Construction:
        """The construction of which `str` makes this text."""
        try:
            theorem, *options = text.split(" ")
            given = dict(option.split("=") for option in options)
            NAME.validate("theorem", theorem)
            start = cls.get_kind(theorem)(**{name: _value(x) for name, x in given.items()})
        except UnknownKind as error:
            raise UnknownKind(f"start={short_repr(text)}: {error}") from error
        except UserError as error:
            raise UserError(f"start={short_repr(text)}: {error}") from error
        except (TypeError, ValueError) as error:
            raise UserError(
                f"start={short_repr(text)} is not a construction; write a theorem and what differs "
                "from the defaults, as in 'dana2025 n_aimed=0'"
            ) from error
        require(str(start) == text, f"start={short_repr(text)} is written {short_repr(str(start))}")
        return start

    def check_run(self, run: Run) -> None:
        task = run.task
        require(
            task.constructible,
            f"method: nothing constructs weights for the task {task.name!r}; use a Training",
        )
        require(
            self.n_aimed is None or self.n_aimed <= task.n_examples,
            f"n_aimed={self.n_aimed} exceeds the task's {task.n_examples} examples; lower n_aimed",
        )

    def check_model(self, run: Run) -> None:
        """Raises UserError for a model of which the theorem promises fewer examples."""
        most = making.promises(run)
        n_aimed = run.task.n_examples if self.n_aimed is None else self.n_aimed
        if self.solve == "exact" and most is not None and n_aimed > most:
            instead = " or set solve='least_squares'" if self.approximates else ""
            raise UserError(
                f"theorem={self.name!r} promises {most:,} examples at these sizes and "
                f"{n_aimed:,} are wanted; lower n_aimed to {most}{instead}"
            )

    def pack_key(self, run: Run) -> Hashable:
        # Made one by one: none of its fields decides a program.
        return models.structure(run.module()), run.task.pack_key(), self.name

    def cost(self, run: Run, module: Module | None = None) -> Cost:
        n = run.task.n_examples
        flops = _LEAST_FLOPS + 12.0 * n**3
        return Cost(
            steps=1, sequential_steps=1, rows_per_step=n, flops_per_step=flops, closed_form=True
        )

    def train(
        self,
        pack: Pack,
        on_steps: OnSteps = lambda steps: None,
        checkpoints: Checkpoints | None = None,
    ) -> PackResult:
        return making.construct_pack(pack, on_steps)

    @classmethod
    def columns_of_rows(cls) -> dict[str, Column]:
        any_number, positive = col.float_between(), col.float_between(0)
        return by_name(
            Column("feature_rank", "rank of the features solved with", col.int_between()),
            Column("condition", "of the linear system", positive),
            Column("basis_condition", "of the read-out's basis", any_number),
            Column("fit_error", "largest deviation from the targets", positive),
            Column("aimed_accuracy", "of the examples aimed at", col.float_between(0, 1)),
            Column("aimed_loss", "of the examples aimed at, by their prior", any_number, "nats"),
            Column(
                "margin", "least advantage of a right answer, of the largest output", any_number
            ),
            Column("gamma", "loss above the sequence encoder's", any_number, "nats"),
            Column("encoder_loss", "of the sequence encoder", any_number, "nats"),
            Column("largest_weight", "absolute value", positive),
            Column("stored_bits", "bits of one stored weight", any_number, "bits"),
            Column("promises", "examples that the theorem promises", col.int_between()),
            Column("seconds", "to construct and judge", positive, "s"),
            Column("scale_used", "the scale that worked", any_number),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Solved(Construction):
    """A construction that can come near more examples than its theorem promises.

    Attributes:
      solve: `exact` solves exactly and refuses more, `least_squares` takes any number.
    """

    approximates: ClassVar[bool] = True

    solve: str = choice(  # type: ignore[misc]
        "exactly as many as promised, or any number as nearly as can be",
        *("exact", "least_squares"),
        default="exact",
    )


def scale_of(what: str) -> Any:
    """A field for the size of what a construction draws at random."""
    return number(f"size of {what}; none for its own choice", default=None, above=0)


def _value(text: str) -> Any:
    """A value of a field as `str` wrote it."""
    for read in (int, float):
        with contextlib.suppress(ValueError):
            return read(text)
    return {"None": None, "True": True, "False": False}.get(text, text)


_THEOREM = Column(
    "theorem", "the theorem whose proof makes the weights", col.NAME, over_seeds="same"
)
Method.registry[ROW_NAME] = Construction
own_code.note_file(Construction, __file__)
