"""The contract of architectures: a frozen spec whose fields are true sizes and options."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from memobench.common.errors import UserError, escape_unprintable, name_source, require
from memobench.core import columns
from memobench.core.columns import Column, by_name, integer
from memobench.core.module import Module, _Module
from memobench.core.spec import Spec
from memobench.core.task import Task

# Fields of modules that architectures do not give them.
_SET_LATER = ("parent", "name", "kind_code")


_SHARED = by_name(
    Column("d_model", "width of the residual stream", columns.int_between(1), over_seeds="same"),
    Column("d_head", "dimensions of a head", columns.int_between(1), over_seeds="same"),
    Column("n_heads", "heads of a layer", columns.int_between(1), over_seeds="same"),
    Column("n_layers", "layers", columns.int_between(1, 64), over_seeds="same"),
    Column("d_mlp", "hidden neurons of a layer's MLP", columns.int_between(0), over_seeds="same"),
)
# Columns of the board, in whose rows those of architectures stand, too.
_OF_THE_BOARD = (
    *("version", "budget", "track", "rank_low", "rank_high", "entry", "family", "set_size"),
    *("set_size_per_parameter", "share_known", "overfull_bits_per_parameter"),
    *("bits_per_parameter", "bits_per_parameter_low", "bits_per_parameter_high"),
    *("bits_per_degree_of_freedom", "half_99", "half_99_low", "half_99_high", "bits_per_byte"),
    *("certified_bits_per_parameter", "certified_set", "failed", "failed_sets"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture(
    Spec,
    noun="architecture",
    package="memobench.models",
    order=(
        "gpt",
        "linear_memory",
        "mixture_of_experts",
        "mlp_memory",
        "modern",
        "product_key_memory",
        "query_attention",
        "recall_transformer",
        "sequence_encoder",
        "attention_only",
        "mlp",
    ),
    shared_columns=_SHARED,
):
    """A model family with its true sizes and options. Kinds define `module`.

    Attributes:
      answers: the questions of tasks (`Task.question`) that its models answer.
      is_floor: whether no model of the same d_model has less loss than its optimum.
      d_model: see its column.
    """

    answers: ClassVar[tuple[str, ...]] = ("next token",)
    is_floor: ClassVar[bool] = False
    taken: ClassVar[tuple[str, ...]] = (*Task.taken, *_OF_THE_BOARD)

    d_model: int = integer("width of the residual stream", 1, most=2**20)

    def module(self, task: Any) -> "Module":
        """The Flax module of one example. Raises UserError for a task that it cannot serve."""
        raise UserError(f"architecture {self.name} has no method module; define module(self, task)")

    def fill_module(self, module: type["_Module"], task: Any, **more: Any) -> "_Module":
        """A module whose fields are taken by name from `more`, this spec, or the task."""
        own = {field.name for field in dataclasses.fields(self)}
        names = {field.name for field in dataclasses.fields(module)} - {*_SET_LATER, *more}
        for name in names:
            require(
                name in own or hasattr(task, name),
                f"architecture {self.name}: neither it nor the task {task.name!r} has the module's "
                f"{name}; make it a field of the architecture, or give fill_module({name}=...)",
            )
        return module(**{x: getattr(self if x in own else task, x) for x in names}, **more)

    def module_for(self, task: Task) -> "Module":
        """The module for a task, which is built once.

        Raises:
          UserError: the architecture does not answer the task's question.
        """
        return _module_for(self, task.signature())

    def shared_cells(self) -> dict[str, Any]:
        """The sizes in the rows of all architectures; one that is not a field has its minimum."""
        # A model without heads counts as one head, as wide as the residual stream.
        least = {"d_model": self.d_model, "d_head": self.d_model, "n_heads": 1, "n_layers": 1}
        least |= {"d_mlp": 0}
        return {name: getattr(self, name, value) for name, value in least.items()}

    @classmethod
    def variant(cls, row: Mapping[str, Any]) -> str:
        """The architecture's part of a row's label, next to the protocol; may be empty."""
        del row
        return ""

    @property
    def family(self) -> str:
        """The name, in words, that architectures of other sizes share."""
        return in_words(self.name, self.shared_cells())

    @property
    def side(self) -> tuple[str, str]:
        """The side of *attention or MLP* that it is a form of, and its heads; empty if neither."""
        return "", ""

    @property
    def shown_sizes(self) -> list[str]:
        """The sizes in short, and options that are not default: what differs within a family."""
        cells = self.shared_cells()
        usual = {x.name: getattr(type(self), x.name, x) for x in dataclasses.fields(self)}
        options = {x: getattr(self, x) for x in usual if x not in cells}
        return sizes_in_words(cells) + [f"{x}={y}" for x, y in options.items() if y != usual[x]]

    @property
    def full_name(self) -> str:
        """The family and the sizes, as boards name an entry."""
        return f"{self.family} ({' '.join(self.shown_sizes)})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithHeads(Architecture):
    """Base of architectures with heads of attention.

    Attributes:
      heads: their parameterisation; full heads are not wider than the residual stream.
    """

    heads = "full"

    d_head: int = integer("dimensions of a head", 1, most=2**20)
    n_heads: int = integer("heads of a layer", 1, default=1, most=2**20)

    def check(self) -> None:
        require(
            self.heads != "full" or self.d_head <= self.d_model,
            f"d_head={self.d_head} exceeds d_model={self.d_model}, which full heads forbid; "
            "lower d_head",
        )


def read_family(row: Mapping[str, Any]) -> str:
    """The family of a row's architecture, by its name and depth if it is not registered here."""
    try:
        return escape_unprintable(Architecture.from_row(row).family)
    except Exception:  # A user's own code may raise anything.
        return escape_unprintable(in_words(str(row["architecture"]), row))


