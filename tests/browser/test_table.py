"""The table of the leaderboard's page: budgets and tracks, sorting, ranks, and the address."""

import itertools

import pytest

from memobench.board import table as standard
from memobench.report import html
from tests.browser.pages import BOARD, SHOWN, ranked
from tests.report.test_html import FAMILIES

pytestmark = pytest.mark.browser


def test_the_page_opens_on_one_budget_and_track_with_the_first_columns(page):
    assert page.hash == ""
    assert page.sorted_by == ("bits_per_parameter", "descending")
    assert page.entries == ranked(SHOWN, "bits_per_parameter")
    assert [page.chosen(x) for x in ("budget", "track", "family")] == ["1024", "exact", ""]
    assert "1,024 parameters, exact: " in page.one("caption").text
    first = [standard.COLUMNS[x].label for x in sorted(html.FIRST, key=lambda x: PLACES.get(x, 9))]
    assert [x.text.rstrip("▼") for x in page.all("thead button")] == first
    page.show_all_columns()
    assert page.hash == "#all=true"
    assert len(page.all("thead button")) > len(first)
    page.show_all_columns()
    assert page.hash == ""
    assert len(page.all("thead button")) == len(first)


# The measure comes right after the entry.
PLACES = {"rank": 0, "entry": 1, "bits_per_parameter": 2}


def test_the_page_opens_on_the_largest_budget_with_every_family(page_of):
    lacks = (BOARD["budget"] == 1024) & (BOARD["family"] == "attention-only, full heads")
    page = page_of(BOARD[~lacks]).open()
    assert page.chosen("budget") == "512"
    page.select("budget", 1024)
    assert page.hash == "#budget=1024"


def test_search_and_family_choose_rows_and_lines(page):
    page.one("[name=q]").send_keys("mlp D=4")
    own = SHOWN["entry"].str.contains("MLP") & SHOWN["entry"].str.contains("d=4")
    assert page.entries == ranked(SHOWN[own], "bits_per_parameter")
    assert page.one("#count").text == f"{own.sum()} of {len(SHOWN)} entries"
    assert page.hash == "#q=mlp+D%3D4"
    assert {x.text for x in page.all("#legend label")} == {x for x in FAMILIES if "MLP" in x}
    page.open("#family=MLP")
    assert set(page.entries) == set(SHOWN["entry"][SHOWN["family"] == "MLP"])
    assert [x.text for x in page.all("#legend label")] == ["MLP"]
    page.one("[name=q]").send_keys("nothing")
    assert page.entries == []
    assert page.one("#count").text == f"0 of {len(SHOWN)} entries"


def test_all_budgets_in_one_table(page):
    page.select("budget", "all")
    rows = BOARD[BOARD["track"] == "exact"]
    assert page.hash == "#budget=all"
    assert page.entries == ranked(rows, "bits_per_parameter")
    assert sorted(page.column("budget")) == sorted(f"{x:,}" for x in rows["budget"])
    texts = [standard.COLUMNS["rank"].text(row) for row in rows.to_dict("records")]
    assert sorted(page.column("rank")) == sorted(texts)


def test_every_column_is_explained(page):
    page.show_all_columns()
    page.one("summary").click()
    told = dict(
        zip(*([x.text for x in page.all(f"#help {tag}")] for tag in ("dt", "dd")), strict=True)
    )
    assert list(told) == [x.text.rstrip("▼") for x in page.all("thead button")]
    assert told["half know"] == standard.COLUMNS["half_99"].meaning


def test_every_column_sorts_both_ways(page):
    page.show_all_columns()
    for key in page.js(
        "return [...document.querySelectorAll('thead button')].map((b) => b.dataset.key)"
    ):
        if key == "bits_per_parameter":
            continue
        column = standard.COLUMNS[key]
        page.one(f"thead button[data-key='{key}']").click()
        first = "descending" if column.digits is not None and key != "rank" else "ascending"
        assert page.sorted_by[0] == key
        for order in (first, {"ascending": "descending", "descending": "ascending"}[first]):
            assert page.sorted_by == (key, order)
            assert f"sort={key}" in page.hash
            if column.digits is not None:
                expected = ranked(SHOWN, column.names[0], order == "ascending")
                assert page.entries == expected, key
            page.one(f"thead button[data-key='{key}']").click()


