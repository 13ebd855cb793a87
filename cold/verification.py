"""Verifying an installation: each tier from its stored bytes, and that the tiers agree where they overlap."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping, Set
from typing import Any

import msgspec

from stratalog.hot.check import HotReport, Replicated, Span, verify_log
from stratalog.hot.source import LogSource, open_reader, open_source
from stratalog.schemas.chain import START, Link
from stratalog.schemas.errors import Retryable, StratalogError
from stratalog.warm import queries
from stratalog.warm.check import WarmCheck, verify_warm
from stratalog.warm.database import Connection
from stratalog.warm.deletion_lower import cold_starts
from stratalog.warm.ingest import read_cursor
from stratalog.warm.quarantine import open_lsns

from .check import ColdVerified, verify_cold
from .installation import Installation

ATTEMPTS_MAX = 5
"""How often the verification of a log begins before it gives up because others want that log."""
PAUSE_S = 0.2


def verify_all(installation: Installation) -> dict[str, Any]:
    """Verify everything; returns the JSON object of `stratalog verify`. Damage becomes a problem, never an exception.

    Raises `Unavailable` where Postgres or the storage do not answer, `Locked` where a log cannot be read.
    """
    warm, cold = WarmCheck(), ColdVerified(0, 0, 0, ())
    ends: dict[uuid.UUID, Link] = {}
    content_problems: list[str] = []
    content_checked = 0
    if not installation.has_postgres:
        hot = verify_hot(installation, {})
        return _report(hot, warm, cold, [], content_checked, content_problems)
    with installation.postgres() as dsn, installation.connection() as conn:
        arrived = {log_id: _arrived(conn, log_id) for log_id in installation.home.log_ids()}
        warm = verify_warm(conn)  # after the cursors: what a sidecar stores meanwhile must not look lost
        content_checked, content_problems = verify_warm_content(conn, installation)
        hot = verify_hot(
            installation,
            {log_id: Replicated(lsn, quarantined, warm.heads) for log_id, (lsn, quarantined) in arrived.items()},
        )
        spans = {id_: span for id_, span in hot.spans.items() if id_ not in hot.refused}
        disagreements = _hot_against_warm(conn, spans, warm.heads)
        with installation.lake() as lake, installation.catalog(dsn, lake) as catalog:

            def note(trajectory_id: uuid.UUID, sequence_number: int, digest: bytes) -> None:
                ends[trajectory_id] = Link(sequence_number, digest)

            cold = verify_cold(lake, catalog, installation.content_store(), note, cold_starts(conn))
        # Again: what has left the table meanwhile was started before.
        missing = _cold_against_warm(conn, ends, cold.damaged, cold_starts(conn))
        cold = msgspec.structs.replace(cold, problems=(*cold.problems, *missing))
    return _report(hot, warm, cold, disagreements, content_checked, content_problems)


def _arrived(conn: Connection, log_id: uuid.UUID) -> tuple[int, set[int]]:
    """The cursor of a log, and the LSNs of what is in quarantine."""
    cursor = read_cursor(conn, log_id)
    return (cursor.lsn if cursor else 0), set(open_lsns(conn, log_id, 0))


def verify_hot(installation: Installation, replicated: Mapping[uuid.UUID, Replicated]) -> HotReport:
    """Verify every hot log of the home against what the warm tier says of it."""
    report = HotReport()
    for log_id in installation.home.log_ids():
        try:
            report.add(_verify_log(installation, log_id, replicated.get(log_id, Replicated())))
        except StratalogError as error:
            if error.exit_code not in (20, 21):
                raise
            report.problems.append(f"log {log_id}: {error.message}")
    return report


def _verify_log(installation: Installation, log_id: uuid.UUID, replicated: Replicated) -> HotReport:
    """Verify one log; from its beginning again where another process took it over meanwhile."""
    attempts = 0
    while True:
        report = HotReport()
        attempts += 1
        try:
            reader = open_reader(installation.home, log_id)
            try:
                secrets = {head.trajectory_id: head.secret for head in reader.heads()}
            finally:
                reader.close()
            source: LogSource = open_source(installation.home, log_id)
            try:
                return verify_log(source, report, secrets=secrets, replicated=replicated)
            finally:
                source.close()
        except Retryable:
            if attempts == ATTEMPTS_MAX:
                raise
            time.sleep(PAUSE_S)


def verify_warm_content(conn: Connection, installation: Installation) -> tuple[int, list[str]]:
    """Read every piece of content that the warm tier refers to; how many there are, and what is wrong."""
    store = installation.content_store()
    checked = 0
    problems = []
    for tenant, sha256 in queries.content_references(conn):
        checked += 1
        try:
            store.get(tenant, sha256)
        except StratalogError as error:
            problems.append(f"warm: content {sha256} of {tenant}: {error.message}")
    return checked, problems


def _hot_against_warm(conn: Connection, spans: dict[uuid.UUID, Span], heads: dict[uuid.UUID, Link]) -> list[str]:
    """A hot log may be ahead of warm (checked on the way) or behind it, when the trajectory went on elsewhere."""
    problems = []
    for trajectory_id, span in spans.items():
        head = heads.get(trajectory_id)
        if head is None or span.last_sequence >= head.sequence_number:
            continue
        stored = queries.hash_at(conn, trajectory_id, span.last_sequence)
        if stored is not None and stored != span.last_hash:
            problems.append(f"trajectory {trajectory_id}: event {span.last_sequence} differs between hot and warm")
    return problems


def _cold_against_warm(
    conn: Connection,
    ends: dict[uuid.UUID, Link],
    damaged: Set[uuid.UUID],
    starts: Mapping[uuid.UUID, Collection[Link]],
) -> list[str]:
    """What warm marks as consolidated must be in cold; cold may be ahead of the marks, by a run that is not marked yet.

    `ends` are the trajectories that are whole in cold; those in `damaged` are reported already. `starts` are the events
    up to which retention has deleted trajectories, or is about to.
    """
    problems: list[str] = []
    missing: list[uuid.UUID] = []
    ahead: dict[uuid.UUID, Link] = {}
    without_head = dict(ends)
    for head in queries.trajectories(conn):
        end, marked = without_head.pop(head.trajectory_id, None), head.consolidated
        if end is None:
            deleted = marked in starts.get(head.trajectory_id, ())
            if marked != START and not deleted and head.trajectory_id not in damaged:
                missing.append(head.trajectory_id)
        elif end.sequence_number > marked.sequence_number:
            ahead[head.trajectory_id] = end
        elif end != marked:
            problems.append(
                f"trajectory {head.trajectory_id}: cold ends at event {end.sequence_number}, "
                f"warm has marked event {marked.sequence_number}"
                + (" with another hash" if end.sequence_number == marked.sequence_number else "")
            )
    for trajectory_id, end in ahead.items():
        stored = queries.hash_at(conn, trajectory_id, end.sequence_number)
        if stored is not None and stored != end.hash:
            problems.append(f"trajectory {trajectory_id}: event {end.sequence_number} differs between cold and warm")
    if missing:
        problems.append(
            f"{len(missing)} trajectories are marked as consolidated and cannot be read from the cold tier, "
            f"the first is {missing[0]}"
        )
    problems += [f"trajectory {id_} is in the cold tier but has no head in warm" for id_ in without_head]
    return problems


def _report(
    hot: HotReport,
    warm: WarmCheck,
    cold: ColdVerified,
    disagreements: list[str],
    content_checked: int,
    content_problems: list[str],
) -> dict[str, Any]:
    tiers = {
        "hot": {"events": hot.events, "trajectories": len(hot.spans), "problems": hot.problems + disagreements},
        "warm": {"events": warm.events, "trajectories": warm.trajectories, "problems": warm.problems},
        "cold": {"events": cold.events, "trajectories": cold.trajectories, "problems": list(cold.problems)},
    }
    blobs = {
        "checked": hot.blobs + content_checked + cold.blobs,
        "problems": hot.blob_problems + content_problems,
    }
    ok = not blobs["problems"] and not any(tier["problems"] for tier in tiers.values())
    return {"ok": ok, "tiers": tiers, "blobs": blobs}
