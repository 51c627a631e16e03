import memobench as mb
import jax
from flax import linen as nn


class Net(mb.Module):
    vocab_size: int
    d_model: int
    d_mlp: int

    @nn.compact
    def __call__(self, tokens_S):
        x = nn.Embed(self.vocab_size, self.d_model, name="token_embedding")(tokens_S)
        h = nn.Dense(self.d_mlp)(x.reshape(-1))
        return nn.Dense(self.vocab_size)(nn.relu(h))


@mb.kind("flat_mlp")
class FlatMLP(mb.Architecture):
    d_mlp: int = mb.integer("neurons", 1)

    def module(self, task):
        return Net(vocab_size=task.vocab_size, d_model=self.d_model, d_mlp=self.d_mlp)


EXPERIMENT = mb.Experiment(
    name="mine/flat",
    title="flat",
    presets={"quick": [mb.board_run(FlatMLP(d_model=4, d_mlp=10), budget=256)]},
)