def test_what_sorts_is_the_measure_of_bars_and_curves(page):
    for measure in ("half_99", "certified_set", "bits_per_byte"):
        page.select("sort", measure)
        assert page.hash == f"#sort={measure}"
        assert page.sorted_by == (measure, "descending")
        assert page.entries == ranked(SHOWN, measure)
        assert [x.text.rstrip("▼") for x in page.all("thead button")][2] == (
            standard.COLUMNS[measure].label
        )
        texts = [standard.COLUMNS[measure].text(row) for row in SHOWN.to_dict("records")]
        assert sorted(page.column(measure)) == sorted(texts)
        assert page.column("rank") == ranks(SHOWN, measure)
        label = standard.COLUMNS[measure].label
        assert label in page.one("#curves-title").text.lower()
        told = page.one("#plot").get_attribute("aria-label")
        assert told.startswith(f"{label} against parameters, exact;")
    # Parameters sort, and are no measure.
    page.open("#all=true")
    page.one("thead button[data-key='n_params']").click()
    assert page.sorted_by == ("n_params", "descending")
    assert page.chosen("sort") == "bits_per_parameter"
    texts = [standard.COLUMNS["rank"].text(row) for row in SHOWN.to_dict("records")]
    assert sorted(page.column("rank")) == sorted(texts)


def ranks(rows, measure):
    """The ranges of ranks by a measure, the best first, of intervals that overlap."""
    rows = rows.sort_values([measure, "rank_low", "entry"], ascending=[False, True, True])
    low, high = (rows.get(f"{measure}_{end}", rows[measure]) for end in ("low", "high"))
    found = []
    for i in rows.index:
        best, last = 1 + (low > high[i]).sum(), (high >= low[i]).sum()
        found.append(str(best) if best == last else f"{best}–{last}")
    return found


def test_budgets_and_tracks_are_never_mixed(page):
    for budget, track in itertools.product((256, 1024), dict.fromkeys(BOARD["track"])):
        page.select("budget", budget)
        page.select("track", track)
        rows = BOARD[(BOARD["budget"] == budget) & (BOARD["track"] == track)]
        main = next(x for x in standard.MAIN if rows[x].notna().any())
        assert page.entries == ranked(rows, main)
        assert page.sorted_by == (main, "descending")
        assert f"{budget:,} parameters, {track}: " in page.one("caption").text
        assert page.one("#certified").text == html.compare_certified(BOARD)[budget]


def test_ranks_have_ties_and_others_rows_are_flagged(page):
    texts = [standard.COLUMNS["rank"].text(row) for row in SHOWN.to_dict("records")]
    assert sorted(page.column("rank")) == sorted(texts)
    assert any("–" in text for text in texts)
    assert page.all(".badge") == []
    page.select("track", "open")
    assert [badge.text for badge in page.all(".badge")] == ["Ana Müller"]
    assert "by" in [x.text for x in page.all("thead button")]


def test_the_address_keeps_everything(page):
    page.select("track", "constructed")
    page.select("budget", 512)
    page.one("thead button[data-key='certified_set']").click()
    page.one("thead button[data-key='certified_set']").click()
    page.show_all_columns()
    address, before = page.hash, page.column("certified_set")
    assert address == "#track=constructed&budget=512&sort=certified_set&dir=asc&all=true"
    page.open(address)
    assert (page.hash, page.column("certified_set")) == (address, before)
    assert page.sorted_by == ("certified_set", "ascending")
    page.chromium.refresh()
    assert page.column("certified_set") == before


def test_back_and_forward(page):
    for name, value in (("track", "constructed"), ("budget", "256")):
        # Chromium goes back only to where somebody did something, which selenium's select is not.
        page.one("h1").click()
        page.select(name, value)
    both = page.entries
    page.chromium.back()
    assert page.chosen("budget") == "1024"
    page.chromium.back()
    assert page.entries == ranked(SHOWN, "bits_per_parameter")
    page.chromium.forward()
    page.chromium.forward()
    assert page.entries == both


def test_an_address_of_nonsense_is_the_default(page):
    page.open("#track=<b>&sort=constructor&dir=up&budget=__proto__&all=toString&family=x")
    assert page.entries == ranked(SHOWN, "bits_per_parameter")
    assert page.sorted_by == ("bits_per_parameter", "descending")


def test_weights_are_linked_beside_the_page(page):
    links = [link.get_dom_attribute("href") for link in page.all("tbody .c-weights a")]
    assert sorted(links) == sorted(SHOWN["weights"])
