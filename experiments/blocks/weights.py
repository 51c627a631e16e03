"""blocks/gated, -attention, -norms, -experts, -depth: what blocks buy at equal parameters.

Source of the claims on gates: Allen-Zhu & Li 2024, arXiv 2404.05405 (gated MLPs hold 1.3 times less
after 100 exposures of each fact, and as much after 1,000). Of the others nothing is published about
what is memorized: their claims are what people expect.

The overfull set of the board: as many associations as parameters. An exposure is a step of the
exact gradient. A group has a shape for each of two widths of the stream, by depth of three; neurons
fill the budget.

    memobench run blocks/gated --preset=quick
    memobench report blocks/gated --preset=quick
"""

from collections.abc import Iterable, Mapping
from typing import Any

from memobench.board import families
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.experiment import Experiment
from memobench.experiments.blocks import claims
from memobench.experiments.blocks.common import BUDGETS, EQUAL, LESS, MORE, experiment
from memobench.methods.capacity import Capacity
from memobench.methods.training import Training
from memobench.models.mixture_of_experts import MixtureOfExperts
from memobench.models.modern import Modern

METHOD = Capacity(
    training=Training(protocol="exact", batch_size=None, n_batches=16, epochs=64),
    # Initial weights spread by a tenth, and most blocks differ by less.
    rate_factors=(3.0, 5.5, 10.0),
    tables=128,
    pilots=8,
)
FEW, MANY = (claims.bits_per_parameter(METHOD.ladder[k]) for k in (0, -1))
ACTIVE = claims.bits_per_parameter(count="n_params_active")
# Token embeddings and unembeddings take these shares of the budget.
SHARES = (3 / 8, 1 / 2)


def make_runs(
    budget: int, entries: Iterable[Architecture], method: Capacity = METHOD
) -> tuple[Run, ...]:
    """The runs of architectures of a budget."""
    task = families.task(budget)
    return tuple(Run(task=task, architecture=entry, method=method) for entry in entries)


def shapes(
    budget: int, kind: type[Modern] = Modern, shares: Iterable[float] = SHARES, **options: Any
) -> list[Modern]:
    """Models of one head in a layer, as wide as the stream, with neurons that fill the budget."""
    made = (_shape(budget, share, kind, options) for share in shares)
    return [each for each in made if families.meets_budget(each, budget)]


def _shape(budget: int, share: float, kind: type[Modern], options: Mapping[str, Any]) -> Modern:
    width = round(share * budget / (2 * families.VOCAB_SIZES[budget]))
    task, sizes = families.task(budget), {"d_model": width, "d_head": width, "n_heads": 1}

    def of_neurons(d_mlp: int) -> Modern:
        return kind(**{"norm": "none", **sizes, "d_mlp": d_mlp, **options})

    one, two = (
        models.count_parameters(of_neurons(n).module_for(task), task.context_length)[0]
        for n in (1, 2)
    )
    return of_neurons(max(1, 1 + round((budget - one) / (two - one))))


def _experiment(
    name: str,
    title: str,
    options: Mapping[str, Mapping[str, Any]],
    *compare: tuple[Any, ...],
    notes: str = "",
    measures: tuple[claims.Measure, ...] = (FEW, MANY),
) -> Experiment:
    presets = {
        preset: {group: make_runs(budget, shapes(budget, **of)) for group, of in options.items()}
        for preset, budget in BUDGETS.items()
    }
    return experiment(
        name,
        title,
        presets,
        measures,
        *compare,
        of_full="256 parameters of 1,024",
        notes="At equal parameters, with one head in a layer and, where nothing else is said, one "
        f"layer of SwiGLU neurons, rotary positions and no norms. {notes}".strip(),
    )


_GATES = "Allen-Zhu & Li 2024, arXiv 2404.05405"
_GPTS = "GPTs of millions of parameters"

EXPERIMENTS = (
    _experiment(
        "gated",
        "Gated against plain neurons",
        {
            "plain": {"activation": "gelu"},
            "relu squared": {"activation": "relu_squared"},
            "SwiGLU": {},
            "GEGLU": {"activation": "geglu"},
            "bilinear": {"activation": "bilinear"},
        },
        ("SwiGLU", (0.0, 1 / 1.3), "plain", FEW, _GATES, _GPTS),
        ("SwiGLU", EQUAL, "plain", MANY, _GATES, _GPTS),
        *(
            (gated, MORE, "plain", MANY)
            for gated in ("SwiGLU", "GEGLU", "bilinear", "relu squared")
        ),
        notes="Plain neurons have gelu; gated ones are two thirds as many.",
    ),
    _experiment(
        "norms",
        "Norms, before and after",
        {
            "no norm": {},
            "RMSNorm": {"norm": "rms"},
            "LayerNorm": {"norm": "layer"},
            "RMSNorm after blocks": {"norm": "rms", "norm_position": "post"},
            "normed queries and keys": {"qk_norm": True},
        },
        ("RMSNorm", LESS, "no norm", MANY),
        ("LayerNorm", LESS, "no norm", MANY),
        ("RMSNorm", EQUAL, "LayerNorm", MANY),
        ("RMSNorm after blocks", LESS, "RMSNorm", MANY),
        ("normed queries and keys", EQUAL, "no norm", MANY),
    ),
    _experiment(
        "attention",
        "What weighs values, and where tokens are",
        {
            "softmax": {},
            "softmax with a zero": {"attention": "softmax1"},
            "sigmoid": {"attention": "sigmoid"},
            "linear": {"attention": "linear"},
            "DeltaNet": {"attention": "delta"},
            "learned positions": {"positions": "learned"},
            "tied embeddings": {"tied": True},
        },
        *(
            (other, EQUAL, "softmax", MANY)
            for other in ("softmax with a zero", "sigmoid", "linear", "DeltaNet")
        ),
        ("learned positions", EQUAL, "softmax", MANY),
        ("tied embeddings", MORE, "softmax", MANY),
        notes="Contexts are of two tokens: this is about weights. State is `blocks/recall`.",
    ),
    _experiment(
        "experts",
        "Mixtures of experts, per parameter and per active parameter",
        {
            "dense": {},
            "one of two": {"kind": MixtureOfExperts, "n_experts": 2},
            "one of four": {"kind": MixtureOfExperts, "n_experts": 4},
            "two of four": {"kind": MixtureOfExperts, "n_experts": 4, "top_k": 2},
        },
        *((some, LESS, "dense", MANY) for some in ("one of two", "one of four", "two of four")),
        *((some, MORE, "dense", ACTIVE) for some in ("one of two", "one of four", "two of four")),
        notes="Active are the parameters that a token meets: all but those of experts not chosen.",
        measures=(MANY, ACTIVE),
    ),
    _experiment(
        "depth",
        "Depth against width",
        {
            f"{n} layer{'s' * (n > 1)}": {"n_layers": n, "shares": (1 / 4, *SHARES)}
            for n in (1, 2, 3)
        },
        ("2 layers", EQUAL, "1 layer", MANY),
        ("3 layers", LESS, "1 layer", MANY),
        ("2 layers", LESS, "1 layer", FEW),
    ),
)
