"""The program of an afternoon of a JAX user: a Flax model, optax's Adam, `vmap` over seeds.

The attention-only Transformer of `associations.py`: one product for all heads, of the last token
only, as nothing else is read; a jitted epoch that donates its state and scans over its steps.
One-hot rows in place of a gather, a loop unrolled by four and keys and values from one product were
tried on two CPU cores beside other work: none was faster beyond the noise.

Shape letters: R seeds, B batch, L steps of an epoch, M draws, S and T tokens, N vocabulary, D
d_model, K d_head, H heads.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from associations import METHOD, TASK
from flax import linen as nn
from flax.training.train_state import TrainState

N_BATCHES, BATCH_SIZE = METHOD.n_batches, METHOD.batch_size


class Transformer(nn.Module):
    """Logits of the token that follows each of a batch of sequences."""

    vocab_size: int
    d_model: int
    n_heads: int

    @nn.compact
    def __call__(self, tokens_BxS: jax.Array) -> jax.Array:
        """logits_BxN."""
        n, d, h = self.vocab_size, self.d_model, self.n_heads
        initial = nn.initializers.normal(d**-0.5)
        embedding_ND = self.param("token_embedding", initial, (n, d))
        position_SxD = self.param("position_embedding", initial, (tokens_BxS.shape[1], d))
        query_HKD, key_HKD, value_HKD = (
            self.param(name, initial, (h, d, d)) for name in ("query", "key", "value")
        )
        output_HDK = self.param("output", initial, (h, d, d))
        unembedding_ND = self.param("unembedding", initial, (n, d))
        stream_BxSxD = embedding_ND[tokens_BxS]
        x_BxSxD = stream_BxSxD + position_SxD[None]
        query_BxHxK = jnp.einsum("bd,hkd->bhk", x_BxSxD[:, -1], query_HKD)
        key_BxTxHxK = jnp.einsum("btd,hkd->bthk", x_BxSxD, key_HKD)
        value_BxTxHxK = jnp.einsum("btd,hkd->bthk", x_BxSxD, value_HKD)
        score_BxHxT = jnp.einsum("bhk,bthk->bht", query_BxHxK, key_BxTxHxK) * d**-0.5
        head_BxHxK = jnp.einsum("bht,bthk->bhk", jax.nn.softmax(score_BxHxT), value_BxTxHxK)
        attended_BxD = jnp.einsum("bhk,hdk->bd", head_BxHxK, output_HDK)
        return (stream_BxSxD[:, -1] + attended_BxD) @ unembedding_ND.T


def train_step(state: TrainState, batch: Any) -> tuple[TrainState, jax.Array]:
    """The state after a step on tokens and labels, and the loss before it."""
    tokens_BxS, label_B = batch

    def loss(params: Any) -> jax.Array:
        logits_BxN: Any = state.apply_fn({"params": params}, tokens_BxS)
        return optax.softmax_cross_entropy_with_integer_labels(logits_BxN, label_B).mean()

    value, gradient = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradient), value


def begin(module: Transformer, key: jax.Array, n_epochs: int = METHOD.epochs) -> Any:
    """The state and the examples of one seed."""
    keys = jax.random.split(key, 3)
    tokens_MxS = jax.random.randint(
        keys[0], (N_BATCHES * BATCH_SIZE, TASK.context_length), 0, module.vocab_size
    )
    label_M = jax.random.randint(keys[1], tokens_MxS.shape[:1], 0, module.vocab_size)
    rates = optax.linear_schedule(METHOD.learning_rate, METHOD.final_learning_rate, n_epochs)
    optimizer = optax.adam(lambda step: rates(step // N_BATCHES))
    params = module.init(keys[2], tokens_MxS[:1])["params"]
    return TrainState.create(apply_fn=module.apply, params=params, tx=optimizer), (
        tokens_MxS,
        label_M,
    )


@functools.partial(jax.jit, donate_argnums=0)
@jax.vmap
def train_epoch(state: TrainState, examples: Any, key: jax.Array) -> tuple[TrainState, jax.Array]:
    """The state after an epoch, and loss_L; of seeds stacked along R."""
    order_M = jax.random.permutation(jax.random.fold_in(key, state.step), N_BATCHES * BATCH_SIZE)

    def step(state: TrainState, index_B: jax.Array) -> tuple[TrainState, jax.Array]:
        return train_step(state, jax.tree.map(lambda x: x[index_B], examples))

    return jax.lax.scan(step, state, order_M.reshape(N_BATCHES, BATCH_SIZE))


class Trainer:
    """Seeds of one size, trained side by side.

    Attributes:
      compile_seconds: of the program of an epoch.
    """

    def __init__(self, module: Transformer, n_seeds: int, n_epochs: int = METHOD.epochs) -> None:
        self._key_R = jax.random.split(jax.random.key(0), n_seeds)
        begin_all = jax.jit(jax.vmap(functools.partial(begin, module, n_epochs=n_epochs)))
        self._state, self._examples = begin_all(self._key_R)
        started = time.perf_counter()
        arguments = self._state, self._examples, self._key_R
        self._train_epoch = train_epoch.lower(*arguments).compile()
        self.compile_seconds = time.perf_counter() - started

    def train_epoch(self) -> np.ndarray:
        """loss_RxL of the next epoch."""
        self._state, loss_RxL = self._train_epoch(self._state, self._examples, self._key_R)
        return np.asarray(loss_RxL)

    def rate(self, seconds: float) -> float:
        """Model-steps per second in at least so many seconds."""
        self.train_epoch()
        started, n_steps = time.perf_counter(), 0
        while time.perf_counter() < started + seconds:
            n_steps += self.train_epoch().size
        return n_steps / (time.perf_counter() - started)
