"""The one style of every family and kind of line, for all figures and the page of the board.

Color is the side or the block, the dash its heads or its norm, and a hollow marker a variant: wide
heads and blocks without norms are dashed, compressed heads dotted, blocks with narrow heads hollow,
with one of them dotted, too.
"""

import dataclasses
import itertools
from collections.abc import Iterable
from numbers import Number
from typing import Any

from memobench import claims
from memobench.common import notation

# Okabe and Ito's colors and others between them, darker for contrast on white.
BLUE, ORANGE, GREEN, PINK, OCHRE, INDIGO, RED, GREY, TEAL, BROWN = COLORS = (
    *("#0065a3", "#c24d00", "#007a5a", "#a8487f", "#8a6a00"),
    *("#3a3f8f", "#8c1f28", "#4d5156", "#007f94", "#6f4a2b"),
)
# Of theory and of others' numbers.
FAINT = "0.4"
# Letters of matplotlib; the page of the board has outlines for each (assets/curves.js).
MARKERS = "osD^v<>PXph"
SOLID, DASHED, DOTTED, DASHDOT = "-", "--", ":", "-."
_SVG_DASHES = {SOLID: "none", DASHED: "7 3", DOTTED: "2 3", DASHDOT: "7 3 2 3"}


@dataclasses.dataclass(frozen=True)
class Style:
    """The style of a line and its points."""

    color: Any
    marker: str = "o"
    dash: str = SOLID
    is_hollow: bool = False

    def for_points(self) -> dict[str, Any]:
        """The color and marker, as matplotlib takes them."""
        fill = {"markerfacecolor": "white"} if self.is_hollow else {}
        return {"color": self.color, "marker": self.marker, **fill}

    def for_line(self) -> dict[str, Any]:
        """The same with the dash."""
        return {**self.for_points(), "linestyle": self.dash}

    def for_page(self) -> dict[str, Any]:
        """The same for the scripts of the page of the board."""
        return {
            "colour": self.color,
            "marker": self.marker,
            "dash": _SVG_DASHES[self.dash],
            "hollow": self.is_hollow,
        }


# By the first words of a name; what follows says the dash, or that it is a variant, hollow, as of
# blocks narrow heads are.
_SIDES = {
    "attention alone": Style(BLUE, "o"),
    "MLP": Style(ORANGE, "s"),
    "attention + MLP": Style(GREEN, "D"),
    "ReLU MLP": Style(BROWN, "s"),
}
_BLOCKS = {
    "modern attention alone": Style(BLUE, "p"),
    "SwiGLU block": Style(PINK, "^"),
    "GELU block": Style(OCHRE, "v"),
    "squared ReLU block": Style(INDIGO, "<"),
    "bilinear block": Style(RED, ">"),
    "mixture of 4 experts": Style(TEAL, "P"),
    "product-key memory": Style(GREY, "X"),
}
_DASHES_OF_SIDES = {
    **dict.fromkeys(("narrow head", "narrow heads"), SOLID),
    **dict.fromkeys(("wide head", "wide heads"), DASHED),
    **dict.fromkeys(("compressed head", "compressed heads"), DOTTED),
}
_DASHES_OF_BLOCKS = {"no norm": DASHED}
# Of blocks with one narrow head, by those of blocks with several.
_DASHES_OF_ONE = {SOLID: DOTTED, DASHED: DASHDOT}
_VARIANTS = ("2 layers", "2 per token", "narrow head", "narrow heads")
# Of other columns than the architecture.
OTHERS = {
    "one next token": Style(GREY, "o"),
    "equally likely next tokens": Style(RED, "s"),
    "power law": Style(TEAL, "v"),
    "Dirichlet": Style(INDIGO, "^"),
    **dict(
        zip(
            claims.MADE,
            (
                *(Style(GREY, "X"), Style(RED, "P"), Style(OCHRE, "v"), Style(PINK, "^")),
                *(Style(TEAL, "D"), Style(BLUE, "s", is_hollow=True), Style(BLUE, "o")),
            ),
            strict=True,
        )
    ),
    # From many bits to few: where nothing is lost, the next is drawn on top.
    "float64": Style(INDIGO, "D"),
    "float32": Style(OCHRE, "o", DASHED),
    "bfloat16": Style(TEAL, "s"),
    "int8": Style(PINK, "^"),
    "int4": Style(RED, "v"),
}


def find_declared(name: str) -> Style | None:
    """The style of a family (`names.display_name`), side or other known line; None for others.

    >>> find_declared("MLP, wide head") == find_declared("MLP, wide head, 2 layers")
    False
    """
    if name in OTHERS:
        return OTHERS[name]
    base, *rest = name.split(", ")
    dashes = _DASHES_OF_SIDES if base in _SIDES else _DASHES_OF_BLOCKS
    style, variants = (_SIDES | _BLOCKS).get(base), 0
    for part in rest:
        if style and part in dashes:
            style = dataclasses.replace(style, dash=dashes[part])
        else:
            variants += part in _VARIANTS or 2
            if style and part == "narrow head":
                style = dataclasses.replace(style, dash=_DASHES_OF_ONE[style.dash])
    if style is None or variants > 1:
        return None
    return dataclasses.replace(style, is_hollow=bool(variants))


def styles_of(values: Iterable[Any]) -> dict[Any, Style]:
    """A style for each distinct value, in their order; numbers are from light to dark.

    What is declared has one style everywhere. All others, such as users' own kinds, have what is
    left of the palette, in the order of their names.

    >>> found = styles_of(["mlp", "mine"])
    >>> found["mlp"] == styles_of(["MLP", "attention_only"])["MLP"]
    True
    """
    distinct = sorted(set(values), key=lambda x: (isinstance(x, str), x))
    if distinct and all(isinstance(x, Number) and not isinstance(x, bool) for x in distinct):
        return dict(zip(distinct, ramp(len(distinct)), strict=True))
    known = {x: find_declared(notation.words(x)) for x in distinct}
    taken = {(style.color, style.marker) for style in known.values() if style}
    colors = {color for color, _ in taken}
    # Those of the sides come last.
    in_order = (*COLORS[3:], *COLORS[:3])
    pairs = zip(in_order * len(MARKERS), itertools.cycle(MARKERS), strict=False)
    free = [Style(*pair) for pair in pairs if pair not in taken]
    left = itertools.cycle(sorted(free, key=lambda style: style.color in colors))
    return {x: style or next(left) for x, style in known.items()}


def ramp(n: int) -> list[Style]:
    """So many styles from light to dark, the lightest dark enough on white."""
    import matplotlib

    colormap = matplotlib.colormaps["plasma"]
    places = [0.6 * (n - 1 - i) / max(n - 1, 1) for i in range(n)]
    return [
        Style(colormap(place), marker)
        for place, marker in zip(places, itertools.cycle(MARKERS), strict=False)
    ]
