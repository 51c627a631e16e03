"""Attention or MLP at the best size of set: sentences and table of the published peaks."""

import math
import re

import pytest

from memobench.common import folders
from memobench.methods.thresholds import Estimate
from memobench.report import peak_answer
from memobench.store.published import published


@pytest.fixture(scope="module")
def peaks():
    return peak_answer.name_peaks(published("board/peak"))


def with_bits(found, where, factor):
    """The peaks with those chosen, and their intervals, times a factor."""
    found = found.copy()
    for column in ("bits", "bits_low", "bits_high"):
        found.loc[where, column] *= factor
    return found


def test_a_side_is_its_best_form_at_a_budget(peaks):
    best = peak_answer.find_best(peaks)
    assert list(best) == [256, 512, 1024, 2048, 4096, 8192]
    for budget, rows in best.items():
        of_budget = peaks[peaks["budget"] == budget]
        for side in ("attention alone", "MLP", "attention + MLP"):
            assert rows[side]["bits"] == of_budget["bits"][of_budget["side"] == side].max()
        is_wide = (of_budget["side"] == "attention alone") & (of_budget["heads"] == "full")
        assert rows[peak_answer.WIDE]["bits"] == of_budget["bits"][is_wide].max()
    # Without the best form of attention alone nothing is compared.
    some = peaks[(peaks["side"] != "attention alone") | (peaks["heads"] != "narrow")]
    assert not peak_answer.find_best(some)
    with pytest.raises(ValueError, match="must have all sides"):
        peak_answer.answer(some)


def test_the_answer_says_where_an_order_is_undecided(peaks):
    said = peak_answer.answer(peaks)
    assert said.startswith("Attention alone, with heads narrower than the model, knows ")
    assert " One layer, 256 to 8,192 parameters, best set sizes, " in said
    assert " bits per parameter (undecided at 256, by ranks at 2,048). " in said
    assert "Attention + MLP knows most: " in said
    assert " an equally large MLP's bits (undecided at 256; on as many pairs as " in said
    assert "GELU" not in said
    is_gelu = peaks["model"].map(lambda x: getattr(x, "activation", "gelu") == "gelu")
    some = peak_answer.answer(peaks[is_gelu | (peaks["budget"] < 8192)])
    assert "; GELU alone at 8,192)" in some
    clear = peak_answer.answer(with_bits(peaks, peaks["side"] == "attention + MLP", 1.2))
    # Ranks are those of before.
    assert " bits per parameter (by ranks undecided at 256, 2,048). " in clear
    last = (peaks["side"] == "attention alone") & (peaks["budget"] == 8192)
    near = peak_answer.answer(with_bits(peaks, last, 0.97))
    assert " an equally large MLP's bits (undecided at 256, 8,192; on as many pairs as " in near
    gelu = peaks[[getattr(x, "activation", "gelu") == "gelu" for x in peaks["model"]]]
    assert " an equally large GELU MLP's bits (on as many " in peak_answer.answer(gelu)
    assert "GELU alone" not in peak_answer.answer(gelu)


def test_the_answer_is_by_fresh_label_tables_where_these_are_given(peaks):
    fresh = {
        256: Estimate(1.2, 1.1, 1.3),
        512: Estimate(1.1, 0.9, 1.2),
        8192: Estimate(0.8, 0.7, 0.9),
    }
    said = peak_answer.answer(peaks, fresh)
    assert (
        " knows 0.80 to 1.20 times the best MLP's bits (undecided at 512; less at 8,192; on "
        in said
    )


def test_wide_heads_and_overfull_sets_are_compared_with_the_best_that_was_tried(peaks):
    is_mlp = (peaks["side"] == "MLP") & (peaks["budget"] == 512)
    tried = with_bits(peaks[is_mlp], is_mlp[is_mlp].index, 2.0)
    tried["of_budget"] *= 2.0
    board, wider = (peak_answer.answer(peaks, beyond=x) for x in (None, tried))
    before, after = (
        re.search(r"parameters ([\d.]+) to .* heads ([\d.]+) to", x) for x in (board, wider)
    )
    assert before
    assert after
    for least, halved in zip(before.groups(), after.groups(), strict=True):
        assert float(halved) < float(least)
    assert board.partition("Attention + MLP")[2] == wider.partition("Attention + MLP")[2]


def test_the_answer_says_where_the_first_at_the_largest_budget_knows_less(peaks):
    both = peaks["side"] == "attention + MLP"
    behind = peak_answer.answer(with_bits(peaks, both & (peaks["budget"] == 512), 0.5))
    assert " bits per parameter (undecided at 256, by ranks at 2,048; less at 512). " in behind


def test_the_answer_is_of_the_budgets_and_forms_that_there_are(peaks):
    some = peaks[(peaks["budget"] == 4096)]
    said = peak_answer.answer(some.assign(of_budget=float("nan")))
    assert " One layer, 4,096 parameters, " in said
    assert "()" not in said
    wide = peak_answer.answer(with_bits(some, some["name"] == peak_answer.WIDE, 3))
    assert wide.startswith("Attention alone, by its best form, knows ")


def test_another_design_has_a_sentence(peaks):
    said = peak_answer.answer_for("with none", peaks[peaks["budget"] <= 512])
    start = (
        "With none, at 256 to 512 parameters, attention alone knows 0.99 to 1.06 (undecided at 256)"
    )
    assert said.startswith(f"{start} and attention + MLP 1.05 to 1.16 ")
    assert said.endswith(" times an MLP's bits.")


