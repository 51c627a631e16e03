"""What a run is: immutable values, their canonical form, and the id derived from it.

Imports no JAX, so that tables, reports and schedulers can read specs anywhere.
"""

import dataclasses
import functools
import hashlib
import json
from typing import Any, Self

from memobench.errors import UserError

SPEC_VERSION = 1
# A scalar label, uniform(0, 1), counts as known within this distance.
TOLERANCE = 0.05

CONDITIONALS = ("uniform", "power_law", "dirichlet")
CONTEXTS = ("shared", "random", "bag")
HEADS = ("full", "compressed")
POSITIONS = ("sinusoidal", "learned", "none")
SCORE_SCALES = ("d_model", "d_head")
EMBEDDINGS = ("unit", "normal")
PROTOCOLS = ("published", "passes", "exact")
# Beside None, which stands for what an architecture's source did.
ACTIVATIONS = ("gelu", "relu", "silu")
# Raised whenever a search would make other trials: run ids then differ, and results never mix.
SEARCH_RULES = 1
# A capacity that gains less than this share from twice the steps counts as converged.
GAIN = 0.02
SOLVES = ("exact", "least_squares")
# How weights are stored; arithmetic is in double precision for the first, in float32 for the rest.
WEIGHTS = ("float64", "float32", "bfloat16", "int8", "int4")
# Tasks whose examples are learned whole, by a Training, and occur equally often.
UNWEIGHED = ("factual_recall", "sequences")
# Which parameters are trained; what each asks of the module stands in `models.trained`.
TRAINED = ("read_out", "all_but_attention", "memory")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UserError(message)


def _require_integers(spec: Any, minimum: int, *fields: str) -> None:
    for field in fields:
        value = getattr(spec, field)
        _require(
            isinstance(value, int) and not isinstance(value, bool) and value >= minimum,
            f"{field}={value!r} is not an integer >= {minimum}; give {field} such a value",
        )


def _require_choice(spec: Any, field: str, choices: tuple[str, ...]) -> None:
    value = getattr(spec, field)
    _require(value in choices, f"{field}={value!r} is unknown; choose one of {', '.join(choices)}")


