"""The text of code that runs, the names that it reads, and the files of modules."""

import __future__

import ast
import contextlib
import dis
import functools
import importlib.util
import io
import linecache
import os
import pathlib
import tokenize
import warnings
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from memobench.common.errors import UserError

_STDLIB = pathlib.Path(os.__file__).resolve().parent
_FLAGS = sum(getattr(__future__, x).compiler_flag for x in __future__.all_feature_names)
# Those of f-strings are in parts, from Python 3.12 on.
_STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
_AT_START = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
_READING = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


class Names(NamedTuple):
    """The names in code.

    Attributes:
      globals: those of globals that it reads.
      every: those of globals and attributes.
      imports: module, level and names of each import.
    """

    globals: frozenset[str]
    every: frozenset[str]
    imports: tuple[tuple[str, int, tuple[str, ...]], ...]


class File(NamedTuple):
    """The code of a whole file, and the first and last line of each function in it."""

    code: CodeType
    functions: tuple[tuple[int, int], ...]


@functools.lru_cache(maxsize=4096)
def names(code: CodeType) -> Names:
    """The names in code and in all code within it."""
    reads, imports = set(), []
    for each in _walk(code):
        steps = [x for x in dis.get_instructions(each) if x.opname != "EXTENDED_ARG"]
        reads |= {x.argval for x in steps if x.opname in _READING}
        for level, given, step in zip(steps, steps[1:], steps[2:], strict=False):
            if step.opname == "IMPORT_NAME":
                imports.append((step.argval, level.argval, given.argval or ()))
    every = frozenset(name for each in _walk(code) for name in each.co_names)
    return Names(frozenset(reads), every, tuple(imports))


# What was found is kept: the file may be edited while its code runs.
@functools.lru_cache(maxsize=4096)
def text(code: CodeType) -> str:
    """The lines of a function, without comments, blank lines and spaces at the ends of lines.

    Raises:
      UserError: they are missing, or of a file that was edited after it was loaded, so that what
        runs is not what is written there.
    """
    lines = lines_of(code.co_filename)
    parsed = file("".join(lines), code.co_flags & _FLAGS)
    named = [x for x in _walk(parsed.code) if x.co_name == code.co_name] if parsed else []
    found = next((x for x in named if _content(x) == _content(code)), None)
    if parsed is None or found is None:
        raise UserError(
            f"the code of {code.co_name} is another in {code.co_filename}, which was edited after "
            "it was loaded; load it again"
            if named
            else f"the source of {code.co_name} is not to be found, so that an edited one would "
            "look the same; put it into a file"
        )
    first = found.co_firstlineno
    last = max(end for start, end in parsed.functions if start == first)
    return _strip_comments(lines[first - 1 : last])


@functools.lru_cache(maxsize=64)
def file(content: str, flags: int = 0) -> File | None:
    """The code and functions of a file's content; None if it is not Python.

    Args:
      content: the text.
      flags: of the compiler, as in a code's `co_flags`.
    """
    flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # As in notebooks.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code = compile(content, "", "exec", flags, dont_inherit=True)
            tree = ast.parse(content)
        except (SyntaxError, ValueError):
            return None
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    functions = [x for x in ast.walk(tree) if isinstance(x, kinds)]
    return File(code, tuple((_first_line(x), x.end_lineno or 0) for x in functions))


def lines_of(name: str) -> list[str]:
    """The lines of a file, or of a cell of a notebook."""
    linecache.checkcache(name)
    return linecache.getlines(name)


@functools.lru_cache(maxsize=4096)
def is_installed(file: str) -> bool:
    """True for a file of Python or of an installed package."""
    path = pathlib.Path(file).resolve()
    return _STDLIB in path.parents or bool({"site-packages", "dist-packages"} & set(path.parts))


def find_spec(module: str) -> Any:
    """The import system's spec of a module; None for a name that it does not find."""
    with contextlib.suppress(Exception):  # To find it may import others.
        return importlib.util.find_spec(module)


def _walk(code: CodeType) -> Iterator[CodeType]:
    """Code and all code within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _walk(inner)


def _content(code: CodeType) -> Any:
    """A value that is equal for code of the same text, wherever it stands."""
    consts = (
        _content(x) if isinstance(x, CodeType) else x if isinstance(x, frozenset) else repr(x)
        for x in code.co_consts
    )
    variables = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return code.co_name, code.co_code, variables, tuple(consts)


def _first_line(function: Any) -> int:
    decorators = getattr(function, "decorator_list", [])
    return min(x.lineno for x in [function, *decorators])


def _strip_comments(lines: list[str]) -> str:
    lines = [line.rstrip("\r\n") for line in lines]
    within, before = set(), tokenize.NEWLINE
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
            row, column = token.start
            if token.type == tokenize.COMMENT:
                lines[row - 1] = lines[row - 1][:column]
            # Spaces and blank lines within a string count, but not those of a docstring.
            elif token.type in _STRINGS and before not in _AT_START:
                within |= {*range(row - 1, token.end[0] - 1)}
            before = token.type
    except (tokenize.TokenError, SyntaxError):
        pass  # A part of a statement, as lambdas are: then all of it counts.
    stripped = enumerate(x if row in within else x.rstrip() for row, x in enumerate(lines))
    return "\n".join(line for row, line in stripped if line or row in within)
