"""One batch of one hot log into the canonical histories, in one transaction with the log's cursor.

Guarantee: after the call returns, every event of the batch is part of the history of its trajectory, or in quarantine
with the reason, and the cursor stands behind the last one; what belongs to an erased trajectory is stored without its
body. If it raises, or the process or the server dies anywhere, either all of that has happened or nothing; the cursor
in the database tells which, so nothing is published twice.

The cursor only moves from the event before the batch. Whoever comes second with the same events gets `Conflict`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import psycopg

from stratalog.hot.source import Cursor, LogEvent
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.errors import Conflict, Corrupt, Invalid
from stratalog.schemas.statements import statements

from .admission import BIGINT_MAX, Verdict
from .database import Connection, answering, check_idle
from .ledger import Ledger
from .projection import storable
from .readmission import Readmitted, readmit

_QUARANTINE_COLUMNS = (
    "lsns",
    "ids",
    "sequences",
    "tenants",
    "reasons",
    "details",
    "headers",
    "bodies",
    "erased",
    "secrets",
)


class Ingested(msgspec.Struct, frozen=True):
    """What became of a batch; published only after its transaction has committed."""

    cursor: Cursor
    """The last event of the batch."""
    admitted: int
    duplicates: int
    quarantined: tuple[int, ...]
    """LSNs of the events that are not part of the canonical history."""
    reasons: tuple[str, ...]
    """Why, in the order of `quarantined`."""
    readmitted: int
    """Events that had waited in quarantine for this batch."""
    trajectories: frozenset[uuid.UUID]
    """Whose head has moved."""
    brought_back: frozenset[uuid.UUID] = frozenset()
    """Erased trajectories whose events came with bodies; these were not stored, and the log still has them."""
    related: bool = False
    """Whether an event told of a descent or of a subject, so that an erasure may cover its trajectory."""


def ingest(conn: Connection, log_id: uuid.UUID, events: Sequence[LogEvent]) -> Ingested:
    """Store a batch: dense in LSN, beginning right after the log's cursor. `conn` must be outside a transaction.

    Raises `Conflict` if the cursor stands elsewhere, `Unavailable` if Postgres does not answer (whether the batch is
    stored then, the cursor tells), `Corrupt` if what is stored contradicts itself.
    """
    envelopes = _dense([event.envelope for event in events])
    check_idle(conn)
    with answering():
        try:
            return _ingest(conn, log_id, envelopes, events[-1].opening, project=True)
        except psycopg.DataError:
            # A body that passed the rules of the projection was refused all the same: a place matters more than a view.
            return _ingest(conn, log_id, envelopes, events[-1].opening, project=False)


def read_cursor(conn: Connection, log_id: uuid.UUID) -> Cursor | None:
    """How far a log was replicated; `None` for one that is not known here."""
    with answering(), conn.transaction():
        row = conn.execute(statements("ingest")["read_cursor"], {"log_id": log_id}).fetchone()
    return None if row is None else Cursor(*row)


def inherit_cursor(conn: Connection, log_id: uuid.UUID, previous: uuid.UUID, start: Cursor) -> bool:
    """Let a log that was given a new id begin at `start`, where the cursor of its previous id is there or beyond.

    Returns whether the new log has that cursor now; what was pruned from it is then in this database.
    """
    parameters = {"log_id": log_id, "previous": previous, "lsn": start.lsn, "hash": start.hash}
    with answering(), conn.transaction():
        conn.execute(statements("ingest")["inherit_cursor"], parameters)
    return read_cursor(conn, log_id) == start


def _dense(envelopes: list[Envelope]) -> list[Envelope]:
    if not envelopes:
        raise Invalid("a batch needs at least one event")
    for before, after in pairwise(envelopes):
        if after.lsn != before.lsn + 1:
            raise Corrupt(f"LSN {before.lsn} is followed by {after.lsn}")
    return envelopes


def _ingest(
    conn: Connection, log_id: uuid.UUID, envelopes: Sequence[Envelope], opening: bytes, *, project: bool
) -> Ingested:
    offered = [(log_id, envelope) for envelope in envelopes]
    cursor = Cursor(envelopes[-1].lsn, envelopes[-1].hash, opening)
    healed = Readmitted()
    with conn.transaction():
        _move_cursor(conn, log_id, envelopes, cursor)
        ledger = Ledger(conn, project=project)
        ledger.lock(offered)
        offered, brought_back = ledger.strip(offered)
        if brought_back:
            conn.execute(statements("ledger")["fall_back"], {"log_id": log_id, "ids": sorted(brought_back)})
        verdicts = ledger.offer(offered)
        ledger.store()
        refused = [
            (pair[1], verdict) for pair, verdict in zip(offered, verdicts, strict=True) if verdict.outcome == "refused"
        ]
        if refused:
            _quarantine(conn, log_id, refused)
        if ledger.moved:
            healed = readmit(conn, ledger, ledger.moved, everything=False)
        ledger.close()
    return Ingested(
        cursor=cursor,
        admitted=sum(verdict.outcome == "admitted" for verdict in verdicts),
        duplicates=sum(verdict.outcome == "duplicate" for verdict in verdicts),
        quarantined=tuple(envelope.lsn for envelope, _ in refused),
        reasons=tuple(verdict.reason for _, verdict in refused),
        readmitted=healed.admitted,
        trajectories=frozenset(ledger.moved),
        brought_back=brought_back,
        related=ledger.related,
    )


def _move_cursor(conn: Connection, log_id: uuid.UUID, envelopes: Sequence[Envelope], to: Cursor) -> None:
    first = envelopes[0]
    parameters = {
        "log_id": log_id,
        "lsn": to.lsn,
        "hash": to.hash,
        "opening": to.opening,
        "events": len(envelopes),
        "predecessor": first.lsn - 1,
    }
    if conn.execute(statements("ingest")["move_cursor"], parameters).rowcount != 1:
        raise Conflict(
            f"the cursor of log {log_id} does not stand at LSN {first.lsn - 1}: another sidecar has moved it, "
            "or the log begins in the middle",
            hint="read the cursor again; run one sidecar for a home",
        )


def _quarantine(conn: Connection, log_id: uuid.UUID, refused: Iterable[tuple[Envelope, Verdict]]) -> None:
    rows: list[tuple[Any, ...]] = [
        (
            envelope.lsn,
            envelope.header.trajectory_id,
            min(envelope.header.sequence_number, BIGINT_MAX),
            storable(envelope.header.tenant),
            verdict.reason,
            verdict.detail,
            envelope.header.encode(),
            envelope.body,
            envelope.erased,
            envelope.secret,
        )
        for envelope, verdict in refused
    ]
    columns = zip(_QUARANTINE_COLUMNS, zip(*rows, strict=True), strict=True)
    parameters: dict[str, Any] = {column: list(values) for column, values in columns}
    written = conn.execute(statements("ingest")["quarantine_events"], {**parameters, "log_id": log_id}).rowcount
    if written != len(rows):
        raise Corrupt(
            f"the quarantine holds other events than log {log_id} at the same LSNs",
            hint="this home was restored from an older copy; give it a new log with: stratalog doctor",
        )
