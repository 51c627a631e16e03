"""The leaderboard's page as its reader sees it, and the board that it shows."""

from tests.report.test_html import sample

BOARD = sample()
# What the page opens on.
SHOWN = BOARD[(BOARD["budget"] == 1024) & (BOARD["track"] == "exact")]


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
        script = """return [...document.querySelectorAll("tbody .c-entry .cell")].map((e) =>
          [...e.querySelectorAll(":scope > bdi, small")].map((x) => x.textContent).join(" "))"""
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

    def chosen(self, name):
        return self.one(f"#controls [name={name}]").get_attribute("value")

    def select(self, name, value):
        self.one(f"#controls [name={name}] option[value='{value}']").click()

    def show_all_columns(self):
        self.one("#controls [name=all]").click()

    def press(self, *keys):
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.chromium).send_keys(key).perform()

    def emulate(self, command, **arguments):
        self.chromium.execute_cdp_cmd(f"Emulation.{command}", arguments)

    def prefer(self, theme):
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.emulate("setEmulatedMedia", features=[feature])


def ranked(rows, name, ascending=False):
    """Entries by a column, ties by rank."""
    by = rows.sort_values([name, "rank_low", "entry"], ascending=[ascending, True, True])
    return by["entry"].tolist()
