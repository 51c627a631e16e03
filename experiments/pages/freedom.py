"""Models of every family, and docs/freedom.md: their degrees of freedom by formula and by rank."""

from typing import Any

import pandas as pd

from memobench.analysis import freedom
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.task import Task
from memobench.experiments.capacity.own_models import RecallTransformer
from memobench.experiments.capacity.own_tasks import FactualRecall
from memobench.models.linear_memory import LinearMemory
from memobench.models.mixture_of_experts import MixtureOfExperts
from memobench.models.mlp_memory import MLPMemory
from memobench.models.modern import Modern
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.models.transformer import MLP, AttentionOnly
from memobench.report import tables
from memobench.tasks.associations import Associations
from memobench.tasks.bijection import Bijection

_ALONE, _PAIRS = (Associations(vocab_size=10, context_length=s) for s in (1, 2))
_TRIPLES = Associations(vocab_size=6, context_length=3)
# Pairs of the board at 256 and at 512 parameters.
_OF_256, _OF_512 = (Associations(vocab_size=n) for n in (16, 32))
_FACTS = FactualRecall(n_subjects=6, n_relations=4, n_answers=2, n_noise=6, context_length=5)
_WIDE: dict[str, Any] = {"d_model": 3, "d_head": 3}
_NARROW: dict[str, Any] = {"d_model": 4, "d_head": 2, "n_heads": 2}
_PLAIN: dict[str, Any] = {"norm": "none"}


def _modern(**fields: Any) -> tuple[Architecture, Task]:
    return Modern(**{**_WIDE, **fields}), _PAIRS


MODELS: tuple[tuple[Architecture, Task], ...] = (
    (AttentionOnly(**_WIDE, n_heads=4, heads="full"), _OF_256),
    (MLP(**_WIDE, d_mlp=17, heads="full"), _OF_256),
    (AttentionOnly(d_model=3, d_head=1, n_heads=13, heads="full"), _OF_256),
    (AttentionOnly(d_model=5, d_head=2, n_heads=4), _OF_256),
    (AttentionOnly(d_model=4, d_head=4, n_heads=4, heads="full"), _OF_512),
    (AttentionOnly(**_WIDE, n_heads=2), _PAIRS),
    (AttentionOnly(**_WIDE, n_heads=2, n_layers=2, heads="full"), _PAIRS),
    (AttentionOnly(**_NARROW, n_layers=2), _PAIRS),
    (AttentionOnly(**_WIDE, n_heads=2, heads="full"), _TRIPLES),
    (MLP(**_NARROW, d_mlp=4, heads="full"), _PAIRS),
    (AttentionOnly(d_model=4, d_head=1, n_heads=1, heads="full"), _TRIPLES),
    (MLP(d_model=5, d_head=1, n_heads=1, d_mlp=4, heads="full"), _PAIRS),
    (MLP(d_model=4, d_head=1, n_heads=1, d_mlp=12, heads="full"), _OF_256),
    (MLP(**_NARROW, d_mlp=4), _PAIRS),
    (MLP(**_WIDE, d_mlp=3, n_layers=2, heads="full"), _PAIRS),
    (MLP(**_WIDE, d_mlp=6, activation="relu", heads="full"), _PAIRS),
    (MLP(**_WIDE, d_mlp=6, activation="relu_squared", heads="full"), _PAIRS),
    (MLP(**_WIDE, d_mlp=6, activation="silu", heads="full"), _PAIRS),
    *(_modern(d_mlp=4, activation=each) for each in ("swiglu", "geglu", "reglu", "gelu")),
    *(_modern(d_mlp=n, activation="bilinear") for n in (2, 9)),
    _modern(d_mlp=4, norm_position="post"),
    _modern(norm_position="post"),
    _modern(d_mlp=4, tied=True),
    _modern(**_PLAIN, n_heads=2, d_mlp=4),
    _modern(**_PLAIN, d_mlp=3, n_layers=2),
    _modern(**_PLAIN, positions="learned", tied=True),
    _modern(**_PLAIN, positions="none"),
    _modern(**_PLAIN, qk_norm=True, n_heads=2),
    _modern(**_PLAIN, qk_norm=True, positions="learned"),
    _modern(**_PLAIN, residual_scale="learned", d_mlp=3),
    *(_modern(**_PLAIN, attention=each) for each in ("softmax1", "sigmoid", "linear", "delta")),
    _modern(**_PLAIN, attention="delta", positions="none", n_heads=2),
    _modern(**_PLAIN, **_NARROW),
    _modern(**_PLAIN, d_model=4, d_head=4, n_heads=2, n_kv_heads=1),
    _modern(**_PLAIN, d_model=5, d_head=5),
    _modern(**_PLAIN, d_model=6, d_head=2, d_mlp=3, positions="learned"),
    _modern(d_model=5, d_head=2, norm_position="post", positions="learned"),
    (Modern(**_NARROW, **_PLAIN), _TRIPLES),
    (MixtureOfExperts(**_WIDE, **_PLAIN, d_mlp=2, n_experts=3), _PAIRS),
    (MixtureOfExperts(**_WIDE, d_mlp=2, n_experts=3, top_k=2), _PAIRS),
    (LinearMemory(d_model=3), _ALONE),
    (LinearMemory(d_model=10), _ALONE),
    (LinearMemory(d_model=3), Bijection(vocab_size=10, n_values=6)),
    (MLPMemory(d_model=3, d_mlp=5, activation="gelu"), _ALONE),
    (MLPMemory(d_model=4, d_mlp=3, activation="swiglu"), _ALONE),
    (SequenceEncoder(d_model=3), Associations(vocab_size=5)),
    (RecallTransformer(d_model=3, d_head=2, n_heads=2, d_mlp=4), _FACTS),
    (RecallTransformer(d_model=3, d_head=3, n_heads=2, d_mlp=3, biases="hidden"), _FACTS),
)


