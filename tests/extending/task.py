"""A task: associations of which a share has a wrong label. Does a model learn the wrong ones too?

memobench run tests/extending/task.py
"""

import jax
import numpy as np

import memobench as mb


@mb.kind("noisy_associations")
class NoisyAssociations(mb.Associations):
    """Associations of which a share `noise` is trained with wrong labels."""

    noise: float = mb.number("share of wrong labels", default=0.2, least=0, most=1)

    def sample_next(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The labels that are trained, some of them wrong."""
        clean_Tx1, one_Tx1 = super().sample_next(key)
        which, by = jax.random.split(jax.random.fold_in(key, 1))
        wrong_Tx1 = jax.random.bernoulli(which, self.noise, clean_Tx1.shape)
        offset_Tx1 = jax.random.randint(by, clean_Tx1.shape, 1, self.vocab_size)
        return (clean_Tx1 + wrong_Tx1 * offset_Tx1) % self.vocab_size, one_Tx1

    def clean(self) -> np.ndarray:
        """answer_T without noise."""
        key = jax.random.fold_in(jax.random.key(self.seed), 0)
        return np.asarray(super().sample_next(key)[0][:, 0])


@mb.measure("share of clean labels that the model answers", NoisyAssociations)
def clean_accuracy(task, data, output_TxC):
    return (output_TxC.argmax(axis=1) == task.clean()).mean()


@mb.measure("share of wrong labels that the model answers as trained", NoisyAssociations)
def noisy_accuracy(task, data, output_TxC):
    trained_T = task.answers(data)
    wrong_T = trained_T != task.clean()
    return (output_TxC.argmax(axis=1) == trained_T)[wrong_T].mean() if wrong_T.any() else 0.0


TASKS = [mb.Associations(vocab_size=5), NoisyAssociations(vocab_size=5)]
MODELS = [mb.AttentionOnly(d_model=4, d_head=4, n_heads=n) for n in (1, 2)]
RUNS = mb.grid(TASKS, MODELS, [mb.Training(n_batches=8, epochs=2).exact()], seeds=2)
EXPERIMENT = mb.Experiment(
    name="mine/noise",
    title="Noisy labels",
    presets={"quick": RUNS},
    figure=mb.Figure(x="n_params", hue="task", bounds=False),
)
