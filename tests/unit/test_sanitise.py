"""Foreign text cannot act on a terminal, and JSON output is always JSON."""

from __future__ import annotations

import json
import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.cli.sanitise import escape_json, json_safe, sanitise, shorten

HOSTILE = [
    "\x1b[2J\x1b[H",  # ANSI: clear the screen
    "\x1b]0;title\x07",  # OSC: set the window title
    "\x9b31m",  # the same in one C1 byte
    "abc\rdef",  # overwrite the line
    "a\x08b",  # backspace
    "\u202egnp.exe",  # right-to-left override
    "\u2066hidden\u2069",  # isolates
    "zero\u200bwidth",
    "\ufeffbom",
    "\U000e0041tag",
    "\ud800",
    "line\u2028separator",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_escapes(text: str) -> None:
    shown = sanitise(text)
    assert shown.isprintable()
    assert "\\" in shown


@given(st.text(st.characters()))
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    shown = sanitise(text)
    assert all(unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp") for character in shown)
    assert not any(unicodedata.bidirectional(character) in ("RLO", "LRO", "RLE", "LRE", "PDF") for character in shown)


def test_ordinary_text_stays_as_it_is() -> None:
    text = "naïve résumé, 東京, עברית, 👩‍🚀".replace("\u200d", "")
    assert sanitise(text) == text
    assert sanitise("a\tb\nc", newlines=True) == "a\tb\nc"
    assert sanitise("a\tb\nc") == "a b c"


def test_shortened_text_says_so() -> None:
    assert shorten("x" * 50, 10) == "xxxxxxxxx…"
    assert shorten("short", 10) == "short"
    assert len(shorten("\x1b" * 1000, 20)) == 20


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda children: st.lists(children) | st.dictionaries(st.text(st.characters()), children),
    max_leaves=20,
)


@given(json_values)
def test_whatever_is_printed_as_json_is_json(value: object) -> None:
    text = msgspec.json.encode(json_safe(value)).decode()
    assert json.loads(escape_json(text)) == json.loads(text)
    assert sanitise(escape_json(text)) == escape_json(text)
