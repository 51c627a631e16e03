"""An architecture with an option of its own, a gated MLP."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

import memobench as mb
from memobench.models.feed_forward import ACTIVATIONS


class GatedModule(mb.Module):
    """logits_N = V W_out (gate(W_gate x) * W_in x) of the tokens' summed embeddings x_D."""

    vocab_size: int
    context_length: int
    d_model: int
    d_mlp: int
    gate: str

    paddable = ("d_model", "d_mlp")  # Zero columns meet zero rows, and gates of 0 times 0 are 0.

    @nn.compact
    def __call__(self, tokens_S: jax.Array) -> jax.Array:
        n, d, w, fan = self.vocab_size, self.d_model, self.d_mlp, nn.initializers.lecun_normal()
        embedding_SND: Any = self.param("embedding", fan, (self.context_length, n, d))
        x_D = embedding_SND[jnp.arange(self.context_length), tokens_S].sum(axis=0)
        gate_DW, in_DW = (self.param(name, fan, (d, w)) for name in ("gate_w", "mlp_in"))
        hidden_W = ACTIVATIONS[self.gate](x_D @ gate_DW) * (x_D @ in_DW)
        return self.param("unembedding", fan, (n, d)) @ (hidden_W @ self.param("out", fan, (w, d)))


@mb.kind("gated")
class Gated(mb.Architecture):
    """A gated MLP of width `d_mlp`."""

    d_mlp: int = mb.integer("hidden neurons of a layer's MLP", 1)
    gate: str = mb.choice("activation of the gate", *ACTIVATIONS, default="silu")

    def module(self, task: Any) -> GatedModule:
        sizes = self.d_model, self.d_mlp
        return GatedModule(task.vocab_size, task.context_length, *sizes, self.gate)


METHOD = mb.Training(n_batches=4, epochs=2)
SIZES = [Gated(d_model=d, d_mlp=w) for d in (3, 4) for w in (4, 8)]
EXPERIMENT = mb.Experiment(
    name="mine/gated",
    title="A gated MLP",
    presets={"quick": mb.grid([mb.Associations(vocab_size=5)], SIZES, [METHOD], seeds=2)},
    figure=mb.Figure(x="n_params", hue="d_model", bounds=False),
)
