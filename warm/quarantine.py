"""Events that were not admitted: list them, look at one, offer them again, export them.

Nothing here deletes. A retry goes through the same admission as the first arrival, so it can only succeed when the
world has changed: events before it have arrived, or a seal was corrected.
"""

from __future__ import annotations

import base64
import datetime as dt
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

from stratalog.schemas.envelope import Envelope, Header
from stratalog.schemas.errors import NotFound
from stratalog.schemas.statements import statements

from .database import Connection, answering, check_idle
from .ledger import Ledger
from .readmission import Readmitted, quarantined_envelope, readmit
from .streaming import stream

ENTRIES_MAX = 1000
TRAJECTORIES_PER_STEP = 100


class Entry(msgspec.Struct, frozen=True):
    """A quarantined event without its body; `body_bytes` is the length of that."""

    quarantine_id: int
    log_id: uuid.UUID
    lsn: int
    trajectory_id: uuid.UUID
    sequence_number: int
    tenant: str
    reason: str
    detail: str
    kind: str
    body_bytes: int
    arrived_at: dt.datetime
    admitted_at: dt.datetime | None


def entries(
    conn: Connection, trajectory_id: uuid.UUID | None = None, *, everything: bool = False, limit: int = ENTRIES_MAX
) -> list[Entry]:
    """The open entries, oldest first; `everything` also those that were admitted since."""
    parameters = {"trajectory_id": trajectory_id, "all": everything, "limit": limit}
    with answering(), conn.transaction():
        return [_entry(row) for row in conn.execute(statements("quarantine")["entries"], parameters)]


def show(conn: Connection, quarantine_id: int) -> tuple[Entry, Envelope]:
    """One entry with its event, exact bytes; raises `NotFound`."""
    with answering(), conn.transaction():
        row = conn.execute(statements("quarantine")["entry"], {"quarantine_id": quarantine_id}).fetchone()
    if row is None:
        raise NotFound(f"there is no quarantined event {quarantine_id}", hint="list them: stratalog quarantine list")
    body, erased, secret = row[12:]
    return _entry(row), quarantined_envelope(row[2], row[8], body, erased, secret)


def retry(conn: Connection, trajectory_id: uuid.UUID | None = None) -> Readmitted:
    """Offer the open entries of one trajectory, or of all, to their histories again; one transaction a trajectory."""
    check_idle(conn)
    if trajectory_id is not None:
        return _retry(conn, trajectory_id)
    total = Readmitted()
    after: uuid.UUID | None = None
    while True:
        with answering(), conn.transaction():
            rows = conn.execute(
                statements("quarantine")["open_trajectories"], {"after": after, "limit": TRAJECTORIES_PER_STEP}
            ).fetchall()
        for (after,) in rows:
            done = _retry(conn, after)
            total = Readmitted(
                total.admitted + done.admitted,
                total.duplicates + done.duplicates,
                total.still_open + done.still_open,
            )
        if not rows:
            return total


def export(conn: Connection, trajectory_id: uuid.UUID | None = None, *, everything: bool = False) -> Iterator[bytes]:
    """JSON lines with all there is of each entry; header, body and secret in base64."""
    parameters = {"trajectory_id": trajectory_id, "all": everything}
    for row in stream(conn, statements("quarantine")["export"], parameters):
        header, (body, erased, secret) = row[8], row[12:]
        line: dict[str, Any] = msgspec.to_builtins(_entry(row))
        line |= {"erased": erased, "header_base64": _base64(header), "body_base64": _base64(body)}
        line["secret_base64"] = None if secret is None else _base64(secret)
        yield msgspec.json.encode(line) + b"\n"


def open_lsns(conn: Connection, log_id: uuid.UUID, after_lsn: int) -> list[int]:
    """LSNs of a log after `after_lsn` whose events are not part of the canonical history."""
    parameters = {"log_id": log_id, "after": after_lsn}
    with answering(), conn.transaction():
        return [lsn for (lsn,) in conn.execute(statements("quarantine")["open_lsns"], parameters)]


def _retry(conn: Connection, trajectory_id: uuid.UUID) -> Readmitted:
    with answering(), conn.transaction():
        parameters = {"trajectory_id": trajectory_id}
        row = conn.execute(statements("quarantine")["first_open"], parameters).fetchone()
        if row is None:
            return Readmitted()
        log_id, lsn, header, body, erased, secret = row
        ledger = Ledger(conn)
        ledger.lock([(log_id, quarantined_envelope(lsn, header, body, erased, secret))])
        done = readmit(conn, ledger, [trajectory_id], everything=True)
        ledger.close()
        return done


def _entry(row: tuple[Any, ...]) -> Entry:
    values = list(row[:12])
    values[8] = Header.decode(row[8]).kind
    return Entry(*values)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
