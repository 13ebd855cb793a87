"""Verifying an installation: each tier from its stored bytes, and that the tiers agree where they overlap."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Set
from functools import partial
from typing import Any

import msgspec

from stratalog.hot.check import HotReport, Replicated, Span, verify_log
from stratalog.hot.source import LogSource, open_reader, open_source
from stratalog.schemas.chain import START, Link
from stratalog.schemas.errors import Corrupt, Invalid, NotFound, Retryable, StratalogError
from stratalog.schemas.statements import statements
from stratalog.warm import database, queries
from stratalog.warm.check import (
    Part,
    WarmCheck,
    last_events,
    parts,
    shared_view,
    total_events,
    trajectory_ids,
    verify_warm,
)
from stratalog.warm.database import Connection
from stratalog.warm.deletion_lower import cold_starts
from stratalog.warm.ingest import read_cursor
from stratalog.warm.quarantine import open_lsns
from stratalog.warm.streaming import stream

from .catalog import Catalog
from .check import ColdVerified, Looked, look_at, verify_cold
from .installation import Installation
from .pack_check import check_packs
from .pins import release, take
from .sample import EVERYTHING, Sample
from .workers import Worker, Workers, default_count

ATTEMPTS_MAX = 5
"""How often the verification of a log begins before it gives up because others want that log; and that of the cold
tier, because its files are replaced meanwhile."""
READER = "stratalog verify"
"""How it is called in the list of pins."""
PAUSE_S = 0.2
PARTS_PER_WORKER = 4
"""The parts are never equal; several for each worker even that out."""
TRAJECTORIES_AT_ONCE = 200
CONTENT_AT_ONCE = 50


def verify_all(installation: Installation, *, sample: Sample = EVERYTHING, workers: int | None = 1) -> dict[str, Any]:
    """Verify everything; returns the JSON object of `stratalog verify`. Damage becomes a problem, never an exception.

    Of a sample some trajectories are looked at in the warm tier and some files in the cold one; hot logs are always
    read whole. `workers` processes read at once, `None` is as many as there are cores; what is found is the same.
    Raises `Unavailable` where Postgres or the storage do not answer, `Locked` where a log cannot be read.
    """
    found = _Verified(sample)
    if not installation.has_postgres:
        found.hot = verify_hot(installation, {})
        return found.report()
    with (
        installation.postgres() as dsn,
        installation.connection() as conn,
        Workers(installation.home, dsn, workers or default_count(total_events(conn))) as pool,
        installation.lake() as lake,
        installation.catalog(dsn, lake) as catalog,
        contextlib.closing(installation.content_store()) as store,
    ):
        arrived = {log_id: _arrived(conn, log_id) for log_id in installation.home.log_ids()}
        gone = _dropped_content(conn)
        _verify_warm(conn, pool, found)  # after the cursors: what a sidecar stores meanwhile must not look lost
        found.check_content(pool, gone)
        with contextlib.closing(installation.content_store(dsn)) as told:
            # What is in packs is read by reference, too; this also finds what only their index and their rows show.
            found.content_problems += check_packs(told, read_data=sample.is_all).problems
        found.hot = verify_hot(
            installation,
            {log_id: Replicated(lsn, quarantined, found.heads) for log_id, (lsn, quarantined) in arrived.items()},
        )
        spans = {id_: span for id_, span in found.hot.spans.items() if id_ not in found.hot.refused}
        found.disagreements = _hot_against_warm(conn, spans, found.heads)
        look = partial(pool.map, partial(_look, gone=gone))
        ends: dict[uuid.UUID, Link] = {}

        def note(trajectory_id: uuid.UUID, sequence_number: int, digest: bytes) -> None:
            ends[trajectory_id] = Link(sequence_number, digest)

        def verify() -> ColdVerified:
            ends.clear()
            return verify_cold(lake, catalog, store, note, cold_starts(conn), sample=sample, look=look)

        found.cold = _while_it_stays(dsn, catalog, verify)
        # Again: what has left the table meanwhile was started before.
        missing = _cold_against_warm(conn, ends, found.cold.damaged, cold_starts(conn), everything=sample.is_all)
        found.cold = msgspec.structs.replace(found.cold, problems=(*found.cold.problems, *missing))
    return found.report()


class _Verified:
    """What was found so far."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.hot = HotReport()
        self.warm = WarmCheck()
        self.heads: dict[uuid.UUID, Link] = {}
        """Where every trajectory ends in the warm tier, also those that are not in the sample."""
        self.cold = ColdVerified(0, 0, 0, ())
        self.disagreements: list[str] = []
        self.content_problems: list[str] = []

    def check_content(self, pool: Workers, gone: Collection[tuple[str, str]]) -> None:
        """Read every piece of content that the warm tier refers to, unless a policy has deleted it."""
        wanted = sorted(self.warm.content.difference(gone))
        slices = [wanted[start : start + CONTENT_AT_ONCE] for start in range(0, len(wanted), CONTENT_AT_ONCE)]
        for problems in pool.map(_check_content, slices):
            self.content_problems += problems

    def report(self) -> dict[str, Any]:
        """The JSON object."""
        hot, warm, cold = self.hot, self.warm, self.cold
        tiers: dict[str, dict[str, Any]] = {
            "hot": {
                "events": hot.events,
                "trajectories": len(hot.spans),
                "problems": hot.problems + self.disagreements,
            },
            "warm": {"events": warm.events, "trajectories": warm.trajectories, "problems": warm.problems},
            "cold": {"events": cold.events, "trajectories": cold.trajectories, "problems": list(cold.problems)},
        }
        blobs = {
            "checked": hot.blobs + len(warm.content) + cold.blobs,
            "problems": hot.blob_problems + self.content_problems,
        }
        ok = not blobs["problems"] and not any(tier["problems"] for tier in tiers.values())
        report = {"ok": ok, "tiers": tiers, "blobs": blobs}
        if not self.sample.is_all:
            left = {"trajectories": len(self.heads) - warm.trajectories, "files": cold.files_left_out}
            report["sample"] = {
                "share": self.sample.share,
                "seed": self.sample.seed,
                "looked_at": {"trajectories": warm.trajectories, "files": cold.files},
                "left_out": left,
            }
        return report


