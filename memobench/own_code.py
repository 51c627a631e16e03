"""What users' kinds do, as a word of their ids: a hash of their source, or a version they declare.

Kinds of memobench have versions of memobench. A user edits a file and runs it again under the old
name: with its code in its id, an edited kind is another one, and nothing old is taken for new.

The source of a kind is its class and what that names: functions, classes and values at the top of
its file, and of other files of the same folder or package from which it imports them; of files that
it imports whole all counts. Comments, blank lines and everything else may change. Imports no JAX.
"""

import ast
import functools
import hashlib
import importlib.util
import inspect
import io
import linecache
import os
import pathlib
import sys
import tokenize
import weakref
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from memobench.columns import NAME
from memobench.errors import UserError

_DIGITS = 12


_PACKAGE = os.path.dirname(__file__) + os.sep
_FILES: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def note_file(cls: type, file: str) -> None:
    """Keeps the file of the code that registers a kind; `__module__` is what a kind says."""
    _FILES[cls] = file


def file_of(cls: type) -> str:
    """The file that registered a kind, or what stands in its place where that is none."""
    return _FILES.get(cls, "")


def in_tree(cls: type) -> bool:
    """Whether a kind is memobench's own: a file of the package registered it."""
    return file_of(cls).startswith(_PACKAGE)


def of(cls: type) -> str:
    """The word for a class: `version-` and its own `version`, or `code-` and a hash.

    Raises UserError where neither is to be had.
    """
    if version := vars(cls).get("version"):
        return f"version-{NAME.checked('version', version)}"
    parts = dict(_parts(cls))
    if not parts:
        raise UserError(
            f"the source of {cls.__qualname__} is not to be found, so that an edited one would "
            "look the same; put it into a file, or give the class version = '1'"
        )
    text = "\n".join(sorted(parts.values()))
    return f"code-{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"


def files(cls: type) -> set[str]:
    """The files in which a class and what it rests on are written."""
    return {file for (file, _), _ in _parts(cls)}


def _parts(cls: type) -> Iterator[tuple[tuple[str, str], str]]:
    """File, name and text of everything that a class rests on."""
    home = _home(cls)
    folder = _folder(home[0]) if home else None
    waiting = [home] if home else []
    seen = set()
    while waiting:
        file, names, root = waiting.pop()
        if (file, root) in seen:
            continue
        seen.add((file, root))
        found = [_imported(file, root, names)]
        if found == [None]:
            text, used = _source(_text(file), root)
            yield (file, root), text
            found = [_home(names.get(x)) or _imported(file, x, names) for x in used]
        waiting += [x for x in found if x and _own(x[0], folder)]


# A file, the names that are seen in it, and which of them is meant; "" for all.
_Home = tuple[str, dict[str, Any], str]


def _root(thing: Any) -> str:
    return "" if isinstance(thing, ModuleType) else thing.__qualname__.partition(".")[0]


def _imported(file: str, name: str, names: dict[str, Any]) -> _Home | None:
    """Where a name comes from that a file has imported: values do not know it themselves."""
    # Files that only functions import may not be loaded yet: then they have no names.
    loaded = _body(_text(file)) if "__name__" in names else []
    for statement in _imports(_text(file)):
        for bound, origin, root in _bound(statement, names):
            if statement in loaded:
                module = sys.modules.get(origin)
                source, seen = getattr(module, "__file__", None), vars(module) if module else {}
            else:
                source, seen = _beside(file, origin), {"__package__": origin.rpartition(".")[0]}
            if source and root == "*" and name in seen:
                return source, seen, name
            if source and bound == name:
                return source, seen, root
    return None


