"""Faults of an architecture, found before anything trains.

Shapes are traced, which costs nothing. Padding must leave the function as it is, which is tried on
one batch with outputs and gradients of the padded model against those of the plain one.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import InvalidRngError

from memobench.common import settings
from memobench.common.errors import UserError, name_source, require, short_repr
from memobench.core import module as models
from memobench.core import own_code
from memobench.core.architecture import Architecture
from memobench.core.columns import NAME, float_between, one_of
from memobench.core.module import Module
from memobench.core.spec import check_code, fields
from memobench.core.task import Task
from memobench.numerics import precision

# Of small tasks, on which an architecture is checked where no task is given: the first that it
# serves. By name, as some are of papers.
_SMALL: tuple[tuple[str, dict[str, int]], ...] = (
    ("associations", {"vocab_size": 6}),
    ("associations", {"vocab_size": 6, "context_length": 1}),
    ("labelled_contexts", {"n_examples": 6, "n_classes": 3, "context_length": 2, "input_dim": 5}),
    (
        "factual_recall",
        {"n_subjects": 3, "n_relations": 2, "n_answers": 2, "n_noise": 4, "context_length": 4},
    ),
    ("sequences", {"vocab_size": 6, "context_length": 3, "n_sequences": 5}),
    ("in_context_recall", {"vocab_size": 6, "n_pairs": 2}),
)
# By how much sizes are padded, and how far outputs may then be off: a size that does not pad is
# off by a share of the outputs, rounding by far less.
_MORE, _OFF = 2, 1e-4
_EXAMPLES = 4


@settings.pin
def check(architecture: Architecture, task: Task | None = None) -> tuple[str, ...]:
    """Lines, each of which names a fault of an architecture; empty where it has no fault.

    Args:
      architecture: of small sizes, as its model is run.
      task: on which it is checked; by default the first of some small ones that it serves.

    Raises:
      UserError: it does not serve the task, or none of the small ones.
    """
    module, small = _build(architecture, task)
    return tuple(
        list(_faults(architecture, module, small))
        or list(_find_dropped(architecture, small))
        or list(_find_ignored(architecture, module, small))
    )


def _faults(architecture: Architecture, module: Module, task: Task) -> Iterator[str]:
    """Faults that make results wrong; the later checks rest on the earlier ones."""
    for lines_of in (
        _parameters,
        _find_uncounted,
        _check_predictions,
        _find_batch_axis,
        _shapes,
        _outputs,
        _padding,
    ):
        try:
            with _name_module("its module", module, task):
                found = list(lines_of(module, task))
        except UserError as error:
            found = [str(error)]
            if isinstance(error.__cause__, InvalidRngError):
                found = [f"{error}: nothing but initial weights is drawn at random"]
        yield from found
        if found:
            return


def require_sound(pairs: Iterable[tuple[Architecture, Task]]) -> None:
    """Raises UserError for the first architecture whose results would be wrong.

    Of each structure one size is checked for all faults, the others for their shapes, and for the
    padding of the least to the largest. Those of memobench itself are checked by its tests.
    """
    groups: dict[Any, dict[Module, tuple[Architecture, Task]]] = {}
    for architecture, task in pairs:
        if own_code.in_tree(type(architecture)):
            continue
        module = architecture.module_for(task)
        with _name_module(f"architecture {architecture.name}: its module", module, task):
            models.shapes(module, task.context_length)
        of_structure = groups.setdefault((models.structure(module), task.pack_key()), {})
        of_structure.setdefault(module, (architecture, task))
    for key, found in groups.items():
        sound = _SOUND.setdefault(key, set())
        if found.keys() <= sound:
            continue
        first, (architecture, task) = next(iter(found.items()))
        if not sound:
            _require_none(architecture, _faults(architecture, first, task))
            require_true_fields(architecture, task)
        every = sound | found.keys()
        for module in every:
            _require_none(architecture, _find_size_faults(module, task, every))
        sound.update(found)


def _require_none(architecture: Architecture, lines: Iterable[str]) -> None:
    for line in lines:
        raise UserError(f"architecture {architecture.name}: {line}")


# Modules of a structure and a task that were checked.
_SOUND: dict[tuple[Module, Any], set[Module]] = {}


@functools.lru_cache(maxsize=4096)
def require_true_fields(architecture: Architecture, task: Task) -> None:
    """Raises UserError for a field whose value the module does not have, in labels and ranks."""
    if not own_code.in_tree(type(architecture)):
        for line in _find_dropped(architecture, task):
            raise UserError(f"architecture {architecture.name}: {line}")


def small_tasks() -> Iterator[Task]:
    """Small tasks, of every question that tasks of memobench ask."""
    for name, sizes in _SMALL:
        yield Task.get_kind(name)(**sizes)


def _build(architecture: Architecture, task: Task | None) -> tuple[Module, Task]:
    require(
        isinstance(architecture, Architecture),
        f"architecture must be an Architecture, got {short_repr(architecture)}. Give one, such as "
        "MLP(d_mlp=8)",
    )
    require(
        task is None or isinstance(task, Task),
        f"task must be a Task, got {short_repr(task)}. Give one, such as "
        "Associations(vocab_size=10)",
    )
    check_code(x for x in (architecture, task) if x is not None)
    if task is not None:
        return architecture.module_for(task), task
    errors = []
    for each in small_tasks():
        if each.question in architecture.answers:
            try:
                return architecture.module_for(each), each
            except UserError as error:
                errors.append(str(error))
    if len(set(errors)) == 1 and len(errors) > 1:  # It is not for the tasks that it fails.
        raise UserError(errors[0])
    raise UserError(f"architecture {architecture.name} serves none of the small tasks; give task")


def _shapes(module: Module, task: Task) -> Iterator[str]:
    """Wrong shapes and types of outputs."""
    expected = task.output_shapes
    found = jax.eval_shape(
        lambda variables, data: module.apply(variables, *task.inputs(data, jnp.int32(0))),
        models.shapes(module, task.context_length),
        task.shapes(),
    )
    if not isinstance(found, jax.ShapeDtypeStruct):
        yield "its output is not an array; return logits"
    elif expected and found.shape not in expected:
        right = " or ".join(map(str, expected))
        yield f"its output has shape {found.shape}, and the task asks for {right}; fix the last map"
    elif not jnp.issubdtype(found.dtype, jnp.floating):
        yield f"its output is {found.dtype}; return floats"


@contextlib.contextmanager
def _name_module(whose: str, module: Module, task: Task) -> Iterator[None]:
    """`name_source`, with a line of its own for a module that was written for a batch."""
    try:
        with name_source(whose):
            yield
    except UserError as error:
        if error.__cause__ is not None and _reads_batch(module, task):
            said = str(error).removesuffix("; fix it")
            raise UserError(f"{said}: {_ONE_EXAMPLE}") from error.__cause__
        raise


_ONE_EXAMPLE = "it must read one example, got one that reads a batch. Leave the batch axis out"


def _find_batch_axis(module: Module, task: Task) -> Iterator[str]:
    """A line where a module reads a batch; with one example it may fail, or mistake its axes."""
    if _reads_batch(module, task):
        yield _ONE_EXAMPLE


def _reads_batch(module: Module, task: Task) -> bool:
    """True where a batch gives as many outputs, and other ones than its examples one by one."""
    # More examples than tokens: no axis is mistaken for another.
    examples = range(task.context_length + 1)
    key, data = jax.random.key(0), jax.tree.map(np.asarray, task.sample())
    alone = [task.inputs(data, jnp.int32(i % task.n_examples)) for i in examples]
    batch = jax.tree.map(lambda *x: jnp.stack(x), *alone)
    try:
        shape = jax.eval_shape(lambda: module.init_with_output(key, *batch))[0].shape
        if shape not in {(len(examples), *each) for each in task.output_shapes}:
            return False
        outputs, variables = module.init_with_output(key, *batch)
    except Exception:  # A module for one example may do as it likes with several.
        return False
    try:
        found = [np.asarray(module.apply(variables, *each)) for each in alone]
    except Exception:
        return True
    return not _close(outputs, np.stack(found))


def _parameters(module: Module, task: Task) -> Iterator[str]:
    """Faults of initial parameters, found in one pass over the tree's leaves."""
    flat = jax.tree_util.tree_flatten_with_path
    params, again = (flat(draw(module, task)["params"])[0] for draw in (_draw_first, _redraw))
    if not params:
        yield "it must have parameters, got none; without, nothing is memorized"
    for (path, x), (_, other) in zip(params, again, strict=True):
        name, keys = jax.tree_util.keystr(path, simple=True, separator="/"), [*map(_key, path)]
        if not all(NAME.holds(key) and key != "__metadata__" for key in keys):
            yield (
                f"the parameter {short_repr(name)} must be an array, and it and the modules around "
                f"it must each have {NAME.description}; rename it"
                + "; nn.WeightNorm names its scale so: write it as a parameter of your own"
                * any("/" in str(key) for key in keys)
            )
        elif x.dtype != np.float32:
            yield (
                f"the parameter {name!r} must be float32, got {x.dtype}; give self.param "
                "jnp.float32, or a layer of Flax param_dtype=jnp.float32"
            )
        elif not np.isfinite(x).all():
            found = x[~np.isfinite(x)][0]
            yield f"the parameter {name!r} must start finite, got {found}; fix its initializer"
        elif not np.array_equal(x, other):
            yield (
                f"the parameter {name!r} must follow from the key, got other numbers each time; "
                "draw it with jax.random from the key that its initializer is given"
            )