def _dropped_content(conn: Connection) -> frozenset[tuple[str, str]]:
    """Tenant and SHA-256 of the content that a policy has deleted although events refer to it."""
    rows = stream(conn, statements("deletions_lower")["dropped"], {})
    return frozenset((row[0], bytes(row[1]).hex()) for row in rows)


def _while_it_stays(dsn: str, catalog: Catalog, verify: Callable[[], ColdVerified]) -> ColdVerified:
    """What `verify` finds of one state of the table: its files are pinned; where an erasure, which waits for nobody,
    has replaced some of them, it is verified again.
    """
    with contextlib.ExitStack() as stack:
        pinning = stack.enter_context(contextlib.closing(database.connect(dsn)))
        with contextlib.suppress(Invalid):  # a role that may not pin
            stack.callback(release, pinning, take(pinning, READER))
        for _ in range(ATTEMPTS_MAX):
            before = _files_in(catalog)
            found = verify()
            if not found.problems or _files_in(catalog) == before:
                break
    return found


def _files_in(catalog: Catalog) -> list[str] | None:
    try:
        return catalog.snapshot_files()
    except (NotFound, Corrupt):
        return None  # which `verify` has found, too


def _verify_warm(conn: Connection, pool: Workers, found: _Verified) -> None:
    """Verify the warm tier in one view of it, by all workers."""
    with shared_view(conn) as view:
        ranges: list[Part]
        if found.sample.is_all:
            ranges = parts(conn, pool.count * PARTS_PER_WORKER) if pool.count > 1 else [Part()]
        else:
            chosen = [id_ for id_ in trajectory_ids(conn) if found.sample.takes(id_.bytes)]
            starts = range(0, len(chosen), TRAJECTORIES_AT_ONCE)
            ranges = [Part(ids=tuple(chosen[start : start + TRAJECTORIES_AT_ONCE])) for start in starts]
        for part in pool.map(partial(_check_warm, view=view), ranges):
            found.warm.add(part)
        found.heads = found.warm.heads if found.sample.is_all else last_events(conn)


def _check_warm(worker: Worker, part: Part, view: str) -> WarmCheck:
    with worker.connection() as conn:
        return verify_warm(conn, part, view)


def _check_content(worker: Worker, wanted: list[tuple[str, str]]) -> list[str]:
    problems = []
    with contextlib.closing(worker.installation.content_store()) as store:
        for tenant, sha256 in wanted:
            try:
                store.get(tenant, sha256)
            except StratalogError as error:
                problems.append(f"warm: content {sha256} of {tenant}: {error.message}")
    return problems


def _look(worker: Worker, group: tuple[str, ...], gone: Collection[tuple[str, str]]) -> Looked:
    with worker.installation.lake() as lake, contextlib.closing(worker.installation.content_store()) as store:
        return look_at(lake, store, group, gone)


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
    *,
    everything: bool,
) -> list[str]:
    """What warm marks as consolidated must be in cold; cold may be ahead of the marks, by a run that is not marked yet.

    Unless `everything` was looked at, only what was found is compared.

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
            if everything and marked != START and not deleted and head.trajectory_id not in damaged:
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
