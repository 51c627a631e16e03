"""The leaderboard's page: what is in it, and that strangers' text stays text."""

import html.parser
import json
import math
import pathlib
import re

import numpy as np
import pandas as pd
import pytest

from memobench.report import html as report
from memobench.report import tables

HOSTILE = [
    "</script><script>document.title='broken'</script>",
    "<!--<script>",
    "<img src=x onerror=\"document.title='broken'\">",
    "\u2028\u2029 & &lt; @@data@@ ${1} \\u003c",
    '=HYPERLINK("https://evil.example")',
    "\u202eright to left, and a lone \ud800",
    "'\"><svg onload=alert(1)>",
]
FAMILIES = {
    "attention-only, full heads": ("attention_only", "full", 0.34, 3.6),
    "attention-only, compressed heads": ("attention_only", "compressed", 0.27, 2.9),
    "MLP": ("mlp", None, 0.41, 4.1),
    "attention + MLP 1:1": ("transformer", "full", 0.38, 3.9),
    "MLP, gated": ("mlp", None, 0.44, 4.3),
}


def sample(n=60, seed=0):
    """A board as one may come to be: families, tracks, budgets and sizes, in two versions."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        family = list(FAMILIES)[i % len(FAMILIES)]
        architecture, heads, associations, bits = FAMILIES[family]
        track = ("trained-published", "trained-exact", "constructed")[i // len(FAMILIES) % 3]
        budget = (1_000, 10_000, 100_000)[i % 3]
        n_params = int(budget * rng.uniform(0.93, 1.02))
        vocab_size = (50, 256)[i // 7 % 2]
        scale = {"trained-published": 0.8, "trained-exact": 1.0, "constructed": 0.4}[track]
        scale *= rng.uniform(0.85, 1.1)
        memorized = associations * scale * n_params
        verdict = "converged"
        if track != "constructed":
            verdict = ("converged", "converged", "not converged", "lower bound")[i % 4]
        trained = track != "constructed"
        row = {
            "version": "v1" if i < n - 8 else "v2",
            "entry": f"{architecture.replace('_', '-')}-{budget // 1000}k-{i:02d}",
            "submitter": ("memobench", "Ana Müller", "J. O'Neil & Sons")[i % 3],
            "track": track,
            "family": family,
            "task": "associations",
            "vocab_size": vocab_size,
            "context_length": 2,
            "n_examples": vocab_size**2,
            "budget": budget,
            "architecture": architecture,
            "heads": heads,
            "activation": "relu" if "MLP" in family else None,
            "d_model": int(rng.integers(4, 40)),
            "d_head": int(rng.integers(4, 40)) if heads else None,
            "n_heads": int(rng.integers(1, 30)) if heads else None,
            "n_layers": 1 + i % 2,
            "d_mlp": int(rng.integers(8, 90)) if "MLP" in family else 0,
            "theorem": None if trained else "Dana 2025, Theorem 1",
            "n_params": n_params,
            "n_params_memory": int(n_params * 0.7),
            "n_params_distinct": int(n_params * 0.9),
            "seeds": 5 if trained else 1,
            "diverged": int(i % 11 == 0),
            "bits": bits * scale * n_params,
            "memorized": memorized,
            "complete_99": memorized * 0.8,
            "complete_100": memorized * 0.72,
            "accuracy": rng.uniform(0.3, 0.95),
            "proven": memorized / rng.uniform(2, 9) if heads else math.nan,
            "steps": 16_384 if trained else 1,
            "verdict": verdict,
            "seconds": rng.uniform(2, 4000),
            "device": ("AMD EPYC", "NVIDIA H200")[i % 2],
            "memobench": "0.9.0",
            "commit": "0f28b31",
            "date": f"2026-0{1 + i % 9}-{10 + i % 19}",
        }
        for measure in (*report.MEASURES, "accuracy"):
            spread = row[measure] * rng.uniform(0.005, 0.05)
            row[f"{measure}_interval"] = spread if trained else math.nan
        rows.append(row)
    return pd.DataFrame(rows)


def sample_curves(seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "group": group,
            "line": family,
            "n_params": int(n_params),
            "accuracy": min(1, rate * n_params / vocab_size**2 * rng.uniform(0.95, 1.05)),
            "interval": rng.uniform(0.005, 0.03) if i % 5 else math.nan,
        }
        for vocab_size, group in (
            (50, "associations, N = 50, published protocol"),
            (256, "associations, N = 256, exact gradient"),
        )
        for family, (*_, rate, _) in FAMILIES.items()
        for i, n_params in enumerate(np.geomspace(vocab_size**2 / 4, vocab_size**2 * 4, 9))
    )


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


def hostile_board():
    n = len(HOSTILE)
    rows = sample(n).assign(version="v1")
    return rows.assign(**{name: HOSTILE for name in report.TEXTS if name != "version"})


def test_data_round_trip():
    board, curves = sample(), sample_curves()
    data = Reader(report.page(board, curves)).data
    assert len(data["board"]) == len(board)
    assert len(data["curves"]) == len(curves)
    for name in (*report.TEXTS, *report.NUMBERS):
        for found, given in zip(data["board"], board[name], strict=True):
            assert found[name] == (None if pd.isna(given) else given)


def test_hostile_text_adds_no_element():
    plain = [tag for tag, _ in Reader(report.page(sample(7), sample_curves())).elements]
    assert plain.count("script") == 2
    board = hostile_board().assign(version=HOSTILE[0])
    curves = sample_curves().assign(group=HOSTILE[1], line=HOSTILE[2])
    page = report.page(board, curves)
    reader = Reader(page)
    told = [tag for tag, _ in reader.elements]
    assert sorted(set(told)) == sorted(set(plain))
    assert {tag: told.count(tag) for tag in ("script", "img", "svg", "style", "meta")} == {
        tag: plain.count(tag) for tag in ("script", "img", "svg", "style", "meta")
    }
    assert reader.data["board"][0]["entry"] == HOSTILE[0]
    assert reader.data["board"][3]["submitter"] == HOSTILE[3]
    assert "\ud800" not in page
    assert "\u2028" not in re.sub(r"<noscript>.*</noscript>", "", page, flags=re.DOTALL)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_embedded_json_cannot_be_left(hostile):
    text = report.embedded([hostile.encode("utf-8", "replace").decode()])
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == [hostile.encode("utf-8", "replace").decode()]


def test_no_address_and_a_strict_policy():
    page = report.page(sample(), sample_curves())
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
    board = sample(4)
    board["bits"] = [math.nan, math.inf, -math.inf, 1e300]
    board["n_params"] = pd.Series([10**400, "many", None, np.int64(7)], dtype=object)
    board["date"] = [pd.NaT, pd.Timestamp("2026-01-02"), None, pd.NA]
    rows = Reader(report.page(board, sample_curves())).data["board"]
    assert [row["bits"] for row in rows] == [None, None, None, 1e300]
    assert [row["n_params"] for row in rows] == [None, None, None, 7]
    assert rows[0]["date"] is None
    assert rows[1]["date"].startswith("2026-01-02")


def test_missing_columns_and_nothing_at_all():
    few = Reader(report.page(pd.DataFrame({"entry": ["a"], "secret": ["b"]}), pd.DataFrame()))
    assert few.data["board"][0]["entry"] == "a"
    assert few.data["board"][0]["bits"] is None
    assert "secret" not in few.data["board"][0]
    page = report.page(pd.DataFrame(), pd.DataFrame())
    assert Reader(page).data == {"board": [], "curves": []}
    assert "No entries yet" in page


def test_readable_without_scripts_and_never_two_versions_in_one_table():
    board = sample().assign(version=["v9"] * 30 + ["v10"] * 30)
    found = report.static(report.typed(board, report.TEXTS, report.NUMBERS))
    tables_ = found.split("<table>")[1:]
    assert ["Board v10" in tables_[0], "Board v9" in tables_[1]] == [True, True]
    for text, version in zip(tables_, ("v10", "v9"), strict=True):
        rows = board[board["version"] == version]
        best = (rows["bits"] / rows["n_params"]).idxmax()
        entries = re.findall(r"<tr><td>([^<]*)", text)
        assert sorted(entries) == sorted(rows["entry"])
        assert entries[0] == rows["entry"][best]
        assert text.count("≥ ") == 4 * (rows["verdict"] == "lower bound").sum()
    assert "J. O&#x27;Neil &amp; Sons" in found


def test_assets_are_what_the_page_asks_for():
    names = {path.name for path in pathlib.Path(report.ASSETS).iterdir()}
    assert names == {"page.html", "page.css", *report.SCRIPTS}


def test_csv_takes_no_formula():
    table = pd.DataFrame(
        {"who": ["=1", "+1", "-1", "@x", "\tx", "\rx", "a=b", None], "x": np.arange(8) - 4.5}
    )
    safe = tables.csv_safe(table)
    assert safe["who"].tolist()[:7] == ["'=1", "'+1", "'-1", "'@x", "'\tx", "'\rx", "a=b"]
    assert safe["who"].isna()[7]
    pd.testing.assert_series_equal(safe["x"], table["x"])
    assert tables.csv_safe(pd.DataFrame()).empty


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
