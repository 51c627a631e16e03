"""The leaderboard's page in a real browser: `pip install -e '.[browser]'`, chromium and its driver.

Skipped where they are missing, unless MEMOBENCH_BROWSER=1 says that they must be there.
"""

import itertools
import json
import os
import shutil

import pandas as pd
import pytest

from memobench.report import html
from tests.test_html import FAMILIES, HOSTILE, hostile_board, sample, sample_curves

pytestmark = pytest.mark.browser

PER = {"all": "n_params", "memory": "n_params_memory", "distinct": "n_params_distinct"}
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
            "return [...document.querySelectorAll('tbody .c-entry bdi')].map((e) => e.textContent)"
        )
        return self.js(script)

    @property
    def hash(self):
        return self.js("return location.hash")

    @property
    def count(self):
        return self.one("#count").text

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
    def make(board, curves):
        path = tmp_path_factory.mktemp("page") / "leaderboard.html"
        path.write_text(html.page(board, curves), encoding="utf-8")
        return Page(chromium, path)

    return make


BOARD = sample()
# The newest version is the one shown first, and has enough rows for all that is tested.
BOARD["version"] = ["v10"] * 50 + ["v9"] * 10
SHOWN = BOARD[BOARD["version"] == "v10"]


@pytest.fixture(scope="module")
def made(page_of):
    return page_of(BOARD, sample_curves())


@pytest.fixture
def page(made):
    """The page, freshly opened; it must have had nothing to complain about at the end."""
    made.chromium.get_log("browser")
    yield made.open()
    made.emulate("clearDeviceMetricsOverride")
    made.emulate("setEmulatedMedia", features=[])
    assert made.chromium.get_log("browser") == []


def ranked(rows, values, ascending):
    """Entries by their values, ties by entry (2k before 10k), missing ones last."""
    natural = rows["entry"].str.replace(r"\d+", lambda digits: digits[0].zfill(9), regex=True)
    by = rows.assign(value=values, natural=natural).sort_values(
        ["value", "natural"], ascending=[ascending, True], na_position="last"
    )
    return by["entry"].tolist()


NUMERIC = {
    **{name: SHOWN[name] / SHOWN["n_params"] for name in html.MEASURES},
    "params": SHOWN["n_params"],
    "proven": SHOWN["memorized"] / SHOWN["proven"],
    **{name: SHOWN[name] for name in ("budget", "vocab_size", "context_length", "n_examples")},
    **{name: SHOWN[name] for name in ("accuracy", "seeds", "steps", "seconds")},
}


def test_best_bits_come_first(page):
    assert page.sorted_by == ("bits", "descending")
    assert page.entries == ranked(SHOWN, NUMERIC["bits"], False)
    assert page.count == "50 of 50 entries"
    assert page.hash == ""


def test_every_column_sorts_both_ways(page):
    keys = page.js(
        "return [...document.querySelectorAll('thead button')].map((b) => b.dataset.key)"
    )
    assert {"entry", "family", "track", "sizes", "theorem", "verdict", "device", "date"} <= set(
        keys
    )
    assert set(NUMERIC) <= set(keys)
    for key in (key for key in keys if key != "bits"):
        page.one(f"thead button[data-key='{key}']").click()
        first = "descending" if key in NUMERIC else "ascending"
        second = "ascending" if key in NUMERIC else "descending"
        for order in (first, second):
            assert page.sorted_by == (key, order)
            assert f"sort={key}&dir={order.removesuffix('ending')}" in page.hash
            if key in NUMERIC:
                assert page.entries == ranked(SHOWN, NUMERIC[key], order == "ascending"), key
            else:
                told = [text for text in page.column(key) if text != "–"]
                inverted = order == "descending"
                script = """const order = new Intl.Collator("en", { numeric: true });
                return [...arguments[0]].sort((a, b) => order.compare(a, b));"""
                assert told == page.js(script, told)[:: -1 if inverted else 1], key
                dashes = page.column(key)[len(told) :]
                assert set(dashes) <= {"–"}
            page.one(f"thead button[data-key='{key}']").click()


@pytest.mark.parametrize("name", ["family", "track", "budget", "vocab_size", "device"])
def test_filters(page, name):
    options = page.all(f"#select-{name} option")
    assert options[0].text == "all"
    offered = [option.get_attribute("value") for option in options[1:]]
    assert offered == [str(value) for value in sorted(SHOWN[name].unique(), key=_plain)]
    for value in offered:
        page.select(name, value)
        kept = SHOWN[SHOWN[name].astype(str) == value]
        assert sorted(page.entries) == sorted(kept["entry"])
        assert page.count == f"{len(kept)} of 50 entries"
        assert f"{name}=" in page.hash
    page.one("#reset").click()
    assert page.count == "50 of 50 entries"
    assert page.hash == ""


def _plain(value):
    return value.lower().replace(" ", "").replace(",", "") if isinstance(value, str) else value