def _key(key: Any) -> Any:
    """A parameter's or a module's name; None of what is a part of a tuple, say."""
    return key.key if isinstance(key, jax.tree_util.DictKey) else None


def _draw_first(module: Module, task: Task) -> Any:
    return _draw(module, task, 0)


def _redraw(module: Module, task: Task) -> Any:
    """Initial variables of the same key, by a program that is traced anew.

    It is compiled only where it differs from another: NumPy's numbers, say, are constants of it.
    """
    if module.parameters() is not None:
        return _draw_first(module, task)
    length, key = task.context_length, jax.random.key(0)
    one, other = (models.initializer(module, length).lower(key) for _ in range(2))
    if one.as_text() == other.as_text():
        return _draw_first(module, task)
    return jax.tree.map(np.asarray, other.compile()(key))


def _find_uncounted(module: Module, task: Task) -> Iterator[str]:
    """Arrays that are used and not counted as parameters."""
    shapes = models.shapes(module, task.context_length)
    for name in shapes.keys() - {"params", "constants"}:
        yield f"its variables have a collection {name!r}, which is neither trained nor counted"
    used = sum(x.size for x in jax.tree.leaves(shapes["params"]))
    counted, _ = models.count_parameters(module, task.context_length)
    if used != counted:
        yield f"its model has {used} parameters and its table lists {counted}; list all of them"
    first, second = (_draw(module, task, seed)["constants"] for seed in (0, 1))
    if not all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(second))):
        yield "its constants are drawn at random; make them parameters, which are counted"


