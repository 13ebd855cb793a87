"""The open log behind `HotLog`: store, heads, commit thread, watermarks, prune. Shared with the tail service.

Order of a group: the events' puts and `META_DURABLE` (where the group before ended) are committed, then the durable
watermark moves, then the waiters are released. Order of a prune: the heads and `META_PRUNED` are committed, then the
events are removed; a crash in between leaves events that the next prune removes.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stratalog.schemas.envelope import Envelope
from stratalog.schemas.errors import (
    Corrupt,
    CursorMismatch,
    Erased,
    InDoubt,
    Invalid,
    NotFound,
)
from stratalog.schemas.protocols import Put, Store, go_on
from stratalog.schemas.settings import HotSettings

from . import keys
from .budget import DiskBudget
from .committer import Committer, Staged, ThreadWaiter
from .contents import Contents
from .erasing import Erasing
from .erasure import ErasedHere, Erasure
from .events import Events
from .files import FileLock, modified_s
from .intake import Intake
from .keys import Cursor, Head, Position
from .marks import MarkFile
from .openings import Openings
from .recovery import Recovered, position_at, recover
from .replication import Replication, check_position
from .staging import Stager
from .watermark import Watermark

ERASED_HINT = Erased.default_hint
PRUNE_EVENTS_MIN = 1024
"""Fewer events are not worth a range of their own."""


class Engine:
    """One open log; callable from any thread. `folder` holds the marks, HEAD and REPLICATED, unless they are given.

    With `threaded=False` nothing is committed until `step` is called: for the simulator.
    """

    def __init__(
        self,
        log_id: uuid.UUID,
        store: Store,
        settings: HotSettings,
        *,
        folder: Path | None = None,
        lock: FileLock | None = None,
        marks: tuple[MarkFile, MarkFile] | None = None,
        threaded: bool = True,
    ) -> None:
        self.log_id = log_id
        self.store = store
        self.settings = settings
        self.folder = folder
        self.contents = Contents(store)
        self._lock_file = lock
        if marks is None and folder is not None:
            replicated = MarkFile(folder / "REPLICATED", str(log_id), synced=True)
            marks = MarkFile(folder / "HEAD", str(log_id)), replicated
        self._head = marks[0] if marks else None
        self._replicated_mark = marks[1] if marks else None
        recovered: Recovered = recover(store, marks or ())
        for mark in marks or ():
            mark.forget_drafts()
        self.recovered_events = recovered.scanned
        self._heads = recovered.heads
        self._pruned = recovered.pruned
        self._durable_position = recovered.last
        self._save_asked = False
        self.durable = Watermark(recovered.last.lsn)
        self.replication = Replication(self._replicated_mark)
        if recovered.last.lsn > self.replication.position.lsn:
            at_s = modified_s(folder / "HEAD") if folder else time.time()
            self.replication.note_durable(recovered.last.lsn, at_s)
        self._events = Events(store, self.durable, lambda: self._pruned.lsn)
        self._prune_lock = threading.Lock()
        self._closed = False
        self.openings = Openings(store, recovered.last.lsn)
        self.contents.forget_orphans()
        if recovered.pruned.lsn:
            self._remove(recovered.pruned.lsn)
        self.stager = Stager(log_id, self._heads, self.contents, recovered.last)
        self._open_head()
        self._committer = Committer(
            store,
            settings,
            drain_due=self._save_due,
            begin_group=self._begin_group,
            end_group=self._end_group,
            after_group=self._mark_head,
            threaded=threaded,
        )
        budget = DiskBudget(folder, settings.disk_free_min)
        self.intake = Intake(self.stager, self._committer, self.contents, budget, settings, self._check_open)
        self._erasure = Erasure(
            store,
            self._heads,
            self.contents,
            commit=self._commit,
            unpruned=self._prune_lock,
            pruned_lsn=lambda: self._pruned.lsn,
            settle=self.intake.settle,
            folder=folder,
        )
        self.erasing = Erasing(self.erase)

    def _open_head(self) -> None:
        """From the first commit on, HEAD must not say any more that the log was closed in order: see `has_more`."""
        mark = self._head.read() if self._head else None
        position = self._durable_position
        if self._head is not None and (mark.closed or mark.lsn < position.lsn if mark else position.lsn):
            self._head.write(position.lsn, position.hash, durable=True)

    # --- appending ---------------------------------------------------------------------------------------------------

    def wait(self, waiter: ThreadWaiter) -> Any:
        """Wait in a thread for what was staged with `waiter`; see `Committer.wait`."""
        return self._committer.wait(waiter)

    def step(self) -> bool:
        """Commit what is next, in an engine without a thread; whether there was something."""
        return self._committer.step()

    def _commit(self, make: Callable[[], list[Put]]) -> None:
        """Commit what `make`, called under the lock, returns, with all heads, behind what is staged already."""
        waiter = ThreadWaiter()
        with self._committer.lock:
            self._check_open()
            puts = make()
            self._save_asked = True
            size = sum(len(put.value) for put in puts)
            self._committer.stage(Staged(puts, 0, self.stager.last, size, waiter, None))
        self._committer.wait(waiter)

    def _check_open(self) -> None:
        if self._closed:
            raise Invalid("this log is closed")
        failure = self._committer.failure
        if failure is not None:
            raise InDoubt(f"an earlier commit failed: {failure.message}", hint="open the log again")

    def _save_due(self) -> bool:
        return self._save_asked or self._heads.due(self.stager.last.lsn)

    def _begin_group(self, group: Sequence[Staged], drained: bool) -> list[Put]:
        durable = self._durable_position
        puts = [Put("meta", keys.META_DURABLE, keys.encode(durable))] if durable.lsn else []
        puts += self.openings.puts(group[-1].last.lsn)
        if drained and self._save_due():
            puts += self._heads.save(group[-1].last)
            self._save_asked = False
        return puts

    def _end_group(self, last: Staged) -> None:
        self._durable_position = last.last
        self.durable.advance(last.last.lsn)

    def _mark_head(self) -> float | None:
        """Bring HEAD up to date when that is due; returns the seconds until it will be, `None` where it is up to date.

        If it cannot be written the log fails: without HEAD a lost write-ahead log would not be noticed.
        """
        position = self._durable_position
        if self._head is None or position.lsn == self._head.written_lsn:
            return None
        remaining_s = self._head.due_s(self.settings.head_interval_ms / 1000)
        if remaining_s <= 0:
            self._head.write(position.lsn, position.hash, durable=False)
            self.replication.note_durable(position.lsn, time.time())
        return remaining_s if remaining_s > 0 else None

    @property
    def lag_s(self) -> float:
        """For how long, roughly, events have been durable here and not replicated; 0 when all is."""
        return self.replication.lag_s(self.durable.value)

    # --- reading -----------------------------------------------------------------------------------------------------

    @property
    def durable_position(self) -> Position:
        """The last durable event."""
        return self._durable_position

    @property
    def replicated_position(self) -> Position:
        """The last event that Postgres has."""
        return self.replication.position

    @property
    def replicated(self) -> Watermark:
        """The LSN up to which Postgres has everything."""
        return self.replication.watermark

    def is_quarantined(self, lsn: int) -> bool:
        """Whether Postgres has put an event aside instead of taking it."""
        return self.replication.is_quarantined(lsn)

    @property
    def pruned_lsn(self) -> int:
        """The LSN up to which events are gone from here."""
        return self._pruned.lsn

    @property
    def pruned_position(self) -> Position:
        """The last event that is gone from here."""
        return self._pruned

    def envelope(self, lsn: int) -> Envelope | None:
        """The durable event at an LSN; `None` beyond the watermark and where it was pruned."""
        return self._events.get(lsn)

    def scan(self, from_lsn: int = 1, to_lsn: int | None = None) -> Iterator[Envelope]:
        """Durable events in order from an LSN on, without what is pruned meanwhile; raises `Corrupt` at a hole."""
        return self._events.scan(from_lsn, to_lsn if to_lsn is not None else keys.LSN_MAX)

    def envelopes(self, trajectory_id: uuid.UUID, from_sequence: int = 0) -> Iterator[Envelope]:
        """The durable events of a trajectory here, in order; raises `NotFound`."""
        with self._committer.lock:
            head = self._heads.get(trajectory_id)
            durable = self.durable.value
            staged = self._staged_events() if head is not None and head.lsn > durable else {}
        if head is None:
            raise NotFound(f"trajectory {trajectory_id} is not in this log")
        return self._events.of_trajectory(head.lsn, from_sequence, durable, staged)

    def content(self, lsn: int, sha256: str) -> bytes:
        """Content that the event at an LSN refers to, verified; raises `NotFound` or `Corrupt`."""
        try:
            return self.contents.get(lsn, sha256)
        except (NotFound, Corrupt) as error:
            envelope = self.envelope(lsn) if 0 < lsn <= keys.LSN_MAX else None
            if envelope is None or not envelope.erased:
                raise
            raise NotFound(f"the event at LSN {lsn} was erased, and its content with it", hint=ERASED_HINT) from error

    def _staged_events(self) -> dict[bytes, bytes]:
        pending = self._committer.pending()
        return {put.key: put.value for entry in pending for put in entry.puts if put.space == "events"}

    def head(self, trajectory_id: uuid.UUID) -> Head | None:
        """The head of a trajectory, staged events included."""
        with self._committer.lock:
            return self._heads.get(trajectory_id)

    def all_heads(self) -> list[Head]:
        """The heads of all trajectories here."""
        with self._committer.lock:
            return list(self._heads.all())

    # --- replication and pruning -------------------------------------------------------------------------------------

    def check_cursor(self, cursor: Cursor) -> None:
        """Raise `CursorMismatch` unless the event at the cursor is the one that was replicated, and none after it is
        pruned. Position 0 is where a reader begins that knows nothing."""
        if cursor.lsn == 0:
            return
        if 0 < cursor.lsn < self._pruned.lsn:
            raise CursorMismatch(
                f"the cursor of {self.log_id} is at LSN {cursor.lsn}, but events up to {self._pruned.lsn} are pruned",
                hint="was Postgres restored from a backup older than hot.prune_lag_events covers?",
            )
        self._check(cursor)
        self.openings.check(cursor)

    def _check(self, position: Position) -> None:
        check_position(self.log_id, self.store, position, self.durable.value, lambda: self._pruned)

    def acknowledge(self, lsn: int, digest: bytes, quarantined: Sequence[int] = ()) -> None:
        """Note what Postgres has; raises `CursorMismatch` for a hash that is not the one here."""
        self._check_open()
        if lsn:
            self._check(Position(lsn, digest))
        self.replication.acknowledge(Position(lsn, digest), quarantined)
        self._prune_if_worth_it()

    def prune_bound(self) -> int:
        """The LSN up to which events may go: replicated, older than the lag, and not needed by a live trajectory."""
        bound = self.replication.position.lsn - self.settings.prune_lag_events
        with self._committer.lock:
            pinned = self._heads.pinned_lsn()
        if pinned is not None and pinned <= bound and self.store.disk_bytes() < self.settings.hot_bytes_max:
            bound = pinned - 1
        return max(bound, self._pruned.lsn)

    def _prune_if_worth_it(self) -> None:
        if self.replication.position.lsn - self._pruned.lsn < PRUNE_EVENTS_MIN:
            return
        if self.prune_bound() - self._pruned.lsn >= PRUNE_EVENTS_MIN:
            self.prune()

    def prune(self) -> int:
        """Remove what is replicated and not needed; returns the LSN up to which the log is pruned."""
        with self._prune_lock:
            self._check_open()
            bound = self.prune_bound()
            if bound <= self._pruned.lsn:
                return self._pruned.lsn
            position = position_at(self.store, bound, self._pruned)
            if position is None:
                raise Corrupt(f"the event at LSN {bound} is missing")
            self.replication.write()
            self._commit(lambda: [Put("meta", keys.META_PRUNED, keys.encode(position))])
            self._pruned = position
            self._remove(bound)
            return bound

    def _remove(self, bound: int) -> None:
        """Remove events up to `bound`, their contents first: what a crash leaves is found by the events."""
        first = next(iter(self.store.scan("events", keys.lsn_key(0), keys.lsn_key(bound + 1))), None)
        if first is not None:
            start = keys.lsn_of(first[0])
            self.contents.forget(start, bound + 1)
            self.store.delete_range("events", keys.lsn_key(start), keys.lsn_key(bound + 1))
            self.openings.forget(bound)

    # --- erasing -----------------------------------------------------------------------------------------------------

    def erase(self, trajectory_ids: Sequence[uuid.UUID], pause: Callable[[], None] = go_on) -> ErasedHere:
        """Erase trajectories from this log, whether they are here or not; see `Erasure.erase`."""
        self._check_open()
        return self._erasure.erase(trajectory_ids, pause)

    def erased(self) -> dict[uuid.UUID, bool]:
        """The trajectories that were erased here or must not come here, and whether their bytes are gone."""
        return self._erasure.erased()

    def close(self) -> None:
        """Commit what is staged, save the heads and the marks, release everything."""
        with self._prune_lock:  # a prune in progress still needs the store
            if not self._closed:
                self._close()

    def _close(self) -> None:
        with self._committer.lock:
            self._closed = True
            if self._committer.failure is None and self.stager.last.lsn:
                self._save_asked = True
                self._committer.stage(Staged([], 0, self.stager.last, 0, ThreadWaiter(), None))
        self._committer.close()
        self.durable.close()
        self.replicated.close()
        try:
            try:
                if self._committer.failure is None and self._head is not None:
                    self.replication.write()
                    position = self._durable_position
                    opening = self.openings.at(position.lsn)
                    self._head.write(position.lsn, position.hash, durable=True, closed=True, opening=opening)
            finally:
                self.store.close()
        finally:
            if self._lock_file is not None:
                self._lock_file.release()
