"""A measure on a task of ours: how sure a model is of the right answers.

memobench run tests/extending/measure.py
"""

import scipy.special

from memobench.core.columns import float_between
from memobench.experiment import Experiment, grid
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.report.figure import Figure
from memobench.store.measures import measure
from memobench.tasks.bijection import Bijection


@measure("mean probability of the right answer", Bijection, domain=float_between(0, 1))
def confidence(task, data, output_TxC):
    probability_TxC = scipy.special.softmax(output_TxC.astype(float), axis=1)
    return probability_TxC[range(task.n_examples), task.answers(data)].mean()


RUNS = grid(
    [Bijection(vocab_size=6)],
    [AttentionOnly(d_model=d, d_head=d) for d in (2, 3, 4)],
    [Training(protocol="exact", batch_size=None, n_batches=8, epochs=2)],
    seeds=2,
)
EXPERIMENT = Experiment(
    name="mine/confidence",
    title="Confidence in the right answer",
    presets={"quick": RUNS},
    figure=Figure(x="n_params", hue="architecture", bounds=False),
)