def _bound(
    statement: ast.Import | ast.ImportFrom, names: dict[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """The names that a statement gives, the module of each, and what it is there; "" for all."""
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            yield alias.asname or alias.name, _absolute(statement, names), alias.name
        else:
            yield alias.asname or alias.name.partition(".")[0], alias.name, ""


def _absolute(statement: ast.ImportFrom, names: dict[str, Any]) -> str:
    """The full name of the module that a file imports from; empty where it can have none."""
    relative = "." * statement.level + (statement.module or "")
    package = names.get("__package__") if statement.level else None
    try:
        return importlib.util.resolve_name(relative, package)
    except ImportError:
        return ""


def _beside(file: str, module: str) -> str | None:
    """The file of a module in the folder or the package of another file."""
    folder = _folder(file)
    for base in (folder, folder.parent) if folder and module else ():
        path = base.joinpath(*module.split("."))
        for source in (path.with_suffix(".py"), path / "__init__.py"):
            if source.is_file():
                return str(source)
    return None


def _home(thing: Any) -> _Home | None:
    """The file in which a class, function or module is written, and the names that it sees."""
    if isinstance(thing, ModuleType):
        places = [(getattr(thing, "__file__", None), vars(thing))]
    elif isinstance(thing, FunctionType | type):
        module = sys.modules.get(thing.__module__)
        places = [(getattr(module, "__file__", None), vars(module))] if module else []
        # Cells of notebooks are no modules, but their functions know where they are from.
        each = vars(thing).values() if isinstance(thing, type) else [thing]
        functions = [inspect.unwrap(x) for x in each if isinstance(x, FunctionType)]
        places += [(x.__code__.co_filename, x.__globals__) for x in functions]
        written = [x for x in places if x[0] and _root(thing) in _defined(_text(x[0]))]
        places = written or places
    else:
        return None
    root = _root(thing)
    return next(((file, names, root) for file, names in places if file and _text(file)), None)


def _text(file: str) -> str:
    # All strings that are executed share this name; from Python 3.13 it finds that of `python -c`.
    if file == "<string>":
        return ""
    linecache.checkcache(file)
    return "".join(linecache.getlines(file))


def _folder(file: str) -> pathlib.Path | None:
    """The package of a file, or the folder of one that is in none; None for no file on disk."""
    if not os.path.exists(file):
        return None
    folder = pathlib.Path(file).resolve().parent
    while (folder / "__init__.py").exists() and (folder.parent / "__init__.py").exists():
        folder = folder.parent
    return folder


def _own(file: str, folder: pathlib.Path | None) -> bool:
    """Whether a file is the user's, as the kind's is, and no library."""
    if not os.path.exists(file):
        return True  # A cell of a notebook.
    path = pathlib.Path(file).resolve()
    if folder is None or folder not in path.parents:
        return False
    below = path.relative_to(folder).parts
    ours = pathlib.Path(__file__).resolve().parent in path.parents
    return not ours and "site-packages" not in below


@functools.lru_cache(maxsize=64)
def _body(text: str) -> list[ast.stmt]:
    """The statements of a file; none if it is not Python."""
    try:
        return ast.parse(text).body
    except SyntaxError:
        return []


@functools.lru_cache(maxsize=64)
def _imports(text: str) -> list[ast.Import | ast.ImportFrom]:
    """What a file imports, at its top and within functions."""
    each = (x for statement in _body(text) for x in ast.walk(statement))
    return [x for x in each if isinstance(x, ast.Import | ast.ImportFrom)]


@functools.lru_cache(maxsize=64)
def _defined(text: str) -> dict[str, list[ast.stmt]]:
    """Statements at the top of a file by the names that they define."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in _body(text):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = {statement.name}
        else:
            stored = (x for x in ast.walk(statement) if isinstance(x, ast.Name))
            names = {x.id for x in stored if isinstance(x.ctx, ast.Store)}
        for name in names:
            found.setdefault(name, []).append(statement)
    return found


@functools.lru_cache(maxsize=256)
def _source(text: str, root: str) -> tuple[str, list[str]]:
    """What a name rests on in its file, and the names from elsewhere; all where it has no such."""
    defined = _defined(text)
    if root not in defined:
        used = {x.id for top in _body(text) for x in ast.walk(top) if isinstance(x, ast.Name)}
        return _plain(text), sorted(used - defined.keys())
    waiting, taken, elsewhere = [root], {}, set()
    while waiting:
        name = waiting.pop()
        for statement in defined.get(name, ()):
            if id(statement) in taken:
                continue
            taken[id(statement)] = statement
            used = {x.id for x in ast.walk(statement) if isinstance(x, ast.Name)}
            waiting += used & defined.keys()
            elsewhere |= used - defined.keys()
    lines = text.splitlines()
    parts = (
        "\n".join(lines[_first(x) - 1 : x.end_lineno])
        for x in sorted(taken.values(), key=lambda x: x.lineno)
    )
    return "\n".join(map(_plain, parts)), sorted(elsewhere)


def _first(statement: Any) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min(x.lineno for x in [statement, *decorators])


def _plain(text: str) -> str:
    """The text without comments, blank lines and spaces at the ends of lines."""
    lines = text.splitlines()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column]
    except (tokenize.TokenError, SyntaxError):
        pass  # No Python: then all of it counts.
    return "\n".join(line.rstrip() for line in lines if line.strip())
