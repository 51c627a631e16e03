"""The contract of tasks: a frozen spec, and what training, checks and reports ask of it.

Shape letters: T examples, C outputs, A examples aimed at.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import numpy as np

from memobench.core import columns
from memobench.core.columns import Column, by_name, integer
from memobench.core.spec import MOST_SEED, Spec

_SHARED = by_name(
    Column("vocab_size", "tokens in the vocabulary", columns.int_between(1), over_seeds="same"),
    Column(
        "context_length", "tokens or vectors read", columns.int_between(1, 2**20), over_seeds="same"
    ),
    Column("n_examples", "examples to memorize", columns.int_between(1), over_seeds="same"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(
    Spec,
    noun="task",
    package="memobench.tasks",
    order=(
        "associations",
        "bijection",
        "distributions",
        "factual_recall",
        "in_context_recall",
        "labelled_contexts",
        "sequences",
    ),
    shared_columns=_SHARED,
):
    """A set of examples to memorize. `seed` draws the instance; runs with equal tasks share it.

    A kind overrides what raises NotImplementedError here; the rest are defaults. The methods here
    train tasks of tokens, which derive from `TokenTask`, and labelled contexts; any other task
    takes a method of its own.
    """

    # What is asked; architectures say which questions they answer.
    question: ClassVar[str] = "next token"
    # Whether weights can be constructed for its examples.
    constructible: ClassVar[bool] = False
    taken: ClassVar[tuple[str, ...]] = ("file", "digest", "by", "first", "known", "bytes")

    seed: int = integer(
        "seed of the task's instance",
        0,
        default=0,
        most=MOST_SEED,
        column="task_seed",
        over_seeds="seed",
    )

    if TYPE_CHECKING:  # Fields of some tasks, and properties of others.

        @property
        def n_examples(self) -> int:
            """The number of examples, T."""

        @property
        def vocab_size(self) -> int | None:
            """The number of tokens; None where inputs are not tokens."""

        @property
        def context_length(self) -> int:
            """The number of tokens or vectors that a model reads."""

    @property
    def n_predicted(self) -> int:
        """The number of answers that are asked for; one per example by default."""
        return self.n_examples

    @property
    def n_choices(self) -> int | None:
        """The number of choices of an answer, whose bits are log2 of it. None for scalars."""
        raise NotImplementedError

    @property
    def chance(self) -> float:
        """The accuracy of guessing."""
        return 1 / (self.n_choices or 1)

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures that are meaningful for the task."""
        return ("accuracy", "accuracy_protocol", "memorized", "bits", "loss")

    @property
    def one_answer(self) -> bool:
        """True where every example has a single right class or next token."""
        return True

    @classmethod
    def variant(cls, row: Mapping[str, Any]) -> str:
        """The label under which a row of the task is judged; empty to go by its method."""
        del row
        return ""

    def signature(self) -> Self:
        """The part of the task that decides a compiled program: all but its seed."""
        return self.replace(seed=0)

    def pack_key(self) -> Self:
        """The task without what may differ within a pack: the tasks of a pack have equal ones."""
        return self.signature()

    @property
    def is_even(self) -> bool:
        """True where all examples occur equally often, so that every answer weighs the same."""
        return True

    def sample(self) -> Any:
        """The instance, drawn from the seed alone: a tree of arrays."""
        raise NotImplementedError

    def shapes(self) -> Any:
        """`sample` as shapes and dtypes, without computing anything."""
        raise NotImplementedError

    def faults(self, data: Any) -> Iterator[str]:
        """Lines, each of which names a fault of an instance of a user's task."""
        prior_T = self.prior(data)
        if prior_T.shape != (self.n_examples,) or not np.isclose(prior_T.sum(), 1, atol=1e-5):
            yield (
                f"its prior has shape {prior_T.shape} and sums to {prior_T.sum():.6g}; give each "
                f"of {self.n_examples} examples a share of 1"
            )

    def inputs(self, data: Any, example: jax.Array) -> tuple[Any, ...]:
        """The arguments of a module for the example with this index."""
        raise NotImplementedError

    def outputs(self, module: Any, variables: Any, data: Any) -> jax.Array:
        """output_TxC of all examples."""

        def one(i: jax.Array) -> jax.Array:
            return module.apply(variables, *self.inputs(data, i))

        return jax.vmap(one)(jax.numpy.arange(self.n_examples))

    @property
    def output_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes that a module's output for one example may have; empty where any will do."""
        return ()

    def prior(self, data: Any) -> np.ndarray:
        """prior_T, float64: how often each example occurs, summing to 1."""
        return np.full(self.n_examples, 1 / self.n_examples)

    def answers(self, data: Any) -> np.ndarray:
        """answer_T: the right class or the likeliest next token of every example."""
        raise NotImplementedError

    def judge(self, data: Any, output_TxC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """loss_T and correct_T of outputs, in float64 by NumPy; of every answer, T x S of them."""
        raise NotImplementedError

    @property
    def slicing_error(self) -> str:
        """The reason why its first examples are not a task of their own; empty where they are.

        They are in random order then, and occur equally often, so that capacities can be searched.
        """
        return "its first examples are not a task of their own; use another method"

    def to_construct(self, data: Any, aimed_A: np.ndarray) -> Any:
        """The examples with these indices as constructions read them, in float64."""
        raise NotImplementedError

    def floats_shared(self) -> float:
        """Floats that a pack holds once, however many runs train."""
        raise NotImplementedError
