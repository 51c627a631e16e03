"""An experiment with a claim and a kind of figure of its own: are two heads better than one?

memobench run tests/extending/experiment.py
"""

import dataclasses

import pandas as pd

import memobench as mb
from memobench.claims import FAILS, HOLDS, UNDECIDED, Claim, Finding
from memobench.report.drawing import subplots


def two_beat_one(table: pd.DataFrame) -> Finding:
    """Compares the seeds pair by pair: a sign test that needs all of them to agree."""
    one, two = (table[table["n_heads"] == n].set_index("seed")["loss"] for n in (1, 2))
    better, n = int((two < one).sum()), len(one)
    verdict = {n: HOLDS, 0: FAILS}.get(better, UNDECIDED) if n >= 3 else UNDECIDED
    return Finding(verdict, f"{better} of {n} seeds have the smaller loss with two heads")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bars(mb.Drawing):
    """The mean loss for every value of a column."""

    x: str

    def draw(self, experiment, preset, table):
        means = table.groupby(self.x)["loss"].mean()
        figure, ((axis,),) = subplots(1, 1, (5, 4))
        axis.bar(means.index.astype(str), means)
        axis.set(xlabel=self.x, ylabel="loss", title=experiment.title)
        return figure

    def sections(self, table):
        best = table.groupby(self.x)["loss"].mean().idxmin()
        return ["## Best", f"The mean loss is smallest at {self.x} = {best}."]


MODELS = [mb.AttentionOnly(d_model=4, d_head=4, n_heads=n) for n in (1, 2)]
METHOD = mb.Training(n_batches=8, epochs=4).exact()
EXPERIMENT = mb.Experiment(
    name="mine/two-heads",
    title="Two heads against one",
    presets={"quick": mb.grid([mb.Associations(vocab_size=5)], MODELS, [METHOD], seeds=3)},
    figure=Bars(x="n_heads"),
    claims=(
        Claim(
            name="two beat one",
            statement="A second head lowers the loss.",
            source="a question of mine",
            test=two_beat_one,
        ),
    ),
)
