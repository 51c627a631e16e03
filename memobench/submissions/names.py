"""Names of submitters: whether one could be mistaken for the project's, or for another's."""

import re
import unicodedata

from memobench.columns import require, shown

# Alphabets that are mixed with each other, or with another one, in ordinary names.
_TOGETHER = {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "HANGUL"}
# What looks like the letters of the project's name, in small or in capital letters: in Cyrillic,
# Greek, Armenian, Hebrew, Georgian, Cherokee, Coptic, in phonetic alphabets and among digits.
_ALIKE = {
    "m": "mмӎμϻⲙꮇ",
    "e": "eеэєҽεɛəⲉꭼ3",
    "o": "oоθοσօסოⲟꮎ0",
    "b": "bвьъбβᖯᏼხ68",
    "n": "nпинлνηոռռⲛ",
    "c": "cсҫϲςⲥꮯ",
    "h": "hнһҺηհիⲏꮋꮒ",
}
# Two letters that look like one.
_PAIRS = {"m": ("rn", "nn")}
_LATIN = re.compile(r"LATIN .*\bLETTER(?: [A-Z]{2,})*? ([A-Z])(?: WITH .*)?$")


def check(name: str, own: str) -> None:
    """Raises UserError for a name that mixes alphabets or looks like the project's own."""
    alphabets = {unicodedata.name(x, "?").split()[0] for x in name if x.isalpha()} - _TOGETHER
    require(
        len(alphabets) < 2 and name == unicodedata.normalize("NFKC", name),
        f"submitter={shown(name)} has letters that look like others; write it in plain ones",
    )
    require(
        any(map(str.isalnum, name)) and not looks_like(name, own),
        f"submitter={shown(name)} is not a name, or looks like the project's own; write yours",
    )


def looks_like(name: str, own: str) -> bool:
    """Whether a reader could mistake some part of a name for the project's.

    >>> [looks_like(name, "memobench") for name in ("Ann", "The MemoBénch-team", "rnem0 bench")]
    [False, True, True]
    """
    folded = unicodedata.normalize("NFKD", name.casefold())
    plain = "".join(_base(x) for x in folded if x.isalnum())
    ways = ("|".join((f"[{_ALIKE.get(x, x)}]", *_PAIRS.get(x, ()))) for x in own)
    return re.search("".join(f"(?:{way})" for way in ways), plain) is not None


def _base(character: str) -> str:
    """A Latin letter without bar, hook or other additions, and in lower case."""
    found = _LATIN.match(unicodedata.name(character, ""))
    return found[1].lower() if found else character
