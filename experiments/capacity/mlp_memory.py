"""capacity/mlp-memory, -released and -values: how many facts the neurons of an MLP hold.

Source: Nichani, Lee & Bietti (ICLR 2025, arXiv 2412.06538), figure 1, right: an MLP d -> m -> d
(relu, bias in) holds a number of facts about linear in m d. Their protocol: a bijection, fixed
unit-norm Gaussian keys and values, AdamW without decay at a learning rate of 3e-2, 2^15 steps.

Expected: an exponent of N in m d near 1.

`capacity/mlp-memory-released` starts from the weights of their code and takes all of its steps:
they draw m d = 0.35 N ln N. With 32 answers instead of as many as tokens,
`capacity/mlp-memory-values`, they draw m d = 1.2 N. Their grid is d = 8 .. 90 with m = d .. 8 d,
preset `paper`, 84,000 core-hours by --dry_run for bijections and 1,900 for 32 answers; `quick`
takes minutes. They search among sets of at most m d facts, which m d = 1.2 N nearly reaches. In
preset `small`, of the smallest sizes, sets may be twice as large.

    memobench run capacity/mlp-memory --preset=quick
    memobench report capacity/mlp-memory --preset=quick
    memobench run capacity/mlp-memory-released --preset=quick
    memobench run capacity/mlp-memory-values --preset=quick
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pandas as pd

from memobench.claims import Claim
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.capacity import scaling_claims
from memobench.experiments.capacity.linear_memory import METHOD, SOURCE
from memobench.experiments.capacity.scaling_figure import Scaling
from memobench.methods.search import Search
from memobench.models.mlp_memory import MLPMemory
from memobench.tasks.bijection import Bijection


def _method(epochs: int, resolution: float = 0.02) -> Search:
    training = dataclasses.replace(
        METHOD.training, epochs=epochs, learning_rate=3e-2, final_learning_rate=3e-2
    )
    return dataclasses.replace(METHOD, training=training, resolution=resolution)


def _runs(
    sizes: Iterable[tuple[int, int]],
    method: Search,
    seeds: int,
    initial: str | None = None,
    n_values: int | None = None,
    most: int = 1,
) -> Iterator[Run]:
    """Sets of at most so many facts for each weight of a layer, `d_model` times `d_mlp`."""
    for d_model, d_mlp in sizes:
        for seed in range(seeds):
            yield Run(
                task=Bijection(vocab_size=most * d_model * d_mlp, n_values=n_values, seed=seed),
                architecture=MLPMemory(d_model=d_model, d_mlp=d_mlp, initial=initial),
                method=method,
                seed=seed,
            )


def _weights(table: pd.DataFrame) -> pd.Series:
    return table["d_model"].astype(float) * table["d_mlp"].astype(float)


_SIZES = ["d_mlp", "d_head", "vocab_size", "n_examples", "n_params", "n_params_memory"]

_LINEAR = Experiment(
    name="capacity/mlp-memory",
    title="Facts in the neurons of an MLP",
    presets={
        "quick": tuple(
            _runs([(d, m * d) for d in (8, 11, 16) for m in (1, 2)] + [(8, 32)], _method(64), 5)
        ),
        "full": tuple(
            _runs(
                [(d, factor * d) for d in (8, 11, 16, 23, 32, 45) for factor in (1, 2, 4)],
                _method(512),
                seeds=5,
            )
        ),
    },
    of_full="7 sizes of 18, d up to 16 of 45; 4,096 steps of 2^15",
    figure=Scaling(
        x="n_params_memory",
        y="complete_99",
        hue="d_model",
        guides=(("0.3 facts per parameter: linear", lambda x: 0.3 * x),),
    ),
    claims=(
        Claim(
            name="linear in m d",
            statement="The number of facts is linear in m d: its exponent is 0.9 to 1.1.",
            source=SOURCE,
            value=1,
            test=scaling_claims.exponent(
                "exponent of N in m d",
                _weights,
                lambda table: table["complete_99"].astype(float),
                (0.9, 1.1),
                [*_SIZES, "d_model"],
            ),
        ),
    ),
    notes="The steps are not doubled: no row can say `converged`.",
)


def _of_authors(
    name: str,
    title: str,
    law: str,
    value: Callable[[pd.DataFrame], pd.Series],
    constant: float,
    n_values: int | None,
    small: Iterable[tuple[int, int]],
    most: int,
) -> Experiment:
    """The authors' sizes, initial weights and steps, and the claim that their constant is found.

    Args:
      name: of the experiment.
      title: of its page.
      law: that a column grows by.
      value: the column.
      constant: of the law.
      n_values: of the task.
      small: sizes of preset `small`.
      most: the most facts for each weight of a layer, in sets of preset `small`.
    """
    method = _method(512, 0.01)

    def runs(sizes: Iterable[tuple[int, int]], seeds: int, most: int = 1) -> tuple[Run, ...]:
        return tuple(_runs(sizes, method, seeds, "released", n_values, most))

    region = (round(0.75 * constant, 3), round(1.25 * constant, 3))
    return Experiment(
        name=f"capacity/mlp-memory-{name}",
        title=title,
        presets={
            "quick": runs(((8, 8), (8, 16), (11, 11), (16, 16)), 3),
            "small": runs(small, 3, most),
            "paper": runs([(d, factor * d) for d in _WIDTHS for factor in (1, 2, 4, 8)], 5),
        },
        of_full="4 sizes of 32, d up to 16 of 90; 3 seeds of 5",
        figure=Scaling(
            x="n_params_memory",
            y="complete_99",
            hue="d_model",
        ),
        claims=(
            Claim(
                name=law,
                statement=f"The MLP holds N facts with {law}, within a quarter.",
                source=SOURCE,
                value=constant,
                test=scaling_claims.constant(
                    f"{law.split()[0]} d / facts",
                    value,
                    region,
                    "d_model",
                    _SIZES,
                    # Of one fact.
                    step=lambda table: value(table) / table["complete_99"].astype(float),
                ),
            ),
        ),
        notes="The largest of checks every 32 steps counts; theirs are every 256, and one above "
        "99% ends a training.",
    )


_SMALL = ((8, 8), (8, 16), (8, 32), (11, 11), (11, 22), (16, 16), (16, 32), (22, 22))
_WIDTHS = tuple(int(2 ** (i / 2)) for i in range(6, 14))


def _over_n_log_n(table: pd.DataFrame) -> pd.Series:
    n_facts = table["complete_99"].astype(float)
    return _weights(table) / (n_facts * np.log(n_facts))


def _over_n(table: pd.DataFrame) -> pd.Series:
    return _weights(table) / table["complete_99"].astype(float)


EXPERIMENTS = (
    _LINEAR,
    _of_authors(
        "released",
        "Facts in the neurons of an MLP, as released",
        "m d = 0.35 N ln N",
        _over_n_log_n,
        0.35,
        n_values=None,
        small=_SMALL,
        most=1,
    ),
    _of_authors(
        "values",
        "Facts of 32 answers in the neurons of an MLP",
        "m d = 1.2 N",
        _over_n,
        1.2,
        n_values=32,
        small=(*_SMALL, (16, 64), (22, 44), (32, 32)),
        most=2,
    ),
)