def test_filters_and_search_go_together(page):
    page.select("track", "trained-exact")
    page.one("#search").send_keys("EPYC mlp")
    kept = SHOWN[
        (SHOWN["track"] == "trained-exact")
        & (SHOWN["device"] == "AMD EPYC")
        & (SHOWN["family"].str.contains("MLP"))
    ]
    assert 0 < len(kept) < 20
    assert sorted(page.entries) == sorted(kept["entry"])
    assert page.hash == "#track=trained-exact&search=EPYC+mlp"
    page.one("#search").send_keys(" nobody")
    assert page.entries == []
    assert "No entry matches" in page.one("tbody").text


def test_the_address_keeps_everything(page):
    page.select("track", "trained-exact")
    page.select("per", "distinct")
    page.select("measure", "memorized")
    page.one("thead button[data-key='accuracy']").click()
    page.one("#search").send_keys("mlp")
    address, before = page.hash, page.column("memorized")
    for part in ("track=trained-exact", "per=distinct", "sort=accuracy&dir=desc", "search=mlp"):
        assert part in address
    page.open(address)
    assert page.hash == address
    assert page.column("memorized") == before
    assert page.sorted_by == ("accuracy", "descending")
    assert page.one("#search").get_attribute("value") == "mlp"
    assert page.one("#select-per").get_attribute("value") == "distinct"
    page.chromium.refresh()
    assert page.column("memorized") == before


def test_back_and_forward(page):
    for name, value in (("track", "constructed"), ("family", "MLP")):
        # Chromium goes back only to where somebody did something, which selenium's select is not.
        page.one("h1").click()
        page.select(name, value)
    both = page.entries
    page.chromium.back()
    assert page.one("#select-family").get_attribute("value") == ""
    assert sorted(page.entries) == sorted(SHOWN[SHOWN["track"] == "constructed"]["entry"])
    page.chromium.back()
    assert page.count == "50 of 50 entries"
    page.chromium.forward()
    page.chromium.forward()
    assert page.entries == both


def test_an_address_of_nonsense_is_the_default(page):
    page.open(
        "#track=<b>&sort=constructor&dir=up&per=__proto__&version=v0&measure=toString&group=x"
    )
    assert page.count == "50 of 50 entries"
    assert page.sorted_by == ("bits", "descending")


def test_conventions_change_the_numbers(page):
    best = {}
    for per, n_params in PER.items():
        page.select("per", per)
        for measure, digits in zip(html.MEASURES, (3, 4, 4, 4), strict=True):
            page.select("measure", measure)
            values = SHOWN[measure] / SHOWN[n_params]
            assert page.entries == ranked(SHOWN, values, False)
            top = values.idxmax()
            half = SHOWN[f"{measure}_interval"][top] / SHOWN[n_params][top]
            told = page.column(measure)[0].removeprefix("≥ ")
            assert told == f"{values[top]:.{digits}f} ± {half:.{digits}f}"
            best[per, measure] = told
    assert len(set(best.values())) == len(best)


def test_bars_show_the_measure_and_its_interval(page):
    assert len(page.all("tbody .bar")) == 50
    trained = SHOWN["bits_interval"].notna().sum()
    assert len(page.all(".bar .whisker")) == trained
    ticks = [text.text for text in page.all(".axis text")]
    assert len(ticks) >= 3
    assert ticks[0] == "0"
    script = """return [...document.querySelectorAll(".bar .dot")].map((dot) => {
      const [own, bar] = [dot, dot.parentNode].map((e) => e.getBoundingClientRect());
      return own.left + own.width / 2 - bar.left;
    })"""
    places = page.js(script)
    assert all(a >= b - 1.6 for a, b in itertools.pairwise(places))
    assert places[0] > places[-1] + 20


def test_what_is_not_exact_is_marked_in_words(page):
    verdicts = dict(zip(SHOWN["entry"], SHOWN["verdict"], strict=True))
    rows = zip(page.entries, page.column("entry"), page.column("bits"), strict=True)
    for entry, name, bits in rows:
        assert ("not converged" in name) == (verdicts[entry] == "not converged")
        assert bits.startswith("≥") == (verdicts[entry] == "lower bound")


def test_versions_are_never_mixed(page):
    options = [option.get_attribute("value") for option in page.all("#select-version option")]
    assert options == ["v10", "v9"]
    page.select("version", "v9")
    assert sorted(page.entries) == sorted(BOARD[BOARD["version"] == "v9"]["entry"])
    assert page.count == "10 of 10 entries"
    assert page.hash == "#version=v9"
    assert "Board v9" in page.one("caption").text
    page.one("#reset").click()
    assert page.hash == "#version=v9"


def test_curves_are_drawn_and_toggled(page):
    curves = sample_curves()
    groups = list(curves["group"].unique())
    for group in groups:
        page.select("group", group)
        assert len(page.all("#plot .line")) == len(FAMILIES)
        assert len(page.all("#plot .point")) == (curves["group"] == group).sum()
        assert page.one("#plot").get_attribute("aria-label").endswith(group)
        labels = [text.text for text in page.all("#plot text")]
        assert sum(label.replace(",", "").isdigit() for label in labels) >= 3
    shapes = page.js(
        "return [...document.querySelectorAll('#legend .marker')].map((m) => "
        "[m.getAttribute('d'), getComputedStyle(m).fill])"
    )
    assert len({d for d, _ in shapes}) == len({fill for _, fill in shapes}) == len(FAMILIES)
    button = page.one("#legend button")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert page.one("#legend button").get_attribute("aria-pressed") == "false"
    assert len(page.all("#plot .line")) == len(FAMILIES) - 1
    page.one("#legend button").click()
    assert len(page.all("#plot .line")) == len(FAMILIES)