def _check_predictions(module: Module, task: Task) -> Iterator[str]:
    """Numbers by which packs are planned and rows counted, that are not numbers."""
    counts = models.counts(module, task)
    if counts["degrees_of_freedom"] is None:  # Not all modules have a formula for them.
        del counts["degrees_of_freedom"]
    for name, value in {
        "work": module.work(task.n_examples, task.context_length),
        "activations": module.activations(),
        **counts,
    }.items():
        domain = float_between(0)
        if not domain.holds(value):
            yield f"its {name} must be {domain.description}, got {short_repr(value)}; fix it"
        elif name == "work" and value == 0:
            yield "its work must be above 0, got 0: packs are planned by it; fix it"


def _outputs(module: Module, task: Task) -> Iterator[str]:
    """Outputs that do not follow from weights and tokens, and what is not finite at first."""
    variables = _draw_first(module, task)
    params, rest = variables["params"], {k: v for k, v in variables.items() if k != "params"}
    given = rest, jax.tree.map(np.asarray, task.sample())
    # A function of its own for each, as JAX traces one function once.
    one, other = (
        jax.jit(lambda *x: _differentiate(module, task, *x)).lower(params, *given) for _ in range(2)
    )
    run = functools.partial(jax.stages.Lowered.compile, compiler_options=models.RUNS_BRIEFLY)
    compiled = run(one)
    # NumPy's numbers are constants of a program, as are those of Python.
    if one.as_text() != other.as_text():
        # The initial ones may hide them, where a map starts at zero.
        random = jax.tree.map(np.float32, _randomize(module, task)["params"])
        outputs, others = (
            np.asarray(each(random, *given)[0][1]) for each in (compiled, run(other))
        )
        if not np.allclose(outputs, others, 0, _OFF * np.abs(outputs).max(), equal_nan=True):
            yield (
                "its outputs must follow from weights and tokens, got others each time that the "
                "module was traced; leave NumPy's random numbers and Python's counters out of it"
            )
            return
    (_, outputs), gradient = compiled(params, *given)
    for what, arrays in (("outputs", [outputs]), ("gradient", jax.tree.leaves(gradient))):
        x = np.concatenate([np.ravel(each) for each in arrays])
        if not np.isfinite(x).all():
            found = x[~np.isfinite(x)][0]
            yield f"its {what} must be finite with initial weights, got {found}; fix what makes it"
            return


