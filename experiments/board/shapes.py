"""board/shapes-256 .. -8192: every shape of every family at a budget, trained for a short time.

An architecture is not judged by one arbitrary width: the shape of each family that knows most bits
of an overfull set after 1,024 steps of the exact gradient stands for it in `board/typical-*`.
`memobench/families.py` makes the shapes.

Expected: shapes with few heads or neurons beside many dimensions, or the reverse, know less.

    memobench run board/shapes-512
    memobench report board/shapes-512
"""

from memobench import families
from memobench.experiment import Experiment
from memobench.methods.capacity import Capacity
from memobench.methods.training import Training
from memobench.report.panels import Panels
from memobench.runs import Run

METHOD = Capacity(
    training=Training(protocol="exact", batch_size=None, epochs=16),
    rate_factors=(3.0, 10.0),
    tables=4,
    pilots=2,
    rungs=1,
)

EXPERIMENTS = tuple(
    Experiment(
        name=f"board/shapes-{budget}",
        title=f"Shapes of {budget:,} parameters",
        presets={
            "full": tuple(
                Run(task=families.task(budget), architecture=shape, method=METHOD)
                for shape in families.shapes(budget)
            )
        },
        figure=Panels(x=("d_model",), y=("bits_per_parameter",), hue="architecture"),
    )
    for budget in families.VOCAB_SIZES
)
