"""dana2025/distributions: divergence of attention-only Transformers from several next tokens.

Source: Dana, Pydi & Chevaleyre (AISTATS 2025, arXiv 2411.10115), the distribution task, Proposition
1 and Theorem 1; the paper has no experiment on it. All N^2 = 100 pairs of N = 10 tokens; three
kinds of conditionals: three equally likely next tokens, five by a power law with Zipf's prior, all
ten by a Dirichlet law with Zipf's prior. Every width is compared with its best sequence encoder,
found by L-BFGS in double precision: no Transformer of that width diverges less (Proposition 1), and
Theorem 1 promises that attention comes close to it once d_h H + d reaches T_eps (eps = 0.1).

Expected: divergence falls with d_h H + d and meets the encoder's floor near T_0 = 100.

    memobench run dana2025/distributions --preset=quick
    memobench report dana2025/distributions --preset=quick
"""

from collections.abc import Iterable

from memobench import claims
from memobench.claims import Claim
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Experiment, grid, use_full_heads
from memobench.experiments.dana2025.common import PUBLISHED, SOURCE, attention_only, short, twice
from memobench.methods.optimum import Optimum
from memobench.methods.training import Training
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.report.figure import Figure
from memobench.tasks.distributions import Distributions

UNIFORM = Distributions(vocab_size=10, conditional="uniform", n_next=3)
POWER_LAW = Distributions(
    vocab_size=10,
    conditional="power_law",
    n_next=5,
    conditional_parameter=1.0,
    zipf_exponent=1.0,
)
DIRICHLET = Distributions(
    vocab_size=10,
    conditional="dirichlet",
    n_next=10,
    conditional_parameter=0.5,
    zipf_exponent=1.0,
)
TASKS = (UNIFORM, POWER_LAW, DIRICHLET)
N_HEADS = {2: (1, 5, 10, 20, 30, 40, 50, 60), 4: (1, 3, 6, 12, 18, 24, 30), 8: (1, 3, 6, 9, 12, 15)}
GAP = 0.05
FLOOR = Optimum(starts=256, polished=2, steps=1000)


def encoder(d_model: int) -> Architecture:
    """The sequence encoder of a width."""
    return SequenceEncoder(d_model=d_model)


def _runs(widths: Iterable[int], method: Training, seeds: int) -> tuple[Run, ...]:
    widths = list(widths)
    heads = [attention_only(d, d, h) for d in widths for h in N_HEADS[d]]
    compressed_and_full = [*heads, *use_full_heads(heads)]
    return grid(TASKS, compressed_and_full, twice(method.exact()), seeds) + grid(
        TASKS, map(encoder, widths), [FLOOR], 1
    )


EXPERIMENT = Experiment(
    name="dana2025/distributions",
    title="Divergence from several next tokens against H·d_h + d (N = 10)",
    presets={
        "quick": _runs([4], short(PUBLISHED, epochs=8), seeds=3),
        "full": _runs(N_HEADS, PUBLISHED, seeds=5),
    },
    of_full="d = 4 alone of 2, 4, 8; 3 seeds of 5; 512 and 1,024 of 4,096 and 8,192 steps",
    figure=Figure(x="promised", hue="conditional", y="loss", row="d_model", bounds=False),
    claims=(
        Claim(
            name="never below the encoder",
            statement="No Transformer diverges less than the best sequence encoder of its width, "
            "here the best that was found.",
            source=f"{SOURCE}, Proposition 1",
            test=claims.every_run(
                "divergence minus floor (nats)",
                lambda table: table["loss"] - table["floor"],
                (-1e-6, float("inf")),
                where=lambda table: table["architecture"] == "attention_only",
            ),
        ),
        Claim(
            name="near the encoder from T_eps on",
            statement="Where d_h H + d reaches T_eps, eps = 0.1, training comes within "
            f"{GAP} nats of the encoder (Theorem 1 promises weights, training need not find them).",
            source=f"memobench, after {SOURCE}, Theorem 1, whose bound has a term in eps besides",
            made_for="weights that exist, which training need not find",
            test=claims.every_run(
                "divergence minus floor (nats)",
                lambda table: table["loss"] - table["floor"],
                (float("-inf"), GAP),
                where=lambda table: (
                    (table["architecture"] == "attention_only")
                    & (table["promised"] >= table["t_eps"])
                ),
            ),
        ),
    ),
    notes="Horizontal lines: the floor of the best sequence encoder of that width. Vertical lines: "
    "T_eps for eps = 0.1.",
)
