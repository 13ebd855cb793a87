"""Reading the warm tier: heads, the events of a trajectory with their exact bytes, cursors, counts, import keys."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stratalog.schemas import ids
from stratalog.schemas.chain import START, Link
from stratalog.schemas.envelope import Envelope, Header, hash_header
from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.schemas.statements import statements
from stratalog.schemas.summary import Summary

from .database import Connection, answering
from .streaming import stream

EventRow = tuple[Any, ...]
"""The columns of `events_of` in `reading.sql`, in their order."""


class TrajectoryHead(msgspec.Struct, frozen=True):
    """One row of `trajectories`. Its last event is `head`; everything up to `consolidated` is in the cold tier."""

    trajectory_id: uuid.UUID
    tenant: str
    secret: bytes | None
    origin_log: uuid.UUID
    head: Link
    stray: bool
    status: str
    model: str
    agent: str
    started_at: dt.datetime | None
    last_event_at: dt.datetime | None
    finished_at: dt.datetime | None
    turns: int
    events: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    imported: bool
    labels: dict[str, str]
    source: dict[str, Any] | None
    summary: bytes
    consolidated: Link
    updated_at: dt.datetime

    def summarize(self) -> Summary:
        """The exact summary, where the columns are cut or cleaned."""
        return msgspec.msgpack.decode(self.summary, type=Summary)


class Dropped(msgspec.Struct, frozen=True):
    """Up to which event retention has deleted a trajectory in the warm and in the cold tier; -1 is nothing."""

    in_warm: int = -1
    in_cold: int = -1


class LogCursor(msgspec.Struct, frozen=True):
    """How far a log was replicated; `events` counts all that arrived from it."""

    log_id: uuid.UUID
    lsn: int
    hash: bytes
    events: int
    updated_at: dt.datetime


class Counts(msgspec.Struct, frozen=True):
    """What the warm tier holds; `events` includes those that have gone on to the cold tier."""

    trajectories: int
    events: int
    consolidated: int
    stray: int
    partitions: int
    quarantined: int
    bytes: int


def trajectories(
    conn: Connection,
    *,
    tenant: str | None = None,
    status: str | None = None,
    model: str | None = None,
    labels: Mapping[str, str] | None = None,
    before: uuid.UUID | None = None,
    limit: int | None = None,
) -> Iterator[TrajectoryHead]:
    """Heads, newest start first; `before` goes on after an id of an earlier page."""
    parameters = {
        "tenant": tenant,
        "status": status,
        "model": model,
        "labels": None if labels is None else msgspec.json.encode(dict(labels)).decode(),
        "before": before,
        "limit": limit,
    }
    for row in stream(conn, statements("reading")["heads"], parameters):
        yield _head(row)


def head(conn: Connection, trajectory_id: uuid.UUID) -> TrajectoryHead:
    """One head; raises `NotFound`."""
    with answering(), conn.transaction():
        row = conn.execute(statements("reading")["head"], {"trajectory_id": trajectory_id}).fetchone()
    if row is None:
        raise NotFound(f"the warm tier has no trajectory {trajectory_id}", hint="list them: stratalog trajectory list")
    return _head(row)


def dropped(conn: Connection, trajectory_id: uuid.UUID | None = None) -> dict[uuid.UUID, Dropped]:
    """What retention has deleted, of all trajectories or of one."""
    rows = stream(conn, statements("reading")["dropped"], {"trajectory_id": trajectory_id})
    return {id_: Dropped(in_warm, in_cold) for id_, in_warm, in_cold in rows}


def read_events(conn: Connection, trajectory_id: uuid.UUID, from_sequence: int = 0) -> Iterator[Envelope]:
    """The events of a trajectory from a sequence number on, in order, with exact header and body.

    LSNs are 0: where an event lay in its hot log is not kept. The first event carries the secret. Every hash is
    computed from what is stored; raises `Corrupt` where it differs or an event is missing, `NotFound` where the events
    have left for the cold tier or there is no such trajectory.
    """
    known = head(conn, trajectory_id)
    after = _link_before(conn, known, from_sequence)
    parameters = {"trajectory_id": trajectory_id, "from_sequence": from_sequence}
    secret = known.secret
    for row in stream(conn, statements("reading")["events_of"], parameters):
        envelope = rebuild(row, after, secret)
        after, secret = Link(envelope.header.sequence_number, envelope.hash), None
        yield envelope


def rebuild(row: EventRow, after: Link, secret: bytes | None = None) -> Envelope:
    """The event of a row that follows `after`; raises `Corrupt` unless it does and its stored hash is right."""
    id_, sequence, tenant, kind, epoch, version, created_at, digest, body_digest, body, erased = row
    if sequence != after.sequence_number + 1:
        raise Corrupt(f"trajectory {id_}: event {after.sequence_number + 1} is missing, the next one is {sequence}")
    header = Header(tenant, id_, sequence, epoch, ids.to_us(created_at), kind, version, after.hash, body_digest)
    if hash_header(header.encode()) != digest:
        raise Corrupt(f"trajectory {id_}: event {sequence} does not have the hash that is stored with it")
    return Envelope(0, 0, header, bytes(body), digest, erased, secret)


def cursors(conn: Connection) -> list[LogCursor]:
    """The cursors of all logs."""
    with answering(), conn.transaction():
        return [LogCursor(*row) for row in conn.execute(statements("reading")["cursors"])]


def counts(conn: Connection) -> Counts:
    """What the warm tier holds, for `stratalog status`."""
    with answering(), conn.transaction():
        row = conn.execute(statements("reading")["counts"]).fetchone()
    assert row is not None
    return Counts(*row)


class ConsolidationRun(msgspec.Struct, frozen=True):
    """A run of the consolidation that has ended."""

    run_id: uuid.UUID
    finished_at: dt.datetime
    trajectories: int
    events: int
    files: int
    bytes: int


def last_consolidation(conn: Connection) -> ConsolidationRun | None:
    """The run that ended last, `None` before the first."""
    with answering(), conn.transaction():
        row = conn.execute(statements("reading")["last_consolidation"]).fetchone()
    return None if row is None else ConsolidationRun(*row)


def import_key(conn: Connection, tenant: str) -> bytes | None:
    """The published import key of a tenant."""
    with answering(), conn.transaction():
        row = conn.execute(statements("reading")["import_key"], {"tenant": tenant}).fetchone()
    return None if row is None else row[0]


def publish_import_key(conn: Connection, tenant: str, key: bytes) -> bytes:
    """Publish a tenant's import key unless there is one; returns the one that is in force."""
    with answering(), conn.transaction():
        conn.execute(statements("reading")["publish_import_key"], {"tenant": tenant, "key": key})
    published = import_key(conn, tenant)
    assert published is not None
    return published


