"""Two small files beside the database, because a write-ahead log that was deleted opens empty without an error.

HEAD holds the last durable position, brought up to date about every 100 ms without a sync and synced on close.
REPLICATED holds the last position that Postgres has committed and compared; it is always synced. If the database ends
before either, acknowledged events are gone and the log refuses to open. Events appended after the last HEAD update and
before a power loss that also loses the whole write-ahead log are the window that remains.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from stratalog.schemas.errors import OpenRefused

from .files import write_durably, write_quickly


class Mark(msgspec.Struct, frozen=True):
    """A position as it lies in a file; `hash` is hex. `closed` says that the log was closed in order."""

    log_id: str
    lsn: int
    hash: str
    closed: bool = False


class MarkFile:
    """HEAD or REPLICATED of one log."""

    def __init__(self, path: Path, log_id: str) -> None:
        self.path = path
        self._log_id = log_id

    def read(self) -> Mark | None:
        """The mark, `None` where there is none; raises `OpenRefused` for a damaged file or one of another log."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            mark = msgspec.json.decode(content, type=Mark)
        except msgspec.MsgspecError as error:
            raise OpenRefused(f"{self.path} is damaged: {error}") from error
        if mark.log_id != self._log_id:
            raise OpenRefused(f"{self.path} belongs to the log {mark.log_id}")
        return mark

    def write(self, lsn: int, digest: bytes, *, durable: bool, closed: bool = False) -> None:
        """Replace the mark."""
        content = msgspec.json.encode(Mark(self._log_id, lsn, digest.hex(), closed))
        if durable:
            write_durably(self.path, content)
        else:
            write_quickly(self.path, content)


def peek(path: Path) -> Mark | None:
    """The mark of a log that another process may own; `None` where there is none yet or it is being replaced."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=Mark)
    return None
