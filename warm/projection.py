"""What Postgres shows of an event beside its exact bytes: the jsonb projection and the typed columns.

A projection is for queries alone. Strings over 2 KiB are cut in it, and where that does not make it small, the large
fields are left out; references to blobs stay. A body that jsonb refuses (NUL characters, lone surrogates, NaN, numbers
without end, deep nesting, bytes that are no JSON) has none. That is decided here, by rules a little stricter than
those of Postgres, so that no body can abort the transaction that stores it.
"""

from __future__ import annotations

import json
import re

import msgspec

from stratalog.schemas.events import EventBody, Unknown

STRING_BYTES_MAX = 2 << 10
FIELD_BYTES_MAX = 8 << 10
PROJECTION_BYTES_MAX = 64 << 10
DEPTH_MAX = 200
DIGITS_MAX = 10_000
COLUMN_CHARS_MAX = 200
"""Longer names would not fit into an index."""

# One JSON string token, or the rest of a body that ends within one: a search for its end would start again at each of
# its quotes. Possessive, so that a long string leaves no trail of backtracking points.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_AFTER_KEY = re.compile(rb"\s*:")
_NUL = rb"\u0000"
# Postgres takes 131,072 digits before the point and 16,383 after it; greater exponents are refused by the parser here.
_LONG_FRACTION = re.compile(rb"[0-9]{%d}" % DIGITS_MAX)
_SMALL_EXPONENT = re.compile(rb"[eE]-[0-9]{4}")
_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")


def project(body: bytes) -> str | None:
    """The JSON text of the projection, or `None` where there can be none."""
    if len(body) > STRING_BYTES_MAX:
        body = _STRING.sub(_cut, body)
    if len(body) > PROJECTION_BYTES_MAX:
        body = _leave_out(body)
    if (_NUL in body and _has_nul(body)) or _too_long(body) or _too_deep(body):
        return None
    try:
        # Raises for what is no JSON, for lone surrogates, and for bytes that are no UTF-8.
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    return body.decode()


def column_text(value: object) -> str | None:
    """`value` as it can stand in a text column, cut; `None` for what is no text or empty."""
    if not isinstance(value, str) or not value:
        return None
    return storable(value[:COLUMN_CHARS_MAX])


def storable(text: str) -> str:
    """`text` with the characters replaced that Postgres cannot hold."""
    return _NOT_TEXT.sub("\ufffd", text)


def tool_name(body: EventBody) -> str | None:
    """The tool that an event is about."""
    return None if isinstance(body, Unknown) else column_text(getattr(body, "tool", None))


def event_status(body: EventBody) -> str | None:
    """The status that an event reports: of a result, a child, the end."""
    return None if isinstance(body, Unknown) else column_text(getattr(body, "status", None))


def _cut(found: re.Match[bytes]) -> bytes:
    token = found.group()
    if len(token) - 2 <= STRING_BYTES_MAX or _AFTER_KEY.match(found.string, found.end()):
        return token
    try:
        text = json.loads(token)
    except (ValueError, RecursionError):
        return token
    # Cut bytes may end within a character: drop its beginning, and lone surrogates with it.
    cut = text.encode("utf-8", "surrogatepass")[:STRING_BYTES_MAX].decode("utf-8", "ignore")
    return json.dumps(cut, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _leave_out(body: bytes) -> bytes:
    """The object without its large fields; the bytes as they are where they are no object."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return b""
    small = {name: value for name, value in fields.items() if len(value) <= FIELD_BYTES_MAX}
    kept = msgspec.json.encode(small)
    return kept if len(kept) <= PROJECTION_BYTES_MAX else b""


def _has_nul(body: bytes) -> bool:
    """Whether an escape is a NUL character and not the end of an escaped backslash."""
    return any(_NUL in token.group().replace(b"\\\\", b"") for token in _STRING.finditer(body))


def _too_long(body: bytes) -> bool:
    """Whether a number has more digits or a smaller exponent than Postgres takes."""
    if len(body) <= DIGITS_MAX and b"e-" not in body and b"E-" not in body:
        return False
    numbers = _STRING.sub(b'""', body)
    return bool(_LONG_FRACTION.search(numbers) or _SMALL_EXPONENT.search(numbers))


def _too_deep(body: bytes) -> bool:
    if body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return False
    depth = 0
    for character in _STRING.sub(b"", body):
        if character in b"[{":
            depth += 1
            if depth > DEPTH_MAX:
                return True
        elif character in b"]}":
            depth -= 1
    return False
