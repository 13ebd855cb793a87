"""The head of every trajectory in the log: where its next event goes, and what it still needs from the log.

Heads change with every event and are kept in memory; they are saved into a group of commits every now and then
(`META_HEADS` says up to which LSN), and what came after is found by scanning the events at open. Heads that were saved
and not used since are dropped from memory and read again when needed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import msgspec

from stratalog.schemas.codec import kind_of
from stratalog.schemas.events import EventBody, TaskStarted
from stratalog.schemas.protocols import Put, Store

from . import keys
from .keys import Head

_FLAGGING = frozenset({"TaskStarted", "TaskFinished", "TrajectoryReopened"})
SAVE_EVERY_EVENTS = 65_536
CACHED_MAX = 20_000
"""So many heads stay in memory over a save, about 1 KB each: what is used again and again, not what has ended."""


class Heads:
    """Not thread-safe; the log calls it under its lock."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # All by the id's number: a UUID hashes itself in Python.
        self._heads: dict[int, Head] = {}
        self._dirty: set[int] = set()
        self._live: dict[int, int] = {}
        self._live_changed: dict[int, int] = {}
        self._marking: set[int] = set()
        self.saved_lsn = 0
        stored = store.get("meta", keys.META_HEADS)
        if stored is not None:
            self.saved_lsn = keys.decode_position(stored).lsn
        for key, value in store.scan("meta", keys.LIVE_PREFIX, keys.prefix_end(keys.LIVE_PREFIX)):
            if pin := int.from_bytes(value, "big"):
                self._live[int.from_bytes(key[len(keys.LIVE_PREFIX) :], "big")] = pin

    def get(self, trajectory_id: uuid.UUID) -> Head | None:
        """The head, from memory or from the store."""
        head = self._heads.get(trajectory_id.int)
        if head is None:
            stored = self._store.get("meta", keys.HEAD_PREFIX + trajectory_id.bytes)
            if stored is not None:
                head = self._heads[trajectory_id.int] = keys.decode_head(stored)
        return head

    def set(self, head: Head, body: EventBody) -> Head:
        """Take in the head after an event with this body; returns it with its flags."""
        kind = kind_of(body)
        head = flagged(head, kind, body)
        self.advance(head, kind)
        return head

    def advance(self, head: Head, kind: str) -> None:
        """Take in a head that has its flags, after an event of this kind."""
        self.adopt(head)
        self._pin(head, kind)

    def adopt(self, head: Head) -> None:
        """Take a head as it is, without an event."""
        number = head.trajectory_id.int
        self._heads[number] = head
        self._dirty.add(number)

    def erase(self, trajectory_id: uuid.UUID) -> Head | None:
        """Forget the secret, so that nothing is added any more; returns the head, `None` where it is not here.

        The caller commits a marker for it, and then calls `marked`.
        """
        head = self.get(trajectory_id)
        self._marking.add(trajectory_id.int)
        if head is None:
            return None
        self.adopt(msgspec.structs.replace(head, secret=b""))
        if self._live.pop(trajectory_id.int, None) is not None:
            self._live_changed[trajectory_id.int] = 0
        return head

    def marked(self, trajectory_ids: Iterable[uuid.UUID]) -> None:
        """The markers of these are in the store."""
        self._marking.difference_update(trajectory_id.int for trajectory_id in trajectory_ids)

    def is_erased(self, trajectory_id: uuid.UUID) -> bool:
        """Whether a trajectory was erased here, or must not come here."""
        head = self.get(trajectory_id)
        if head is not None and not head.secret:
            return True
        marked = self._store.get("meta", keys.ERASED_PREFIX + trajectory_id.bytes) is not None
        return marked or trajectory_id.int in self._marking

    def _pin(self, head: Head, kind: str) -> None:
        number = head.trajectory_id.int
        if head.imported or head.ended or kind == "TrajectoryReleased":
            if self._live.pop(number, None) is not None:
                self._live_changed[number] = 0
        elif kind == "Checkpoint" or number not in self._live:
            pin = head.lsn if kind == "Checkpoint" else head.first_lsn
            self._live[number] = self._live_changed[number] = pin

    def pinned_lsn(self) -> int | None:
        """The first LSN that a live trajectory needs, if any does."""
        return min(self._live.values(), default=None)

    def due(self, lsn: int) -> bool:
        """Whether it is time to save."""
        return lsn - self.saved_lsn >= SAVE_EVERY_EVENTS

    def save(self, position: keys.Position) -> list[Put]:
        """What to commit so that the stored heads are current up to `position`; the save before must be committed."""
        if len(self._heads) > CACHED_MAX:
            # Only heads that an earlier save has stored: those of this one cannot be read before its commit.
            self._heads = {number: self._heads[number] for number in self._dirty}
        puts = [
            Put("meta", keys.HEAD_PREFIX + number.to_bytes(16, "big"), keys.encode(self._heads[number]))
            for number in self._dirty
        ]
        puts += [
            Put("meta", keys.LIVE_PREFIX + number.to_bytes(16, "big"), pin.to_bytes(8, "big"))
            for number, pin in self._live_changed.items()
        ]
        puts.append(Put("meta", keys.META_HEADS, keys.encode(position)))
        self.saved_lsn = position.lsn
        self._dirty.clear()
        self._live_changed.clear()
        return puts

    def all(self) -> Iterator[Head]:
        """Every head: those in memory, then those only stored."""
        in_memory = dict(self._heads)
        yield from in_memory.values()
        for _, value in self._store.scan("meta", keys.HEAD_PREFIX, keys.prefix_end(keys.HEAD_PREFIX)):
            head = keys.decode_head(value)
            if head.trajectory_id.int not in in_memory:
                yield head


def flagged(head: Head, kind: str, body: EventBody) -> Head:
    """The head after an event with this body, as to whether the trajectory is an import and whether it has ended."""
    if kind not in _FLAGGING:
        return head
    imported = head.imported or (isinstance(body, TaskStarted) and body.source is not None)
    ended = (head.ended and kind != "TrajectoryReopened") or kind == "TaskFinished"
    if (imported, ended) == (head.imported, head.ended):
        return head
    return msgspec.structs.replace(head, imported=imported, ended=ended)
