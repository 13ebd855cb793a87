"""What an import has already written, as notes that are committed with the events themselves.

Per imported trajectory: how many events, the digest over all of them, and a short mark after each one, so that a file
can be compared event by event without reading the log (which may have been pruned). Whether a process dies between
two commits makes no difference: events and notes are there together or not at all.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Protocol

import msgspec

from stratalog.schemas.codec import encode_body
from stratalog.schemas.events import Body, TaskStarted

from .ending import Ending

MARK_BYTES = 8
MARKS_PER_NOTE = 1024
_PREFIX = b"import/"


class Notes(Protocol):
    """Where the notes are read."""

    def note(self, key: bytes) -> bytes | None:
        """A small durable value."""
        ...


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """The stored cursor: events imported so far, and the state of the digest after them."""

    count: int
    state: bytes
    cuts: tuple[int, ...] = ()
    """Where the file ended when it was imported before, in the middle of something; see `source.Cut`."""
    beginnings: tuple[bytes, ...] = ()
    """For each cut the digest of the file up to it, empty where unknown; left out of the note while there is no cut."""

    @property
    def endings(self) -> tuple[Ending, ...]:
        """The cuts with their digests."""
        known = (*self.beginnings, *(b"" for _ in self.cuts[len(self.beginnings) :]))
        return tuple(Ending(cut, digest) for cut, digest in zip(self.cuts, known, strict=True))

    def encoded(self) -> bytes:
        """The note."""
        fields = (self.count, self.state, self.cuts, self.beginnings)
        return msgspec.msgpack.encode(fields if self.cuts else fields[:3])


class Digest:
    """A rolling digest over (kind, created_at, body) of the events of a trajectory."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.count = progress.count if progress else 0
        self.state = progress.state if progress else bytes(32)

    def add(self, kind: str, created_at: int, body: Body, encoded: bytes) -> bytes:
        """Take an event in; returns the mark after it."""
        if isinstance(body, TaskStarted):
            encoded = encode_body(_comparable(body))
        seen = hashlib.sha256(self.state)
        seen.update(kind.encode() + b"\0" + created_at.to_bytes(8, "big"))
        seen.update(encoded)
        self.state = seen.digest()
        self.count += 1
        return self.state[:MARK_BYTES]


def _comparable(body: TaskStarted) -> TaskStarted:
    """The beginning without what depends on the import: the file's name, and ids of other trajectories."""
    if body.source is None:
        return body
    source = msgspec.structs.replace(body.source, name="", replaces="")
    return msgspec.structs.replace(body, source=source, parent="")


def progress_key(trajectory_id: uuid.UUID) -> bytes:
    """The note of a trajectory's cursor."""
    return _PREFIX + trajectory_id.bytes


def marks_key(trajectory_id: uuid.UUID, number: int) -> bytes:
    """The note with the marks from event `number` × 1024 on."""
    return _PREFIX + trajectory_id.bytes + b"/" + number.to_bytes(4, "big")


def load_progress(notes: Notes, trajectory_id: uuid.UUID) -> Progress | None:
    """The cursor of a trajectory, if it was imported here."""
    raw = notes.note(progress_key(trajectory_id))
    return None if raw is None else msgspec.msgpack.decode(raw, type=Progress)


class Written:
    """An imported trajectory as its notes tell it, compared with a file event by event."""

    def __init__(self, notes: Notes, trajectory_id: uuid.UUID, progress: Progress) -> None:
        self.trajectory_id = trajectory_id
        self.progress = progress
        self.same = True
        """Whether all events so far are those of the file."""
        self._notes = notes
        self._number = -1
        self._marks = b""

    def again(self) -> Written:
        """The same, to be compared from the beginning."""
        return Written(self._notes, self.trajectory_id, self.progress)

    def compare(self, index: int, mark: bytes) -> None:
        """Event `index` of the file has this mark."""
        if not self.same or index >= self.progress.count:
            return
        number, place = divmod(index, MARKS_PER_NOTE)
        if number != self._number:
            self._marks = self._notes.note(marks_key(self.trajectory_id, number)) or b""
            self._number = number
        self.same = self._marks[place * MARK_BYTES : (place + 1) * MARK_BYTES] == mark


class Writing:
    """The notes that go with the next commit of a trajectory."""

    def __init__(self, notes: Notes, trajectory_id: uuid.UUID, progress: Progress | None) -> None:
        self._trajectory_id = trajectory_id
        count = progress.count if progress else 0
        self._number, place = divmod(count, MARKS_PER_NOTE)
        marks = notes.note(marks_key(trajectory_id, self._number)) or b"" if place else b""
        self._marks = bytearray(marks[: place * MARK_BYTES])
        self._endings = progress.endings if progress else ()
        self._full: dict[bytes, bytes] = {}

    def add(self, mark: bytes) -> None:
        """One more event."""
        self._marks += mark
        if len(self._marks) == MARKS_PER_NOTE * MARK_BYTES:
            self._full[marks_key(self._trajectory_id, self._number)] = bytes(self._marks)
            self._number += 1
            self._marks.clear()

    def cut(self, ending: Ending) -> None:
        """The events from here on depend on the file ending here."""
        if ending not in self._endings:
            self._endings = (*self._endings, ending)

    def notes(self, digest: Digest) -> dict[bytes, bytes]:
        """The notes, with the cursor at `digest`."""
        notes, self._full = self._full, {}
        if self._marks:
            notes[marks_key(self._trajectory_id, self._number)] = bytes(self._marks)
        cuts = tuple(ending.offset for ending in self._endings)
        beginnings = tuple(ending.digest for ending in self._endings)
        notes[progress_key(self._trajectory_id)] = Progress(digest.count, digest.state, cuts, beginnings).encoded()
        return notes