def in_words(name: str, cells: Mapping[str, Any]) -> str:
    """A family's name, and its number of layers if there are several."""
    n_layers = cells["n_layers"] or 1
    return name + (f", {n_layers} layers" if n_layers > 1 else "")


def sizes_in_words(cells: Mapping[str, Any], always_heads: bool = False) -> list[str]:
    """Sizes abbreviated for a table, without those at their minimum.

    >>> sizes_in_words({"d_model": 4, "d_head": 2, "n_heads": 1, "d_mlp": 8})
    ['d=4', 'd_h=2', 'w=8']
    """
    sizes = [f"d={cells['d_model']}"]
    if cells["d_head"] != cells["d_model"]:
        sizes.append(f"d_h={cells['d_head']}")
    if cells["n_heads"] > 1 or always_heads:
        sizes.append(f"H={cells['n_heads']}")
    if cells["d_mlp"]:
        sizes.append(f"w={cells['d_mlp']}")
    return sizes


@functools.lru_cache(maxsize=4096)
def _module_for(architecture: Architecture, task: Task) -> "Module":
    if task.question not in architecture.answers:
        serving = [
            name for name, kind in Architecture.kinds().items() if task.question in kind.answers
        ]
        raise UserError(
            f"architecture {architecture.name} does not serve the task {task.name!r}, whose "
            f"question is {task.question!r}; choose {' or '.join(sorted(serving))}"
        )
    name = f"architecture {architecture.name}"
    with name_source(f"{name}: its method module"):
        module: Any = architecture.module(task)
    require(
        isinstance(module, Module),
        f"{name}: its module is a {type(module).__name__!r}; return a memobench.core.module.Module",
    )
    paddable: Any = module.paddable
    require(
        isinstance(paddable, tuple),
        f"{name}: paddable={paddable!r} of its module is not a tuple; write (..., )",
    )
    for size in paddable:
        require(
            hasattr(module, size),
            f"{name}: paddable names {size!r}, which its module does not have; fix the name",
        )
    code = getattr(architecture, "code", None)
    return module.clone(kind_code=code) if code else module


def require_one_token(task: Task, architecture: Architecture) -> None:
    """Raises UserError for a task whose sequences have several tokens."""
    require(
        task.context_length == 1,
        f"context_length={task.context_length}: {architecture.name} reads one token; "
        "set context_length=1",
    )


def require_neurons(architecture: Any, activation: str) -> None:
    """Raises UserError for an activation without neurons: equal models must have equal specs."""
    require(
        architecture.d_mlp > 0 or architecture.activation == activation,
        f"activation={architecture.activation!r} means nothing with d_mlp=0; leave it out",
    )