def test_another_side_may_know_the_most(peaks):
    turned = peak_answer.answer(with_bits(peaks, peaks["side"] == "MLP", 1.6))
    assert ". The MLP knows most: " in turned
    deep = peak_answer.answer(peaks.assign(n_layers=2))
    assert ". 256 to 8,192 parameters, " in deep


def test_the_table_has_a_row_for_each_budget_and_marks_edges(peaks):
    rows = peak_answer.tabulate(peaks).splitlines()
    assert rows[0].startswith("| parameters | attention + MLP | MLP | attention alone | ")
    firsts = [row.split(" | ")[0] for row in rows[2:8]]
    assert firsts == ["| 256", "| 512", "| 1,024", "| 2,048", "| 4,096", "| 8,192"]
    assert f"\n\n{peak_answer.EDGE} " in peak_answer.tabulate(peaks)
    inner = peak_answer.tabulate(peaks.assign(edge_of_sizes=False, edge_of_rates=False))
    assert peak_answer.EDGE not in inner


def test_an_edge_is_not_marked_where_nothing_beyond_it_knows_more(peaks):
    of_mlp = peaks[peaks["run_id"] == peak_answer.find_best(peaks)[512]["MLP"]["run_id"]]
    (row,) = of_mlp.to_dict("records")
    inner = peaks.assign(edge_of_sizes=False, edge_of_rates=False)
    is_mlp = inner["run_id"] == row["run_id"]
    low, high = min(row["rates"]), max(row["rates"])
    for rate, others, factor, is_marked in (
        (high, [high, 2 * high], 0.9, False),
        (high, [high, 2 * high], 1.005, False),
        (high, [high, 2 * high], 1.1, True),
        # The other end, or no end, was passed.
        (high, [low / 2, high], 0.9, True),
        (low, [high, 2 * high], 0.9, True),
        (low, [low / 2, low], 0.9, False),
    ):
        found = inner.assign(
            edge_of_rates=is_mlp, learning_rate=inner["learning_rate"].where(~is_mlp, rate)
        )
        beyond = with_bits(of_mlp, of_mlp["budget"] == 512, factor).assign(rates=[others])
        assert (peak_answer.EDGE in peak_answer.tabulate(found, beyond=beyond)) == is_marked
        # Nor was an end of set sizes.
        found = found.assign(edge_of_sizes=is_mlp, n_examples=max(row["sizes"]))
        assert peak_answer.EDGE in peak_answer.tabulate(found, beyond=beyond)


def test_the_table_says_where_ranks_tell_attention_from_mlp(peaks):
    best = peak_answer.find_best(peaks)[4096]
    (low, high), (mlp_low, _) = (
        (best[x]["rank_low"], best[x]["rank_high"]) for x in ("attention alone", "MLP")
    )
    assert high >= mlp_low
    said = " ".join(peak_answer.tabulate(peaks).splitlines())
    assert " attention alone from the MLP nowhere, attention + MLP from both only at 512" in said
    ahead = peaks["rank_high"].where(peaks["run_id"] != best["attention alone"]["run_id"], low)
    above = peaks["rank_low"].where(peaks["run_id"] != best["MLP"]["run_id"], high + 1)
    said = peak_answer.tabulate(peaks.assign(rank_high=ahead, rank_low=above))
    assert " attention alone from the MLP only at 4,096, " in " ".join(said.splitlines())
    equal = peak_answer.tabulate(peaks.assign(rank_low=1, rank_high=9))
    equal = " ".join(equal.splitlines())
    assert equal.endswith("from the MLP nowhere, attention + MLP from both nowhere.")
    both = peaks["side"] == "attention + MLP"
    first = peaks.assign(rank_low=2, rank_high=9)
    first.loc[both & (peaks["budget"] == 512), ["rank_low", "rank_high"]] = 1
    said = " ".join(peak_answer.tabulate(first).splitlines())
    assert said.endswith("from the MLP nowhere, attention + MLP from both only at 512.")


def test_large_sets_are_compared_by_the_best_form_of_each_side(peaks):
    of_budget = peaks[peaks["budget"] == 2048]
    bits = of_budget.groupby("side")["of_budget"].max()
    expected = bits["attention alone"] / bits["MLP"]
    found = peak_answer.overfull_ratio(peaks, 2048)
    assert found.value == pytest.approx(expected)
    assert 0.9 * expected < found.low < expected < found.high < 1.1 * expected
    more = peaks.assign(of_budget=peaks["of_budget"] * (1 + (peaks["side"] == "MLP")))
    assert peak_answer.overfull_ratio(more, 2048).value == pytest.approx(expected / 2)
    none = peaks.assign(of_budget=math.nan)
    assert math.isnan(peak_answer.overfull_ratio(none, 2048).value)


def test_the_key_figure_has_the_bits_of_peaks(peaks):
    figure = peak_answer.draw(peaks, published("board/typical"))
    bits, _ = figure.axes
    names = {text.get_text().replace("\n", " ") for text in bits.texts}
    assert {"attention + MLP, narrow heads", "attention alone, wide heads"} <= names
    assert len(bits.containers) == 4
    top = max(container.lines[0].get_ydata().max() for container in bits.containers)
    assert top == pytest.approx(peaks["bits"].max())


def test_the_board_answers_by_peaks_where_it_has_them(peaks):
    page = (folders.published() / "LEADERBOARD.md").read_text()
    assert peak_answer.answer(peaks) in page
