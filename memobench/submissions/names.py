"""Names of submitters: whether one could be mistaken for the project's, or for another's."""

import re
import unicodedata

from memobench.columns import require, shown

# Alphabets that are mixed with each other, or with another one, in ordinary names.
_TOGETHER = {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "HANGUL"}
# What looks like the letters of names that are taken, in small or in capital letters: in Cyrillic,
# Greek, Armenian, Hebrew, Georgian, Cherokee, Coptic, in phonetic alphabets and among digits.
_ALIKE = {
    "m": "mмӎμϻⲙꮇ",
    "e": "eеэєҽεɛəⲉꭼ3",
    "o": "oоθοσօסოⲟꮎ0",
    "b": "bвьъбβᖯᏼხ68",
    "n": "nпинлνηոռռⲛ",
    "c": "cсҫϲςⲥꮯ",
    "h": "hнһҺηհիⲏꮋꮒ",
    "y": "yуүγⲩ",
    "u": "uυսμ",
}
# Two letters that look like one.
_PAIRS = {"m": ("rn", "nn")}
_LATIN = re.compile(r"LATIN .*\bLETTER(?: [A-Z]{2,})*? ([A-Z])(?: WITH .*)?$")


def check(name: str, own: str, yours: str) -> None:
    """Raises UserError for a name that mixes alphabets or looks like one that is taken.

    own: the project's, which is no part of a name. yours: the reader's, which is no whole name.
    """
    alphabets = {unicodedata.name(x, "?").split()[0] for x in name if x.isalpha()} - _TOGETHER
    require(
        len(alphabets) < 2 and name == unicodedata.normalize("NFKC", name),
        f"submitter={shown(name)} has letters that look like others; write it in plain ones",
    )
    require(
        any(map(str.isalnum, name)) and not looks_like(name, own),
        f"submitter={shown(name)} is not a name, or looks like the project's own; write yours",
    )
    require(
        not looks_like(name, yours, whole=True),
        f"submitter={shown(name)} is what a board calls its reader; write your name",
    )


def looks_like(name: str, own: str, whole: bool = False) -> bool:
    """Whether a reader could mistake some part of a name, or the whole, for another.

    >>> [looks_like(name, "memobench") for name in ("Ann", "The MemoBénch-team", "rnem0 bench")]
    [False, True, True]
    """
    folded = unicodedata.normalize("NFKD", name.casefold())
    plain = "".join(_base(x) for x in folded if x.isalnum())
    ways = ("|".join((f"[{_ALIKE.get(x, x)}]", *_PAIRS.get(x, ()))) for x in own)
    pattern = re.compile("".join(f"(?:{way})" for way in ways))
    return (pattern.fullmatch if whole else pattern.search)(plain) is not None


def _base(character: str) -> str:
    """A Latin letter without bar, hook or other additions, and in lower case."""
    found = _LATIN.match(unicodedata.name(character, ""))
    return found[1].lower() if found else character
