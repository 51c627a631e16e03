"""Tasks of tokens: sequences, the tokens that follow them, and how often each occurs.

Shape letters: B batch, T sequences, K possible next tokens of a sequence, S tokens, M draws, N
vocabulary.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import chex
import jax
import jax.numpy as jnp
import numpy as np

from memobench.common.errors import require
from memobench.core.columns import integer, number
from memobench.core.module import all_logits
from memobench.core.task import Task
from memobench.numerics import metrics

# Sequences are numbered in int32; where there are more than this, they are drawn token by token.
ENUMERABLE = 2**22
# The most examples in a block, where evaluation goes block by block.
EVALUATED_AT_ONCE = 1024
# A task computes the number of its sequences, N^S; beyond this many bits that takes too long.
_MOST_BITS = 2**17

# What is sampled is NumPy's where nothing is drawn: it needs no program.
Array = jax.Array | np.ndarray


class Instance(NamedTuple):
    """One instance of a task.

    Attributes:
      next_TxK: int32 tokens that may follow, the likeliest first, or (T, S, K) those that may occur
        at every place.
      probability_TxK: how likely they are, summing to 1.
      prior_T: how often each sequence occurs, summing to 1.
      tokens_TxS: int32, the sequences; empty (0, S) where they are all N^S in lexicographic order.
    """

    next_TxK: jax.Array
    probability_TxK: jax.Array
    prior_T: jax.Array
    tokens_TxS: jax.Array


class Fresh(NamedTuple):
    """A batch drawn for one step: example_B, indices of examples, and their tokens_BxS."""

    example_B: jax.Array
    tokens_BxS: jax.Array


class Tokens(NamedTuple):
    """Examples for constructions: sequences, what follows, how likely, and how often they occur."""

    tokens_TxS: np.ndarray
    next_TxK: np.ndarray
    probability_TxK: np.ndarray
    prior_T: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenTask(Task):
    """Base of tasks whose inputs are sequences of tokens.

    A kind defines `sample_next`, and `sample_sequences` where sequences are not drawn uniformly.
    """

    # Whether examples are evaluated block by block, because they are many or long.
    in_blocks: ClassVar[bool] = False
    # Whether every step draws a new batch instead of taking one from a fixed training set.
    is_fresh: ClassVar[bool] = False
    # Whether the task lists its sequences even if they are all N^S.
    always_listed: ClassVar[bool] = False
    # Whether only tokens with a prior, as sequences, are possible answers.
    only_asked: ClassVar[bool] = False

    # Fields of some kinds, and constants of others.
    if TYPE_CHECKING:

        @property
        def vocab_size(self) -> int:
            """The vocabulary's size."""

        @property
        def n_sequences(self) -> int | None:
            """Sequences that are drawn; None where all are taken."""

        @property
        def zipf_exponent(self) -> float | None:
            """Exponent of the sequences' frequencies; None where they are equal."""

    else:
        n_sequences, zipf_exponent = None, None

    @property
    def n_choices(self) -> int:
        """The number of tokens that an answer is drawn from."""
        return self.vocab_size

    @property
    def n_outputs(self) -> int:
        """The number of tokens that may be answers; they come first in the vocabulary."""
        return self.vocab_size

    @property
    def is_listed(self) -> bool:
        """True where an instance lists its sequences; otherwise they are all N^S."""
        return self.n_sequences is not None or self.always_listed

    @property
    def is_even(self) -> bool:
        return self.zipf_exponent is None

    @property
    def measures(self) -> tuple[str, ...]:
        """Weighted by an uneven prior, nothing is counted; of several answers nothing is right."""
        if self.shapes().next_TxK.shape[-1] > 1:
            return ("loss",)
        counts = ("memorized", "bits") if self.is_even else ()
        return ("accuracy", "accuracy_protocol", "loss", *counts)

    def require_sequences(self) -> None:
        """Raises UserError where the sequences are too many to list or fewer than asked for."""
        vocab_size, length, n_sequences = self.vocab_size, self.context_length, self.n_sequences
        require(
            vocab_size.bit_length() * length <= _MOST_BITS,
            f"context_length={length} is too long to count the sequences; lower it",
        )
        n_all = vocab_size**length
        if n_sequences is None:
            require(
                n_all <= ENUMERABLE,
                f"vocab_size={vocab_size}, context_length={length}: all {vocab_size}^{length} "
                "sequences would be memorized, more than 2^22; give n_sequences",
            )
        else:
            most = min(n_all, 2**20)
            exceeded = f"all {vocab_size}^{length} sequences" if most == n_all else "2^20"
            require(
                n_sequences <= most,
                f"n_sequences={n_sequences} exceeds {exceeded}; give at most {most}",
            )

    def sample_next(self, key: jax.Array) -> tuple[Array, Array]:
        """The tokens that may follow every sequence, and their probabilities.

        Args:
          key: PRNG key of the instance.

        Returns:
          next_TxK, int32, the likeliest first, and probability_TxK, float32. Where the task takes
          all sequences, they are in lexicographic order: the last token changes fastest.
        """
        raise NotImplementedError

    def sample_sequences(self, key: jax.Array, next_TxK: Array) -> Array:
        """tokens_TxS, distinct, uniformly drawn from all N^S; (0, S) where the task takes all."""
        del next_TxK
        vocab_size, length, n_sequences = self.vocab_size, self.context_length, self.n_sequences
        if n_sequences is None:
            return np.zeros((0, length), np.int32)
        if vocab_size**length <= ENUMERABLE:
            numbers_T = jax.random.choice(key, vocab_size**length, (n_sequences,), replace=False)
            return tokens_of(np.asarray(numbers_T, np.int32), vocab_size, length)
        # Here n_sequences is far below N^S: twice as many draws contain enough distinct ones.
        drawn = np.asarray(jax.random.randint(key, (2 * n_sequences + 16, length), 0, vocab_size))
        _, first = np.unique(drawn, axis=0, return_index=True)
        return drawn[np.sort(first)[:n_sequences]].astype(np.int32)

    def draw_batch(self, key: jax.Array, batch_size: int) -> Fresh:
        """The batch of a step, from its key, where every step draws its own."""
        raise NotImplementedError

    def sample_draws(self, n_draws: int) -> Array:
        """draws_M, int32 in [0, n_examples): the training set, i.i.d. from the prior.

        Drawn from the task's seed alone, so that every run of an instance sees the same set.
        """
        key = jax.random.fold_in(jax.random.key(self.seed), 1)
        if self.is_even:
            return jax.random.randint(key, (n_draws,), 0, self.n_examples, jnp.int32)
        prior_T = self.sample().prior_T
        return jax.random.choice(key, self.n_examples, (n_draws,), p=prior_T).astype(jnp.int32)

    def sample(self) -> Instance:
        keys = [jax.random.fold_in(jax.random.key(self.seed), i) for i in (0, 2, 3)]
        next_TxK, probability_TxK = self.sample_next(keys[0])
        tokens_TxS = self.sample_sequences(keys[2], next_TxK)
        prior_T = self._sample_prior(keys[1])
        sampled: Any = next_TxK, probability_TxK, prior_T, tokens_TxS
        return jax.device_put(Instance(*sampled))

    def shapes(self) -> Any:
        return _shapes(self.signature())

    def _sample_prior(self, key: jax.Array) -> Array:
        if self.zipf_exponent is None:
            return np.full(self.n_examples, 1 / self.n_examples, np.float32)
        rank_T = jax.random.permutation(key, self.n_examples) + 1
        weight_T = rank_T.astype(jnp.float32) ** -self.zipf_exponent
        return weight_T / weight_T.sum()

    def tokens(self, instance: Instance, example: Array) -> Any:
        """tokens_S of the example with this index; elementwise on any leading shape."""
        if not self.is_listed:
            return tokens_of(example, self.vocab_size, self.context_length)
        return instance.tokens_TxS[example]

    def faults(self, data: Instance) -> Iterator[str]:
        next_TxK, probability_TxK, _, tokens_TxS = map(np.asarray, data)
        places = ((self.n_examples,), (self.n_examples, self.context_length))
        if next_TxK.shape[:-1] not in places or next_TxK.shape != probability_TxK.shape:
            yield (
                f"sample_next gives shapes {next_TxK.shape} and {probability_TxK.shape}; return "
                f"({self.n_examples}, K) twice, K tokens that may follow and their probabilities"
            )
            return
        for name, x, most in (
            ("sample_next", next_TxK, self.n_outputs),
            ("sample_sequences", tokens_TxS, self.vocab_size),
        ):
            if not np.issubdtype(x.dtype, np.integer):
                yield f"{name} gives tokens of {x.dtype}; return those of int32"
            elif x.size and not 0 <= x.min() <= x.max() < most:
                given = f"{name} gives tokens {x.min()} to {x.max()}"
                yield f"{given}; return those from 0 to {most - 1}"
        if probability_TxK.min() < 0 or not np.allclose(probability_TxK.sum(-1), 1, atol=1e-5):
            yield "the probabilities that sample_next gives do not sum to 1; divide by their sum"
        # Others than these have no probability, and are there for the shape alone.
        apart_TxK = np.where(probability_TxK > 0, next_TxK, -1 - np.arange(next_TxK.shape[-1]))
        if (np.diff(np.sort(apart_TxK)) == 0).any():
            yield "sample_next gives a next token twice; add its probabilities"
        if (probability_TxK[..., :1] < probability_TxK - 1e-6).any():
            yield "sample_next gives next tokens out of order; return the likeliest first"
        if len(tokens_TxS):
            answered = np.c_[tokens_TxS, next_TxK.reshape(len(tokens_TxS), -1)]
            if len(np.unique(tokens_TxS, axis=0)) < len(np.unique(answered, axis=0)):
                yield "sample_sequences gives a sequence twice, with other answers; drop one"
        yield from super().faults(data)

    def inputs(self, data: Instance, example: Array) -> tuple[Array]:
        return (self.tokens(data, example),)

    def objective(
        self,
        module: Any,
        variables: Any,
        instance: Instance,
        examples_B: Any = None,
        weighted: bool | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """(mean KL divergence from the task's next tokens in nats, accuracy) on the examples.

        For one next token the divergence is the cross-entropy.

        Args:
          module: the model.
          variables: those of one model.
          instance: the task's.
          examples_B: indices of examples, or a `Fresh` batch with its own tokens; None means all
            examples, each weighted by the prior: the true objective.
          weighted: whether the prior weights all examples; by default, whether it is uneven.
        """
        exact, weighted = examples_B is None, not self.is_even if weighted is None else weighted
        if isinstance(examples_B, Fresh):
            examples_B, tokens_BxS = examples_B
        else:
            examples_B = jnp.arange(self.n_examples) if exact else examples_B
            tokens_BxS = self.tokens(instance, examples_B)
        with jax.default_matmul_precision("highest"):
            if exact and not self.is_listed:
                logits_BxN = all_logits(module, variables, tokens_BxS)
            else:
                logits_BxN = jax.vmap(lambda tokens_S: module.apply(variables, tokens_S))(
                    tokens_BxS
                )
        # Some modules have logits only for the tokens that may be answers.
        logits_BxN = logits_BxN[..., : self.n_outputs]
        if self.only_asked:
            logits_BxN = jnp.where(instance.prior_T > 0, logits_BxN, -jnp.inf)
        next_BxK, probability_BxK = (x if exact else x[examples_B] for x in instance[:2])
        chex.assert_shape(logits_BxN, (*next_BxK.shape[:-1], self.n_outputs))
        # Every place of a whole sequence is a prediction like any other.
        kl_B, correct_B = jax.vmap(metrics.kl_and_correct)(
            *(x.reshape(-1, x.shape[-1]) for x in (logits_BxN, next_BxK, probability_BxK))
        )
        if exact and weighted:
            # Sequences that never occur may have an infinite divergence.
            kl_B = jnp.where(instance.prior_T > 0, kl_B, 0.0)
            return (instance.prior_T * kl_B).sum(), (instance.prior_T * correct_B).sum()
        return kl_B.mean(), correct_B.mean()

    def evaluate(
        self, module: Any, variables: Any, instance: Instance
    ) -> tuple[jax.Array, jax.Array]:
        """The true objective on all examples, block by block where they are many or long."""
        if not self.in_blocks:
            return self.objective(module, variables, instance)

        def one(example: jax.Array) -> tuple[jax.Array, jax.Array]:
            return self.objective(module, variables, instance, example[None])

        examples_T = jnp.arange(self.n_examples)
        loss_T, accuracy_T = jax.lax.map(one, examples_T, batch_size=EVALUATED_AT_ONCE)
        return loss_T.mean(), accuracy_T.mean()

    def outputs(self, module: Any, variables: Any, data: Instance) -> jax.Array:
        tokens_TxS = self.tokens(data, jnp.arange(self.n_examples))
        if not self.is_listed:
            return all_logits(module, variables, tokens_TxS)
        return jax.vmap(lambda tokens_S: module.apply(variables, tokens_S))(tokens_TxS)

    @property
    def output_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Logits of all tokens or of those that may be answers."""
        places = (self.context_length,) * (self.n_predicted > self.n_examples)
        return tuple(dict.fromkeys((*places, n) for n in (self.n_outputs, self.vocab_size)))

    def prior(self, data: Instance) -> np.ndarray:
        if self.is_even:
            return super().prior(data)
        prior_T = np.asarray(data.prior_T, np.float64)
        return prior_T / prior_T.sum()

    def answers(self, data: Instance) -> np.ndarray:
        """The likeliest next token of every example."""
        return np.asarray(data.next_TxK)[:, 0]

    def judge(self, data: Instance, output_TxC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        output_TxC = output_TxC[..., : self.n_outputs]
        if self.only_asked:
            asked_C = np.arange(output_TxC.shape[-1]) < len(data.prior_T)
            asked_C[: len(data.prior_T)] = np.asarray(data.prior_T) > 0
            output_TxC = np.where(asked_C, output_TxC, -np.inf)
        probability_TxK = np.asarray(data.probability_TxK, np.float64)
        probability_TxK = probability_TxK / probability_TxK.sum(axis=-1, keepdims=True)
        return metrics.judge(output_TxC, np.asarray(data.next_TxK), probability_TxK)

    def to_construct(self, data: Instance, aimed_A: np.ndarray) -> Tokens:
        """The sequences with these indices, and what follows them."""
        probability_TxK = np.asarray(data.probability_TxK).astype(np.float64)
        probability_TxK = probability_TxK / probability_TxK.sum(axis=1, keepdims=True)
        tokens_AxS = np.asarray(self.tokens(data, aimed_A))
        next_TxK, prior_T = np.asarray(data.next_TxK), self.prior(data)
        return Tokens(tokens_AxS, next_TxK[aimed_A], probability_TxK[aimed_A], prior_T[aimed_A])

    def floats_shared(self) -> float:
        """The logits of all examples, which are evaluated one run at a time."""
        n_rows = EVALUATED_AT_ONCE if self.in_blocks else self.n_examples
        n_logits = min(n_rows, self.n_examples) * self.n_predicted // self.n_examples
        return 3.0 * n_logits * self.vocab_size

    # --- Parts: the first so many examples, for tasks that have them ----------------------------

    def first_examples(self, n_examples: int) -> Self | None:
        """The task of the first so many examples; None where it does not exist."""
        del n_examples
        return None

    def part(self, data: Instance, n_examples: int) -> Instance:
        """The first examples of an instance, for tasks that have them."""
        n = n_examples
        prior_T = jnp.asarray(np.full(n, 1 / n, np.float32))
        return Instance(data.next_TxK[:n], data.probability_TxK[:n], prior_T, data.tokens_TxS[:n])

    def without_count(self) -> Self:
        """The task without its number of examples: searches share a pack where these are equal."""
        raise NotImplementedError

    def pad_to(self, module: Any) -> Self:
        """The largest task of a pack's searches, as the module reads it; a trial is on a part."""
        del module
        return self.replace(seed=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledTask(TokenTask):
    """Base of tasks on sampled sequences.

    `n_sequences` distinct sequences are drawn from all vocab_size ** context_length; None takes
    all. They occur equally often, or by Zipf's law with `zipf_exponent`.
    """

    constructible: ClassVar[bool] = True

    vocab_size: int = integer("tokens in the vocabulary", 2, default=50, most=2**24)
    context_length: int = integer("tokens of a sequence", 1, default=2, most=2**20)
    n_sequences: int | None = integer("sequences drawn; none for all", 1, default=None, most=2**24)
    zipf_exponent: float | None = number(
        "exponent of the sequences' frequencies", default=None, above=0
    )

    def check(self) -> None:
        self.require_sequences()

    @property
    def n_examples(self) -> int:
        """Number of sequences: N^S, or as many as were drawn."""
        return self.n_sequences or self.vocab_size**self.context_length

    @property
    def slicing_error(self) -> str:
        if self.is_even and self.n_sequences is not None:
            return ""
        return (
            "it needs sequences of even frequency in random order; set zipf_exponent=None and "
            f"n_sequences, to {self.n_examples} for all"
        )

    def without_count(self) -> Self:
        changes: dict[str, Any] = {"n_sequences": 1, "seed": 0}
        return self.replace(**changes)

    def first_examples(self, n_examples: int) -> Self:
        return self.replace(n_sequences=n_examples)


@functools.lru_cache(maxsize=1024)
def _shapes(task: TokenTask) -> Any:
    """See `Task.shapes`: known only when `sample_next` is traced."""
    next_TxK, probability_TxK = jax.eval_shape(task.sample_next, jax.random.key(0))
    n_listed = task.n_examples if task.is_listed else 0
    instance: Any = Instance
    return instance(
        next_TxK=next_TxK,
        probability_TxK=probability_TxK,
        prior_T=jax.ShapeDtypeStruct((task.n_examples,), jnp.float32),
        tokens_TxS=jax.ShapeDtypeStruct((n_listed, task.context_length), jnp.int32),
    )


@functools.partial(jax.jit, static_argnums=0)
def sample_contexts(task: Any, key: jax.Array, asked_B: Array) -> jax.Array:
    """tokens_BxS, the contexts that a task draws, by one program instead of many."""
    return task.contexts(key, asked_B)


def tokens_of(example: Array, vocab_size: int, context_length: int) -> Array:
    """tokens_S of the example with this index; works elementwise on any leading shape.

    >>> tokens_of(jnp.asarray(7), vocab_size=5, context_length=2).tolist()
    [1, 2]
    """
    place_S = np.array([vocab_size**s for s in reversed(range(context_length))], np.int32)
    return (example[..., None] // place_S.reshape((1,) * example.ndim + (-1,))) % vocab_size
