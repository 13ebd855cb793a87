"""What is left of a row when its trajectory is erased: what the chain and the layout need, and nothing that was said.

Place, kind, times, hashes, counts, status and model stay, as they do in the warm tier; the body's digest takes the
place of the body, so that the chain verifies as before. Everything else that came from a body or the head is gone.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stratalog.schemas.arrow import CLEARED, INDEX, REDUCED
from stratalog.schemas.envelope import digest_body
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.events import Source

from .columns import Row, body_of

NO_DIGEST = bytes(32)
"""In place of the digest of a body that was damaged already: its chain did not verify before, and does not now."""

_CLEARED = [INDEX[name] for name in CLEARED]
_ID, _SEQUENCE, _ERASED, _DIGEST = (
    INDEX[name] for name in ("trajectory_id", "sequence_number", "erased", "body_digest")
)
_STARTS, _SECRET, _UNDATED = INDEX["segment_last_sequence"], INDEX["segment_secret"], INDEX["trajectory_undated"]
_LABELS, _SOURCE, _AGENT = (INDEX[name] for name in REDUCED)


class Eraser:
    """Makes rows erased ones, in place, in the order of their segments; counts what it has changed."""

    def __init__(self) -> None:
        self.rows = 0
        self._segment: bytes | None = None
        self._secret: bytes | None = None

    def __call__(self, row: Row) -> Row:
        """The row without content; one that has none stays as it is."""
        before = row.copy()
        if row[_STARTS] is not None or row[_ID] != self._segment:
            self._segment, self._secret = row[_ID], row[_SECRET]
        if not row[_ERASED]:
            row[_DIGEST] = self._digest(row)
            row[_ERASED] = True
        for index in _CLEARED:
            row[index] = None
        row[_LABELS], row[_SOURCE] = _labels(row), _source(row[_SOURCE])
        row[_AGENT] = None if row[_AGENT] is None else ""
        self.rows += row != before
        return row

    def _digest(self, row: Row) -> bytes:
        try:
            body = body_of(row)
        except Corrupt:
            return NO_DIGEST
        return NO_DIGEST if self._secret is None else digest_body(self._secret, row[_SEQUENCE], body)


def has_content(row: Row) -> bool:
    """Whether a row is not an erased one, or has more than that may have."""
    return Eraser()(row.copy()) != row


def _labels(row: Row) -> str | None:
    if row[_LABELS] is None:
        return None
    return msgspec.json.encode({"undated": "true"} if row[_UNDATED] else {}).decode()


def _source(text: Any) -> str | None:
    if text is None:
        return None
    try:
        return msgspec.json.encode(Source(format=msgspec.json.decode(text, type=Source).format)).decode()
    except (msgspec.MsgspecError, UnicodeError):
        return None