def hash_at(conn: Connection, trajectory_id: uuid.UUID, sequence_number: int) -> bytes | None:
    """The hash of an event, `None` where it is not (or no longer) in the warm tier."""
    place = {"trajectory_id": trajectory_id, "sequence_number": sequence_number}
    with answering(), conn.transaction():
        row = conn.execute(statements("reading")["hash_at"], place).fetchone()
    return None if row is None else row[0]


def _link_before(conn: Connection, known: TrajectoryHead, sequence: int) -> Link:
    if sequence <= 0:
        after = START
    elif sequence - 1 == known.consolidated.sequence_number:
        after = known.consolidated
    else:
        place = {"trajectory_id": known.trajectory_id, "sequence_number": sequence - 1}
        with answering(), conn.transaction():
            row = conn.execute(statements("reading")["hash_at"], place).fetchone()
        if row is None:
            raise _gone(known, sequence - 1)
        after = Link(sequence - 1, row[0])
    first = after.sequence_number + 1
    if first <= known.head.sequence_number:
        place = {"trajectory_id": known.trajectory_id, "sequence_number": first}
        with answering(), conn.transaction():
            if conn.execute(statements("reading")["hash_at"], place).fetchone() is None:
                raise _gone(known, first)
    return after


def _gone(known: TrajectoryHead, sequence: int) -> Corrupt | NotFound:
    if sequence <= known.consolidated.sequence_number:
        query = f"select * from events where trajectory_id = '{known.trajectory_id}'"
        return NotFound(
            f"event {sequence} of {known.trajectory_id} has left the warm tier",
            hint=f'ask the cold tier: stratalog sql "{query}"',
        )
    if sequence > known.head.sequence_number:
        return NotFound(f"trajectory {known.trajectory_id} ends at event {known.head.sequence_number}")
    return Corrupt(f"event {sequence} of trajectory {known.trajectory_id} is missing in the warm tier")


def _head(row: tuple[Any, ...]) -> TrajectoryHead:
    id_, tenant, secret, origin_log, sequence, digest, *shown, through, through_hash, updated_at = row
    consolidated = START if through < 0 else Link(through, through_hash)
    values = [id_, tenant, secret, origin_log, Link(sequence, digest), *shown, consolidated, updated_at]
    return TrajectoryHead(*values)
