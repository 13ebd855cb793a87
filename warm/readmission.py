"""Offers quarantined events to their histories again, in order, under the same rules as when they first arrived.

Ingest does it by itself for events that waited for earlier ones (`gap`); `stratalog quarantine retry` for all. An entry
that is admitted, or found to be part of the history already, keeps its row and gets `admitted_at`.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any

import msgspec

from stratalog.schemas.envelope import Envelope, Header, hash_header
from stratalog.schemas.statements import statements

from .admission import Verdict
from .database import Connection
from .ledger import Ledger, Offered

CHUNK_EVENTS = 100


class Readmitted(msgspec.Struct, frozen=True):
    """What became of open entries."""

    admitted: int = 0
    duplicates: int = 0
    still_open: int = 0


def readmit(conn: Connection, ledger: Ledger, trajectory_ids: Collection[uuid.UUID], *, everything: bool) -> Readmitted:
    """Offer the open entries of trajectories that `ledger` has locked; `everything` also those that do not heal."""
    counts = {"admitted": 0, "duplicate": 0, "refused": 0}
    parameters: dict[str, Any] = {"ids": sorted(trajectory_ids), "all": everything, "limit": CHUNK_EVENTS}
    parameters |= {"after_id": None, "after_sequence": None, "after_quarantine": None}
    while rows := conn.execute(statements("quarantine")["open_events"], parameters).fetchall():
        offered = [_offered(row) for row in rows]
        verdicts = ledger.offer(offered)
        ledger.store()
        _mark(conn, rows, verdicts)
        for verdict in verdicts:
            counts[verdict.outcome] += 1
        last = offered[-1][1].header
        parameters |= {"after_id": last.trajectory_id, "after_sequence": last.sequence_number}
        parameters["after_quarantine"] = rows[-1][0]
    return Readmitted(counts["admitted"], counts["duplicate"], counts["refused"])


def quarantined_envelope(lsn: int, header: bytes, body: bytes, erased: bool, secret: bytes | None) -> Envelope:
    """The event of a quarantine row; raises `Corrupt` if its header is none."""
    return Envelope(lsn, 0, Header.decode(header), body, hash_header(header), erased, secret)


def _offered(row: tuple[Any, ...]) -> Offered:
    _, log_id, lsn, header, body, erased, secret, _ = row
    return log_id, quarantined_envelope(lsn, header, body, erased, secret)


def _mark(conn: Connection, rows: list[tuple[Any, ...]], verdicts: list[Verdict]) -> None:
    sql = statements("quarantine")
    in_history = [row[0] for row, verdict in zip(rows, verdicts, strict=True) if verdict.outcome != "refused"]
    if in_history:
        conn.execute(sql["mark_admitted"], {"ids": in_history})
    changed = [
        (row[0], verdict.reason, verdict.detail)
        for row, verdict in zip(rows, verdicts, strict=True)
        if verdict.outcome == "refused" and verdict.reason != row[7]
    ]
    if changed:
        numbers, reasons, details = (list(values) for values in zip(*changed, strict=True))
        conn.execute(sql["change_reasons"], {"ids": numbers, "reasons": reasons, "details": details})
