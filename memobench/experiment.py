"""Experiments: named sweeps of runs, with published accuracies, claims and a figure."""

import dataclasses
import functools
import importlib
import os
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pandas as pd

from memobench.claims import Claim
from memobench.common import notation
from memobench.common.errors import UserError, check_arguments, require, short_repr, suggest
from memobench.core import plugins
from memobench.core.architecture import Architecture
from memobench.core.cells import cells
from memobench.core.columns import NAME, int_between, text_matching
from memobench.core.run import Method, Run
from memobench.core.task import Task
from memobench.store.rows import configuration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Columns of a published row beside the sizes that it belongs to.
_PUBLISHED = ("published", "published_steps")
# Pages lie in a folder of the first word.
_NAMES = text_matching(r"\w[\w.-]*/\w[\w.-]*", "a folder and a name, such as mine/widths")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
    """Base of all kinds of figures of experiments; itself it stands for no figure."""

    def draw(self, experiment: "Experiment", preset: str, table: pd.DataFrame) -> "Figure":
        """The figure of a preset's runs, a table from `seeds.add_theory`."""
        raise NotImplementedError

    def sections(self, table: pd.DataFrame) -> list[str]:
        """Paragraphs of Markdown that the experiment's page has beside its own; none by default."""
        return []

    def answer(self, table: pd.DataFrame) -> str:
        """The answer of the runs, in a sentence or two with intervals; "" where they have none."""
        return ""


class _Presets(Mapping[str, tuple[Run, ...]]):
    """Runs by preset; those that a function makes are made when they are first asked for."""

    def __init__(self, experiment: str, presets: Mapping[str, Any]) -> None:
        self._experiment = experiment
        self._presets = dict(presets)
        self._runs: dict[str, tuple[Run, ...]] = {}
        for preset, runs in self._presets.items():
            NAME.validate("preset", preset)
            if not callable(runs):
                self._runs[preset] = self._check(preset, runs)

    def _check(self, preset: str, runs: Any) -> tuple[Run, ...]:
        listed = check_list(f"{self._experiment}: preset {preset!r}", runs, Run)
        require(listed, f"{self._experiment}: preset {preset!r} is empty. Give some runs.")
        return listed

    def __getitem__(self, preset: str) -> tuple[Run, ...]:
        if preset not in self._runs:
            self._runs[preset] = self._check(preset, self._presets[preset]())
        return self._runs[preset]

    def __contains__(self, preset: object) -> bool:
        return preset in self._presets

    def __iter__(self) -> Iterator[str]:
        return iter(self._presets)

    def __len__(self) -> int:
        return len(self._presets)


def _require_formulas(name: str, title: str) -> None:
    from matplotlib.mathtext import MathTextParser

    try:
        MathTextParser("path").parse(notation.typeset(title))
    except ValueError as error:
        raise UserError(
            f"{name}: title must be a text with formulas of Matplotlib between dollars, got "
            f"{short_repr(title)}. Write \\$ for a dollar."
        ) from error


