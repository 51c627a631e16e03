"""The leaderboard's page: what is in it, and that strangers' text stays text."""

import html
import html.parser
import json
import math
import pathlib
import re

import numpy as np
import pandas as pd
import pytest

from memobench.board import table as board
from memobench.report import html as report
from memobench.report import tables
from memobench.report.names import display_name

HOSTILE = [
    "</script><script>document.title='broken'</script>",
    "<!--<script>",
    "<img src=x onerror=\"document.title='broken'\">",
    "\u2028\u2029 & &lt; @@data@@ ${1} \\u003c",
    '=HYPERLINK("https://evil.example")',
    "\u202eright to left, and a lone \ud800",
    "'\"><svg onload=alert(1)>",
]
FAMILIES = (
    "attention-only, full heads",
    "MLP",
    "attention-only, compressed heads",
    "attention + MLP",
    "MLP, 2 layers",
)
TRAINED = ("exact",)


def sample(n=60, seed=0):
    """A board as one may come to be: families on tracks at budgets, by several."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        family, track = FAMILIES[i % 5], list(board.TRACKS)[i // 5 % 4]
        budget = (256, 512, 1024)[i // 20 % 3]
        level = rng.uniform(0.5, 2.5)
        known = track in TRAINED
        # Of another's sweep there are several entries at a budget.
        by = "Ana Müller" if i % 5 == 1 and track == "open" else board.OWN
        row = {
            **{"version": board.VERSION, "budget": budget, "track": track, "by": by},
            **{"family": family, "entry": f"{family} (d={i})", "n_params": budget + i % 7 - 3},
            **{"rank_low": 1 + i % 5, "rank_high": 1 + i % 5 + i % 2, "vocab_size": 32},
            "certified_bits_per_parameter": level + 0.2,
            "certified_set": rng.integers(20, 400),
            "bits_per_byte": level / 1.3,
            "weights": f"board/weights/{i}.safetensors",
            "theorem": "dana2025" if track == "constructed" else None,
            **{"device": ("AMD EPYC", "NVIDIA H200")[i % 2], "memobench": "0.9.0"},
            **{"commit": "0f28b31", "date": f"2026-0{1 + i % 9}-{10 + i % 19}"},
        }
        if known:
            row |= {"set_size": budget // 2, "share_known": 0.9, "tables": 24}
            row |= {"bits_per_degree_of_freedom": 1.2 * level}
            row |= {"overfull_bits_per_parameter": 0.9 * level, "learning_rate": 0.01}
            measures = {"bits_per_parameter": level, "half_99": 99.0 * level}
            for name, value in measures.items():
                row |= {name: value, f"{name}_low": 0.9 * value, f"{name}_high": 1.1 * value}
        rows.append(row)
    return pd.DataFrame(rows, columns=board.names())


class Reader(html.parser.HTMLParser):
    """All elements with their attributes, and the text of scripts, styles and tables."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self._open = [], {}, ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        self._open = attributes.get("id") or tag

    def handle_endtag(self, _):
        self._open = ""

    def handle_data(self, data):
        self.texts.setdefault(self._open, []).append(data)

    @property
    def data(self):
        return json.loads("".join(self.texts["data"]))


TEXTS = [x.name for x in board.COLUMNS.values() if x.digits is None]


def hostile_board(**texts):
    """A board of hostile texts, and of those given."""
    columns = dict.fromkeys(TEXTS, HOSTILE) | texts
    # As objects: with pyarrow, texts of pandas hold no lone surrogates.
    given = {name: pd.Series(cells, dtype=object) for name, cells in columns.items()}
    return sample(len(HOSTILE)).assign(**given)


def test_data_are_texts_and_the_numbers_behind_them():
    made = sample()
    data = Reader(report.page(made)).data
    assert [column["key"] for column in data["columns"]] == ["budget", *board.COLUMNS]
    first = [column["key"] for column in data["columns"] if column["first"]]
    assert first == list(report.FIRST)
    assert len(data["rows"]) == len(made)
    for row, given in zip(data["rows"], made.to_dict("records"), strict=True):
        assert (row["budget"], row["track"]) == (given["budget"], given["track"])
        for name, column in board.COLUMNS.items():
            assert row["text"][name] == column.text(given)
            if column.digits is not None:
                expected = [None if pd.isna(given[x]) else given[x] for x in column.names]
                assert row["range"][name] == expected


def test_entries_are_named_in_plain_words():
    sizes = {"d_model": 4, "d_head": 4, "n_heads": 1, "n_layers": 1, "d_mlp": 8}
    cells = {**sizes, "architecture": "modern", "activation": "gelu", "norm": "none"}
    made = sample(2).assign(**cells, family="modern (norm=none)", entry="modern (norm=none) (d=4)")
    named = report.name_entries(made)
    (family,) = {display_name(row) for row in made.to_dict("records")}
    assert family != "modern (norm=none)"
    assert named["family"].tolist() == [family] * 2
    assert named["entry"].tolist() == [f"{family} (d=4)"] * 2
    # One whose architecture is not said keeps its name.
    assert report.name_entries(sample())["entry"].tolist() == sample()["entry"].tolist()


