"""What a stream of rows holds, in a form that can be compared without keeping the rows.

Two tallies are equal where the rows are the same, in the same order, and the whole segments among them are the same.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import msgspec

from stratalog.schemas.arrow import INDEX
from stratalog.schemas.errors import Corrupt, Invalid

from .columns import Row, body_of
from .segments import Found, Problem, Segment, SegmentCheck
from .stored import Start, Stored

_ID, _STARTS = INDEX["trajectory_id"], INDEX["segment_last_sequence"]
_EVENT = {name: INDEX[name] for name in Stored.__struct_fields__ if name not in ("trajectory", "start", "body")}
_START = tuple(INDEX[f"segment_{name}"] for name in Start.__struct_fields__)


class Tally:
    """Counts and digests of a stream: `add` for its rows, `feed` and `keep` for its segments."""

    def __init__(self) -> None:
        self.rows = 0
        self.segments = 0
        self.damaged: set[uuid.UUID] = set()
        """The trajectories of which something is not whole."""
        self.problems: list[str] = []
        self._rows = hashlib.sha256()
        self._segments = hashlib.sha256()
        self._encode = msgspec.msgpack.Encoder().encode
        # What the content is that bodies refer to is no matter of the rows.
        self._check = SegmentCheck(lambda tenant, sha256: None)
        self._at: bytes | None = None
        self._kept = True

    def add(self, row: Row) -> None:
        """Count a row."""
        self.rows += 1
        self._rows.update(self._encode(row))

    def feed(self, row: Row) -> list[Found]:
        """Check the next row; returns what is to be given to `keep`, together with the row."""
        return list(self._check.feed(_stored(row), "rewrite"))

    def keep(self, row: Row, found: list[Found], *, kept: bool) -> None:
        """Count what `feed` has found, of a row that is kept or left out; raises `Invalid` for a segment of which
        only a part is kept."""
        if row[_STARTS] is None and row[_ID] == self._at and kept != self._kept:
            raise Invalid(
                f"a part of trajectory {uuid.UUID(bytes=row[_ID])} was to be left out", hint="keep all of it or nothing"
            )
        self._at, self._kept = row[_ID], kept
        for part in found:
            if isinstance(part, Problem):
                self._blame(part)
            elif kept:
                self._count(part)

    def end(self) -> None:
        """No further row belongs to the segment that is open, if there is one."""
        for part in self._check.end("rewrite"):
            if isinstance(part, Problem):
                self._blame(part)
        self._at = None

    def differs(self, before: Tally, meant: Tally) -> str:
        """How what was read differs from what was there `before` and from the rows that were `meant`, or ''."""
        if self.rows != meant.rows:
            return f"{self.rows} rows instead of {meant.rows}"
        if self._rows.digest() != meant._rows.digest():
            return "other rows"
        if not self.damaged <= before.damaged:
            return self.problems[0]
        if (self.segments, self._segments.digest()) != (before.segments, before._segments.digest()):
            return f"{self.segments} whole segments instead of {before.segments}, or others"
        return ""

    def _blame(self, problem: Problem) -> None:
        if problem.trajectory_id is not None:
            self.damaged.add(problem.trajectory_id)
        self.problems.append(str(problem))

    def _count(self, part: Segment) -> None:
        self.segments += 1
        self._segments.update(
            self._encode(
                (
                    part.trajectory_id.bytes,
                    part.tenant,
                    part.first_sequence,
                    part.last_sequence,
                    part.previous_hash,
                    part.last_hash,
                )
            )
        )


def _stored(row: Row) -> Stored:
    """The event of a row, as the check of segments takes it."""
    start = None if row[_STARTS] is None else Start(*(row[index] for index in _START))
    body: bytes | Corrupt
    try:
        body = body_of(row)
    except Corrupt as error:
        body = error
    values: dict[str, Any] = {name: row[index] for name, index in _EVENT.items()}
    return Stored(trajectory=row[_ID], start=start, body=body, **values)
