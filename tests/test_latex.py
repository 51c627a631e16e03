"""The leaderboard as LaTeX: complete, in order, and nothing of strangers' text is a command."""

import math
import re

import pandas as pd
import pytest

from memobench.report import latex
from tests.test_html import HOSTILE, hostile_board, sample


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
        (None, "--"),
        (math.nan, "--"),
    ],
)
def test_text_is_printed_as_it_is(given, printed):
    assert latex.escaped(given) == printed


def test_one_table_per_version_track_and_vocabulary_best_first():
    board = sample()
    text = latex.booktabs(board)
    found = text.split(r"\begin{table}")[1:]
    groups = board.groupby(["version", "track", "vocab_size"])
    assert len(found) == groups.ngroups
    for table, ((version, track, vocab_size), rows) in zip(found, groups, strict=True):
        assert f"Board {version}, {track}, $N = {vocab_size}$." in table
        assert table.count(r"\toprule") == table.count(r"\end{table}") == 1
        ranked = rows.loc[(rows["bits"] / rows["n_params"]).sort_values(ascending=False).index]
        lines = table.split("\\midrule\n")[1].split("\n\\bottomrule")[0].splitlines()
        entries = [re.split(r" & |\$", line.removeprefix(r"\raggedright "))[0] for line in lines]
        assert entries == ranked["entry"].tolist()
        for line, verdict in zip(lines, ranked["verdict"], strict=True):
            assert (r"$^{\dagger}$" in line) == (verdict == "not converged")
            assert line.count(r"$\geq$") == 4 * (verdict == "lower bound")
            assert line.count(" & ") == 8
    labels = re.findall(r"\\label\{(.*)\}", text)
    assert len(set(labels)) == len(labels)
    assert all(re.fullmatch("tab:[a-z0-9-]+", label) for label in labels)


def test_no_command_but_ours():
    ours = set(re.findall(r"\\[A-Za-z]+", latex.booktabs(sample())))
    board = hostile_board().assign(version=HOSTILE[0], entry=[rf"\evil{{{i}}}" for i in HOSTILE])
    text = latex.booktabs(board)
    printed = {rf"\text{name}" for name in "backslash less greater quotedbl bar".split()}
    assert set(re.findall(r"\\[A-Za-z]+", text)) <= ours | printed
    depth = text.replace(r"\{", "").replace(r"\}", "")
    assert depth.count("{") == depth.count("}")


def test_numbers_are_bounded_and_missing_ones_are_dashes():
    board = sample(3).assign(vocab_size=50, track="constructed", version="v1")
    board["bits"] = [1e300, math.inf, 3.0]
    board["n_params"] = [1, 1, 0]
    text = latex.booktabs(board)
    assert r"$1.00 \times 10^{300}$" in text
    assert "inf" not in text
    assert "nan" not in text


def test_missing_columns_and_nothing_at_all():
    assert latex.booktabs(pd.DataFrame()) == latex.HEAD
    assert r"\raggedright a & \raggedright -- & \raggedright -- & -- & --" in latex.booktabs(
        pd.DataFrame({"entry": ["a"]})
    )
