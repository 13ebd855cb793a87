"""Foreign text before a terminal: whatever could move the cursor, hide text or turn its direction becomes visible."""

from __future__ import annotations

import json
import re
from typing import Any

# Controls (C0 without tab and newline, DEL, C1), bidirectional controls, zero-width and other invisible characters,
# line separators, lone surrogates, tags.
_HOSTILE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def sanitise(text: str, *, newlines: bool = False) -> str:
    """`text` with every hostile character as a visible escape; newlines and tabs become spaces unless `newlines`."""
    shown = _HOSTILE.sub(_escape, text)
    return shown if newlines else shown.replace("\n", " ").replace("\t", " ")


def shorten(text: str, width: int) -> str:
    """Sanitised and cut to `width` characters."""
    shown = sanitise(text[: width * 4])
    return shown if len(shown) <= width else f"{shown[: width - 1]}…"


def _escape(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def escape_json(text: str) -> str:
    """The same JSON document without a character that acts on a terminal."""
    return _HOSTILE.sub(lambda found: json.dumps(found.group())[1:-1], text)


def json_safe(value: Any) -> Any:
    """A value that JSON can hold: lone surrogates escaped, NaN and infinity as null, the rest as it is."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {json_safe(str(key)): json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_safe(entry) for entry in value]
    return value