def test_hostile_text_adds_no_element():
    plain = [tag for tag, _ in Reader(report.page(sample(7), "a", {"b": "c"})).elements]
    assert plain.count("script") == 2
    page = report.page(hostile_board(), HOSTILE[0], {HOSTILE[2]: HOSTILE[1]})
    reader = Reader(page)
    told = [tag for tag, _ in reader.elements]
    assert sorted(set(told)) == sorted(set(plain))
    assert {tag: told.count(tag) for tag in ("script", "img", "svg", "style", "meta")} == {
        tag: plain.count(tag) for tag in ("script", "img", "svg", "style", "meta")
    }
    assert reader.data["rows"][0]["text"]["entry"] == HOSTILE[0]
    assert reader.data["rows"][3]["text"]["by"] == HOSTILE[3]
    assert "\ud800" not in page
    assert "\u2028" not in re.sub(r"<noscript>.*</noscript>", "", page, flags=re.DOTALL)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_embedded_json_cannot_be_left(hostile):
    text = report.embed_json([hostile.encode("utf-8", "replace").decode()])
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == [hostile.encode("utf-8", "replace").decode()]


def test_no_address_and_a_strict_policy():
    page = report.page(sample())
    assert "http" not in page.lower().replace("http-equiv", "")
    assert "//" not in re.sub(r"^\s*// .*$", "", page, flags=re.MULTILINE)
    reader = Reader(page)
    assert not any("src" in attributes for _, attributes in reader.elements)
    assert [a["href"] for tag, a in reader.elements if tag == "link"] == ["data:,"]
    assert not any(
        name.startswith("on") or name == "style" for _, a in reader.elements for name in a
    )
    policies = [
        a["content"]
        for _, a in reader.elements
        if a.get("http-equiv", "").lower() == "content-security-policy"
    ]
    assert len(policies) == 1
    directives = dict(part.split(" ", 1) for part in policies[0].split("; "))
    assert directives["default-src"] == directives["connect-src"] == "'none'"
    assert "unsafe" not in policies[0]
    script, style = "".join(reader.texts["script"]), "".join(reader.texts["style"])
    assert report.policy(script, style) == policies[0]
    assert "innerHTML" not in script


def test_numbers_that_json_has_not():
    made = sample(4)
    made["bits_per_parameter"] = [math.nan, math.inf, -math.inf, 1e300]
    made["n_params"] = pd.Series([6, 5, None, np.int64(7)], dtype=object)
    made["date"] = [pd.NaT, pd.Timestamp("2026-01-02"), None, pd.NA]
    rows = Reader(report.page(made)).data["rows"]
    bits = [row["range"]["bits_per_parameter"][0] for row in rows]
    assert bits == [None, None, None, 1e300]
    assert [row["range"]["n_params"] for row in rows] == [[6], [5], [None], [7]]
    assert rows[0]["text"]["date"] == "–"
    assert rows[1]["text"]["date"].startswith("2026-01-02")


def test_nothing_at_all_is_a_page():
    page = report.page(sample(0))
    assert Reader(page).data["rows"] == []
    assert "No entries yet" in page


def test_readable_without_scripts():
    made = sample()
    found = report.static_tables(made)
    assert found.count("<table>") == made.groupby(["budget", "track"]).ngroups
    assert re.findall(r"<tr><td>[^<]*</td><td>([^<]*)", found) == [
        html.escape(x) for x in made["entry"]
    ]


def test_assets_are_what_the_page_asks_for():
    names = {path.name for path in pathlib.Path(report.ASSETS).iterdir()}
    assert names == {"page.html", "page.css", *report.SCRIPTS}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("attention_only", "attention_only"),
        ("1.9 [1.8, 2.0], x < d, a & b!", "1.9 [1.8, 2.0], x < d, a & b!"),
        ("<b>", r"\<b>"),
        ("&lt;", r"\&lt;"),
        ("_a_ __b__", r"\_a\_ \_\_b\_\_"),
        ("**a** `b` ~~c~~", r"\*\*a\*\* \`b\` \~\~c\~\~"),
        ("![a](b) [c][d]", r"\![a\](b) [c\][d]"),
        ("\\*|\\", r"\\\*\|\\"),
        ("https://x.y www.x.y a@b.c", r"https\://x.y www\.x.y a\@b.c"),
        ("a\r\nb\u2028c", "a b c"),
    ],
)
def test_markdown_cells_are_text(given, told):
    assert tables.markdown(pd.DataFrame({"x": [given]}), {}).splitlines()[2] == f"| {told} |"
