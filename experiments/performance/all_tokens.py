"""Labelled contexts as their user would train them: all tokens, one model after another.

In JAX, jitted, and in eager PyTorch. All n + 1 tokens are embedded, get positions and attend to all
but themselves, and the query's output is read.

Shape letters: I input_dim, D d_model, H heads, K d_head, V d_value = 1, N context_length, M = N + 1
tokens, T examples, B batch, C classes.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import contexts
import jax
import jax.numpy as jnp
import measuring
import numpy as np
import optax
import pytorch
from contexts import METHOD, N_EXAMPLES, Setting

from memobench.core import module as models
from memobench.engine import initializing
from memobench.experiments.mahdavi2024 import own_methods as annealing
from memobench.models import positions
from memobench.numerics import metrics
from memobench.tasks import labelled_contexts
from memobench.tasks.labelled_contexts import Labelled

WARM_UP_STEPS = 3

_ADAM = optax.scale_by_adam()

torch: Any = pytorch.torch


def baselines(setting: Setting) -> dict[str, Callable[[float], float]]:
    """The rows to compare with, by name: model-steps per second, measured for so many seconds."""
    rows: dict[str, Callable[[float], float]] = {}
    ways = {"one module per head": _module_per_head, "heads batched": _heads_batched}
    for (way, heads), n_threads in itertools.product(ways.items(), pytorch.threads()):
        rate = functools.partial(pytorch_rate, setting, heads, n_threads)
        rows[f"PyTorch, {way}, {pytorch.where(n_threads)}"] = rate
    return rows | {"JAX, jitted, all tokens": functools.partial(jax_rate, setting)}


def _learning_rates() -> list[float]:
    """Of every step of a run."""
    return annealing.rates(METHOD, np.arange(METHOD.steps)).tolist()


def jax_rate(setting: Setting, seconds: float) -> float:
    """The rate of one model after another, jitted, that computes all tokens."""
    return measuring.steady(_jax_steps(setting), seconds, WARM_UP_STEPS)


def _jax_steps(setting: Setting) -> Iterator[None]:
    """Trains one model after another for ever; yields after every step."""
    data, step = contexts.data(setting.contexts), _jax_step(setting)
    module = setting.run().module()
    for seed in itertools.count():
        params = models.init(module, 0, initializing.init_key(setting.run(seed)))["params"]
        moments = _ADAM.init(params)
        rows = _batches(np.random.default_rng(seed))
        for size, rows_B in zip(_learning_rates(), rows, strict=False):
            # Were they not waited for, steps would queue up and outlast the measurement.
            params, moments = jax.block_until_ready(step(params, moments, data, rows_B, size))
            yield


@functools.cache
def _jax_step(setting: Setting) -> Any:
    """A jitted step: (params, moments, data, rows_B, learning rate) -> params, moments."""
    position_MxD = jnp.asarray(positions.sinusoids(33, 64), jnp.float32)
    _check(setting, position_MxD)

    def loss(params: Any, data: Labelled, rows_B: jax.Array) -> jax.Array:
        def one(row: jax.Array) -> jax.Array:
            query_I, context_NxI = labelled_contexts.inputs(data, row)
            output_C = _all_tokens(params, position_MxD, query_I, context_NxI)
            return metrics.loss_and_correct(output_C, data.label_T[row])[0]

        return jax.vmap(one)(rows_B).mean()

    def step(params: Any, moments: Any, data: Labelled, rows_B: jax.Array, size: Any) -> Any:
        update, moments = _ADAM.update(jax.grad(loss)(params, data, rows_B), moments)
        return jax.tree.map(lambda p, u: p - size * u, params, update), moments

    return jax.jit(step, donate_argnums=(0, 1))


def _all_tokens(params: Any, position_MxD: Any, query_I: Any, context_NxI: Any) -> jax.Array:
    """output_C at the query, token 0, where every token attends to all others."""
    tokens_MxI = jnp.concatenate([query_I[None], context_NxI])
    x_MxD = tokens_MxI @ params["embedding"] + params["embedding_bias"][None] + position_MxD
    query_HxMxK = jnp.einsum("md,hdk->hmk", x_MxD, params["layer0_query"])
    key_HxMxK = jnp.einsum("md,hdk->hmk", x_MxD, params["layer0_key"])
    score_HxMxM = jnp.einsum("hmk,hnk->hmn", query_HxMxK, key_HxMxK) / math.sqrt(x_MxD.shape[1])
    own_MxM = jnp.eye(len(x_MxD), dtype=bool)
    attention_HxMxM = jax.nn.softmax(jnp.where(own_MxM[None], -jnp.inf, score_HxMxM))
    value_HxMxV = jnp.einsum("md,hdv->hmv", x_MxD, params["layer0_value"])
    head_HxMxV = jnp.einsum("hmn,hnv->hmv", attention_HxMxM, value_HxMxV)
    out_MxD = jnp.einsum("hmv,hvd->md", head_HxMxV, params["layer0_output"])
    return out_MxD[0] @ params["decoder"] + params["decoder_bias"]


def _check(setting: Setting, position_MxD: jax.Array) -> None:
    """Raises AssertionError unless `_all_tokens` is memobench's model."""
    module = setting.run().module()
    variables = models.init(module, 0, jax.random.key(0))
    example = labelled_contexts.inputs(contexts.data(setting.contexts), jnp.int32(0))
    expected_C: Any = module.apply(variables, *example)
    output_C = _all_tokens(variables["params"], position_MxD, *example)
    np.testing.assert_allclose(output_C, expected_C, rtol=1e-3, atol=1e-4)


