"""The documentation site: pages of docs/ and of results/, as `make docs` builds them."""

import os
import re
from typing import Any

from docutils import nodes

os.environ.setdefault("JAX_PLATFORMS", "cpu")

project = "memobench"
author = "the authors of memobench"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# The source is the whole repository, so that links are right here and wherever it is browsed.
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/tutorial.ipynb",
    "results/**.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
]
exclude_patterns = [".*", "build", "runs", "tests"]  # Not searched for pages.
smartquotes = False
html_theme = "furo"
html_title = "memobench"
html_copy_source = html_show_copyright = False
myst_heading_anchors = 3
# Its outputs are those that are committed: `make tutorial`.
nb_execution_mode = "off"
# What is returned has no type before a colon, as napoleon would have it.
napoleon_custom_sections = ["Returns"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True


def setup(app: Any) -> None:
    """Connects what this project changes of pages, as Sphinx asks."""
    app.connect("autodoc-process-docstring", _as_restructured_text)
    # After the title is known.
    app.connect("doctree-read", _name_preset, priority=900)


def _name_preset(app: Any, doctree: Any) -> None:
    """Tells pages of one experiment apart in the sidebar, by the preset that has the folder."""
    page = app.env.current_document.docname
    entry = next(app.env.tocs[page].findall(nodes.reference))
    # results/PRESET/PAPER/NAME, where *quick* has no folder.
    for preset in page.split("/")[1:-2]:
        for title in (app.env.titles[page], entry):
            title += nodes.Text(f" ({preset})")


def _as_restructured_text(
    app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]
) -> None:
    """Docstrings name code as Markdown does, between single backticks."""
    # Where a letter follows, as in `Run`s, a mark says that the code has ended.
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)(\w?)", _code, "\n".join(lines))
    lines[:] = text.splitlines()


def _code(found: re.Match[str]) -> str:
    code, letter = found.groups()
    return f"``{code}``" + f"\\ {letter}" * bool(letter)
