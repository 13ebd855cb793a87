"""Reading a hot log without keeping it from those who append.

A log that nobody owns has to be opened, which locks it. It is kept open for a moment only and never while whoever reads
is busy with what was read, so a process that wants to append gets it within about a second.
"""

from __future__ import annotations

import time
import uuid

from stratalog.hot.home import Home
from stratalog.hot.keys import Head
from stratalog.hot.source import LogReader, open_reader
from stratalog.schemas.envelope import Envelope

HOLD_S = 0.5
"""How long a log stays open for reading that goes on at once."""
BATCH_EVENTS = 256
BATCH_BYTES = 8 << 20


class LogAccess:
    """One log of a home, as it is when this is made: its heads, and how far it was pruned."""

    def __init__(self, home: Home, log_id: uuid.UUID) -> None:
        self._home = home
        self.log_id = log_id
        self._reader: LogReader | None = None
        self._opened_at = 0.0
        reader = self._open()
        try:
            self.heads: list[Head] = reader.heads()
            self.pruned_lsn: int = reader.status()["pruned_lsn"]
        finally:
            self.release()

    def read(self, trajectory_id: uuid.UUID, from_sequence: int) -> list[Envelope]:
        """The next events of a trajectory that still lie here; empty when there are no more."""
        found: list[Envelope] = []
        size = 0
        reader = self._open()
        try:
            for envelope in reader.envelopes(trajectory_id, from_sequence):
                found.append(envelope)
                size += len(envelope.body)
                if len(found) == BATCH_EVENTS or size > BATCH_BYTES:
                    break
        except BaseException:
            self.release()
            raise
        if time.monotonic() - self._opened_at > HOLD_S:
            self.release()
        return found

    def release(self) -> None:
        """Close the log until the next read."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _open(self) -> LogReader:
        if self._reader is None:
            self._reader = open_reader(self._home, self.log_id)
            self._opened_at = time.monotonic()
        return self._reader
