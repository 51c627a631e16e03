"""A measure on a task of ours: how sure a model is of the right answers.

memobench run tests/extending/measure.py
"""

import scipy.special

import memobench as mb
from memobench.core.columns import float_between


@mb.measure("mean probability of the right answer", mb.Bijection, domain=float_between(0, 1))
def confidence(task, data, output_TxC):
    probability_TxC = scipy.special.softmax(output_TxC.astype(float), axis=1)
    return probability_TxC[range(task.n_examples), task.answers(data)].mean()


RUNS = mb.grid(
    [mb.Bijection(vocab_size=6)],
    [mb.AttentionOnly(d_model=d, d_head=d) for d in (2, 3, 4)],
    [mb.Training(protocol="exact", batch_size=None, n_batches=8, epochs=2)],
    seeds=2,
)
EXPERIMENT = mb.Experiment(
    name="mine/confidence",
    title="Confidence in the right answer",
    presets={"quick": RUNS},
    figure=mb.Figure(x="n_params", hue="architecture", bounds=False),
)
