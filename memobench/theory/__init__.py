"""Theorems on memorization, as functions of a run's sizes. Imports no JAX.

A theorem takes sizes by name: a mapping such as `core.cells.cells`, a row or a table, whose
columns then give a column. Kinds say which theorems are about them (`Spec.theorems`), so that an
architecture in a user's own file is promised what it names, and may bring theorems of its own.

`theorem` has the classes; `bounds` are numbers that theorems promise, `limits` those that they
forbid to exceed, `guides` those expected of large sizes without proof; `formulas` are for
comparison.
"""

from memobench.theory.bounds import (
    BUBECK,
    COROLLARY_2,
    LINEAR_LEAST_SQUARES,
    LOWER_BOUNDS,
    MAHDAVI_1,
    PROPOSITION_3,
    RANDOM_FEATURES,
    SILENT_MLP,
    THEOREM_1,
)
from memobench.theory.formulas import encoder_bound, t_eps
from memobench.theory.guides import (
    GRADIENT_STEP,
    HEBBIAN,
    MUON_STEP,
    NTK,
    OUTER_PRODUCTS,
    WHITENED,
    outer_products_guide,
)
from memobench.theory.limits import (
    COUNTING,
    PROPOSITION_1,
    PROPOSITION_2,
    RANK_OF_WEIGHTS,
    SATURATED_ATTENTION,
    SLACK_BITS,
    UPPER_BOUNDS,
    is_certified,
)
from memobench.theory.theorem import Bound, Condition, Limit, Sizes, Theorem, Violation, always
