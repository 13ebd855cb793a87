"""Two small files beside the database, because a write-ahead log that was deleted opens empty without an error.

HEAD holds the last durable position, brought up to date about every 100 ms without a sync and synced on close.
REPLICATED holds the last position that Postgres has committed and compared; it is always synced. If the database ends
before either, acknowledged events are gone and the log refuses to open. Events appended after the last HEAD update and
before a power loss that also loses the whole write-ahead log are the window that remains.
"""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

import google_crc32c
import msgspec

from stratalog.schemas.errors import OpenRefused

from .faults import translating
from .files import forget_drafts, write_durably, write_quickly

_HASH = re.compile(r"(?:[0-9a-f]{64})?")
_ID = re.compile(r"(?:[0-9a-f]{32})?")


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position as it lies in a file; `hash` is hex. `closed` says that the log was closed in order."""

    log_id: str
    lsn: int
    hash: str
    closed: bool = False
    opening: str = ""
    """The id, in hex, of the opening that wrote the event there; only where `closed`."""
    check: int = 0
    """CRC-32C of the other fields."""

    def checksum(self) -> int:
        """What `check` must be."""
        content = f"{self.log_id} {self.lsn} {self.hash} {self.closed}" + (f" {self.opening}" if self.opening else "")
        checksum: int = google_crc32c.value(content.encode())
        return checksum

    def is_whole(self) -> bool:
        """Whether this is what was written."""
        return (
            self.lsn >= 0
            and _HASH.fullmatch(self.hash) is not None
            and _ID.fullmatch(self.opening) is not None
            and self.check == self.checksum()
        )


class MarkFile:
    """HEAD or REPLICATED of one log; `synced` says that it is never written without a sync."""

    def __init__(self, path: Path, log_id: str, *, synced: bool = False) -> None:
        self.path = path
        self._synced = synced
        self._log_id = log_id
        self._written_at = 0.0
        self.written_lsn = 0

    def read(self) -> Mark | None:
        """The mark, `None` where there is none; raises `OpenRefused` for a damaged file or one of another log.

        What was written without a sync may have lost its content with the power: an empty file is none, and so is one
        of zeros, which is what a file system shows whose size reached the disk before the content.
        """
        content = self._load()
        if not content or not (self._synced or content.strip(b"\0")):
            return None
        try:
            mark = msgspec.json.decode(content, type=Mark)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise OpenRefused(f"{self.path} is damaged: {error}") from error
        if not mark.is_whole():
            raise OpenRefused(f"{self.path} is damaged: it does not match its checksum")
        if mark.log_id != self._log_id:
            raise OpenRefused(f"{self.path} belongs to the log {mark.log_id}")
        return mark

    def write(self, lsn: int, digest: bytes, *, durable: bool, closed: bool = False, opening: bytes = b"") -> None:
        """Replace the mark."""
        self.written_lsn, self._written_at = lsn, time.monotonic()
        mark = Mark(self._log_id, lsn, digest.hex(), closed, opening.hex())
        self._save(msgspec.json.encode(msgspec.structs.replace(mark, check=mark.checksum())), durable=durable)

    def _load(self) -> bytes:
        with translating(f"reading {self.path}"):
            try:
                return self.path.read_bytes()
            except FileNotFoundError:
                return b""

    def _save(self, content: bytes, *, durable: bool) -> None:
        with translating(f"writing {self.path}"):
            if durable:
                write_durably(self.path, content)
            else:
                write_quickly(self.path, content)

    def due_s(self, interval_s: float) -> float:
        """Seconds until it is `interval_s` since the last write; 0 or less when that is over."""
        return self._written_at + interval_s - time.monotonic() if self._written_at else 0.0

    def forget_drafts(self) -> None:
        """Remove what a killed owner left of writing this file."""
        forget_drafts(self.path)


def peek(path: Path) -> Mark | None:
    """The mark of a log that another process may own; `None` where there is none yet or it is being replaced."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        mark = msgspec.json.decode(path.read_bytes(), type=Mark)
        if mark.is_whole():
            return mark
    return None