def _require_number(spec: Any, *fields: str) -> None:
    for field in fields:
        value = getattr(spec, field)
        _require(
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and 0 < value < float("inf"),
            f"{field}={value!r} is not a number > 0; give {field} such a value",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be memorized: what follows each of T_0 = `n_examples` sequences of tokens.

    `associations`: one next token per sequence. `bijection`: every token alone is followed by one
    that follows no other. `distributions`: `n_next` next tokens whose
    probabilities are `uniform`, a `power_law` of their rank or `dirichlet`, with the exponent or
    concentration `conditional_parameter`. `n_sequences` distinct sequences are drawn from all
    vocab_size ** context_length; None takes all. They occur equally often, or by Zipf's law with
    `zipf_exponent`. `seed` draws the instance; runs with equal tasks share it.

    `factual_recall`: a subject and a relation among noise tokens are followed by one of the
    relation's own `n_answers`; see `factual_recall`, which counts the tokens. `sequences`: every
    token of `n_sequences` uniformly random ones follows those before it.
    """

    name: str = "associations"
    vocab_size: int = 50
    context_length: int = 2
    seed: int = 0
    n_sequences: int | None = None
    conditional: str | None = None
    n_next: int | None = None
    conditional_parameter: float | None = None
    zipf_exponent: float | None = None
    n_subjects: int | None = None
    n_relations: int | None = None
    n_answers: int | None = None

    def __post_init__(self) -> None:
        _require_integers(self, 2, "vocab_size")
        _require_integers(self, 1, "context_length")
        _require_integers(self, 0, "seed")
        self._check_facts()
        if self.name != "factual_recall":
            self._check_sequences()
        self._check_conditional()
        if self.name in UNWEIGHED:
            _require(
                self.zipf_exponent is None,
                f"zipf_exponent must be None with name={self.name!r}",
            )
        if self.name == "bijection":
            _require(
                self.context_length == 1 and self.n_sequences is None,
                "a bijection takes every token alone; set context_length=1, n_sequences=None",
            )
        if self.zipf_exponent is not None:
            _require_number(self, "zipf_exponent")

    def _check_facts(self) -> None:
        counts = ("n_subjects", "n_relations", "n_answers")
        if self.name != "factual_recall":
            for field in counts:
                value = getattr(self, field)
                _require(value is None, f"{field}={value!r} needs name='factual_recall'")
            return
        _require_integers(self, 1, "n_subjects", "n_relations")
        _require_integers(self, 2, "n_answers")
        _require_integers(self, 3, "context_length")
        _require(self.n_sequences is None, "n_sequences must be None with name='factual_recall'")
        # Three places are taken: the subject's, the relation's and the end.
        n_least = min(self.context_length - 3, 1)
        _require(
            self.n_noise >= n_least,
            f"vocab_size={self.vocab_size} leaves {self.n_noise} noise tokens beside "
            f"{self.vocab_size - self.n_noise} others; raise vocab_size",
        )
        _require(
            self.n_examples <= 2**20,
            f"n_subjects={self.n_subjects}: more than 2^20 facts; lower n_subjects",
        )

    def _check_sequences(self) -> None:
        n_all = self.vocab_size**self.context_length
        if self.n_sequences is None:
            _require(self.name != "sequences", "n_sequences=None: sequences need their number")
            _require(
                n_all <= 2**22,
                f"context_length={self.context_length}: all {self.vocab_size}^{self.context_length}"
                " sequences would be memorized, more than 2^22; give n_sequences",
            )
        else:
            _require_integers(self, 1, "n_sequences")
            _require(
                self.n_sequences <= min(n_all, 2**20),
                f"n_sequences={self.n_sequences} exceeds 2^20 or all {self.vocab_size}^"
                f"{self.context_length} sequences; lower n_sequences",
            )

    def _check_conditional(self) -> None:
        if self.name != "distributions":
            for field in ("conditional", "n_next", "conditional_parameter"):
                _require(
                    getattr(self, field) is None,
                    f"{field}={getattr(self, field)!r} needs name='distributions'",
                )
            return
        _require_choice(self, "conditional", CONDITIONALS)
        _require_integers(self, 1, "n_next")
        _require(
            self.n_next is not None and self.n_next <= self.vocab_size,
            f"n_next={self.n_next} exceeds vocab_size={self.vocab_size}; lower n_next",
        )
        if self.conditional == "uniform":
            _require(
                self.conditional_parameter is None,
                "conditional_parameter must be None with conditional='uniform'",
            )
        else:
            _require_number(self, "conditional_parameter")

    @property
    def n_choices(self) -> int:
        """Among how many tokens an answer was drawn: one carries log2 of it in bits.

        Of a fact among its relation's answers, for which of them are a relation's is no fact.
        """
        return self.n_answers or self.vocab_size

    @property
    def chance(self) -> float:
        """The accuracy of guessing; of facts, of guessing among the relation's answers."""
        return 1 / self.n_choices

    @property
    def n_outputs(self) -> int:
        """How many tokens may be answers: the first so many of the vocabulary."""
        if self.n_relations and self.n_answers:
            return self.n_relations * self.n_answers
        return self.vocab_size

    @property
    def n_noise(self) -> int:
        """How many tokens are noise: the others are answers, subjects, relations and the end."""
        if not self.n_subjects or not self.n_relations:
            return 0
        return self.vocab_size - self.n_outputs - self.n_subjects - self.n_relations - 1

    @property
    def n_examples(self) -> int:
        """Number of sequences, T_0: N^S or as many as were drawn; of facts."""
        if self.n_subjects and self.n_relations:
            return self.n_subjects * self.n_relations
        return self.n_sequences or self.vocab_size**self.context_length

    @property
    def n_predicted(self) -> int:
        """Number of answers: one of every sequence, or all tokens of whole `sequences`."""
        return self.n_examples * (self.context_length if self.name == "sequences" else 1)


def factual_recall(
    *,
    n_subjects: int,
    n_relations: int,
    n_answers: int,
    n_noise: int,
    context_length: int = 32,
    seed: int = 0,
) -> Task:
    """Facts to be recalled from noise: the synthetic task of Nichani et al. (2025), section 4.

    A fact is the answer to a subject and a relation, drawn from the relation's own `n_answers`.

    >>> task = factual_recall(n_subjects=4, n_relations=3, n_answers=2, n_noise=10)
    >>> task.vocab_size, task.n_examples, task.n_noise
    (24, 12, 10)
    """
    return Task(
        name="factual_recall",
        vocab_size=n_relations * n_answers + n_subjects + n_relations + n_noise + 1,
        context_length=context_length,
        seed=seed,
        n_subjects=n_subjects,
        n_relations=n_relations,
        n_answers=n_answers,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledContexts:
    """What is to be memorized: a label for each of `n_examples` pairs of a query and a context.

    A query is a vector in R^input_dim, a context `context_length` of them, all entries
    uniform(0, 1). `contexts` says whether one is `shared` by all examples, every example has a
    `random` one, or it arranges vectors from one `bag` of `n_bag`. A label is one of `n_classes`,
    or where that is None a scalar uniform(0, 1). Of two such tasks that differ in n_examples or
    context_length alone, the smaller is a prefix of the larger (Mahdavi et al. 2024, section 6).
    """

    name: str = "labelled_contexts"
    n_examples: int
    context_length: int = 32
    contexts: str = "shared"
    n_classes: int | None = 100
    input_dim: int = 64
    n_bag: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.name == "labelled_contexts", "name must be 'labelled_contexts'")
        _require_integers(self, 1, "n_examples", "context_length", "input_dim")
        _require_integers(self, 0, "seed")
        _require_choice(self, "contexts", CONTEXTS)
        if self.n_classes is not None:
            _require_integers(self, 2, "n_classes")
        if self.contexts == "bag":
            _require_integers(self, self.context_length, "n_bag")
        else:
            _require(self.n_bag is None, f"n_bag={self.n_bag!r} needs contexts='bag'")

    @property
    def chance(self) -> float:
        """The accuracy of guessing: one of the classes, or a scalar that is not near 0 or 1."""
        return 1 / self.n_classes if self.n_classes else 2 * TOLERANCE

    @property
    def n_predicted(self) -> int:
        """Number of labels."""
        return self.n_examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """Who memorizes: a name from `memobench.models.ARCHITECTURES` and the model's true sizes.

    `heads` chooses the parameterisation of Dana et al. (2025): `full` is that of their equations
    (W_Q, W_K, W_V in R^{d_head x d_model}), `compressed` that of their released experiments
    (one shared map into R^{d_head} before all heads and one back).

    `positions` to `residual` are options of `query_attention`; None takes what Mahdavi et al.
    (2024) did: `positions` sinusoidal, `d_value` 1, scores scaled by 1/sqrt of `score_scale`
    d_model, and no `residual` connection. `activation` is an option of whatever has hidden neurons;
    None is gelu in `mlp` and `gpt`, and relu in `mlp_memory` and `recall_transformer`, as in
    Nichani et al. (2025). `embeddings` is an option of `recall_transformer`: random directions of
    norm 1, `unit`, which None is too, or standard `normal` entries.
    """

    name: str
    d_model: int
    d_head: int
    n_heads: int = 1
    n_layers: int = 1
    d_mlp: int = 0
    heads: str = "compressed"
    positions: str | None = None
    d_value: int | None = None
    score_scale: str | None = None
    residual: bool | None = None
    activation: str | None = None
    embeddings: str | None = None

    def __post_init__(self) -> None:
        _require_integers(self, 1, "d_model", "d_head", "n_heads", "n_layers")
        _require_integers(self, 0, "d_mlp")
        _require_choice(self, "heads", HEADS)
        if self.positions is not None:
            _require_choice(self, "positions", POSITIONS)
        if self.d_value is not None:
            _require_integers(self, 1, "d_value")
        if self.score_scale is not None:
            _require_choice(self, "score_scale", SCORE_SCALES)
        if self.activation is not None:
            _require_choice(self, "activation", ACTIVATIONS)
        if self.embeddings is not None:
            _require_choice(self, "embeddings", EMBEDDINGS)
        _require(
            self.heads != "full" or self.d_head <= self.d_model,
            f"d_head={self.d_head} exceeds d_model={self.d_model}, which full heads forbid; "
            "lower d_head or use heads='compressed'",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Construction:
    """How the weights come about: by the recipe of a proof, without training.

    `theorem` is a name from `memobench.constructions.CONSTRUCTIONS`. The weights are made for
    `n_aimed` of the task's examples, the most frequent, ties at random; None aims at all. `exact`
    solves for them exactly and refuses more than the theorem promises; `least_squares` takes any
    number and comes as near as it can. `scale` is how large attention scores (of random_features
    what neurons read) are made, None the construction's own choice. `weights` says how weights are
    stored; those that are random are rounded before the others are solved for.
    """

    theorem: str
    protocol: str = "constructed"
    n_aimed: int | None = None
    solve: str = "exact"
    scale: float | None = None
    weights: str = "float64"

    def __post_init__(self) -> None:
        _require(self.protocol == "constructed", "protocol must be 'constructed'")
        _require(isinstance(self.theorem, str), f"theorem={self.theorem!r} is not a name")
        if self.n_aimed is not None:
            _require_integers(self, 0, "n_aimed")
        _require_choice(self, "solve", SOLVES)
        if self.scale is not None:
            _require_number(self, "scale")
        _require_choice(self, "weights", WEIGHTS)

    @property
    def steps(self) -> int:
        """Solving counts as one step."""
        return 1

    def __str__(self) -> str:
        """What differs from the defaults, after the theorem.

        >>> str(Construction(theorem="dana2025", n_aimed=0))
        'dana2025 n_aimed=0'
        """
        fields = dataclasses.fields(self)[1:]
        told = [f"{x.name}={getattr(self, x.name)}" for x in fields if self._changed(x)]
        return " ".join([self.theorem, *told])

    def _changed(self, field: dataclasses.Field) -> bool:
        return getattr(self, field.name) != field.default


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How the weights come about: Adam for `epochs` epochs of `n_batches` steps each.

    `published` follows Dana et al. (2025) step for step: a fixed multiset of `batch_size *
    n_batches` examples, reshuffled every epoch; of whole sequences it holds each equally often, and
    facts are drawn anew at every step, with their noise. `passes` differs in the training set: it
    holds every example equally often, so that an epoch is a whole number of passes over them all.
    `exact` takes the gradient of the true objective over all examples at every step and has no
    batches: `batch_size` is None. The learning rate is constant within an epoch and linear over
    epochs, from `learning_rate` in the first to `final_learning_rate`, reached after the last.
    Weights start out random, or as the construction `start` makes them. All of them are trained, or
    those that `trained` names: `read_out`, by which the logits are linear in what attention and MLP
    offer, all but the queries and keys of attention, or the `memory`: all but token embeddings and
    unembedding.
    """

    protocol: str = "published"
    batch_size: int | None = 256
    n_batches: int = 64
    epochs: int = 64
    learning_rate: float = 1e-2
    final_learning_rate: float = 5e-4
    start: Construction | None = None
    trained: str | None = None

    def __post_init__(self) -> None:
        _require_choice(self, "protocol", PROTOCOLS)
        if self.trained is not None:
            _require_choice(self, "trained", TRAINED)
        if self.protocol == "exact":
            _require(self.batch_size is None, "batch_size must be None with protocol='exact'")
        else:
            _require_integers(self, 1, "batch_size")
        _require_integers(self, 1, "n_batches", "epochs")
        for field in ("learning_rate", "final_learning_rate"):
            value = getattr(self, field)
            _require(
                isinstance(value, (int, float)) and 0 <= value < float("inf"),
                f"{field}={value!r} is not a number >= 0; give {field} such a value",
            )

    @property
    def steps(self) -> int:
        """Number of optimiser steps."""
        return self.n_batches * self.epochs

    def exact(self) -> Self:
        """The exact protocol with the same number of steps and the same learning rates."""
        return dataclasses.replace(self, protocol="exact", batch_size=None)

    def times(self, factor: int) -> Self:
        """The same schedule stretched over `factor` times the epochs."""
        return dataclasses.replace(self, epochs=factor * self.epochs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimum:
    """The least value of the exact objective that a thorough search in double precision finds.

    `starts` initial weights are trained side by side by `adam_steps` of Adam; from the `polished`
    best of them L-BFGS goes on until the gradient vanishes to rounding or for `steps` iterations.
    Meant for small models.
    """

    protocol: str = "optimal"
    starts: int = 64
    adam_steps: int = 1000
    polished: int = 3
    steps: int = 2000

    def __post_init__(self) -> None:
        _require(self.protocol == "optimal", "protocol must be 'optimal' for an Optimum")
        _require_integers(self, 1, "starts", "adam_steps", "polished", "steps")
        _require(
            self.polished <= self.starts,
            f"polished={self.polished} exceeds starts={self.starts}; lower polished",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Annealing:
    """How the weights come about: Adam with a rate that warms up and falls to zero by a cosine.

    As Mahdavi et al. (2024) train: the rate grows linearly from `first_share` of `learning_rate`
    over the first `warmup` of the `steps`; batches run through reshuffled epochs; every
    `evaluate_every` steps all examples are evaluated, and the weights of the least loss are kept.
    With `stop_early` a classifier that knows every label then stops.
    """

    protocol: str = "annealed"
    batch_size: int = 256
    steps: int = 50_000
    learning_rate: float = 1e-3
    first_share: float = 0.01
    warmup: float = 0.05
    evaluate_every: int = 500
    stop_early: bool = True

    def __post_init__(self) -> None:
        _require(self.protocol == "annealed", "protocol must be 'annealed' for an Annealing")
        _require_integers(self, 1, "batch_size", "steps", "evaluate_every")
        _require_number(self, "learning_rate", "first_share")
        _require(
            isinstance(self.warmup, (int, float)) and 0 <= self.warmup < 1,
            f"warmup={self.warmup!r} is not a share in [0, 1); give warmup such a value",
        )
        _require(
            self.steps % self.evaluate_every == 0,
            f"steps={self.steps} is no multiple of evaluate_every={self.evaluate_every}; round it",
        )

    def for_examples(self, n_examples: int, epochs: int = 500) -> Self:
        """The same with as many epochs of n_examples if they are more steps, rounded up.

        >>> Annealing().for_examples(130_000).steps, Annealing().for_examples(10_000).steps
        (254000, 50000)
        """
        steps = max(self.steps, -(-epochs * n_examples // self.batch_size))
        whole = -(-steps // self.evaluate_every) * self.evaluate_every
        return dataclasses.replace(self, steps=whole)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """How a capacity comes about: `training`, from the start, on ever better chosen subsets.

    First on all examples of the task, then on the first so many: a bisection, `sizes` of them at a
    time and each with the learning rates times every one of `rate_factors`, until the largest set
    memorized completely is known within `resolution` of itself (or one example). The steps are
    then doubled, up to `doublings` times, until that gains less than GAIN. See
    `memobench.capacity`, whose version of proposing trials `rules` is.
    """

    training: Training
    rate_factors: tuple[float, ...] = (1.0,)
    sizes: int = 2
    resolution: float = 0.02
    doublings: int = 2
    rules: int = SEARCH_RULES

    def __post_init__(self) -> None:
        _require_integers(self, 1, "sizes", "rules")
        _require_integers(self, 0, "doublings")
        _require_number(self, "resolution")
        _require(self.sizes <= 64, f"sizes={self.sizes} exceeds 64; lower sizes")
        _require(self.doublings <= 32, f"doublings={self.doublings} exceeds 32; lower doublings")
        _require(self.resolution < 1, f"resolution={self.resolution} is no share; give one below 1")
        _require(
            self.rules == SEARCH_RULES,
            f"rules={self.rules!r} are not those of this version, {SEARCH_RULES}; leave rules out",
        )
        _require(
            isinstance(self.training, Training) and self.training.start is None,
            "training must be a Training without start: every trial begins anew",
        )
        factors = self.rate_factors
        _require(
            isinstance(factors, tuple)
            and all(type(x) in (int, float) and 0 < x < float("inf") for x in factors)
            and 1 <= len(set(factors)) == len(factors) <= 16,
            f"rate_factors={factors!r} is no tuple of 1 to 16 distinct numbers > 0; mend it",
        )

    @property
    def lanes(self) -> int:
        """How many trials a round makes side by side."""
        return self.sizes * len(self.rate_factors)

    @property
    def protocol(self) -> str:
        """The protocol of every trial."""
        return self.training.protocol

    @property
    def steps(self) -> int:
        """Optimiser steps of a trial of the first budget."""
        return self.training.steps


Method = Training | Optimum | Annealing | Construction | Search


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One task, architecture, method and seed; `run_id` names it, so it is never done twice.

    >>> run = Run(task=Task(), architecture=Architecture(name="mlp", d_model=4, d_head=4, d_mlp=8))
    >>> run.run_id == dataclasses.replace(run).run_id
    True
    """

    task: Task | LabelledContexts
    architecture: Architecture
    method: Method = Training()
    seed: int = 0

    def __post_init__(self) -> None:
        _require_integers(self, 0, "seed")
        _require(
            isinstance(self.method, Construction)
            or isinstance(self.task, LabelledContexts) == isinstance(self.method, Annealing),
            f"method: {type(self.method).__name__} does not train the task {self.task.name!r}; "
            "labelled contexts need an Annealing or a Construction, and only they are annealed",
        )
        aimed = getattr(self.method, "n_aimed", None)
        _require(
            aimed is None or aimed <= self.task.n_examples,
            f"n_aimed={aimed} exceeds the task's {self.task.n_examples} examples; lower n_aimed",
        )
        if self.method.protocol == "passes":
            self._check_passes()
        if self.task.name in UNWEIGHED:
            self._check_unweighed()
        elif isinstance(self.method, Search):
            self._check_subsets()

    def _check_passes(self) -> None:
        method, n_examples = self.method, self.task.n_examples
        if not isinstance(method, Training) or getattr(self.task, "zipf_exponent", None):
            raise UserError(
                "protocol='passes' is of a Training on examples of even frequency; "
                "use protocol='published'"
            )
        drawn = method.n_batches * (method.batch_size or 0)
        _require(
            drawn % n_examples == 0,
            f"n_batches * batch_size = {drawn} is no multiple of the {n_examples} examples, which "
            "protocol='passes' shows equally often in an epoch; change n_batches",
        )

    def _check_unweighed(self) -> None:
        name, method = self.task.name, self.method
        _require(
            isinstance(method, Training) and method.start is None,
            f"method: {type(method).__name__} does not serve the task {name!r}, of which there are "
            "no smaller parts and no constructions; use a Training without start",
        )
        _require(
            name != "factual_recall" or method.protocol == "published",
            f"protocol={method.protocol!r}: the noise around facts is drawn anew at every step; "
            "use protocol='published'",
        )

    def _check_subsets(self) -> None:
        task = self.task
        _require(
            isinstance(task, Task)
            and task.zipf_exponent is None
            and (task.name == "bijection" or task.n_sequences is not None),
            "a Search needs tokens of even frequency in random order; set zipf_exponent=None and "
            f"n_sequences, to {task.n_examples} for all",
        )

    def canonical(self) -> str:
        """The spec as JSON with sorted keys; fields that are None do not apply and are left out."""
        fields = ("task", "architecture", "method", "seed")
        spec = {name: _without_none(getattr(self, name)) for name in fields}
        spec["spec_version"] = SPEC_VERSION
        return json.dumps(spec, sort_keys=True, separators=(",", ":"))

    @functools.cached_property
    def run_id(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the canonical form."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:16]


def _without_none(tree: Any) -> Any:
    if dataclasses.is_dataclass(tree):
        values = vars(tree).items()
        return {name: _without_none(value) for name, value in values if value is not None}
    if isinstance(tree, tuple):
        return [_without_none(x) for x in tree]
    # 1 and 1.0 are equal values and must give one id.
    return int(tree) if isinstance(tree, float) and tree.is_integer() else tree


_TASK_COLUMNS = (
    *("vocab_size", "context_length", "n_sequences", "conditional", "n_next"),
    *("conditional_parameter", "zipf_exponent", "contexts", "n_classes", "input_dim", "n_bag"),
    *("n_subjects", "n_relations", "n_answers"),
)
METHOD_COLUMNS = (
    *("protocol", "starts", "adam_steps", "polished", "batch_size", "n_batches", "epochs"),
    *("learning_rate", "final_learning_rate", "first_share", "warmup", "evaluate_every"),
    *("stop_early", "theorem", "n_aimed", "solve", "scale", "weights", "start", "trained"),
    *("rate_factors", "sizes", "resolution", "doublings", "rules"),
)
_METHODS: dict[type, str] = {
    Optimum: "optimised",
    Construction: "constructed",
    Search: "searched",
}


def columns(run: Run) -> dict[str, Any]:
    """The spec as the flat columns of the results table; what does not apply is None."""
    # Fields are immutable: copying them, as `asdict` does, takes most of the time.
    task, method, architecture = (dict(vars(x)) for x in (run.task, run.method, run.architecture))
    if isinstance(run.method, Training) and run.method.start:
        method["start"] = str(run.method.start)
    if isinstance(run.method, Search):
        factors = " ".join(repr(float(factor)) for factor in run.method.rate_factors)
        method = {**vars(method.pop("training")), **method, "rate_factors": factors}
        method["protocol"] = run.method.protocol
    return {
        "run_id": run.run_id,
        "task": task["name"],
        **{name: task.get(name) for name in _TASK_COLUMNS},
        "n_examples": run.task.n_examples,
        "task_seed": run.task.seed,
        "architecture": architecture.pop("name"),
        **architecture,
        "method": _METHODS.get(type(run.method), "trained"),
        **{name: method.get(name) for name in METHOD_COLUMNS},
        "steps": run.method.steps,
        "seed": run.seed,
    }
