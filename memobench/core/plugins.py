"""Plugins: files and installed packages of users that define kinds and experiments.

Kinds register themselves when their module is imported; experiments are declared as in
`memobench/experiments`. The module of a file is named by its path below this one, so that any
process which unpickles what the file defines finds the file by that name. Imports no JAX.
"""

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from memobench.common.errors import UserError, in_a_line
from memobench.core import source

# Of the entry points by which a package names its modules.
GROUP = "memobench"
# It makes modules importable below this one, which are where the finder says.
__path__: list[str] = []

_names: list[str] = []


class _Loader(importlib.machinery.SourceFileLoader):
    """Writes nothing beside a file, where a submission has what it lists and no more."""

    def set_data(self, path: Any, data: Any, **options: Any) -> None:
        """Leaves compiled code out."""


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module of a file by the path in its name."""

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See `importlib`."""
        parent, _, name = fullname.rpartition(".")
        if parent != __name__:
            return None
        file = name.replace("%2E", ".").replace("%25", "%")
        # It may import files beside it; what is installed comes first.
        folder = str(pathlib.Path(file).parent)
        if folder not in sys.path:
            sys.path.append(folder)
        loader = _Loader(fullname, file)
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


sys.meta_path.append(_Finder())


def load(
    file: str | os.PathLike[str], register: Callable[[ModuleType], Any] = lambda module: None
) -> Any:
    """Imports a file, once.

    Args:
      file: a Python file of a user's.
      register: what else to do with its module, whose mistakes are the file's too.

    Returns:
      What `register` returns.

    Raises:
      UserError: that fails; one line with file and line.
    """
    path = pathlib.Path(os.path.expanduser(file)).resolve()
    if not path.is_file():
        raise UserError(f"{str(file)!r} is not a file; name one of kinds or experiments")
    # A dot would part the name.
    name = str(path).replace("%", "%25").replace(".", "%2E")
    return _register(f"{__name__}.{name}", path, register)


@functools.cache
def load_installed(register: Callable[[ModuleType], Any]) -> None:
    """Imports the modules that installed packages name in the entry-point group `memobench`."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        _register(entry.module, None, register)


def names() -> tuple[str, ...]:
    """The names of the modules loaded so far; another process has them by importing these."""
    return tuple(_names)


def at_work(modules: Sequence[str], work: Callable[..., Any], *arguments: Any) -> Any:
    """Does work in a process of its own, once it has imported the modules."""
    for name in modules:
        importlib.import_module(name)
    return work(*arguments)


def _register(name: str, path: pathlib.Path | None, register: Callable[[ModuleType], Any]) -> Any:
    try:
        module = _find_loaded(path)
        if not module:
            if path:
                _check_beside(path)
            module = importlib.import_module(name)
        found = register(module)
    except (Exception, SystemExit) as error:
        raise UserError(_line(error, name, path)) from error
    if module.__name__ not in _names:
        _names.append(module.__name__)
    return found


def _find_loaded(path: pathlib.Path | None) -> ModuleType | None:
    """The module that a file is already: one of memobench itself, or what another file imported."""
    for name, module in list(sys.modules.items()):
        # No other process could import a script as what it is in its own.
        if name != "__main__" and getattr(module, "__file__", None) == str(path):
            return module
    return None


def _check_beside(path: pathlib.Path) -> None:
    """Refuses a file that would import a module of another folder than the one beside it."""
    waiting, seen = [path], {path}
    for file in waiting:
        parsed = source.file("".join(source.lines_of(str(file))))
        for module, *_ in source.names(parsed.code).imports if parsed else ():
            top = module.partition(".")[0]
            beside = {path.parent / f"{top}.py", path.parent / top / "__init__.py"} - seen
            beside = {x for x in beside if x.is_file()}
            spec = source.find_spec(top) if beside else None
            origin = (spec and spec.origin) or ""
            is_file = os.path.isfile(origin) and not source.is_installed(origin)
            if is_file and not any(os.path.samefile(origin, x) for x in beside):
                raise UserError(f"{top} is {origin} here, not the one beside it; rename one")
            waiting += beside
            seen |= beside


def _line(error: BaseException, name: str, path: pathlib.Path | None) -> str:
    """A line that says what went wrong, and on which line of the file."""
    where = f"the installed module {name}" if path is None else str(path)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    if isinstance(error, SyntaxError):
        error = type(error)(error.msg)
    return f"{where}{f', line {lines[-1]}' if lines else ''}: {in_a_line(error)}"