@check_arguments
@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A sweep that answers one question.

    Attributes:
      name: a folder and a name in it, such as `dana2025/heads`.
      title: of the page and the figure.
      presets: runs by name, or a function without arguments that returns them. `quick` fits into
        minutes on two CPU cores, `bench`, if any, into one minute; `paper` is what the paper itself
        measured; `full` adds what we compare it with (exact gradients, twice the steps).
      of_full: one line that says what `quick` has of the largest preset.
      figure: of the runs; none by default, as for runs of the board, which have pages there.
      published: accuracies from the paper, each with the sizes (in our column names) it belongs to
        and with `published` and `published_steps`.
      claims: what the paper says of them; each is tested on every variant and number of steps.
      too_short: the presets that train too few steps for the claims to be tested on them.
      notes: what a reader must know to compare, in Markdown.
    """

    name: str
    title: str
    presets: Mapping[str, Any]
    of_full: str = ""
    figure: Drawing = Drawing()
    published: tuple[Mapping[str, object], ...] = ()
    claims: tuple[Claim, ...] = ()
    too_short: tuple[str, ...] = ()
    notes: str = ""

    def __post_init__(self) -> None:
        _NAMES.validate("name", self.name)
        # Messages are made where something is wrong: the text of a whole experiment takes long.
        if not isinstance(self.figure, Drawing):
            raise UserError(
                f"{self.name}: figure must be a Drawing, got {short_repr(self.figure)}."
            )
        if not isinstance(self.title, str):
            raise UserError(f"{self.name}: title must be a text, got {short_repr(self.title)}.")
        if "$" in self.title:
            _require_formulas(self.name, self.title)
        cls = type(self.figure)
        require(
            cls is Drawing or cls.draw is not Drawing.draw,
            f"{self.name}: figure must have a method draw, got {cls.__name__}.",
        )
        claims = check_list(f"{self.name}: claims", self.claims, Claim)
        if not isinstance(self.presets, Mapping):
            raise UserError(
                f"{self.name}: presets must be named, such as {{'quick': runs}}, got "
                f"{short_repr(self.presets)}."
            )
        presets = _Presets(self.name, self.presets)
        names = [claim.name for claim in claims]
        for name in names:
            require(names.count(name) == 1, f"{self.name}: two claims are {name!r}. Rename one.")
        short = isinstance(self.too_short, tuple) and all(x in [*presets] for x in self.too_short)
        if not short:
            raise UserError(
                f"{self.name}: too_short must be a tuple of its presets, {', '.join(presets)}, got "
                f"{short_repr(self.too_short)}."
            )
        published = check_list(f"{self.name}: published", self.published, Mapping)
        for row in published:
            known = [*configuration(), *_PUBLISHED]
            for key in row.keys() - set(known):
                hint = suggest(str(key), known, others="; leave it out")
                place = f"{self.name}: published"
                raise UserError(f"{place}: {short_repr(key)} is not a column of runs{hint}")
            for key in _PUBLISHED:
                if key not in row:
                    raise UserError(
                        f"{self.name}: published: {short_repr(row)} lacks {key}. Give it."
                    )
        # Immutable, and no generator that ends with its first reader.
        object.__setattr__(self, "published", published)
        object.__setattr__(self, "presets", presets)
        object.__setattr__(self, "claims", claims)

    def runs(self, preset: str, seeds: int | None = None) -> tuple[Run, ...]:
        """The runs of a preset, of the first seeds only where so many are asked for.

        Raises UserError for a preset that the experiment does not have.
        """
        if preset not in self.presets:
            raise UserError(
                f"preset of {self.name} must be one of {', '.join(self.presets)}, got {preset!r}."
            )
        runs = self.presets[preset]
        return runs if seeds is None else tuple(run for run in runs if run.seed < seeds)

    def has_figure(self, preset: str) -> bool:
        """True for a preset whose runs are drawn: with too few steps a figure would mislead."""
        return type(self.figure) is not Drawing and preset not in self.too_short

    def claims_of(self, preset: str) -> tuple[Claim, ...]:
        """The claims that a preset can decide."""
        return () if preset in self.too_short else self.claims

    def specs(self, preset: str, seeds: int | None = None) -> pd.DataFrame:
        """The specs of a preset's runs as a table."""
        return pd.DataFrame([cells(run) for run in self.runs(preset, seeds)])

    def published_table(self) -> pd.DataFrame:
        """The published accuracies as a table."""
        if not self.published:
            return pd.DataFrame(columns=["architecture", "published", "published_steps"])
        return pd.DataFrame([dict(row) for row in self.published])


def check_list(name: str, values: Any, of: type) -> tuple[Any, ...]:
    """The values as a tuple; raises UserError for a single one and for those of another kind."""
    kind = of.__name__
    if not isinstance(values, Iterable):
        raise UserError(f"{name} must be a list of {kind}s, got {short_repr(values)}.")
    listed = tuple(values)
    for value in listed:
        if not isinstance(value, of):
            raise UserError(
                f"{name} must be a list of {kind}s, got {short_repr(value)} among them."
            )
    return listed


