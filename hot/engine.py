"""The open log behind `HotLog`: store, heads, commit thread, watermarks, prune. Shared with the tail service.

Order of a group: the events' puts and `META_DURABLE` (where the group before ended) are committed, then the durable
watermark moves, then the waiters are released. Order of a prune: the heads and `META_PRUNED` are committed, then the
events are removed; a crash in between leaves events that the next prune removes.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from stratalog.schemas.envelope import Envelope, decode_record
from stratalog.schemas.errors import Corrupt, CursorMismatch, DiskBudgetExceeded, InDoubt, Invalid, NotFound
from stratalog.schemas.protocols import Put, Store
from stratalog.schemas.settings import HotSettings

from . import keys
from .committer import Committer, Staged, ThreadWaiter, Waiter
from .contents import Contents
from .files import FileLock
from .keys import Head, Position
from .marks import MarkFile
from .recovery import Recovered, position_at, recover
from .staging import NewEvent, PreparedEvent, Receipt, Stager, prepare
from .watermark import Watermark

DISK_CHECK_INTERVAL_S = 0.05
REPLICATED_INTERVAL_S = 1.0
PRUNE_EVENTS_MIN = 1024
"""Fewer events are not worth a range of their own."""
QUARANTINED_MAX = 100_000


class Engine:
    """One open log; callable from any thread. `folder` holds the marks; `None` in the simulator, which has none."""

    def __init__(
        self,
        log_id: uuid.UUID,
        store: Store,
        settings: HotSettings,
        *,
        folder: Path | None = None,
        lock: FileLock | None = None,
    ) -> None:
        self.log_id = log_id
        self.store = store
        self.settings = settings
        self.folder = folder
        self.contents = Contents(store)
        self._lock_file = lock
        self._head_mark = MarkFile(folder / "HEAD", str(log_id)) if folder else None
        self._replicated_mark = MarkFile(folder / "REPLICATED", str(log_id)) if folder else None
        marks = tuple(mark for mark in (self._head_mark, self._replicated_mark) if mark is not None)
        recovered: Recovered = recover(store, marks)
        self.recovered_events = recovered.scanned
        self._heads = recovered.heads
        self._pruned = recovered.pruned
        self._durable_position = recovered.last
        self._save_asked = False
        self._marked_at = self._checked_at = self._acknowledged_at = 0.0
        self._disk_full: str | None = None
        replicated = self._replicated_mark.read() if self._replicated_mark else None
        self._replicated_position = (
            Position(replicated.lsn, bytes.fromhex(replicated.hash)) if replicated else Position()
        )
        self.durable = Watermark(recovered.last.lsn)
        self.replicated = Watermark(self._replicated_position.lsn)
        self.quarantined: set[int] = set()
        self._durable_since: deque[tuple[int, float]] = deque()
        if recovered.last.lsn > self._replicated_position.lsn:
            self._durable_since.append((recovered.last.lsn, _modified(folder / "HEAD") if folder else time.time()))
        self._prune_lock = threading.Lock()
        self._closed = False
        self.contents.forget_orphans()
        if recovered.pruned.lsn:
            self._remove(recovered.pruned.lsn)
        self.stager = Stager(log_id, self._heads, self.contents, recovered.last)
        self._committer = Committer(
            store, settings, drain_due=self._save_due, begin_group=self._begin_group, end_group=self._end_group
        )

    # --- appending ---------------------------------------------------------------------------------------------------

    def prepare(self, event: NewEvent, now_us: int) -> PreparedEvent:
        """Encode an event; see `staging.prepare`."""
        self._check_open()
        return prepare(event, self.settings, self.contents, now_us)

    def stage(
        self,
        head: Callable[[], Head],
        prepared: Sequence[PreparedEvent],
        notes: Mapping[bytes, bytes],
        waiter: Waiter,
    ) -> None:
        """Queue events after `head()`, which is called under the lock; `waiter` is released with the receipts."""
        self._check_disk()
        committer = self._committer
        with committer.lock:
            self._check_open()
            puts: list[Put] = []
            receipts: list[Receipt] = []
            size = 0
            if prepared:
                puts, receipts, size = self.stager.stage(head(), prepared)
            puts += [Put("meta", keys.NOTE_PREFIX + key, value) for key, value in notes.items()]
            committer.stage(Staged(puts, len(prepared), self.stager.last, size, waiter, receipts))

    def _check_open(self) -> None:
        if self._closed:
            raise Invalid("this log is closed")
        failure = self._committer.failure
        if failure is not None:
            raise InDoubt(f"an earlier commit failed: {failure.message}", hint="open the log again")

    def _check_disk(self) -> None:
        now = time.monotonic()
        if self.folder is not None and now - self._checked_at >= DISK_CHECK_INTERVAL_S:
            self._checked_at = now
            disk = os.statvfs(self.folder)
            share = disk.f_bavail / disk.f_blocks if disk.f_blocks else 1.0
            self._disk_full = None
            if share < self.settings.disk_free_min:
                self._disk_full = f"only {share:.1%} of the disk of {self.folder} is free"
        if self._disk_full is not None:
            raise DiskBudgetExceeded(f"{self._disk_full}, less than disk_free_min ({self.settings.disk_free_min:.1%})")

    def _save_due(self) -> bool:
        return self._save_asked or self._heads.due(self.stager.last.lsn)

    def _begin_group(self, group: Sequence[Staged], drained: bool) -> list[Put]:
        durable = self._durable_position
        puts = [Put("meta", keys.META_DURABLE, keys.encode(durable))] if durable.lsn else []
        if drained and self._save_due():
            puts += self._heads.save(group[-1].last)
            self._save_asked = False
        return puts

    def _end_group(self, last: Staged) -> None:
        self._durable_position = last.last
        now = time.monotonic()
        if self._head_mark is not None and now - self._marked_at >= self.settings.head_interval_ms / 1000:
            self._marked_at = now
            self._head_mark.write(last.last.lsn, last.last.hash, durable=False)
            self._durable_since.append((last.last.lsn, time.time()))
        self.durable.advance(last.last.lsn)

    @property
    def lag_s(self) -> float:
        """For how long, roughly, events have been durable here and not replicated; 0 when all is."""
        replicated, waiting = self._replicated_position.lsn, self._durable_since
        if replicated >= self.durable.value:
            return 0.0
        while waiting and waiting[0][0] <= replicated:
            waiting.popleft()
        return max(0.0, time.time() - waiting[0][1]) if waiting else 0.0

    # --- reading -----------------------------------------------------------------------------------------------------

    @property
    def durable_position(self) -> Position:
        """The last durable event."""
        return self._durable_position

    @property
    def replicated_position(self) -> Position:
        """The last event that Postgres has."""
        return self._replicated_position

    @property
    def pruned_lsn(self) -> int:
        """The LSN up to which events are gone from here."""
        return self._pruned.lsn

    def envelope(self, lsn: int) -> Envelope | None:
        """The durable event at an LSN; `None` beyond the watermark and where it was pruned."""
        if not self._pruned.lsn < lsn <= self.durable.value:
            return None
        value = self.store.get("events", keys.lsn_key(lsn))
        if value is None:
            if lsn <= self._pruned.lsn:
                return None
            raise Corrupt(f"the event at LSN {lsn} is missing")
        return decode_record(lsn, value)

    def scan(self, from_lsn: int = 1, to_lsn: int | None = None) -> Iterator[Envelope]:
        """Durable events in order from an LSN on; raises `Corrupt` at a hole."""
        stop = min(self.durable.value, to_lsn if to_lsn is not None else keys.LSN_MAX)
        expected = max(from_lsn, self._pruned.lsn + 1)
        for key, value in self.store.scan("events", keys.lsn_key(expected), keys.lsn_key(stop + 1)):
            lsn = keys.lsn_of(key)
            if lsn != expected:
                raise Corrupt(f"the event at LSN {expected} is missing, the next one is {lsn}")
            yield decode_record(lsn, value)
            expected += 1
        if expected <= stop:
            raise Corrupt(f"the event at LSN {expected} is missing, and the log should reach LSN {stop}")

    def envelopes(self, trajectory_id: uuid.UUID, from_sequence: int = 0) -> Iterator[Envelope]:
        """The durable events of a trajectory here, in order: the back-pointers are walked, then read forwards."""
        head = self.head(trajectory_id)
        if head is None:
            raise NotFound(f"trajectory {trajectory_id} is not in this log")
        lsns = []
        lsn, durable = head.lsn, self.durable.value
        while lsn > self._pruned.lsn:
            value = self.store.get("events", keys.lsn_key(lsn))
            if value is None:
                if lsn > durable or lsn <= self._pruned.lsn:
                    break
                raise Corrupt(f"the event at LSN {lsn} is missing")
            envelope = decode_record(lsn, value)
            if envelope.header.sequence_number < from_sequence:
                break
            if lsn <= durable:
                lsns.append(lsn)
            lsn = envelope.previous_lsn
        for lsn in reversed(lsns):
            found = self.envelope(lsn)
            if found is not None:
                yield found

    def head(self, trajectory_id: uuid.UUID) -> Head | None:
        """The head of a trajectory, staged events included."""
        with self._committer.lock:
            return self._heads.get(trajectory_id)

    def all_heads(self) -> list[Head]:
        """The heads of all trajectories here."""
        with self._committer.lock:
            return list(self._heads.all())

    # --- replication and pruning -------------------------------------------------------------------------------------

    def check_cursor(self, cursor: Position) -> None:
        """Raise `CursorMismatch` unless the event at the cursor is the one that was replicated from here."""
        if cursor.lsn == 0:
            return
        known = position_at(self.store, cursor.lsn, self._pruned) if cursor.lsn <= self.durable.value else None
        if known is None:
            if cursor.lsn < self._pruned.lsn:
                return  # older than what was pruned here, which only happens behind a committed cursor
            raise CursorMismatch(
                f"the log {self.log_id} ends at LSN {self.durable.value}, the cursor is at {cursor.lsn}"
            )
        if known.hash != cursor.hash:
            raise CursorMismatch(f"the event at LSN {cursor.lsn} of {self.log_id} is not the one that was replicated")

    def acknowledge(self, lsn: int, digest: bytes, quarantined: Sequence[int] = ()) -> None:
        """Note what Postgres has; raises `CursorMismatch` for a hash that is not the one here."""
        self.check_cursor(Position(lsn, digest))
        if len(self.quarantined) < QUARANTINED_MAX:
            self.quarantined.update(quarantined)
        if lsn > self._replicated_position.lsn:
            self._replicated_position = Position(lsn, digest)
            now = time.monotonic()
            if now - self._acknowledged_at >= REPLICATED_INTERVAL_S:
                self._acknowledged_at = now
                self._write_replicated()
        self.replicated.advance(lsn)
        self._prune_if_worth_it()

    def _write_replicated(self) -> None:
        position = self._replicated_position
        if self._replicated_mark is not None and position.lsn:
            self._replicated_mark.write(position.lsn, position.hash, durable=True)

    def prune_bound(self) -> int:
        """The LSN up to which events may go: replicated, older than the lag, and not needed by a live trajectory."""
        bound = self._replicated_position.lsn - self.settings.prune_lag_events
        with self._committer.lock:
            pinned = self._heads.pinned_lsn()
        if pinned is not None and pinned <= bound and self.store.disk_bytes() < self.settings.hot_bytes_max:
            bound = pinned - 1
        return max(bound, self._pruned.lsn)

    def _prune_if_worth_it(self) -> None:
        if self._replicated_position.lsn - self._pruned.lsn < PRUNE_EVENTS_MIN:
            return
        if self.prune_bound() - self._pruned.lsn >= PRUNE_EVENTS_MIN:
            self.prune()

    def prune(self) -> int:
        """Remove what is replicated and not needed; returns the LSN up to which the log is pruned."""
        with self._prune_lock:
            bound = self.prune_bound()
            if bound <= self._pruned.lsn:
                return self._pruned.lsn
            position = position_at(self.store, bound, self._pruned)
            if position is None:
                raise Corrupt(f"the event at LSN {bound} is missing")
            self._write_replicated()
            waiter = ThreadWaiter()
            with self._committer.lock:
                self._check_open()
                self._save_asked = True
                put = Put("meta", keys.META_PRUNED, keys.encode(position))
                self._committer.stage(Staged([put], 0, self.stager.last, 0, waiter, None))
            waiter.wait()
            self._pruned = position
            self._remove(bound)
            return bound

    def _remove(self, bound: int) -> None:
        first = next(iter(self.store.scan("events", keys.lsn_key(0))), None)
        start = keys.lsn_of(first[0]) if first is not None else bound + 1
        if start <= bound:
            self.store.delete_range("events", keys.lsn_key(start), keys.lsn_key(bound + 1))
            self.contents.forget(start, bound + 1)

    def close(self) -> None:
        """Commit what is staged, save the heads and the marks, release everything."""
        if self._closed:
            return
        waiter = ThreadWaiter()
        with self._committer.lock:
            self._closed = True
            staged = self._committer.failure is None and bool(self.stager.last.lsn)
            if staged:
                self._save_asked = True
                self._committer.stage(Staged([], 0, self.stager.last, 0, waiter, None))
        self._committer.close()
        failed = self._committer.failure is not None
        self.durable.close()
        self.replicated.close()
        try:
            if not failed and self._head_mark is not None and self._durable_position.lsn:
                self._write_replicated()
                self._head_mark.write(
                    self._durable_position.lsn, self._durable_position.hash, durable=True, closed=True
                )
            self.store.close()
        finally:
            if self._lock_file is not None:
                self._lock_file.release()


def _modified(path: Path) -> float:
    """When a file was last written, s since 1970; now where there is none."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()
