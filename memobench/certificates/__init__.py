"""Certificates: weights that anyone can run, with all that is needed to count what they know.

A certificate is one safetensors file: float32 parameters by name at their true size, and a line of
JSON that names the task, the architecture and, where only a part of the task's examples is meant,
how many. `counting.certify` draws the task's instance from its seed, runs the model and counts. It
believes nothing else that a file says.

A certificate has exactly one file: equal weights and specs give equal bytes, and a file of other
bytes is refused. Its digest, the SHA-256 of them, therefore names weights and specs.
"""

import dataclasses
import functools
import hashlib
import math
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util

from memobench.common import atomic, folders, strict_json
from memobench.common.errors import (
    UserError,
    escape_unprintable,
    name_place,
    reason,
    require,
    short_repr,
)
from memobench.core import columns
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.module import Module
from memobench.core.spec import MOST_SEED, SPEC_VERSION, check_code
from memobench.core.task import Task

FORMAT = 1
SUFFIX = ".safetensors"
MAX_BYTES = 2**28
_MAX_HEADER = 2**20
# Digits of a digest that a file's name ends with.
_SHORT = 16
# Numbers of an instance, cells to trace, and multiplications of a forward pass over all examples.
_MAX_INSTANCE, _MAX_CELLS, _MAX_WORK = 2**28, 2**22, 1e13

Path = str | os.PathLike[str]
HEAD: dict[str, columns.Domain] = {
    "certificate": columns.constant(FORMAT),
    "spec_version": columns.constant(SPEC_VERSION),
    "task": columns.value_where("the spec of a task", lambda x: isinstance(x, dict)),
    "architecture": columns.value_where("that of an architecture", lambda x: isinstance(x, dict)),
    "first": columns.int_between(1),
    "seed": columns.int_between(0, MOST_SEED),
    "by": columns.text_of(200),
}
OPTIONAL = ("first", "seed", "by")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """Weights, and the task and architecture that they are of.

    Attributes:
      task: that they memorize.
      architecture: of their model.
      params: float32 arrays by name at their true size; those of nested modules have names with
        slashes.
      first: the number of the task's examples, from its first on, that they are meant for; None for
        all.
      seed: of the run, if one made them.
      by: their author, or how they came about.

    Raises:
      UserError: parameters are not finite, or not those of the architecture's model.
    """

    task: Task
    architecture: Architecture
    params: Mapping[str, np.ndarray] = dataclasses.field(repr=False)
    first: int | None = None
    seed: int | None = None
    by: str | None = None

    def __post_init__(self) -> None:
        for name in OPTIONAL:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, HEAD[name].validate(name, value))
        check_code((self.task, self.architecture))
        n_examples = self.task.n_examples
        why = ", and none of its parts is a task" if self.task.slicing_error else ""
        require(
            self.first is None or (not self.task.slicing_error and self.first <= n_examples),
            f"first={self.first}: the task has {n_examples} examples{why}; leave first out",
        )
        require_shapes(self.params, shapes(self.module(), self.task.context_length))
        for name, x in self.params.items():
            require(np.isfinite(x).all(), f"the parameter {short_repr(name)} is not finite")

    def module(self) -> Module:
        """The model.

        Raises:
          UserError: it is too large to be run here.
        """
        module, task = self.architecture.module_for(self.task), self.task
        costs = {
            "cells to trace": (models.cells_to_trace(module, task.context_length), _MAX_CELLS),
            "multiplications": (module.work(task.n_examples, task.context_length), _MAX_WORK),
        }
        for what, (cost, most) in costs.items():
            require(cost <= most, f"its model has {cost:.3g} {what}, more than {most:.3g}")
        return module

    @property
    def n_params(self) -> int:
        """The number of parameters."""
        return sum(x.size for x in self.params.values())

    def variables(self) -> dict[str, Any]:
        """Variables for `module().apply`: parameters, and constants that follow from the sizes."""
        module, length = self.module(), self.task.context_length
        params = traverse_util.unflatten_dict(dict(self.params), sep="/")
        found = {"params": params, "constants": models.constants_of(module, length)}
        return jax.device_put(found)

    def head(self) -> dict[str, Any]:
        """The JSON of the file beside the weights."""
        options: dict[str, Any] = {name: getattr(self, name) for name in OPTIONAL}
        return {
            "certificate": FORMAT,
            "spec_version": SPEC_VERSION,
            "task": self.task.canonical(),
            "architecture": self.architecture.canonical(),
            **{name: value for name, value in options.items() if value is not None},
        }


def make(task: Task, architecture: Architecture, params: Any, **more: Any) -> Certificate:
    """The certificate of a tree of parameters, which become float32.

    Args:
      task: see `Certificate`.
      architecture: see `Certificate`.
      params: a tree of arrays.
      **more: other fields of the certificate.

    Raises:
      UserError: parameters are not finite, or not those of the architecture's model.
    """
    for x, kind in ((task, Task), (architecture, Architecture)):
        name = kind.__name__.lower()
        require(isinstance(x, kind), f"{name} must be of a kind of {name}, got {short_repr(x)}")
    # `np.ascontiguousarray` would make a vector of a scalar.
    arrays = {name: np.asarray(x, np.float32, order="C") for name, x in flatten(params).items()}
    return Certificate(task=task, architecture=architecture, params=arrays, **more)