def _batches(random: np.random.Generator) -> Iterator[np.ndarray]:
    """rows_B of one batch after another, for ever."""
    while True:
        yield from random.permutation(N_EXAMPLES).astype(np.int32).reshape(-1, METHOD.batch_size)


# --- PyTorch -----------------------------------------------------------------------------------


def pytorch_rate(setting: Setting, heads: Any, n_threads: int, seconds: float) -> float:
    """The rate of one model after another in eager PyTorch."""
    steps_on = functools.partial(_pytorch_steps, setting, heads)
    return pytorch.rate(steps_on, n_threads, seconds, WARM_UP_STEPS)


def _pytorch_steps(setting: Setting, heads: Any, device: str) -> Iterator[None]:
    """Trains one model after another for ever; yields after every step."""
    query_TxI, context, _, label_T = (
        torch.tensor(np.asarray(x), device=device) for x in contexts.data(setting.contexts)
    )
    label_T = label_T.long()

    def loss(model: Any, rows_B: np.ndarray) -> Any:
        batch_B = torch.as_tensor(rows_B, device=device)
        own = context.expand(len(batch_B), -1, -1) if context.ndim == 2 else context[batch_B]
        logits_BxC = model(torch.cat([query_TxI[batch_B, None], own], dim=1))
        return torch.nn.functional.cross_entropy(logits_BxC, label_T[batch_B])

    for seed in itertools.count():
        torch.manual_seed(seed)
        model = _pytorch_model(setting, heads).to(device)
        losses = (loss(model, rows_B) for rows_B in _batches(np.random.default_rng(seed)))
        yield from pytorch.steps(model.parameters(), _learning_rates(), losses)


def _pytorch_model(setting: Setting, heads: Any) -> Any:
    """The model as a PyTorch user would write it, with as many parameters as memobench's."""

    class Model(torch.nn.Module):
        def __init__(self, input_dim: int, d_model: int, n_classes: int) -> None:
            super().__init__()
            self.embedding = torch.nn.Linear(input_dim, d_model)
            position = torch.tensor(positions.sinusoids(33, d_model), dtype=torch.float32)
            self.register_buffer("position", position)
            self.attention = heads(setting.n_heads, d_model, len(position))
            self.decoder = torch.nn.Linear(d_model, n_classes)

        def forward(self, tokens: Any) -> Any:
            return self.decoder(self.attention(self.embedding(tokens) + self.position)[:, 0])

    model = Model(input_dim=64, d_model=64, n_classes=100)
    pytorch.check_size(model, models.count_parameters(setting.run().module(), 0)[0])
    return model


def _module_per_head(n_heads: int, d_model: int, n_tokens: int) -> Any:
    """Attention as the sum of one module per head."""
    return pytorch.heads(n_heads, d_model, 1, torch.eye(n_tokens, dtype=torch.bool))


def _heads_batched(n_heads: int, d_model: int, n_tokens: int) -> Any:
    """Attention as one module whose heads are an axis of its tensors."""

    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = torch.nn.Linear(d_model, n_heads * d_model, bias=False)
            self.key = torch.nn.Linear(d_model, n_heads * d_model, bias=False)
            self.value = torch.nn.Linear(d_model, n_heads, bias=False)
            self.output = torch.nn.Linear(n_heads, d_model, bias=False)
            self.register_buffer("own", torch.eye(n_tokens, dtype=torch.bool))

        def forward(self, x: Any) -> Any:
            query, key, value = (
                maps(x).unflatten(-1, (n_heads, -1)).transpose(-3, -2)
                for maps in (self.query, self.key, self.value)
            )
            scores = query @ key.transpose(-2, -1) * d_model**-0.5
            attention = scores.masked_fill(self.own, -math.inf).softmax(-1)
            return self.output((attention @ value).transpose(-3, -2).flatten(-2))

    return Heads()