def _find_dropped(architecture: Architecture, task: Task) -> Iterator[str]:
    """Fields of the spec that its method `module` does not pass on."""
    names = {x.name for x in fields(type(architecture))} - {"code"}
    # Every architecture has a width, also those whose module has no use for it.
    if not hasattr(architecture.module_for(task), "d_model"):
        names.remove("d_model")
    for name in sorted(names):
        # A field may count only beside others, such as an activation where there are neurons.
        near = (x for other in names for x in _vary(architecture, other, task))
        if all(_is_dropped(x, name, task) for x in (architecture, *near)):
            code = inspect.unwrap(type(architecture).module).__code__
            yield (
                f"{name} {_IGNORED} ({code.co_filename}, line {code.co_firstlineno}); give it to "
                "the module or leave it out"
            )


_IGNORED = "changes nothing: neither parameters nor outputs"


def _is_dropped(architecture: Architecture, name: str, task: Task) -> bool:
    """True where the module is the same with other values of a field."""
    module = architecture.module_for(task)
    others = [x.module_for(task) for x in _vary(architecture, name, task)]
    return bool(others) and all(x == module for x in others)


def _vary(architecture: Architecture, name: str, task: Task) -> Iterator[Architecture]:
    """Architectures with other values of a field that serve the task."""
    value = getattr(architecture, name)
    made, *choices = {x.name: x for x in fields(type(architecture))}[name].domain.made or (None,)
    others: Any = choices if made is one_of else ()
    if isinstance(value, int | float):
        others = [not value] if type(value) is bool else [value + 1, 2 * value, value - 1, 1]
    for other in others:
        if other == value:
            continue
        with contextlib.suppress(Exception):  # A user's code may refuse a value as it likes.
            varied = architecture.replace(**{name: other})
            varied.module_for(task)
            yield varied


def _find_ignored(architecture: Architecture, module: Module, task: Task) -> Iterator[str]:
    """Sizes of the spec that change neither parameters nor outputs."""
    for name in _sizes(architecture):
        other = _resize(architecture, name, task)
        if other is None:
            continue
        same = models.shapes(module, task.context_length) == models.shapes(
            other, task.context_length
        )
        if same and _same_outputs(module, other, task):
            yield f"{name} {_IGNORED}; use it or leave it out"


def _sizes(spec: Architecture | Task) -> dict[str, int]:
    values = {x.name: getattr(spec, x.name) for x in dataclasses.fields(spec)}
    return {name: size for name, size in values.items() if type(size) is int}


def _resize(architecture: Architecture, name: str, task: Task) -> Module | None:
    for other in _vary(architecture, name, task):
        with contextlib.suppress(Exception):  # A user's code may refuse a size as it likes.
            module = other.module_for(task)
            models.shapes(module, task.context_length)
            return module
    return None


def _same_outputs(module: Module, other: Module, task: Task) -> bool:
    params = _randomize(module, task)["params"]
    outputs = []
    for each in (module, other):
        variables = {**_draw(each, task, 0), "params": params}
        outputs.append(_value_and_gradient(each, task, variables)[0])
    return bool(np.array_equal(*outputs))


