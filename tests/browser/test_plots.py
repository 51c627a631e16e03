"""Bars and curves of the leaderboard's page: what they show, and that nothing overlaps."""

import itertools

import pytest

from memobench.board import table as standard
from memobench.report import html
from tests.browser.pages import BOARD, SHOWN
from tests.report.test_html import FAMILIES

pytestmark = pytest.mark.browser


def test_bars_show_the_measure_and_its_interval(page):
    assert len(page.all("tbody .bar .dot")) == len(page.all(".bar .whisker")) == len(SHOWN)
    ticks = [text.text for text in page.all(".axis text")]
    assert len(ticks) >= 3
    assert ticks[0] == "0"
    script = """return [...document.querySelectorAll(".bar .dot")].map((dot) => {
      const [own, bar] = [dot, dot.parentNode].map((e) => e.getBoundingClientRect());
      return own.left + own.width / 2 - bar.left;
    })"""
    places = page.js(script)
    assert all(a >= b - 1.6 for a, b in itertools.pairwise(places))
    assert places[0] > places[-1] + 5


def test_curves_show_attention_and_mlp_first_and_join_no_two_sweeps(page):
    shown = "return [...document.querySelectorAll('#plot [role=group]')].map((g) => g.ariaLabel)"
    first = [family for family in html.SHOWN if family in FAMILIES]
    assert page.js(shown) == first
    buttons = page.all("#legend button")
    assert [button.text for button in buttons][: len(first)] == first
    assert [button.get_attribute("aria-pressed") for button in buttons] == ["true"] * len(first) + [
        "false"
    ] * (len(FAMILIES) - len(first))
    for i in range(len(first), len(FAMILIES)):
        page.all("#legend button")[i].click()
    assert len(page.js(shown)) == len(FAMILIES)
    assert len(page.all("#plot .point")) == (BOARD["track"] == "exact").sum()
    shapes = page.js(
        "return [...document.querySelectorAll('#legend .marker')].map((m) => "
        "[m.getAttribute('d'), getComputedStyle(m).fill])"
    )
    assert len({d for d, _ in shapes}) == len({fill for _, fill in shapes}) == len(FAMILIES)
    # One line of a track for each family of each submitter, with a point of it at each budget.
    page.select("track", "open")
    for button in page.all("#legend button[aria-pressed=false]"):
        page.js("arguments[0].click()", button)
    lines = BOARD[BOARD["track"] == "open"].groupby(["by", "family"]).ngroups
    assert len(page.all("#plot .line")) == lines
    joined = page.js(
        "return [...document.querySelectorAll('#plot .line')].map((p) => p.getAttribute('d'))"
    )
    assert {path.count("L") for path in joined} <= {0, 1, 2}


def test_points_tell_their_values(page):
    from selenium.webdriver import ActionChains

    family = next(family for family in html.SHOWN if family in FAMILIES)
    own = BOARD[(BOARD["track"] == "exact") & (BOARD["family"] == family)]
    row = own.sort_values("n_params").to_dict("records")[1]
    texts = {name: column.text(row) for name, column in standard.COLUMNS.items()}
    told = f"{texts['bits_per_parameter']} bits / parameter at {texts['n_params']} parameters"
    (point,) = [
        each
        for each in page.all("#plot .point")
        if each.get_attribute("aria-label") == f"{family}: {row['entry']}: {told}"
    ]
    assert not page.one("#tooltip").is_displayed()
    page.js("arguments[0].scrollIntoView({ block: 'center' })", point)
    ActionChains(page.chromium).move_to_element(point).perform()
    assert page.one("#tooltip").text == f"{family}: {row['entry']}\n{told}"
    ActionChains(page.chromium).move_to_element(page.one("h1")).perform()
    assert not page.one("#tooltip").is_displayed()


def test_nothing_overlaps_in_the_plots(page):
    overlaps = """
    const boxes = [...document.querySelectorAll(arguments[0])].map(
      (e) => e.getBoundingClientRect());
    return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => a.left < b.right
      && b.left < a.right && a.top < b.bottom && b.top < a.bottom)).length"""
    for width in (360, 1280):
        page.emulate(
            "setDeviceMetricsOverride", width=width, height=740, deviceScaleFactor=1, mobile=False
        )
        for measure in ("bits_per_parameter", "half_99", "certified_set"):
            page.open(f"#sort={measure}")
            for selector in ("#plot text", ".axis text", "#controls .control", "#legend button"):
                assert page.js(overlaps, selector) == 0, (width, measure, selector)
