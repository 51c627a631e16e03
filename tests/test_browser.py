"""The leaderboard's page in a real browser: `pip install -e '.[browser]'`, chromium and its driver.

Skipped where they are missing, unless MEMOBENCH_BROWSER=1 says that they must be there.
"""

import itertools
import json
import os
import shutil

import pytest

from memobench import board as standard
from memobench.report import html
from tests.test_html import FAMILIES, HOSTILE, hostile_board, sample

pytestmark = pytest.mark.browser

FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run
--disable-background-networking --disable-component-update --disable-sync --window-size=1280,900"""


def missing(reason):
    if os.environ.get("MEMOBENCH_BROWSER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        missing("selenium is missing: pip install -e '.[browser]'")
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if not browser or not driver:
        missing("chromium or its driver is missing: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver))
    yield running
    running.quit()


class Page:
    """A page as its reader sees it."""

    def __init__(self, chromium, path):
        self.chromium, self.url = chromium, path.as_uri()

    def open(self, address=""):
        self.chromium.get("about:blank")
        self.chromium.get(self.url + address)
        return self

    def js(self, script, *arguments):
        return self.chromium.execute_script(script, *arguments)

    def all(self, selector):
        return self.chromium.find_elements("css selector", selector)

    def one(self, selector):
        return self.chromium.find_element("css selector", selector)

    def column(self, key):
        """The text of a column of the table, row by row."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return self.js(script, f"tbody .c-{key}")

    @property
    def entries(self):
        script = (
            "return [...document.querySelectorAll('tbody .c-entry .cell > bdi')]"
            ".map((e) => e.textContent)"
        )
        return self.js(script)

    @property
    def hash(self):
        return self.js("return location.hash")

    @property
    def sorted_by(self):
        headers = self.all("th[aria-sort]")
        assert len(headers) == 1
        key = headers[0].find_element("css selector", "button").get_attribute("data-key")
        return key, headers[0].get_attribute("aria-sort")

    def select(self, name, value):
        self.one(f"#select-{name} option[value='{value}']").click()

    def press(self, *keys):
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.chromium).send_keys(key).perform()

    def emulate(self, command, **arguments):
        self.chromium.execute_cdp_cmd(f"Emulation.{command}", arguments)

    def prefer(self, theme):
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.emulate("setEmulatedMedia", features=[feature])


@pytest.fixture(scope="module")
def page_of(chromium, tmp_path_factory):
    def make(board):
        path = tmp_path_factory.mktemp("page") / "leaderboard.html"
        path.write_text(html.page(board), encoding="utf-8")
        return Page(chromium, path)

    return make


BOARD = sample()
# What the page opens on.
SHOWN = BOARD[(BOARD["budget"] == 1024) & (BOARD["track"] == "exact")]


@pytest.fixture(scope="module")
def made(page_of):
    return page_of(BOARD)


@pytest.fixture
def page(made):
    """The page, freshly opened; it must have had nothing to complain about at the end."""
    made.chromium.get_log("browser")
    yield made.open()
    made.emulate("clearDeviceMetricsOverride")
    made.emulate("setEmulatedMedia", features=[])
    assert made.chromium.get_log("browser") == []


def ranked(rows, name, ascending=False):
    """Entries by a column, ties by rank."""
    by = rows.sort_values([name, "rank_low", "entry"], ascending=[ascending, True, True])
    return by["entry"].tolist()


def test_the_page_opens_on_one_budget_and_track_with_eight_columns(page):
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
    assert len(page.all("thead button")) > 8
    assert "weights" in [x.text for x in page.all("thead button")]
    page.one("#all").click()
    assert page.hash == ""
    assert len(page.all("thead button")) == 8


# The measure comes right after the entry.
PLACES = {"rank": 0, "entry": 1, "bits_per_parameter": 2}


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
    for budget, track in itertools.product((256, 1024), standard.TRACKS):
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


def test_weights_are_linked_beside_the_page(page):
    page.one("#all").click()
    links = [link.get_dom_attribute("href") for link in page.all("tbody .c-weights a")]
    assert sorted(links) == sorted(SHOWN["weights"])


def test_curves_show_attention_and_mlp_first_and_join_no_two_sweeps(page):
    shown = "return [...document.querySelectorAll('#plot [role=group]')].map((g) => g.ariaLabel)"
    assert page.js(shown) == list(html.SHOWN)
    buttons = page.all("#legend button")
    assert [button.text for button in buttons][:2] == list(html.SHOWN)
    assert [button.get_attribute("aria-pressed") for button in buttons] == ["true"] * 2 + [
        "false"
    ] * (len(FAMILIES) - 2)
    for i in range(2, len(FAMILIES)):
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

    family = html.SHOWN[0]
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


def test_nothing_leaves_the_page(page):
    page.chromium.get_log("performance")
    page.open("#track=open&all=true")
    events = [
        json.loads(entry["message"])["message"] for entry in page.chromium.get_log("performance")
    ]
    requested = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert page.url in requested
    outside = {url for url in requested if not url.startswith(("data:", "about:"))}
    assert outside == {page.url}


def test_the_policy_stops_what_is_injected(made):
    made.open()
    made.js(
        """const script = document.createElement("script");
        script.textContent = "document.title = 'broken'";
        document.body.append(script);
        fetch("data:,x").catch(() => { window.stopped = true; });"""
    )
    assert made.chromium.title == "memobench leaderboard"
    assert any("Content Security Policy" in e["message"] for e in made.chromium.get_log("browser"))


def test_hostile_text_is_text(page_of):
    page = page_of(hostile_board().assign(budget=256, track="open")).open("#all=true")
    assert page.chromium.title == "memobench leaderboard"
    shown = {text.encode("utf-8", "replace").decode() for text in HOSTILE}
    assert set(page.entries) == shown
    assert {text.strip() for text in page.column("theorem")} == {text.strip() for text in shown}
    assert page.all("img, iframe, object, bdi *, [onerror], [onload]") == []
    assert len(page.all("script")) == 2
    # Paths of weights are names beside the page, never another scheme or host.
    for link in page.all("tbody a"):
        assert link.get_property("protocol") == "file:"
    assert page.chromium.get_log("browser") == []


def test_nothing_and_little(page_of):
    page = page_of(sample(0)).open()
    assert page.one("#empty").is_displayed()
    assert not page.one("#results").is_displayed()
    page = page_of(sample(1)).open()
    assert len(page.entries) == len(page.all("#plot .point")) == 1
    assert page.chromium.get_log("browser") == []


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
