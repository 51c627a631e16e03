"""Names of functions, openings of docstrings and messages of errors, read from the syntax tree."""

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

import memobench

_PACKAGE = pathlib.Path(memobench.__file__).parent
# Rooms, or files outside of them, whose words are checked. Add yours when it is done.
DONE = (
    "certificates",
    "checks",
    "common",
    "constructions",
    "core",
    "engine",
    "methods",
    "numerics",
    "optimizers",
    "planner",
    "store",
    "tasks",
    "theory",
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


def _nodes(room: str) -> Iterator[tuple[str, ast.AST]]:
    path = _PACKAGE / room
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            yield f"{file.relative_to(_PACKAGE)}:{getattr(node, 'lineno', 1)}", node


@pytest.mark.parametrize("room", DONE)
def test_docstrings_say_what_something_is_without_a_question_word(room):
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    texts = ((at, ast.get_docstring(x)) for at, x in _nodes(room) if isinstance(x, documented))
    assert [
        f"{at} {text.partition('.')[0]}" for at, text in texts if _QUESTIONS.match(text or "")
    ] == []


@pytest.mark.parametrize("room", DONE)
def test_functions_are_no_bare_participles_prepositions_or_adverbs(room):
    functions = ((at, x.name) for at, x in _nodes(room) if isinstance(x, ast.FunctionDef))
    bare = _BARE - _PUBLIC
    assert [f"{at} {name}" for at, name in functions if name.strip("_") in bare] == []


@pytest.mark.parametrize("room", DONE)
def test_messages_say_is_not_a(room):
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
    assert [x for x in texts if re.search(r"\bis none\b| is no ", x)] == []
