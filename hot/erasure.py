"""Erasing trajectories from one log: after `erase` no file of the log's folder has a byte of their bodies, their secret
or their bulky content, while headers and hashes stay, so that positions and chains hold.

1. A marker per trajectory and a head without the secret are committed: from here on nothing is added to it, in this
   log, for ever. What was staged before is in the queue before that, and so becomes durable first.
2. Its events are walked from the last to the first, so that what is left verifies at any time with the secret that
   the first one holds. Each is replaced by its erased form, in commits of bounded size; then its content is removed.
3. The files are purged of what was replaced and removed (`Store.purge`), and what torn logs had left is removed.
4. The markers say that it is done.

A crash leaves the markers, and a log in which every event is whole or erased; the same call goes on, and then purges
all that it may have removed before. The back-pointers lead through erased events as through others.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from stratalog.schemas.blobs import references
from stratalog.schemas.envelope import Envelope, decode_record, encode_record
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.protocols import Put, Range, Store, go_on

from . import keys
from .contents import Contents
from .files import sync_folder
from .heads import Heads
from .keys import Head

MARKED_TOGETHER_MAX = 256
EVENTS_TOGETHER_MAX = 256
TORN_FILES = "TORN-*"
_TRAJECTORY = slice(16, 32)
"""Where a record has the trajectory's id."""

Commit = Callable[[Callable[[], list[Put]]], None]


class ErasedHere(msgspec.Struct, frozen=True, array_like=True):
    """What one call removed from a log: bodies, pieces of content, and the bytes of both."""

    events: int = 0
    contents: int = 0
    bytes: int = 0


class _Work:
    """What one call has to do, and what it has done."""

    def __init__(self) -> None:
        self.trajectories: list[uuid.UUID] = []
        self.heads: list[Head] = []
        self.everything = False
        self.bulk = False
        self.first_lsn, self.last_lsn = keys.LSN_MAX, 0
        self.events = self.contents = self.bytes = 0

    def note(self, lsn: int) -> None:
        """An event that has to go."""
        self.first_lsn, self.last_lsn = min(lsn, self.first_lsn), max(lsn, self.last_lsn)

    def ranges(self, pruned_lsn: int) -> list[Range]:
        """What has to be purged."""
        ranges = [Range("meta")]
        if self.everything:
            return [*ranges, Range("events"), Range("blobs"), Range("chunks")]
        if any(head.first_lsn <= pruned_lsn or head.first_sequence for head in self.heads):
            ranges.append(Range("events", b"", keys.lsn_key(pruned_lsn + 1)))
            self.bulk = True
        if self.bulk:
            ranges += [Range("blobs"), Range("chunks")]
        if self.last_lsn:
            ranges.append(Range("events", keys.lsn_key(self.first_lsn), keys.lsn_key(self.last_lsn + 1)))
        return ranges


