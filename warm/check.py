"""Verifies the warm tier from its stored bytes: every header is built from the columns and hashed again, every body is
digested again, every trajectory is dense from its first event (or from where its events have left for the cold tier) to
its head. Reads everything once, in order, in one snapshot; memory does not grow with the events.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

from stratalog.schemas.chain import START, Link
from stratalog.schemas.envelope import check_body
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.statements import statements

from .database import Connection, answering, check_idle
from .queries import EventRow, rebuild
from .streaming import stream

PROBLEMS_MAX = 1000


class WarmCheck(msgspec.Struct):
    """What a check has found; `heads` holds the last event of every trajectory, for comparing tiers."""

    events: int = 0
    trajectories: int = 0
    problems: list[str] = msgspec.field(default_factory=list)
    problems_left_out: int = 0
    heads: dict[uuid.UUID, Link] = msgspec.field(default_factory=dict)

    def report(self, problem: str) -> None:
        """Note a problem; after the first thousand they are only counted."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)
        else:
            self.problems_left_out += 1


class _Head(msgspec.Struct, frozen=True):
    trajectory_id: uuid.UUID
    secret: bytes | None
    last: Link
    events: int
    consolidated: Link


def verify_warm(conn: Connection) -> WarmCheck:
    """Check everything; `conn` must be outside a transaction."""
    check_idle(conn)
    found = WarmCheck()
    sql = statements("check")
    with answering(), conn.transaction():
        conn.execute(sql["begin"])
        conn.execute(sql["by_index"])
        groups = itertools.groupby(stream(conn, sql["events"], {}), key=lambda row: row[0])
        # The heads are few and small beside the events; two streams on one connection cannot be interleaved.
        heads = {row[0]: _read_head(row) for row in stream(conn, sql["heads"], {})}
        for id_, rows in groups:
            head = heads.pop(id_, None)
            if head is None:
                found.report(f"trajectory {id_}: there are events, but no head")
                found.events += sum(1 for _ in rows)
            else:
                _check(head, rows, found)
        for head in heads.values():
            _check(head, iter(()), found)
    return found


def _check(head: _Head, rows: Iterator[EventRow], found: WarmCheck) -> None:
    """Check one trajectory; its first problem is reported, the rest of its rows only counted."""
    found.trajectories += 1
    found.heads[head.trajectory_id] = head.last
    position: Link | None = None
    broken = False
    for row in rows:
        found.events += 1
        if broken:
            continue
        try:
            position = _follow(head, position, row)
        except Corrupt as problem:
            found.report(problem.message)
            broken = True
    if broken:
        return
    if position is None:
        position = head.consolidated
    if position != head.last:
        found.report(
            f"trajectory {head.trajectory_id}: the head stands at event {head.last.sequence_number}, "
            f"the last event is {position.sequence_number}"
            + (" with another hash" if position.sequence_number == head.last.sequence_number else "")
        )
    elif head.events != head.last.sequence_number + 1:
        found.report(
            f"trajectory {head.trajectory_id}: the head counts {head.events} events, "
            f"the last one is {head.last.sequence_number}"
        )


def _follow(head: _Head, position: Link | None, row: EventRow) -> Link:
    sequence = row[1]
    if position is None:
        # Rows may be missing at the beginning as far as they are in the cold tier.
        if sequence == head.consolidated.sequence_number + 1:
            position = head.consolidated
        elif 0 < sequence <= head.consolidated.sequence_number:
            # The event before is gone and its hash with it: the chain is checked from here on.
            return Link(sequence, row[7])
        else:
            position = START
    envelope = rebuild(row, position)
    if head.secret is not None:
        check_body(envelope, head.secret)
    elif not envelope.erased:
        raise Corrupt(f"trajectory {head.trajectory_id}: event {sequence} has a body, but the secret is gone")
    if sequence == head.consolidated.sequence_number and envelope.hash != head.consolidated.hash:
        raise Corrupt(f"trajectory {head.trajectory_id}: event {sequence} is not the one that was consolidated")
    return Link(sequence, envelope.hash)


def _read_head(row: tuple[Any, ...]) -> _Head:
    id_, secret, sequence, digest, events, through, through_hash = row
    return _Head(id_, secret, Link(sequence, digest), events, START if through < 0 else Link(through, through_hash))
