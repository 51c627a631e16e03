"""README and pages: their Python runs, commands and links exist, numbers are the published ones."""

import fnmatch
import pathlib
import re
import shlex

import pytest
from absl.testing import flagsaver

import memobench
from memobench.cli import main as cli
from memobench.experiments.pages import papers, quotes

ROOT = pathlib.Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")


def _blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.S | re.M)


# What is smaller in a page's short form, which shows the same.
SHORTER = {
    "README": [("range(8)", "range(2)"), ("epochs=64", "epochs=4")],
    "extending": [
        ("starts=8", "starts=1, polished=1, adam_steps=20, steps=20"),
        ("epochs=16", "epochs=2"),
        ("(1, 2, 3, 4)", "(1, 2)"),
    ],
}


def _lengths():
    """Each page; where it trains for long, that is a slow test beside one of its short form."""
    for page in PAGES:
        shorter = SHORTER.get(page.stem, [])
        slow = [pytest.mark.slow] if shorter else []
        yield pytest.param(page, [], id=page.stem, marks=slow)
        if shorter:
            yield pytest.param(page, shorter, id=f"{page.stem}-short")


@pytest.mark.parametrize(("page", "shorter"), [*_lengths()])
def test_the_python_of_a_page_runs(page, shorter, tmp_path, monkeypatch, capsys):
    """What runs is marked `python`; what only shows a form is marked otherwise."""
    text = "\n".join(_blocks(page, "python"))
    assert text or page != README
    for long, short in shorter:
        assert text.count(long) == 1
        text = text.replace(long, short)
    monkeypatch.chdir(tmp_path)
    # As who reads the page puts it into a file: kinds have one.
    file = tmp_path / f"{page.stem}.py"
    file.write_text(text)
    exec(compile(text, file, "exec"), {"__name__": f"page_{page.stem}"})
    assert ("print(" in text) == bool(capsys.readouterr().out)


def _commands():
    for page in PAGES:
        for block in _blocks(page, "sh"):
            for line in block.splitlines():
                if words := shlex.split(line, comments=True):
                    yield pytest.param(words, id=f"{page.stem}: {shlex.join(words)}")


@pytest.mark.parametrize("words", [*_commands()])
def test_the_commands_of_readme_and_pages_exist(words):
    program, *rest = words
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
        assert rest[0] in targets
    elif program == "pip":
        (extra,) = re.findall(r"\[(.*)\]", rest[-1])
        extras = (ROOT / "setup.cfg").read_text().split("[options.extras_require]")[1]
        assert re.search(rf"^{extra} =", extras, flags=re.M)
    else:
        assert program == "memobench"
        cli.find()  # Flags that are defined inside the block are gone after it.
        with flagsaver.flagsaver():
            cli.parse(words)


def _anchors(page):
    """What a page's headings are called in links."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for link in _LINK.findall(page.read_text()):
        path, _, anchor = link.partition("#")
        to = page if not path else page.parent / path
        assert link.startswith("https://") or to.exists(), link
        assert not anchor or anchor in _anchors(to), link


def test_every_page_is_in_the_site():
    lines = "".join(_blocks(ROOT / "docs/index.md", r"\{toctree\}")).splitlines()
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*.ipynb")]
    assert {page.stem for page in pages} == {
        *(line for line in lines if "/" not in line and not line.startswith(":")),
        "index",
    }


def test_rows_of_peaks_are_the_published_ones():
    """Every cell of a row is one of the published row with its entry and intervals."""
    page = ROOT / "docs/capacity.md"
    pages = [*ROOT.glob("results/board/peak.md"), *ROOT.glob("results/*/board/peak.md")]
    rows = [row for each in pages for row in each.read_text().splitlines()]
    published = [set(row.strip("| ").split(" | ")) for row in rows if row.startswith("| ")]
    shown = [row for row in page.read_text().splitlines() if re.match(r"\| [^|]* \(d=.*\[", row)]
    assert shown
    for row in shown:
        assert any({*row.strip("| ").split(" | ")} <= cells for cells in published), row


def _quoting():
    """The pages with a mark of something quoted."""
    marks = [f"\n<!-- {name} -->\n" for name in quotes.QUOTES]
    return [page for page in PAGES if any(mark in page.read_text() for mark in marks)]


@pytest.mark.published
@pytest.mark.parametrize("page", _quoting(), ids=lambda page: page.stem)
def test_what_is_quoted_is_what_is_published(page):
    text = page.read_text()
    assert quotes.renew(text) == text, "rows have changed: make docs"


def test_all_papers_and_the_answer_are_quoted_somewhere():
    texts = "".join(page.read_text() for page in _quoting())
    for name in ("answer", *papers.PAPERS):
        assert f"\n<!-- {name} -->\n" in texts
        assert f"\n<!-- /{name} -->\n" in texts


def test_the_readme_is_short():
    text = README.read_text()
    assert len(text.splitlines()) < 130
    answer = text[text.index("## The answer") : text.index("<!-- ratios -->")]
    assert len(answer.split()) <= 142  # With the marks and links of Markdown.


def test_the_citation_is_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {memobench.__version__}\n" in citation


def test_every_published_page_is_on_the_site():
    """Which is built with warnings as errors, by a target of its own."""
    listed = [
        line
        for page in (ROOT / "docs").glob("*.md")
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.S | re.M)
        for line in block.splitlines()
    ]
    for path in (ROOT / "results").glob("**/*.md"):
        name = f"../{path.relative_to(ROOT).with_suffix('')}"
        assert any(fnmatch.fnmatch(name, pattern) for pattern in listed), name