def grid(
    tasks: Iterable[Task],
    architectures: Iterable[Architecture],
    methods: Iterable[Method],
    seeds: int,
) -> tuple[Run, ...]:
    """Every task, architecture and method with the seeds 0, 1, .., each once.

    Raises:
      UserError: a list is empty.

    >>> from memobench.methods.training import Training
    >>> from memobench.models.transformer import AttentionOnly
    >>> from memobench.tasks.associations import Associations
    >>> heads = [AttentionOnly(d_model=2, d_head=2, n_heads=h) for h in (1, 2)]
    >>> len(grid([Associations()], heads, [Training(epochs=1), Training(epochs=2)], seeds=3))
    12
    """
    tasks = check_list("tasks", tasks, Task)
    architectures = check_list("architectures", architectures, Architecture)
    methods = check_list("methods", methods, Method)
    for name, given in (("tasks", tasks), ("architectures", architectures), ("methods", methods)):
        require(given, f"{name} is empty. Give some.")
    seeds = int_between(1).validate("seeds", seeds)
    runs = (
        Run(task=task, architecture=architecture, method=method, seed=seed)
        for task in tasks
        for architecture in architectures
        for method in methods
        for seed in range(seeds)
    )
    return tuple(dict.fromkeys(runs))


def use_full_heads(architectures: Iterable[Architecture]) -> list[Architecture]:
    """The same sizes in the equations' parameterisation.

    There a head wider than the stream gains nothing over one as wide, so that d_head is at most
    d_model.
    """
    several: list[Any] = list(architectures)
    return [a.replace(heads="full", d_head=min(a.d_head, a.d_model)) for a in several]


EXPERIMENTS: dict[str, Experiment] = {}


def find_experiments(module: ModuleType) -> tuple[Experiment, ...]:
    """The experiments that a module declares; none for what others share.

    Raises UserError for what is not an experiment.
    """
    constants = vars(module)
    one = [constants["EXPERIMENT"]] if "EXPERIMENT" in constants else []
    for found in one:
        if not isinstance(found, Experiment):
            raise UserError(
                f"EXPERIMENT must be an Experiment, got {short_repr(found)}. "
                "Several are EXPERIMENTS."
            )
    several = constants.get("EXPERIMENTS", ())
    # A file may import ours.
    several = () if several is EXPERIMENTS else check_list("EXPERIMENTS", several, Experiment)
    return *one, *(found for found in several if found not in one)


def register(experiments: Iterable[Experiment]) -> None:
    """Registers experiments; raises UserError for a name that another has."""
    for experiment in experiments:
        if EXPERIMENTS.setdefault(experiment.name, experiment) is not experiment:
            raise UserError(f"an experiment of name={experiment.name!r} is there. Choose another.")


def register_module(module: ModuleType) -> tuple[Experiment, ...]:
    """The experiments that a module declares, which are registered."""
    found = find_experiments(module)
    register(found)
    return found


def load_file(file: str | os.PathLike[str]) -> tuple[Experiment, ...]:
    """The experiments that a user's file declares, once it is imported and they are registered.

    Raises:
      UserError: that fails; one line with file and line.
    """
    found: tuple[Experiment, ...] = plugins.load(file, register_module)
    return found


def load_experiments() -> Mapping[str, Experiment]:
    """Every experiment by name: those of `experiments/`, and those of users' files."""
    _load()
    return EXPERIMENTS


@functools.cache
def _load() -> None:
    """Imports all of `experiments/`."""
    for folder in modules(importlib.import_module("memobench.experiments")):
        for module in modules(folder):
            register_module(module)


def modules(package: ModuleType) -> list[ModuleType]:
    """The modules and packages directly within a package, in its order."""
    order = vars(package).get("ORDER", ())
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]
