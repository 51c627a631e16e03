"""The leaderboard's page by keyboard, in the dark, on small screens, on paper, without scripts."""

import pytest

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
                assert outline != "none" or selector == ".point"
                return
        raise AssertionError(f"Tab never reaches {selector}")

    tab_to("#skip")
    page.press(Keys.ENTER)
    assert focused().get_attribute("id") == "results"
    page.open()
    tab_to("#select-track")
    page.press(Keys.ARROW_DOWN)
    assert page.hash == "#track=published"
    page.open()
    tab_to("#all")
    page.press(Keys.SPACE)
    assert page.hash == "#all=true"
    tab_to("thead button[data-key='half_99']")
    page.press(Keys.ENTER)
    assert page.sorted_by == ("half_99", "descending")
    assert focused().get_attribute("data-key") == "half_99"
    page.press(Keys.SPACE)
    assert page.sorted_by == ("half_99", "ascending")
    tab_to("#legend button")
    page.press(Keys.SPACE)
    assert focused().get_attribute("aria-pressed") == "false"
    page.press(Keys.SPACE)
    assert focused().get_attribute("aria-pressed") == "true"
    tab_to(".point")
    label = focused().get_attribute("aria-label")
    assert page.one("#tooltip").is_displayed()
    page.press(Keys.ARROW_RIGHT)
    beside = focused().get_attribute("aria-label")
    assert beside != label
    assert beside.split(":")[0] == label.split(":")[0]
    page.press(Keys.ARROW_DOWN)
    assert focused().get_attribute("aria-label").split(":")[0] != label.split(":")[0]
    page.press(Keys.ESCAPE)
    assert not page.one("#tooltip").is_displayed()


def test_light_and_dark(page):
    def ground():
        colour = page.js("return getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(","))

    for theme, other in (("light", "dark"), ("dark", "light")):
        page.prefer(theme)
        page.open()
        bright = {"light": lambda: ground() > 700, "dark": lambda: ground() < 120}
        assert bright[theme]()
        assert page.one("#theme").get_attribute("aria-pressed") == str(theme == "dark").lower()
        page.one("#theme").click()
        assert bright[other]()
        assert page.one("#theme").get_attribute("aria-pressed") == str(other == "dark").lower()


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_sideways_scrolling(page, width):
    page.emulate(
        "setDeviceMetricsOverride", width=width, height=740, deviceScaleFactor=1, mobile=width < 500
    )
    page.open()
    sizes = "const e = document.scrollingElement; return [e.scrollWidth, e.clientWidth, innerWidth]"
    scroll, client, inner = page.js(sizes)
    assert scroll <= client <= inner == width
    within = page.js("const e = document.querySelector('#results'); return e.scrollWidth")
    # No word of a header is broken, and all eight columns fit where there is room.
    assert page.one("thead button[data-key='rank']").size["height"] < 32
    assert (within <= client) == (width >= 1280)
    assert page.one("#results").get_attribute("tabindex") == "0"
    wide = page.js(
        """return [...document.querySelectorAll("body *")].filter((e) =>
        !e.closest(".scroll, .skip") && e.getBoundingClientRect().right > innerWidth + 0.5
        ).map((e) => e.outerHTML.slice(0, 99))"""
    )
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
