"""The leaderboard as LaTeX: complete, in order, and nothing of strangers' text is a command."""

import math
import re

import pytest

from memobench.report import latex
from tests.report.test_html import HOSTILE, TRAINED, hostile_board, sample


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("a & b % c $ d # e_f {g}", r"a \& b \% c \$ d \# e\_f \{g\}"),
        ("~ ^ \\", r"\textasciitilde{} \textasciicircum{} \textbackslash{}"),
        ('<|>"`', r"\textless{}\textbar{}\textgreater{}\textquotedbl{}\textasciigrave{}"),
        ("[1] *", r"{[}1{]} {*}"),
        ("a-b a---b ,, ''", r"a-b a-{}-{}-b ,{}, '{}'"),
        ("\\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ("a\r\n\tb\u2028c\x00\x1b\u202e", "a b c"),
        ("Ana Müller, Łódź – “x”", "Ana Müller, Łódź – “x”"),
        ("中\U0001f600", "??"),
        ("256‡ †, ∞", r"256\textdaggerdbl{} \textdagger{}, $\infty$"),
        (None, "--"),
        (math.nan, "--"),
    ],
)
def test_text_is_printed_as_it_is(given, printed):
    assert latex.escape(given) == printed


def test_one_table_for_each_budget_and_track():
    made = sample()
    text = latex.booktabs(made)
    found = text.split(r"\begin{table}")[1:]
    groups = made.groupby(["budget", "track"], sort=False)
    assert len(found) == groups.ngroups
    for table, ((budget, track), rows) in zip(found, groups, strict=True):
        assert f"Board v3, {budget:,} parameters: " in table
        assert table.count(r"\toprule") == table.count(r"\end{table}") == 1
        lines = table.split("\\midrule\n")[1].split("\n\\bottomrule")[0].splitlines()
        assert [line.split(" & ")[1] for line in lines] == [
            latex.escape(entry) for entry in rows["entry"]
        ]
        assert len({line.count(" & ") for line in lines}) == 1
        assert ("half know" in table) == (track in TRAINED)
    labels = re.findall(r"\\label\{(.*)\}", text)
    assert len(set(labels)) == len(labels)
    assert all(re.fullmatch("tab:[a-z0-9-]+", label) for label in labels)


def test_no_command_but_ours():
    ours = set(re.findall(r"\\[A-Za-z]+", latex.booktabs(sample())))
    board = hostile_board(entry=[rf"\evil{{{i}}}" for i in HOSTILE])
    text = latex.booktabs(board)
    printed = {rf"\text{name}" for name in "backslash less greater quotedbl bar".split()}
    assert set(re.findall(r"\\[A-Za-z]+", text)) <= ours | printed
    depth = text.replace(r"\{", "").replace(r"\}", "")
    assert depth.count("{") == depth.count("}")


def test_nothing_at_all_is_a_file():
    assert latex.booktabs(sample(0)) == latex.HEAD
