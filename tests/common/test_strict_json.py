"""Strict JSON: what memobench reads of others' files."""

import json
import os
import stat

import pytest

from memobench.common import strict_json
from memobench.common.errors import UserError

DOCUMENT = {"version": "0.1.0", "rows": [{"loss": 1.5, "name": "x"}]}


def _text(document):
    return json.dumps(document)


HOSTILE = {
    "empty": (lambda d: b"", "is not JSON"),
    "half": (lambda d: _text(d)[: len(_text(d)) // 2].encode(), "is not JSON"),
    "no unicode": (lambda d: _text(d).replace("0.1.0", "\xff").encode("latin-1"), "is not UTF-8"),
    "another unicode": (lambda d: _text(d).encode("utf-16"), "is not UTF-8"),
    "two marks before": (lambda d: b"\xef\xbb\xbf" + _text(d).encode("utf-8-sig"), "is not JSON"),
    "NaN": (lambda d: _text(d).replace('"loss": ', '"loss": NaN, "x": ').encode(), "NaN is no"),
    "infinity": (lambda d: b'{"rows": [Infinity]}', "Infinity is not a JSON number"),
    "minus infinity": (lambda d: b'{"rows": [-Infinity]}', "-Infinity is not a JSON number"),
    "1e999": (lambda d: b'{"rows": [{"loss": 1e999}]}', "'1e999' is too large"),
    "-1e999": (lambda d: b'{"rows": [{"loss": -1e999}]}', "'-1e999' is too large"),
    "many digits": (lambda d: b'{"rows": ' + b"9" * 5000 + b"}", "is not JSON"),
    "deep lists": (lambda d: b"[" * 100_000, "too deep"),
    "deep objects": (lambda d: b'{"a":' * 100_000, "too deep"),
    "a key twice": (lambda d: b'{"board": "v1", "board": "v1"}', "'board' is there twice"),
    "half a character": (lambda d: rb'{"name": "\ud800"}', "is not UTF-8"),
    "half a key": (lambda d: rb'{"a": [{"\uDFFFx": 1}]}', "is not UTF-8"),
    "an open string": (lambda d: b'"' + rb"\"" * 500_000, "is not JSON"),
}


@pytest.mark.parametrize(("spoil", "said"), HOSTILE.values(), ids=HOSTILE.keys())
def test_text_that_is_none_is_refused_in_one_line(spoil, said):
    data = spoil(DOCUMENT)
    with pytest.raises(UserError) as error:
        strict_json.parse(data)
    assert said in str(error.value)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1000


def test_a_mark_of_utf_8_before_the_text_is_none_of_it():
    assert strict_json.parse(_text(DOCUMENT).encode("utf-8-sig")) == DOCUMENT


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "large.json"
    with open(path, "wb") as file:
        file.truncate(200 * 2**20)
    with pytest.raises(UserError, match="209,715,200 bytes are more than 67,108,864"):
        strict_json.contents(path, 2**26)


def test_a_character_in_two_halves_is_one():
    assert strict_json.parse(rb'["\ud83d\ude00", "\\ud800"]') == ["\U0001f600", r"\ud800"]


def test_a_regular_file_with_nothing_to_read_for_now_is_refused(tmp_path, monkeypatch):
    """As /proc/kmsg is."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with open(path, "rb+", buffering=0):
        monkeypatch.setattr(stat, "S_ISREG", lambda mode: True)
        with pytest.raises(UserError, match="is not a regular file"):
            strict_json.contents(path, 2**20)
