"""Training: Adam, or another optimiser, for a fixed number of steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, ClassVar, Self

from memobench.columns import choice, integer, number, require
from memobench.methods.base import Method, OnSteps
from memobench.methods.construction import Construction
from memobench.models.base import EMBEDDINGS, Module
from memobench.optimizers import Adam, Optimizer
from memobench.spec import as_text, kind, nested

if TYPE_CHECKING:
    from memobench.checkpoints import Checkpoints
    from memobench.engine.program import Signature
    from memobench.packing import Pack
    from memobench.runs import Run
    from memobench.training import PackResult


# As many as a column holds.
MOST_STEPS = 2**40
MAX_STEPS_PER_CHUNK = 64


@kind("trained")
class Training(Method):
    """How the weights come about: `epochs` epochs of `n_batches` optimiser steps each.

    `published` follows Dana et al. (2025) step for step: a fixed multiset of `batch_size *
    n_batches` examples, reshuffled every epoch; of whole sequences it holds each equally often, and
    facts are drawn anew at every step, with their noise. `passes` differs in the training set: it
    holds every example equally often, so that an epoch is a whole number of passes over them all.
    `exact` takes the gradient of the true objective over all examples at every step and has no
    batches: `batch_size` is None. The learning rate is constant within an epoch and linear over
    epochs, from `learning_rate` in the first to `final_learning_rate`, reached after the last.
    Weights start out random, or as the construction `start` makes them. All of them are trained, or
    those that `trained` names: `read_out`, by which the logits are linear in what attention and MLP
    offer, all but the queries and keys of attention, or the `memory`: all but token embeddings and
    unembedding.
    """

    has_curve: ClassVar[bool] = True

    protocol: str = choice(  # type: ignore[misc]
        "whose rules the method follows", "published", "passes", "exact", default="published"
    )
    batch_size: int | None = integer(
        "examples of a step; none for all", 1, default=256, most=2**24, optional=True
    )
    n_batches: int = integer("steps of an epoch", 1, default=64)
    epochs: int = integer("epochs", 1, default=64)
    learning_rate: float = number("of the first epoch", default=1e-2, least=0)
    final_learning_rate: float = number("reached after the last epoch", default=5e-4, least=0)
    optimizer: Optimizer = nested(Optimizer, "what turns gradients into steps", default=Adam())
    start: Construction | None = as_text(
        Construction, "construction that training starts from", Construction.parse, default=None
    )
    trained: str | None = choice(
        "parameters that are trained; none for all",
        *("read_out", "all_but_attention", "memory"),
        default=None,
    )

    def check(self) -> None:
        exact = self.protocol == "exact"
        require(
            not exact or self.batch_size is None, "batch_size must be None with protocol='exact'"
        )
        require(
            exact or self.batch_size is not None,
            f"batch_size=None is not an integer >= 1, which protocol={self.protocol!r} needs; "
            "give batch_size such a value",
        )
        require(
            self.steps <= MOST_STEPS,
            f"epochs={self.epochs} of n_batches={self.n_batches} are more than 2^40 steps; lower "
            "epochs",
        )

    @property
    def steps(self) -> int:
        """Number of optimiser steps."""
        return self.n_batches * self.epochs

    def exact(self) -> Self:
        """The exact protocol with the same number of steps and the same learning rates."""
        return self.replace(protocol="exact", batch_size=None)

    def times(self, factor: int) -> Self:
        """The same schedule stretched over `factor` times the epochs."""
        return self.replace(epochs=factor * self.epochs)

    def check_run(self, run: Run) -> None:
        task = run.task
        require(
            task.of_tokens,
            f"method: a Training does not train the task {task.name!r}; use an Annealing",
        )
        require(
            not task.is_fresh or self.protocol == "published",
            f"protocol={self.protocol!r}: the noise around facts is drawn anew at every step; "
            "use protocol='published'",
        )
        require(
            self.start is None or task.constructible,
            f"start: nothing constructs weights for the task {task.name!r}; leave start out",
        )
        if self.start is not None:
            self.start.check_run(run)
        if self.protocol == "passes":
            self._check_passes(run)

    def _check_passes(self, run: Run) -> None:
        require(
            run.task.is_even,
            "protocol='passes' is of examples of even frequency; use protocol='published'",
        )
        drawn = self.n_batches * (self.batch_size or 0)
        require(
            drawn % run.task.n_examples == 0,
            f"n_batches * batch_size = {drawn} is no multiple of the {run.task.n_examples} "
            "examples, which protocol='passes' shows equally often in an epoch; change n_batches",
        )

    def check_module(self, module: Module) -> None:
        """Raises UserError for a model without the parameters that `trained` names."""
        self.trains(module)

    def trains(self, module: Module) -> Any:
        """Whether a parameter is trained, by its name."""
        return trains(module, self.trained)

    @property
    def chunk_steps(self) -> int:
        """The largest number of steps up to MAX_STEPS_PER_CHUNK that divides an epoch."""
        at_most = min(self.n_batches, MAX_STEPS_PER_CHUNK)
        return next(c for c in range(at_most, 0, -1) if self.n_batches % c == 0)

    def signature(self, module: Module, task: Any, subsets: bool = False) -> Signature:
        """Not seeds, learning rates, numbers of epochs or starts."""
        from memobench.engine.program import Signature

        return Signature(
            module=module,
            task=task,
            protocol=self.protocol,
            optimizer=self.optimizer,
            chunk_steps=self.chunk_steps,
            batch_size=self.batch_size or 0,
            epoch_steps=self.n_batches,
            trained=self.trained,
            subsets=subsets,
        )

    def alike(self, run: Run) -> Hashable:
        return self.start

    def train(
        self, pack: Pack, on_steps: OnSteps, checkpoints: Checkpoints | None = None
    ) -> PackResult:
        from memobench import constructions, training

        initial = constructions.initial(pack) if self.start else None
        return training.train_many(pack, on_steps, initial, checkpoints)


def trains(module: Module, trained: str | None) -> Callable[[str], bool]:
    """Whether a parameter is among those that `Training.trained` means, by its name."""
    if trained is None:
        return lambda name: True
    if trained == "memory":
        return lambda name: name not in EMBEDDINGS
    offer = "read_out" if trained == "read_out" else "attention_maps"
    names = getattr(module, offer)()
    require(
        names,
        f"trained={trained!r}: {type(module).__name__} offers no {offer}; leave trained out",
    )
    return lambda name: (name in names) == (trained == "read_out")
