"""Checks cold events from the rows alone: density, every body's digest, every link of every chain, every segment's end.

A trajectory lies in the cold table as segments. The first row of a segment says where it ends, what hash it follows,
what hash it ends with, and the secret under which its bodies verify; everything else is recomputed: the body from the
columns, its digest, the header, its hash. A changed byte anywhere in a row changes the hash of the segment's end.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stratalog.schemas.arrow import INDEX, SEGMENT
from stratalog.schemas.blobs import MARKER, references
from stratalog.schemas.envelope import Header, digest_body, hash_event
from stratalog.schemas.errors import Corrupt

from .columns import Row
from .stored import Start, Stored, stored_of

_AT = INDEX


class Segment(msgspec.Struct, frozen=True):
    """A stretch of one trajectory, both ends included, that was found whole."""

    trajectory_id: uuid.UUID
    tenant: str
    first_sequence: int
    last_sequence: int
    previous_hash: bytes
    last_hash: bytes
    secret: bytes | None = None

    @property
    def events(self) -> int:
        """How many events it holds."""
        return self.last_sequence - self.first_sequence + 1


class Problem(msgspec.Struct, frozen=True):
    """Something that is not as it must be: in which file, with which trajectory (if it can be told), and what."""

    where: str
    trajectory_id: uuid.UUID | None
    what: str

    def __str__(self) -> str:
        subject = "" if self.trajectory_id is None else f"trajectory {self.trajectory_id}: "
        return f"{self.where}: {subject}{self.what}"


Found = Segment | Problem


class SegmentCheck:
    """Takes events in the order of their rows and gives the segments that are whole, and what is wrong with the others.

    The rows of one segment follow each other, across files too; `end` says that no more come. `content_problem` tells
    what is wrong with content by tenant and SHA-256, or `None`; a segment is whole only if all it refers to is.
    """

    def __init__(self, content_problem: Callable[[str, str], str | None]) -> None:
        self._content_problem = content_problem
        self._content_lost = False
        self._open: Segment | None = None
        self._key = b""
        self._next = 0
        self._hash = b""
        self._damaged = b""

    def feed(self, event: Stored | Row, where: str) -> Sequence[Found]:
        """Check the next event, which lies in the file `where`."""
        if isinstance(event, list):
            event = stored_of(event)
        found: Sequence[Found] = ()
        if event.start is not None or self._open is None or self._key != event.trajectory:
            found = self._begin(event, where)
            if self._open is None:
                return found
        try:
            body = self._follow(event)
        except Corrupt as error:
            return [*found, self._fail(where, event.trajectory, error.message)]
        if MARKER in body:
            troubles = self._content_troubles(body, event, where)
            self._content_lost = self._content_lost or bool(troubles)
            found = [*found, *troubles]
        if event.sequence_number == self._open.last_sequence:
            if not self._content_lost:
                found = [*found, self._open]
            self._open = None
        return found

    def end(self, where: str) -> Sequence[Found]:
        """No further event belongs to the open segment, if there is one."""
        if self._open is None:
            return ()
        return [self._fail(where, self._key, f"its segment lacks event {self._next} and what follows")]

    def _begin(self, event: Stored, where: str) -> list[Found]:
        """What is wrong with the segment before, or with the start of this one."""
        found = list(self.end(where))
        if event.start is None:
            if self._damaged != event.trajectory:
                found.append(self._fail(where, event.trajectory, "an event without the start of its segment"))
            return found
        try:
            self._open = _start(event, event.start)
        except Corrupt as error:
            return [*found, self._fail(where, event.trajectory, error.message)]
        self._key, self._damaged = event.trajectory, b""
        self._next, self._hash = event.sequence_number, self._open.previous_hash
        self._content_lost = False
        return found

    def _fail(self, where: str, trajectory: bytes, what: str) -> Problem:
        # One problem a segment: what follows a broken link cannot be judged.
        self._open = None
        self._damaged = trajectory
        return Problem(where, uuid.UUID(bytes=trajectory), what)

    def _content_troubles(self, body: bytes, event: Stored, where: str) -> list[Problem]:
        found = (self._content_problem(event.tenant, ref.sha256) for ref in references(body))
        id_ = uuid.UUID(bytes=event.trajectory)
        return [Problem(where, id_, trouble) for trouble in found if trouble is not None]

    def _follow(self, event: Stored) -> bytes:
        """Check that an event follows; returns its body."""
        segment, sequence, body = self._open, event.sequence_number, event.body
        assert segment is not None
        if isinstance(body, Corrupt):
            raise body
        if sequence != self._next:
            raise Corrupt(f"event {self._next} is missing, the next one is {sequence}")
        self._hash = hash_of(event, self._hash, digest_of(event, segment.secret, body))
        self._next = sequence + 1
        if sequence > segment.last_sequence or (sequence == segment.last_sequence and self._hash != segment.last_hash):
            raise Corrupt(f"the events {segment.first_sequence} to {segment.last_sequence} do not give its last hash")
        return body


def _start(event: Stored, start: Start) -> Segment:
    if start.previous_hash is None or start.last_hash is None:
        raise Corrupt("the start of a segment lacks its hashes")
    return Segment(
        uuid.UUID(bytes=event.trajectory),
        event.tenant,
        event.sequence_number,
        start.last_sequence,
        start.previous_hash,
        start.last_hash,
        start.secret,
    )


def digest_of(event: Stored, secret: bytes | None, body: bytes) -> bytes:
    """The digest that the event's header covers; raises `Corrupt` where there is none."""
    if event.erased:
        if event.body_digest is None:
            raise Corrupt(f"event {event.sequence_number} is erased but has no digest")
        return event.body_digest
    if secret is None:
        raise Corrupt(f"event {event.sequence_number} has a body but the trajectory's secret is gone")
    return digest_body(secret, event.sequence_number, body)


def hash_of(event: Stored, previous_hash: bytes, body_digest: bytes) -> bytes:
    """The hash of an event that follows another one; raises `Corrupt` for values that no header holds."""
    return hash_event(
        event.tenant,
        event.trajectory,
        event.sequence_number,
        event.epoch,
        event.created_at,
        event.kind,
        event.schema_version,
        previous_hash,
        body_digest,
    )


def header_of(row: Row, trajectory_id: uuid.UUID, previous_hash: bytes, body_digest: bytes) -> Header:
    """The hashed header of a row's event."""
    return Header(
        row[_AT["tenant"]],
        trajectory_id,
        row[_AT["sequence_number"]],
        row[_AT["epoch"]],
        row[_AT["created_at"]],
        row[_AT["kind"]],
        row[_AT["schema_version"]],
        previous_hash,
        body_digest,
    )


def mark_start(row: Row, values: dict[str, Any]) -> None:
    """Fill the segment columns of the first row of a segment."""
    for column in SEGMENT:
        row[_AT[column.name]] = values[column.name]
