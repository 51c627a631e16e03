"""The table of the leaderboard's page: budgets and tracks, sorting, ranks, and the address."""

import itertools

import pytest

from memobench.board import table as standard
from tests.browser.pages import BOARD, SHOWN, ranked

pytestmark = pytest.mark.browser


def test_the_page_opens_on_one_budget_and_track_with_the_first_columns(page):
    assert page.hash == ""
    assert page.sorted_by == ("bits_per_parameter", "descending")
    assert page.entries == ranked(SHOWN, "bits_per_parameter")
    assert page.one("#select-budget").get_attribute("value") == "1024"
    assert page.one("#select-track").get_attribute("value") == "exact"
    assert "1,024 parameters, exact: " in page.one("caption").text
    assert [x.text.rstrip("▼") for x in page.all("thead button")] == [
        x.label for x in sorted(standard.FIRST, key=lambda x: PLACES.get(x.name, 9))
    ]
    page.one("#all").click()
    assert page.hash == "#all=true"
    assert len(page.all("thead button")) > len(standard.FIRST)
    assert "weights" in [x.text for x in page.all("thead button")]
    page.one("#all").click()
    assert page.hash == ""
    assert len(page.all("thead button")) == len(standard.FIRST)


# The measure comes right after the entry.
PLACES = {"rank": 0, "entry": 1, "bits_per_parameter": 2}


def test_the_page_opens_on_the_largest_budget_with_the_families_that_it_asks_about(page_of):
    lacks = (BOARD["budget"] == 1024) & (BOARD["family"] == "attention-only, full heads")
    page = page_of(BOARD[~lacks]).open()
    assert page.one("#select-budget").get_attribute("value") == "512"
    page.select("budget", 1024)
    assert page.hash == "#budget=1024"


def test_every_column_sorts_both_ways(page):
    page.one("#all").click()
    for key in page.js(
        "return [...document.querySelectorAll('thead button')].map((b) => b.dataset.key)"
    ):
        if key == "bits_per_parameter":
            continue
        column = standard.COLUMNS[key]
        page.one(f"thead button[data-key='{key}']").click()
        first = "descending" if column.digits is not None and key != "rank" else "ascending"
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
        label = standard.COLUMNS[measure].label
        assert label in page.one("#curves-title").text.lower()
        assert page.one("#plot").get_attribute("aria-label") == f"{label} against parameters, exact"
    # Parameters sort, and are no measure.
    page.one("thead button[data-key='n_params']").click()
    assert page.sorted_by == ("n_params", "descending")
    assert page.one("#select-sort").get_attribute("value") == "bits_per_parameter"


def test_budgets_and_tracks_are_never_mixed(page):
    for budget, track in itertools.product((256, 1024), dict.fromkeys(BOARD["track"])):
        page.select("budget", budget)
        page.select("track", track)
        rows = BOARD[(BOARD["budget"] == budget) & (BOARD["track"] == track)]
        main = next(x for x in standard.MAIN if rows[x].notna().any())
        assert page.entries == ranked(rows, main)
        assert page.sorted_by == (main, "descending")
        assert f"{budget:,} parameters, {track}: " in page.one("caption").text


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
    page.one("#all").click()
    address, before = page.hash, page.column("certified_set")
    assert address == "#budget=512&track=constructed&all=true&sort=certified_set&dir=asc"
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
    assert page.one("#select-budget").get_attribute("value") == "1024"
    page.chromium.back()
    assert page.entries == ranked(SHOWN, "bits_per_parameter")
    page.chromium.forward()
    page.chromium.forward()
    assert page.entries == both


def test_an_address_of_nonsense_is_the_default(page):
    page.open("#track=<b>&sort=constructor&dir=up&budget=__proto__&all=toString")
    assert page.entries == ranked(SHOWN, "bits_per_parameter")
    assert page.sorted_by == ("bits_per_parameter", "descending")


def test_weights_are_linked_beside_the_page(page):
    page.one("#all").click()
    links = [link.get_dom_attribute("href") for link in page.all("tbody .c-weights a")]
    assert sorted(links) == sorted(SHOWN["weights"])
