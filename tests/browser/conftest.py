"""The leaderboard's page in a real browser: `pip install -e '.[browser]'`, chromium and its driver.

Skipped where they are missing, unless MEMOBENCH_BROWSER=1 says that they must be there.
"""

import os
import shutil

import pytest

from memobench.report import html
from tests.browser.pages import BOARD, Page

FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run
--disable-background-networking --disable-component-update --disable-sync --window-size=1280,900"""


def missing(reason):
    if os.environ.get("MEMOBENCH_BROWSER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="package")
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


@pytest.fixture(scope="package")
def page_of(chromium, tmp_path_factory):
    def make(board):
        path = tmp_path_factory.mktemp("page") / "leaderboard.html"
        path.write_text(html.page(board), encoding="utf-8")
        return Page(chromium, path)

    return make


@pytest.fixture(scope="package")
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
