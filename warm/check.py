"""Verifies the warm tier from its stored bytes: every header is built from the columns and hashed again, every body is
digested again, every trajectory is dense from its first event (or from where its events have left for the cold tier) to
its head. Reads everything once, in order, in one snapshot, as a whole or in parts by several processes; memory does not
grow with the events.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
import psycopg

from stratalog.schemas.blobs import MARKER, references
from stratalog.schemas.chain import START, Link
from stratalog.schemas.envelope import digest_body, hash_event
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.statements import statements

from .copying import Copied, copied_events
from .database import Connection, answering, check_idle
from .streaming import stream

PROBLEMS_MAX = 1000
LOWEST, HIGHEST = uuid.UUID(int=0), uuid.UUID(int=(1 << 128) - 1)


class Part(msgspec.Struct, frozen=True):
    """The trajectories from `first` to `last`; of these only `ids`, if they are given."""

    first: uuid.UUID = LOWEST
    last: uuid.UUID = HIGHEST
    ids: tuple[uuid.UUID, ...] | None = None


EVERYTHING = Part()


class WarmCheck(msgspec.Struct):
    """What a check has found; `heads` holds the last event of every trajectory, for comparing tiers.

    `content` is the content that events refer to, by tenant and SHA-256.
    """

    events: int = 0
    trajectories: int = 0
    bytes: int = 0
    """Of the bodies."""
    problems: list[str] = msgspec.field(default_factory=list)
    problems_left_out: int = 0
    heads: dict[uuid.UUID, Link] = msgspec.field(default_factory=dict)
    content: set[tuple[str, str]] = msgspec.field(default_factory=set)

    def report(self, problem: str) -> None:
        """Note a problem; after the first thousand they are only counted."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)
        else:
            self.problems_left_out += 1

    def add(self, other: WarmCheck) -> None:
        """Take in what was found in the part that follows."""
        self.events += other.events
        self.trajectories += other.trajectories
        self.bytes += other.bytes
        for problem in other.problems:
            self.report(problem)
        self.problems_left_out += other.problems_left_out
        self.heads |= other.heads
        self.content |= other.content


class _Head(msgspec.Struct, frozen=True):
    trajectory_id: uuid.UUID
    secret: bytes | None
    last: Link
    events: int
    consolidated: Link


def verify_warm(conn: Connection, part: Part = EVERYTHING, snapshot: str | None = None) -> WarmCheck:
    """Check a part, or everything; `conn` must be outside a transaction.

    `snapshot` is the name of the view of the database that is looked at, as `shared_view` gives it.
    """
    check_idle(conn)
    found = WarmCheck()
    sql = statements("check")
    with answering(), conn.transaction():
        conn.execute(sql["begin"])
        if snapshot is not None:
            psycopg.ClientCursor(conn).execute(sql["import"], {"snapshot": snapshot})
        conn.execute(sql["unlimited"])
        conn.execute(sql["by_index"])
        ids = None if part.ids is None else list(part.ids)
        parameters = {"first": part.first, "last": part.last, "ids": ids}
        # The heads are few and small beside the events; a connection streams one thing at a time.
        heads = {row[0].bytes: _read_head(row) for row in stream(conn, sql["heads"], parameters)}
        rows = copied_events(conn, sql["events" if ids is None else "chosen_events"], parameters)
        for key, events in groupby(rows, key=attrgetter("trajectory")):
            head = heads.pop(key, None)
            if head is None:
                found.report(f"trajectory {uuid.UUID(bytes=key)}: there are events, but no head")
                found.events += sum(1 for _ in events)
            else:
                _check(head, events, found)
        for head in heads.values():
            _check(head, iter(()), found)
    return found


@contextmanager
def shared_view(conn: Connection) -> Iterator[str]:
    """The name of a view of the database that other connections can look at until the end of the block.

    What `conn` asks within the block is asked in the same view.
    """
    check_idle(conn)
    sql = statements("check")
    with answering(), conn.transaction():
        conn.execute(sql["begin"])
        conn.execute(sql["unlimited"])
        row = conn.execute(sql["export"]).fetchone()
        assert row is not None
        yield row[0]


def parts(conn: Connection, count: int) -> list[Part]:
    """At most so many parts of everything that have about as many events, in the order of the ids."""
    with answering(), conn.transaction():
        firsts = [row[0] for row in conn.execute(statements("check")["bounds"], {"parts": count})]
    if not firsts:
        return [EVERYTHING]
    firsts[0] = LOWEST
    lasts = [uuid.UUID(int=first.int - 1) for first in firsts[1:]] + [HIGHEST]
    return [Part(first, last) for first, last in zip(firsts, lasts, strict=True)]


def total_events(conn: Connection) -> int:
    """About how many events there are to read."""
    with answering(), conn.transaction():
        row = conn.execute(statements("check")["total"]).fetchone()
    return 0 if row is None else row[0]


def trajectory_ids(conn: Connection) -> Iterator[uuid.UUID]:
    """All trajectories that have a head."""
    return (row[0] for row in stream(conn, statements("check")["ids"], {}, rows_per_fetch=5_000))


def last_events(conn: Connection) -> dict[uuid.UUID, Link]:
    """Where every trajectory ends."""
    rows = stream(conn, statements("check")["last_events"], {}, rows_per_fetch=5_000)
    return {row[0]: Link(row[1], bytes(row[2])) for row in rows}


def _check(head: _Head, events: Iterator[Copied], found: WarmCheck) -> None:
    """Check one trajectory; its first problem is reported, the rest of its rows only counted."""
    found.trajectories += 1
    found.heads[head.trajectory_id] = head.last
    position: Link | None = None
    broken = False
    for event in events:
        found.events += 1
        found.bytes += len(event.body)
        if MARKER in event.body:
            found.content.update((event.tenant, ref.sha256) for ref in references(event.body))
        if broken:
            continue
        try:
            position = _follow(head, position, event)
        except Corrupt as problem:
            found.report(f"trajectory {head.trajectory_id}: {problem.message}")
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


def _follow(head: _Head, position: Link | None, event: Copied) -> Link:
    sequence = event.sequence_number
    if position is None:
        # Rows may be missing at the beginning as far as they are in the cold tier.
        if sequence == head.consolidated.sequence_number + 1:
            position = head.consolidated
        elif 0 < sequence <= head.consolidated.sequence_number:
            # The event before is gone and its hash with it: the chain is checked from here on.
            return Link(sequence, event.hash)
        else:
            position = START
    if sequence != position.sequence_number + 1:
        raise Corrupt(f"event {position.sequence_number + 1} is missing, the next one is {sequence}")
    digest = hash_event(
        event.tenant,
        event.trajectory,
        sequence,
        event.epoch,
        event.created_at,
        event.kind,
        event.schema_version,
        position.hash,
        event.body_digest,
    )
    if digest != event.hash:
        raise Corrupt(f"event {sequence} does not have the hash that is stored with it")
    if not event.erased:
        if head.secret is None:
            raise Corrupt(f"event {sequence} has a body, but the secret is gone")
        if digest_body(head.secret, sequence, event.body) != event.body_digest:
            raise Corrupt(f"the body of event {sequence} does not match its digest")
    if sequence == head.consolidated.sequence_number and digest != head.consolidated.hash:
        raise Corrupt(f"event {sequence} is not the one that was consolidated")
    return Link(sequence, digest)


def _read_head(row: tuple[Any, ...]) -> _Head:
    id_, secret, sequence, digest, events, through, through_hash = row
    return _Head(id_, secret, Link(sequence, digest), events, START if through < 0 else Link(through, through_hash))
