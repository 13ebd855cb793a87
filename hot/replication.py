"""What Postgres has of a log: the position up to which it has committed and compared, and what it has quarantined."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence

from stratalog.schemas.errors import Corrupt, CursorMismatch
from stratalog.schemas.protocols import Store

from .keys import Position
from .marks import MarkFile
from .recovery import position_at
from .watermark import Watermark

WRITE_INTERVAL_S = 1.0
QUARANTINED_MAX = 100_000
MOMENTS_MAX = 4096
"""So many moments are remembered for `lag_s`; where Postgres is away for longer, every other one is forgotten."""


class Replication:
    """Thread-safe; `mark` is the REPLICATED file, `None` in the simulator."""

    def __init__(self, mark: MarkFile | None) -> None:
        self._mark = mark
        stored = mark.read() if mark else None
        self.position = Position(stored.lsn, bytes.fromhex(stored.hash)) if stored else Position()
        self.watermark = Watermark(self.position.lsn)
        self._lock = threading.Lock()
        self._written_at = 0.0
        self._quarantined: set[int] = set()
        self._forgotten_lsn = 0
        self._durable_since: deque[tuple[int, float]] = deque()

    def acknowledge(self, position: Position, quarantined: Sequence[int]) -> None:
        """Take in what Postgres has; the caller has checked the position."""
        with self._lock:
            self._note_quarantined(quarantined)
            if position.lsn > self.position.lsn:
                self.position = position
                self._forget_moments()
                now = time.monotonic()
                if now - self._written_at >= WRITE_INTERVAL_S:
                    self._written_at = now
                    self._write()
        self.watermark.advance(position.lsn)  # after the quarantine: who wakes up looks there

    def _note_quarantined(self, lsns: Sequence[int]) -> None:
        self._quarantined.update(lsns)
        if len(self._quarantined) > QUARANTINED_MAX:
            kept = sorted(self._quarantined)[QUARANTINED_MAX // 2 :]
            self._forgotten_lsn = kept[0] - 1
            self._quarantined = set(kept)

    def is_quarantined(self, lsn: int) -> bool:
        """Whether Postgres has quarantined an event; true also for one so old that it is not known any more."""
        return lsn in self._quarantined or lsn <= self._forgotten_lsn

    def write(self) -> None:
        """Make the position durable."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        if self._mark is not None and self.position.lsn:
            self._mark.write(self.position.lsn, self.position.hash, durable=True)

    def note_durable(self, lsn: int, at_s: float) -> None:
        """Events up to `lsn` were durable at a time, s since 1970; called every now and then, for `lag_s`."""
        with self._lock:
            self._durable_since.append((lsn, at_s))
            if len(self._durable_since) > MOMENTS_MAX:
                self._durable_since = deque(list(self._durable_since)[::2])

    def _forget_moments(self) -> None:
        while self._durable_since and self._durable_since[0][0] <= self.position.lsn:
            self._durable_since.popleft()

    def lag_s(self, durable_lsn: int) -> float:
        """For how long, roughly, events have been durable here and not replicated; 0 when all is."""
        with self._lock:
            self._forget_moments()
            oldest = self._durable_since[0][1] if self._durable_since else None
        return 0.0 if oldest is None or self.position.lsn >= durable_lsn else max(0.0, time.time() - oldest)


def check_position(
    log_id: uuid.UUID, store: Store, position: Position, durable_lsn: int, pruned: Callable[[], Position]
) -> None:
    """Raise `CursorMismatch` unless the event at a position is the one in the log; one that is pruned passes."""
    lsn = position.lsn
    if not 0 < lsn <= durable_lsn:
        raise CursorMismatch(f"the log {log_id} ends at LSN {durable_lsn}, the cursor is at {lsn}")
    known = position_at(store, lsn, pruned())
    if known is None and lsn == pruned().lsn:  # pruned while we looked
        known = pruned()
    if known is None and lsn > pruned().lsn:
        raise Corrupt(f"the event at LSN {lsn} is missing")
    if known is not None and known.hash != position.hash:
        raise CursorMismatch(f"the event at LSN {lsn} of {log_id} is not the one that was replicated")
