"""Checks cold events from the rows alone: density, every body's digest, every link of every chain, every segment's end.

A trajectory lies in the cold table as segments. The first row of a segment says where it ends, what hash it follows,
what hash it ends with, and the secret under which its bodies verify; everything else is recomputed: the body from the
columns, its digest, the header, its hash. A changed byte anywhere in a row changes the hash of the segment's end.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from stratalog.schemas.arrow import INDEX, SEGMENT
from stratalog.schemas.blobs import references
from stratalog.schemas.chain import Link
from stratalog.schemas.envelope import Header, digest_body, hash_header
from stratalog.schemas.errors import Corrupt

from .columns import Row, body_of

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
    """Takes rows in their order and gives the segments that are whole, and what is wrong with the others.

    The rows of one segment follow each other, across files too; `end` says that no more come. `content_problem` tells
    what is wrong with content by tenant and SHA-256, or `None`; a segment is whole only if all it refers to is.
    """

    def __init__(self, content_problem: Callable[[str, str], str | None]) -> None:
        self._content_problem = content_problem
        self._content_lost = False
        self._open: Segment | None = None
        self._at: Link | None = None
        self._damaged: uuid.UUID | None = None

    def feed(self, row: Row, where: str) -> Iterator[Found]:
        """Check the next row, which lies in the file `where`."""
        trajectory_id = uuid.UUID(bytes=row[_AT["trajectory_id"]])
        starts = row[_AT["segment_last_sequence"]] is not None
        if starts or self._open is None or self._open.trajectory_id != trajectory_id:
            yield from self.end(where)
            if not starts:
                if self._damaged != trajectory_id:
                    self._damaged = trajectory_id
                    yield Problem(where, trajectory_id, "an event without the start of its segment")
                return
            try:
                self._start(row, trajectory_id)
            except Corrupt as error:
                yield self._fail(where, trajectory_id, error.message)
                return
        try:
            body = body_of(row)
            finished = self._check(row, body)
        except Corrupt as error:
            yield self._fail(where, trajectory_id, error.message)
            return
        for trouble in self._content_troubles(body, row[_AT["tenant"]]):
            self._content_lost = True
            yield Problem(where, trajectory_id, trouble)
        if finished is not None:
            self._open = self._at = None
            if not self._content_lost:
                yield finished

    def end(self, where: str) -> Iterator[Found]:
        """No further row belongs to the open segment, if there is one."""
        if self._open is not None and self._at is not None:
            missing = self._at.sequence_number + 1
            yield self._fail(where, self._open.trajectory_id, f"its segment lacks event {missing} and what follows")

    def _fail(self, where: str, trajectory_id: uuid.UUID, what: str) -> Problem:
        # One problem a segment: what follows a broken link cannot be judged.
        self._open = self._at = None
        self._damaged = trajectory_id
        return Problem(where, trajectory_id, what)

    def _start(self, row: Row, trajectory_id: uuid.UUID) -> None:
        previous, last = row[_AT["segment_previous_hash"]], row[_AT["segment_last_hash"]]
        if previous is None or last is None:
            raise Corrupt("the start of a segment lacks its hashes")
        first = row[_AT["sequence_number"]]
        self._damaged = None
        self._content_lost = False
        self._open = Segment(
            trajectory_id,
            row[_AT["tenant"]],
            first,
            row[_AT["segment_last_sequence"]],
            previous,
            last,
            row[_AT["segment_secret"]],
        )
        self._at = Link(first - 1, previous)

    def _content_troubles(self, body: bytes, tenant: str) -> Iterator[str]:
        for ref in references(body):
            trouble = self._content_problem(tenant, ref.sha256)
            if trouble is not None:
                yield trouble

    def _check(self, row: Row, body: bytes) -> Segment | None:
        segment, at = self._open, self._at
        assert segment is not None and at is not None
        if row[_AT["sequence_number"]] != at.sequence_number + 1:
            raise Corrupt(f"event {at.sequence_number + 1} is missing, the next one is {row[_AT['sequence_number']]}")
        header = header_of(row, segment.trajectory_id, at.hash, _digest(row, segment, body))
        self._at = Link(header.sequence_number, hash_header(header.encode()))
        if header.sequence_number < segment.last_sequence:
            return None
        if header.sequence_number != segment.last_sequence or self._at.hash != segment.last_hash:
            raise Corrupt(f"the events {segment.first_sequence} to {segment.last_sequence} do not give its last hash")
        return segment


def _digest(row: Row, segment: Segment, body: bytes) -> bytes:
    if row[_AT["erased"]]:
        digest: bytes | None = row[_AT["body_digest"]]
        if digest is None:
            raise Corrupt(f"event {row[_AT['sequence_number']]} is erased but has no digest")
        return digest
    if segment.secret is None:
        raise Corrupt(f"event {row[_AT['sequence_number']]} has a body but the trajectory's secret is gone")
    return digest_body(segment.secret, row[_AT["sequence_number"]], body)


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