def flatten(params: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree of parameters by their paths.

    Raises UserError where it is not a dict of real arrays and of such dicts, all with names.
    """
    require(isinstance(params, Mapping), f"params={short_repr(params)} is not a dict of arrays")
    found = dict[str, np.ndarray]()
    for name, x in params.items():
        require(isinstance(name, str), f"a parameter's name must be a text, got {short_repr(name)}")
        if isinstance(x, Mapping):
            found |= {f"{name}/{below}": array for below, array in flatten(x).items()}
            continue
        try:
            found[name] = np.asarray(x)
        except ValueError as error:
            raise UserError(f"the parameter {short_repr(name)} is not an array") from error
        kind = found[name].dtype
        is_real = any(jax.numpy.issubdtype(kind, of) for of in (np.floating, np.integer))
        require(is_real, f"the parameter {short_repr(name)} is of {kind}; give real numbers")
    return found


def encode(certificate: Certificate) -> bytes:
    """The bytes of a certificate's file."""
    text = strict_json.canonical(certificate.head())
    return safetensors.numpy.save(dict(certificate.params), {"memobench": text})


def decode(data: bytes) -> Certificate:
    """The certificate of which `encode` makes these bytes.

    Raises:
      UserError: in one line, for any other bytes.
    """
    head = _head(data)
    task = Task.from_canonical(head["task"])
    architecture = Architecture.from_canonical(head["architecture"])
    size = sum(math.prod(x.shape) for x in jax.tree.leaves(task.shapes()))
    require(size <= _MAX_INSTANCE, f"its task is too large to be drawn: {size:,} numbers")
    try:
        params = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError) as error:
        raise UserError(f"{_DAMAGED} ({short_repr(str(error))[1:-1]})") from error
    options = {name: head.get(name) for name in OPTIONAL}
    found = Certificate(task=task, architecture=architecture, params=params, **options)
    require(encode(found) == data, "its bytes are not those that memobench writes; save it again")
    return found


_DAMAGED = "is not a certificate, or damaged"


def _head(data: bytes) -> dict[str, Any]:
    """The JSON beside the weights, whose fields are checked one by one."""
    size = int.from_bytes(data[:8], "little")
    require(8 + size <= len(data) and size <= _MAX_HEADER, f"{_DAMAGED}: it has no header")
    header = strict_json.parse(data[8 : 8 + size])
    require(isinstance(header, dict), f"{_DAMAGED}: its header is not an object")
    metadata = header.pop("__metadata__", None)
    text = metadata.get("memobench") if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise UserError("is not a certificate of memobench: it names no task")
    for name, tensor in header.items():
        kind = tensor.get("dtype") if isinstance(tensor, dict) else None
        require(
            kind == "F32",
            f"the parameter {short_repr(name)} is {short_repr(kind)}; save it as float32",
        )
    head = strict_json.parse(text.encode())
    require(isinstance(head, dict), f"{_DAMAGED}: its specs are not an object")
    for name in head.keys() - HEAD:
        raise UserError(f"the field {short_repr(name)} is unknown; leave it out")
    for name, domain in HEAD.items():
        require(name in head or name in OPTIONAL, f"{name} is missing; put it in")
        if name in head:
            domain.validate(name, head[name])
    return head


def digest(data: bytes) -> str:
    """The SHA-256 of a file's content, which names it."""
    return hashlib.sha256(data).hexdigest()


def name_of(certificate: Certificate, data: bytes) -> str:
    """The file's name: the architecture's, and the digest's first digits."""
    return f"{certificate.architecture.name}-{digest(data)[:_SHORT]}{SUFFIX}"


def save(certificate: Certificate, folder: Path) -> pathlib.Path:
    """Writes a certificate into a folder, whole or not at all, and returns its path."""
    data = encode(certificate)
    path = pathlib.Path(folder) / name_of(certificate, data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replace(path) as file:
        file.write(data)
    return path


def read(path: Path, follow: bool = True) -> tuple[Certificate, str]:
    """A file's certificate and digest, after all checks.

    Args:
      path: of the file.
      follow: whether the path may be a symbolic link.

    Raises:
      UserError: in one line that begins with the path.
    """
    folders.require_path(path, "path")
    path = pathlib.Path(path)
    with name_place(escape_unprintable(path)):
        try:
            data = strict_json.contents(path, MAX_BYTES, follow)
        except UserError:
            raise
        except (OSError, ValueError) as error:
            raise UserError(f"cannot be read: {reason(error)}") from error
        certificate, found = decode(data), digest(data)
        named = re.fullmatch(rf".*-([0-9a-f]{{{_SHORT}}})", path.stem)
        require(
            named is None or found.startswith(named[1]),
            "its name is not that of its content: it was changed or renamed after it was written",
        )
    return certificate, found


def load(path: Path) -> Certificate:
    """The certificate of a file.

    Raises:
      UserError: in one line, where it is not a certificate.
    """
    return read(path)[0]


@functools.lru_cache(maxsize=1024)
def shapes(module: Module, context_length: int) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter, by name.

    Raises:
      UserError: a name has a slash.
    """
    table = module.parameters()
    if table is None:
        flat = traverse_util.flatten_dict(models.shapes(module, context_length)["params"])
    else:
        flat = {(name,): weight for name, weight in table.items()}
    for path in flat:
        # With one, what is nested in what could not be told.
        slash = any("/" in name for name in path)
        require(not slash, f"the parameter {'/'.join(path)!r} has a slash in its name; rename it")
    return {"/".join(path): tuple(x.shape) for path, x in flat.items()}


def require_shapes(
    params: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises UserError unless the parameters, by flat names, are those of a model."""
    for name in expected.keys() - params:
        raise UserError(f"the parameter {name} is missing; put it in")
    for name, x in params.items():
        require(name in expected, f"the model has no parameter {short_repr(name)}; leave it out")
        require(
            x.shape == expected[name],
            f"the parameter {name} has shape {x.shape}, and the model's has {expected[name]}",
        )
