"""The leaderboard's page and what is not its own: requests, injected scripts, hostile text."""

import json

import pytest

from tests.report.test_html import HOSTILE, hostile_board, sample

pytestmark = pytest.mark.browser


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
    assert len(page.entries) == len(page.all("#plot .marker")) == 1
    assert page.chromium.get_log("browser") == []