INTRODUCTION = """# Formulas of degrees of freedom

What the [degrees of freedom](capacity.md#degrees-of-freedom) of a model are by formula, and the
rank of the Jacobian of its log-probabilities, computed in double precision at random weights.
Written by `make freedom`, in a quarter of an hour; a test holds every formula against the rank.

From the number of parameters is taken, where d is the width of the stream, d_h that of H heads, w
the neurons of a layer and S the length of contexts:
"""
# What is taken from the number of parameters, and how many dimensions.
FORMULAS = {
    "a product of an m x r and an r x n matrix, such as a head's queries and keys": "r², or "
    "r (m + n) - m n where r is not below m and n",
    "the stream's basis": "d², or d (d - 1) / 2 where norms before blocks, or tied embeddings, "
    "leave turns alone",
    "a shift of all logits": "d; none with tied embeddings",
    "a shift of tokens against learned positions": "d",
    "positions before the last, which few narrow heads of one layer leave unread": "(S - 1) "
    "(d - 2 H d_h)",
    "compressed heads, which read and write in bases of their own": "2 d_h²",
    "the scale of a norm, which the matrices after it can have": "d",
    "neurons of relu, relu², swiglu and geglu, whose scale may move between matrices": "w; of "
    "reglu 2 w",
    "bilinear neurons, terms of a quadratic map": "2 w, or 3 d w - d² (d + 1) / 2 where that is "
    "more",
    "experts": "those of each, and d for a shift of the router's scores",
    "rotary positions": "d_h of every head of keys, or more where a position's score with itself "
    "says less",
    "scales of normed queries against those of normed keys": "d_h; half with rotary positions",
    "linear and delta attention, whose scores and values may be scaled": "1 for each head, and of "
    "delta the turns of keys",
    "memories and the sequence encoder": "all but a product of their rank, less a shift of logits",
}


def page() -> str:
    """The text of docs/freedom.md, with ranks that are computed now."""
    rows = []
    for architecture, task in MODELS:
        rank = freedom.rank(architecture.module_for(task), task)
        rows.append(line(architecture, task) | {"rank": rank})
    formulas = pd.DataFrame({"of": FORMULAS.keys(), "dimensions": FORMULAS.values()})
    parts = (
        INTRODUCTION,
        tables.markdown(formulas, {}),
        "",
        tables.markdown(pd.DataFrame(rows), {}),
    )
    return "\n".join(parts)


def line(architecture: Architecture, task: Task) -> dict[str, Any]:
    """A model with its task, parameters, and degrees of freedom by formula."""
    counts = models.counts(architecture.module_for(task), task)
    return {
        "model": architecture.full_name,
        "tokens": f"{task.context_length} of {task.vocab_size}",
        "parameters": counts["n_params"],
        "formula": counts["degrees_of_freedom"],
    }


if __name__ == "__main__":
    print(page())
