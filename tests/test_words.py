"""Names of functions, docstrings and messages of errors, read from the syntax tree."""

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

import memobench

_CHECKOUT = pathlib.Path(memobench.__file__).parents[1]
ROOMS = sorted(
    {
        str(file.parent.relative_to(_CHECKOUT))
        for folder in ("memobench", "experiments")
        for file in (_CHECKOUT / folder).rglob("*.py")
    }
)
_QUESTIONS = re.compile(r"(What|Whether|Who|Whose|Whom|Which|Where|When|How|Why)\b")
# Participles, prepositions, adverbs and adjectives that were names of functions: a name is a verb,
# a noun of what is returned, or a predicate.
_BARE = frozenset(
    """
    above ahead aimed alive always among apart applied approached around arrived at attended
    balanced before beginning below beside best beyond broken built busy by canonical certified
    checked chosen closest compared compiled concluded constructed converged counted decided
    deciding declared dense densest derived disjoint distinct done drawn due earlier either embedded
    enclosing ended escaped evaluated even every exact exactly extended filled finished finite first
    fitted fitting flat folded found fresh full further gated gathered given grouped growing half
    held here hidden hopeless ignored imported initial inside joined judged kept known lacking
    largest latest left listed loaded looking lost made matching measured meeting merged missing
    mixed modelled multiplied named narrow narrowed nearest needed nested noted of on once only
    ordered original orthogonalized others over own packaged padded parsed parted per pinned plain
    plural possible predicted preferred printable printed private promised published quoted random
    real recalled redrawn registered relative renewed reported resized restored resumed rounded same
    satisfying saturated saturating saved scaled seen selected severest shared shown sinusoidal
    smaller smallest some sound sparse stacked started stated static stepped stored submitted summed
    sure tall telling temporary timed together told trained tried turned typical uncounted undecided
    under unreadable unsaturated until unwritable usable varying wanted whitened whole wide wider
    yours
    """.split()
)
# Names that users' files hold.
_PUBLIC = {"always", "canonical", "exact", "held", "nested", "published"}


# "There is no X" is fine; "X is no Y" is "X is not a Y".
_NONE = re.compile(
    r"\b(is|are) none\b(?! of)|(?<!there )(?<!There )\b(is|are) no (?!longer|more|less)"
)
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _nodes(room: str) -> Iterator[tuple[str, ast.AST]]:
    for file in sorted((_CHECKOUT / room).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            yield f"{file.name}:{getattr(node, 'lineno', 1)}", node


def _docstrings(room: str) -> Iterator[tuple[str, ast.AST, str]]:
    for at, node in _nodes(room):
        if isinstance(node, _DOCUMENTED):
            yield at, node, ast.get_docstring(node) or ""


def _fields(node: ast.AST) -> set[str]:
    """The names of a function's arguments, or of a class's fields and arguments."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return {x.arg for x in ast.walk(node.args) if isinstance(x, ast.arg)}
    if isinstance(node, ast.ClassDef):
        made = (x for x in node.body if isinstance(x, ast.FunctionDef) and x.name == "__init__")
        fields = (x.target for x in node.body if isinstance(x, ast.AnnAssign))
        return {x.id for x in fields if isinstance(x, ast.Name)}.union(*map(_fields, made))
    return set()


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_say_what_something_is_without_a_question_word(room):
    texts = ((at, text) for at, _, text in _docstrings(room))
    assert [f"{at} {text.partition('.')[0]}" for at, text in texts if _QUESTIONS.match(text)] == []


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_list_arguments_and_attributes(room):
    """Not "field: text. field: text." outside of a list with a heading."""
    assert [
        f"{at} {name}:"
        for at, node, text in _docstrings(room)
        for name in re.findall(r"(?:^|[.;] )(\w+): ", text, re.MULTILINE)
        if name in _fields(node)
    ] == []


@pytest.mark.parametrize("room", ROOMS)
def test_functions_are_no_bare_participles_prepositions_or_adverbs(room):
    functions = ((at, x.name) for at, x in _nodes(room) if isinstance(x, ast.FunctionDef))
    bare = _BARE - _PUBLIC
    assert [f"{at} {name}" for at, name in functions if name.strip("_") in bare] == []


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_and_messages_say_is_not_a(room):
    def is_message(node: ast.AST) -> bool:
        return isinstance(node, ast.Raise) or (
            isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require"
        )

    texts = [
        f"{at} {text.value}"
        for at, node in _nodes(room)
        if is_message(node)
        for text in ast.walk(node)
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
    ]
    texts += [f"{at} {' '.join(text.split())}" for at, _, text in _docstrings(room)]
    assert [x for x in texts if _NONE.search(x)] == []