class Erasure:
    """Erases from one log; callable from any thread, one call at a time does its work.

    `commit` makes durable what a function, called under the log's lock, returns, together with all heads. While
    `unpruned` is held nothing is pruned. `settle` waits for appends that have begun to write large content.
    """

    def __init__(
        self,
        store: Store,
        heads: Heads,
        contents: Contents,
        *,
        commit: Commit,
        unpruned: AbstractContextManager[bool],
        pruned_lsn: Callable[[], int],
        settle: Callable[[], None],
        folder: Path | None,
    ) -> None:
        self._store = store
        self._heads = heads
        self._contents = contents
        self._commit = commit
        self._unpruned = unpruned
        self._pruned_lsn = pruned_lsn
        self._settle = settle
        self._folder = folder
        self._lock = threading.Lock()

    def erase(self, trajectory_ids: Sequence[uuid.UUID], pause: Callable[[], None] = go_on) -> ErasedHere:
        """Erase trajectories, whether they are here or not; returns what this call removed. Harmless when repeated.

        Takes seconds for each GB that lies in the same files. `pause` is called between pieces of the work and may
        raise to stop it; the same call later goes on. Raises `DiskBudgetExceeded` where there is no room to write the
        neighbours anew, `Unavailable` where files stay in use: the events are unreadable then, their bytes not gone.
        """
        with self._lock:
            work = self._mark(sorted(set(trajectory_ids)))
            if not work.trajectories:
                return ErasedHere()
            self._settle()
            leftovers = self._store.get("meta", keys.META_LEFTOVERS)
            work.everything |= leftovers is not None
            for head in work.heads:
                self._erase_events(head, work, pause)
            if work.heads or work.everything:
                self._store.purge(work.ranges(self._pruned_lsn()), pause)
            if leftovers is not None:
                self._contents.forget_leftovers(leftovers)
            self._remove_torn()
            self._finish(work)
            return ErasedHere(work.events, work.contents, work.bytes)

    def erased(self) -> dict[uuid.UUID, bool]:
        """The trajectories that were erased here or must not come here, and whether their bytes are gone."""
        start = keys.ERASED_PREFIX
        found = {}
        for key, value in self._store.scan("meta", start, keys.prefix_end(start)):
            trajectory_id = uuid.UUID(bytes=key[len(start) :])
            head = self._store.get("meta", keys.HEAD_PREFIX + trajectory_id.bytes)
            # A version of stratalog that did not know of markers may have let it come after all.
            found[trajectory_id] = value == keys.GONE and (head is None or not keys.decode_head(head).secret)
        return found

    # --- markers -----------------------------------------------------------------------------------------------------

    def _mark(self, trajectory_ids: Sequence[uuid.UUID]) -> _Work:
        work = _Work()
        for first in range(0, len(trajectory_ids), MARKED_TOGETHER_MAX):
            part = trajectory_ids[first : first + MARKED_TOGETHER_MAX]
            self._commit(lambda part=part: self._markers(part, work))  # type: ignore[misc]
            self._heads.marked(part)
        return work

    def _markers(self, trajectory_ids: Sequence[uuid.UUID], work: _Work) -> list[Put]:
        """What marks them, under the log's lock; those that are done are left out."""
        puts = []
        for trajectory_id in trajectory_ids:
            key = keys.ERASED_PREFIX + trajectory_id.bytes
            state, head = self._store.get("meta", key), self._heads.get(trajectory_id)
            if state == keys.GONE and (head is None or not head.secret):
                continue
            work.trajectories.append(trajectory_id)
            work.everything |= state is not None
            self._heads.erase(trajectory_id)
            if head is not None:
                work.heads.append(head)
            puts.append(Put("meta", key, keys.ERASING))
        return puts

    def _finish(self, work: _Work) -> None:
        for first in range(0, len(work.trajectories), MARKED_TOGETHER_MAX):
            part = work.trajectories[first : first + MARKED_TOGETHER_MAX]
            puts = [Put("meta", keys.ERASED_PREFIX + trajectory_id.bytes, keys.GONE) for trajectory_id in part]
            self._store.commit(puts)

    # --- events ------------------------------------------------------------------------------------------------------

    def _erase_events(self, head: Head, work: _Work, pause: Callable[[], None]) -> None:
        notes = keys.IMPORT_NOTE_PREFIX + head.trajectory_id.bytes
        self._store.delete_range("meta", notes, keys.prefix_end(notes))
        batch: list[int] = []
        for lsn in self._lsns(head):
            work.note(lsn)
            batch.append(lsn)
            if len(batch) >= EVENTS_TOGETHER_MAX:
                self._erase_batch(batch, work, pause)
                batch = []
        self._erase_batch(batch, work, pause)

    def _lsns(self, head: Head) -> Iterator[int]:
        """Where the events of a trajectory lie, the last one first."""
        lsn = head.lsn
        while lsn > self._pruned_lsn():
            envelope = self._read(lsn)
            if envelope is None:
                return
            yield lsn
            if envelope.previous_lsn == 0:
                if envelope.header.sequence_number or envelope.header.kind != "TaskStarted":
                    yield from self._segments_before(head.trajectory_id, lsn)
                return
            lsn = envelope.previous_lsn

    def _read(self, lsn: int) -> Envelope | None:
        value = self._store.get("events", keys.lsn_key(lsn))
        if value is not None:
            return decode_record(lsn, value)
        if lsn > self._pruned_lsn():
            raise Corrupt(f"the event at LSN {lsn} is missing")
        return None

    def _segments_before(self, trajectory_id: uuid.UUID, lsn: int) -> Iterator[int]:
        """Where a trajectory was here before it went away and came back: no back-pointer leads there."""
        start = self._pruned_lsn() + 1
        events = self._store.scan("events", keys.lsn_key(start), keys.lsn_key(lsn)) if start < lsn else ()
        return reversed([keys.lsn_of(key) for key, value in events if value[_TRAJECTORY] == trajectory_id.bytes])

    def _erase_batch(self, lsns: Sequence[int], work: _Work, pause: Callable[[], None]) -> None:
        pause()
        with self._unpruned:
            envelopes = [envelope for lsn in lsns if (envelope := self._read(lsn)) is not None]
            left = [envelope for envelope in envelopes if not envelope.erased or envelope.secret is not None]
            if left:
                self._commit(lambda: [_erased(envelope) for envelope in left])
            for envelope in envelopes:
                self._erase_contents(envelope, work)
        work.events += sum(not envelope.erased for envelope in left)
        work.bytes += sum(len(envelope.body) for envelope in left)

    def _erase_contents(self, envelope: Envelope, work: _Work) -> None:
        """After the event, which would otherwise refer to what is missing."""
        if envelope.erased or next(references(envelope.body), None) is not None:
            sizes = self._contents.erase(envelope.lsn)
            work.bulk |= bool(sizes)
            work.contents += len(sizes)
            work.bytes += sum(sizes)

    def _remove_torn(self) -> None:
        """What was cut off the end of a torn log may be of anybody; it was never durable."""
        if self._folder is not None and (torn := list(self._folder.glob(TORN_FILES))):
            for path in torn:
                path.unlink()
            sync_folder(self._folder)


def _erased(envelope: Envelope) -> Put:
    record = encode_record(envelope.previous_lsn, envelope.header.encode(), b"", erased=True)
    return Put("events", keys.lsn_key(envelope.lsn), record)