def _padding(module: Module, task: Task) -> Iterator[str]:
    """Sizes in `paddable` whose padding changes outputs or gradients."""
    # Sizes of the task change what is read and answered. Others may follow from those of the spec.
    names = [name for name in module.paddable if name not in _sizes(task)]
    larger: dict[str, Any] = {name: getattr(module, name) + _MORE for name in names}
    if not names or _same_when_padded(module, task, larger):
        return
    # Which of them it is.
    wrong = [x for x in names if not _same_when_padded(module, task, {x: larger[x]})] or names
    yield (
        f"padding {', '.join(wrong)} with zeros changes its function or gradient; leave it out of "
        "paddable of the module"
    )


def _find_size_faults(module: Module, task: Task, others: set[Module]) -> Iterator[str]:
    """Faults of one size of a structure: its shapes, and padding to the largest of others.

    Only where it is the least of them in a size: what depends on sizes shows between the ends.
    """
    with _name_module("its module", module, task):
        yield from _shapes(module, task)
        largest = models.enclose(list(others))
        names = [name for name in module.paddable if name not in _sizes(task)]
        larger: dict[str, Any] = {name: getattr(largest, name) for name in names}
        is_least = any(
            getattr(module, name) == min(getattr(other, name) for other in others) < larger[name]
            for name in names
        )
        if is_least and not _same_when_padded(module, task, larger):
            sizes = ", ".join(f"{x}={getattr(module, x)} to {larger[x]}" for x in names)
            yield (
                f"padding {sizes} with zeros changes its function or gradient; leave what does "
                "out of paddable of the module"
            )


def _same_when_padded(module: Module, task: Task, larger: dict[str, Any]) -> bool:
    padded = module.clone(**larger)
    variables = _randomize(module, task)
    target = models.shapes(padded, task.context_length)
    outputs, gradient = _value_and_gradient(module, task, variables)
    others, of_padded = _value_and_gradient(padded, task, models.pad_to(variables, target))
    # The gradient of what is padded is zero: so it stays.
    same = jax.tree.map(_close, models.pad_to(gradient, target["params"]), of_padded)
    return _close(outputs, others) and all(jax.tree.leaves(same))


def _close(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and bool(
        np.abs(a - b).max(initial=0) <= _OFF * np.abs(a).max(initial=1)
    )


@functools.lru_cache(maxsize=64)
def _draw(module: Module, task: Task, seed: int) -> Any:
    return models.init_on_host(module, task.context_length, jax.random.key(seed))


def _randomize(module: Module, task: Task) -> Any:
    """Variables in which no parameter is zero."""
    random, variables = np.random.default_rng(0), _draw(module, task, 0)
    params = jax.tree.map(lambda x: random.standard_normal(x.shape), variables["params"])
    return {**variables, "params": params}


def _value_and_gradient(module: Module, task: Task, variables: Any) -> tuple[Any, Any]:
    """Outputs of a few examples, and the gradient of a fixed mix of them by the parameters."""
    data = jax.tree.map(np.asarray, task.sample())
    with jax.enable_x64(True):
        params, rest = variables["params"], {k: v for k, v in variables.items() if k != "params"}
        found = _differentiate_once(module, task, *precision.cast((params, rest, data)))
        (_, outputs), gradient = found
        require(np.isfinite(outputs).all(), f"{type(module).__name__}: outputs are not finite")
        return np.asarray(outputs), jax.tree.map(np.asarray, gradient)


def _differentiate(module: Module, task: Task, params: Any, rest: Any, data: Any) -> Any:
    def mix(params: Any) -> Any:
        outputs = _of_few(module, task, {**rest, "params": params}, data)
        return (
            outputs * jnp.sin(1 + jnp.arange(outputs.size)).reshape(outputs.shape)
        ).sum(), outputs

    return jax.value_and_grad(mix, has_aux=True)(params)


# Traced once for each module.
_differentiate_once = functools.partial(
    jax.jit, static_argnums=(0, 1), compiler_options=models.RUNS_BRIEFLY
)(_differentiate)


def _of_few(module: Module, task: Task, variables: Any, data: Any) -> jax.Array:
    """Outputs of the first few examples."""

    def one(i: jax.Array) -> Any:
        return module.apply(variables, *task.inputs(data, i))

    return jax.vmap(one)(jnp.arange(min(_EXAMPLES, task.n_examples)))
