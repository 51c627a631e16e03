"""board/256 .. board/8192: the standard board, v1, one experiment for each budget.

Attention-only Transformers with full and compressed heads, MLPs, attention and MLP at several
splits of the budget, deeper ones, sequence encoders and constructed weights: how many associations
and how many bits each memorizes per parameter. `memobench/board.py` defines the rules.

Expected: deeper and mixed entries ahead; constructions far behind.

    memobench run board/256 --preset=quick
    memobench leaderboard
"""

from memobench import board
from memobench.experiment import Experiment
from memobench.report.forest import Forest

EXPERIMENTS = tuple(
    Experiment(
        name=f"board/{budget}",
        title=f"The standard board {board.VERSION}: {budget:,} parameters",
        presets={
            "quick": board.runs(
                budget, tracks=(board.EXACT, board.CONSTRUCTED), seeds=3, n_vocab_sizes=1
            ),
            "full": board.runs(budget),
        },
        left_out="one vocabulary size of two; 3 seeds of 5; the published protocol",
        figure=Forest(),
    )
    for budget in board.BUDGETS
)
