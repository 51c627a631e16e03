"""The leaderboard's page by keyboard, in the dark, on small screens, on paper, without scripts."""

import pandas as pd
import pytest

from memobench.common import folders
from tests.browser.pages import BOARD, SHOWN

pytestmark = pytest.mark.browser


def test_keyboard_alone(page):
    from selenium.webdriver import Keys

    def focused(script="return document.activeElement"):
        return page.js(script)

    def tab_to(selector):
        for _ in range(80):
            page.press(Keys.TAB)
            if page.js("return document.activeElement.matches(arguments[0])", selector):
                outline = page.js("return getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none"
                return
        raise AssertionError(f"Tab never reaches {selector}")

    tab_to("[name=track]")
    page.press(Keys.ARROW_DOWN)
    assert page.hash == "#track=constructed"
    page.open()
    tab_to("[name=q]")
    page.press("M", "L", "P")
    assert page.hash == "#q=MLP"
    page.open()
    tab_to("[name=all]")
    page.press(Keys.SPACE)
    assert page.hash == "#all=true"
    tab_to("thead button[data-key='half_99']")
    page.press(Keys.ENTER)
    assert page.sorted_by == ("half_99", "descending")
    assert focused().get_attribute("data-key") == "half_99"
    page.press(Keys.SPACE)
    assert page.sorted_by == ("half_99", "ascending")
    tab_to("#legend input")
    drawn = len(page.all("#plot .line"))
    page.press(Keys.SPACE)
    assert len(page.all("#plot .line")) == drawn - 1
    page.press(Keys.SPACE)
    assert len(page.all("#plot .line")) == drawn
    tab_to("#plot")
    page.press(Keys.ARROW_RIGHT)
    told = page.one("#told").text
    assert "half know" in told
    page.press(Keys.ARROW_RIGHT)
    assert page.one("#told").text != told


def test_light_and_dark(page):
    def ground():
        colour = page.js("return getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(","))

    def colours():
        script = """return [...document.querySelectorAll("#legend .marker")].map(
          (m) => getComputedStyle(m).fill)"""
        return page.js(script)

    page.prefer("light")
    page.open()
    assert ground() > 700
    light = colours()
    page.prefer("dark")
    page.open()
    assert ground() < 120
    assert not set(light) & set(colours())


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_nothing_is_cut(page, width):
    page.emulate(
        "setDeviceMetricsOverride", width=width, height=740, deviceScaleFactor=1, mobile=width < 500
    )
    page.open()
    sizes = "const e = document.scrollingElement; return [e.scrollWidth, e.clientWidth, innerWidth]"
    scroll, client, inner = page.js(sizes)
    assert scroll <= client <= inner == width
    table = "const e = document.querySelector('#results'); return [e.scrollWidth, e.clientWidth]"
    within, room = page.js(table)
    # No word of a header is broken, and where there is no room columns are left out at first.
    assert page.one("thead button[data-key='rank']").size["height"] < 32
    assert within <= room
    shown = [x for x in page.all("thead button") if x.is_displayed()]
    assert len(shown) == (len(page.all("thead button")) if width == 1280 else 3)
    page.open("#all=true")
    assert all(x.is_displayed() for x in page.all("thead button"))
    page.open()
    assert page.one("#results").get_attribute("tabindex") == "0"
    wide = page.js(
        """return [...document.querySelectorAll("body *")].filter((e) =>
        !e.closest(".scroll") && e.getBoundingClientRect().right > innerWidth + 0.5
        ).map((e) => e.outerHTML.slice(0, 99))"""
    )
    assert wide == []


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_of_the_published_board_is_cut_by_any_measure(page_of, width):
    page = page_of(pd.read_csv(folders.published() / "leaderboard.csv"))
    page.emulate(
        "setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
    )
    page.open()
    wide = page.js("""
    const found = [];
    for (const track of TRACKS) {
      for (const budget of [...budgetsOf(track), ALL]) {
        for (const sort of measuresOf(track)) {
          history.replaceState(null, "", `#track=${track}&budget=${budget}&sort=${sort}`);
          draw();
          const [table, all] = [byId("results"), document.scrollingElement];
          if (table.scrollWidth > table.clientWidth || all.scrollWidth > innerWidth) {
            found.push(location.hash);
          }
        }
      }
    }
    return found;""")
    assert wide == []


def test_labels_and_landmarks(page):
    assert page.one("html").get_attribute("lang") == "en"
    for selector in ("header", "main", "footer", "caption", "#count[role=status]"):
        assert len(page.all(selector)) == 1, selector
    unnamed = page.js(
        """return [...document.querySelectorAll("select, input")].filter(
        (e) => !e.labels.length).map((e) => e.id)"""
    )
    assert unnamed == []


def test_print_shows_every_column(page):
    page.emulate("setEmulatedMedia", media="print")
    script = "const e = document.querySelector('#results'); return getComputedStyle(e).overflowX"
    assert page.js(script) == "visible"
    assert not page.one("#controls").is_displayed()
    assert len(page.entries) == len(SHOWN)


def test_readable_without_scripts(page):
    page.emulate("setScriptExecutionDisabled", value=True)
    try:
        page.open()
        tables = page.all("noscript table")
        assert len(tables) == BOARD.groupby(["budget", "track"]).ngroups
        assert tables[0].is_displayed()
        assert not page.one("#results").is_displayed()
    finally:
        page.emulate("setScriptExecutionDisabled", value=False)
