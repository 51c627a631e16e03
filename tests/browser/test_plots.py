"""Bars and curves of the leaderboard's page: what they show, and that nothing overlaps."""

import itertools

import pytest

from memobench.board import table as standard
from memobench.report import answer
from tests.browser.pages import BOARD, SHOWN
from tests.report.test_html import FAMILIES

pytestmark = pytest.mark.browser


def test_bars_show_the_measure_and_its_interval(page):
    assert len(page.all("tbody .bar .dot")) == len(page.all(".bar .whisker")) == len(SHOWN)
    first, last = [text.text for text in page.all("thead .bar text")]
    assert first == "0"
    assert float(last) >= SHOWN["bits_per_parameter_high"].max()
    script = """return [...document.querySelectorAll(".bar .dot")].map((dot) => {
      const [own, bar] = [dot, dot.parentNode].map((e) => e.getBoundingClientRect());
      return own.left + own.width / 2 - bar.left;
    })"""
    places = page.js(script)
    assert all(a >= b - 1.6 for a, b in itertools.pairwise(places))
    assert places[0] > places[-1] + 5


def test_curves_show_the_best_four_first_and_join_no_two_sweeps(page):
    shown = "return [...document.querySelectorAll('#plot g[aria-label]')].map((g) => g.ariaLabel)"
    best = list(dict.fromkeys(SHOWN.sort_values("bits_per_parameter")["family"][::-1]))
    assert page.js(shown) == best[:4]
    assert [x.text for x in page.all("#legend label")] == best
    boxes = page.all("#legend input")
    assert [x.is_selected() for x in boxes] == [True] * 4 + [False] * (len(FAMILIES) - 4)
    boxes[0].click()
    for box in boxes[4:]:
        box.click()
    assert page.js(shown) == best[1:]
    # What the reader chose stays.
    page.select("budget", 512)
    assert set(page.js(shown)) == set(best[1:])
    page.all("#legend label")[[x.text for x in page.all("#legend label")].index(best[0])].click()
    assert len(page.all("#plot .marker")) == (BOARD["track"] == "exact").sum()
    looks = page.js("""return [...document.querySelectorAll("#legend svg")].map((e) => [
      ...["stroke", "strokeDasharray"].map((x) => getComputedStyle(e.querySelector(".line"))[x]),
      e.querySelector(".marker").getAttribute("d"),
      e.querySelector(".marker").getAttribute("class"),
    ].join(" "))""")
    assert len(set(looks)) == len(FAMILIES)
    # One line of a track for each family of each submitter, with a point of it at each budget.
    page.select("track", "open")
    for box in page.all("#legend input:not(:checked)"):
        box.click()
    lines = BOARD[BOARD["track"] == "open"].groupby(["by", "family"]).ngroups
    assert len(page.all("#plot .line")) == lines
    joined = page.js(
        "return [...document.querySelectorAll('#plot .line')].map((p) => p.getAttribute('d'))"
    )
    assert {path.count("L") for path in joined} <= {0, 1, 2}


def test_yours_are_drawn_at_first(page_of):
    yours = BOARD.assign(by=BOARD["by"].mask(BOARD["family"] == "attention + MLP", "you"))
    worst = yours["bits_per_parameter"].mask(yours["by"] == "you", 0.1)
    page = page_of(yours.assign(bits_per_parameter=worst)).open()
    boxes = {x.text: x.find_element("css selector", "input") for x in page.all("#legend label")}
    assert list(boxes)[-1] == "attention + MLP, you"
    assert all(box.is_selected() for box in boxes.values())


def test_per_parameter_what_others_measured_is_a_line(page):
    said = [x.text for x in page.all("#plot text.reference")]
    assert said == [f"{at:g}: {by}" for at, by in answer.FIELD.items()]
    page.select("sort", "half_99")
    assert page.all(".reference") == []


def test_points_tell_their_values(page):
    from selenium.webdriver import ActionChains, Keys

    def words(row):
        texts = {name: column.text(row) for name, column in standard.COLUMNS.items()}
        return (
            f"{row['entry']}: {texts['bits_per_parameter']} bits / parameter, "
            f"{texts['n_params']} parameters"
        )

    best = SHOWN.sort_values("bits_per_parameter")["family"].iloc[-1]
    own = BOARD[(BOARD["track"] == "exact") & (BOARD["family"] == best)]
    rows = own.sort_values("n_params").to_dict("records")
    # The first line is the best one's.
    point = page.all("#plot g[aria-label] .marker")[1]
    page.js("arguments[0].scrollIntoView({ block: 'center' })", point)
    ActionChains(page.chromium).move_to_element(point).perform()
    assert page.one("#told").text == words(rows[1])
    page.press(Keys.TAB)
    page.js("document.querySelector('#plot').focus()")
    page.press(Keys.ARROW_RIGHT)
    assert page.one("#told").text == words(rows[2])
    page.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert page.one("#told").text == words(rows[0])
    page.press(Keys.ARROW_LEFT, Keys.ARROW_RIGHT)
    assert page.one("#told").text == words(rows[0])


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
            for selector in ("#plot text", "thead .bar text", "#controls label", "#legend label"):
                assert page.js(overlaps, selector) == 0, (width, measure, selector)
