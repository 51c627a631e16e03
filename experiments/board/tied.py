"""board/tied: attention and MLP where the unembedding is the token embedding.

Models of the board have two maps of tokens; small language models often have one for both, with
half the parameters. Here are today's blocks without norms and with narrow heads, in the shapes
that know most with such tied embeddings (`board/shapes`, preset `tied`), on fewer sets and label
tables than the board's. Neurons are gated: GELU ones know less in the search. GEGLU neurons have
the shape of SwiGLU's.

Expected: what tying saves goes to heads and neurons, so that all sides know more bits per
parameter, and attention alone still more than the MLP. (Only the MLP may know more, by
4%, and attention alone has no clear lead.)

    memobench run board/tied
    memobench report board/tied
"""

from collections.abc import Iterator
from typing import Any

from memobench.board import capacity_summary
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.board import shapes
from memobench.experiments.board.edges import run_with
from memobench.experiments.board.peak import Peaks

# Factors of the learning rate, and sizes over parameters: attention alone knows nearly all of half
# as many pairs, so that a finer size beyond decides.
GRIDS = {
    capacity_summary.ATTENTION: ((2.0, 5.0, 10.0), (0.5, 0.5625, 0.625)),
    capacity_summary.MLP: ((5.0, 10.0, 14.0), (0.625, 0.75, 1.0)),
    capacity_summary.BOTH: ((2.0, 5.0, 10.0), (0.5, 0.625, 0.75)),
}
# Label tables of each budget.
TABLES = 8


def runs() -> Iterator[Run]:
    """The forms of each side with tied embeddings, and the MLP also with GEGLU neurons."""
    for budget in shapes.TIED:
        for shape in _select_gated(budget):
            yield run_with(shape, budget, *GRIDS[shape.side[0]], TABLES)


def _select_gated(budget: int) -> Iterator[Architecture]:
    """Attention alone and SwiGLU neurons, which knew more in the search than GELU ones."""
    found: list[Any] = [*shapes.standard(budget, "tied")]
    for shape in (x for x in found if not x.d_mlp or x.activation == "swiglu"):
        yield shape
        if shape.side[0] == capacity_summary.MLP:
            yield shape.replace(activation="geglu")


EXPERIMENT = Experiment(
    name="board/tied",
    title="Bits per parameter with tied embeddings",
    presets={"quick": runs},
    figure=Peaks(),
)