def test_points_tell_their_values(page):
    from selenium.webdriver import ActionChains

    curves = sample_curves()
    first = curves[curves["group"] == curves["group"][0]].iloc[1]
    told = f"accuracy {first.accuracy:.3f} ± {first.interval:.3f} at {first.n_params:,} parameters"
    point = page.all("#plot .point")[1]
    assert point.get_attribute("aria-label") == f"{first.line}: {told}"
    assert not page.one("#tooltip").is_displayed()
    page.js("arguments[0].scrollIntoView({ block: 'center' })", point)
    ActionChains(page.chromium).move_to_element(point).perform()
    assert page.one("#tooltip").text == f"{first.line}\n{told}"
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
    assert page.hash == "#track=constructed"
    tab_to("#search")
    page.press("mlp")
    assert "search=mlp" in page.hash
    tab_to("#reset")
    page.press(Keys.SPACE)
    assert page.count == "50 of 50 entries"
    tab_to("thead button[data-key='memorized']")
    page.press(Keys.ENTER)
    assert page.sorted_by == ("memorized", "descending")
    assert focused().get_attribute("data-key") == "memorized"
    page.press(Keys.SPACE)
    assert page.sorted_by == ("memorized", "ascending")
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
    assert page.js(
        "const e = document.querySelector('#results'); return e.scrollWidth > e.clientWidth"
    )
    assert page.one("#results").get_attribute("tabindex") == "0"
    wide = page.js(
        """return [...document.querySelectorAll("body *")].filter((e) =>
        !e.closest(".scroll, .skip") && e.getBoundingClientRect().right > innerWidth + 0.5
        ).map((e) => e.outerHTML.slice(0, 99))"""
    )
    assert wide == []


def test_labels_and_landmarks(page):
    assert page.one("html").get_attribute("lang") == "en"
    for selector in ("header", "main", "footer", "[role=search]", "caption", "#count[role=status]"):
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
        for measure in html.MEASURES:
            page.open(f"#measure={measure}")
            for selector in ("#plot text", ".axis text", "#controls .control", "#legend button"):
                assert page.js(overlaps, selector) == 0, (width, measure, selector)


def test_nothing_leaves_the_page(page):
    page.chromium.get_log("performance")
    page.open("#track=trained-exact")
    page.one("#reset").click()
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
    board = hostile_board().assign(version=HOSTILE[0])
    curves = sample_curves().assign(group=HOSTILE[1], line=HOSTILE[2])
    page = page_of(board, curves).open()
    assert page.chromium.title == "memobench leaderboard"
    shown = {text.encode("utf-8", "replace").decode() for text in HOSTILE}
    assert set(page.entries) == shown
    assert {text.strip() for text in page.column("submitter")} == {text.strip() for text in shown}
    assert page.all("img, iframe, object, bdi *, [onerror], [onload]") == []
    assert len(page.all("script")) == 2
    assert page.one("#legend bdi").text == HOSTILE[2]
    page.select("device", HOSTILE[1])
    assert len(page.entries) == 1
    page.chromium.refresh()
    assert len(page.entries) == 1
    assert page.chromium.get_log("browser") == []


def test_nothing_and_little(page_of):
    page = page_of(pd.DataFrame(), pd.DataFrame()).open()
    assert "No entries yet" in page.one("#results").text
    assert not page.one("#curves").is_displayed()
    few = pd.DataFrame({"entry": ["a", "b"], "bits": [3.0, 1e300], "n_params": [2, 1]})
    one = pd.DataFrame({"group": ["g"], "line": ["l"], "n_params": [10], "accuracy": [0.5]})
    page = page_of(few, one).open()
    assert page.entries == ["b", "a"]
    assert page.column("bits") == ["1.00e+300", "1.500"]
    assert len(page.all("#plot .point")) == 1
    assert page.chromium.get_log("browser") == []


def test_print_shows_every_column(page):
    page.emulate("setEmulatedMedia", media="print")
    script = "const e = document.querySelector('#results'); return getComputedStyle(e).overflowX"
    assert page.js(script) == "visible"
    assert not page.one("#controls").is_displayed()
    assert len(page.entries) == 50


def test_readable_without_scripts(page):
    page.emulate("setScriptExecutionDisabled", value=True)
    try:
        page.open()
        tables = page.all("noscript table")
        assert [len(table.find_elements("css selector", "tbody tr")) for table in tables] == [
            50,
            10,
        ]
        assert tables[0].is_displayed()
        assert not page.one("#board").is_displayed()
    finally:
        page.emulate("setScriptExecutionDisabled", value=False)
