"""Erasure in the cold tier: the content of trajectories leaves every file, snapshot and object version of it.

    what is open is ended ─▶ files with content rewritten ─▶ copies that no snapshot names ─▶ looked at again ─▶ noted

Their events stay as erased ones, with which the chains verify as before (`erased_rows.py`). Nobody is waited for: a
reader of the old files gets `SnapshotErased`. The ledger is marked (`cold_gone_at`) only after all data files of the
table, and everything else in its folders, were looked at again and nothing was found. A crash leaves the mark out, and
the same call begins again; what it finds done costs only the looking.

Not reached: memory and open files of readers, copies that somebody else has made, and what a storage keeps below its
own interface. What cannot be removed is named in the report, and the mark is left out.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

import msgspec

from stratalog.schemas.arrow import INDEX
from stratalog.schemas.errors import Conflict
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering

from .erased_copies import Copies, purge_versions, remove_lost_metadata, unnamed_copies, with_content
from .erased_rows import Eraser
from .installation import Tiers
from .lake import EVENTS_FOLDER
from .rewrite import Change, Rewriting, Rewritten
from .rewrite_plan import make_plan, note
from .rewrite_settle import Settled, settle

_ID = INDEX["trajectory_id"]
_SQL = statements("rewrites")


class ErasedInCold(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, and what went. Only where `gone` is true nothing is left."""

    trajectories: int
    gone: bool = False
    """Whether everything was looked at again and nothing was found; the ledger says so since then."""
    files_looked_at: int = 0
    """Data files of the table, and others in its folders."""
    files_rewritten: int = 0
    events: int = 0
    """Events that had content."""
    bytes: int = 0
    """Bytes of the files that were rewritten, and of copies that were removed."""
    new_bytes: int = 0
    snapshots_expired: int = 0
    metadata_files: int = 0
    copies: int = 0
    """Data files that no current snapshot names and that held content."""
    versions_looked_at: int = 0
    """Old versions of deleted files in a versioned bucket."""
    versions_removed: int = 0
    damaged: tuple[str, ...] = ()
    """Trajectories in the rewritten files that were not whole before; they are not whole now."""
    left: tuple[str, ...] = ()
    """What still holds content, or may, and why it stays."""


def erase_in_cold(tiers: Tiers, trajectory_ids: Collection[uuid.UUID]) -> ErasedInCold:
    """Erase trajectories, which the ledger must have, from the cold tier; calling it again is harmless.

    Raises `Conflict` for a trajectory that the ledger does not have, `Locked` while a consolidation runs, `Corrupt`
    where a file of the table cannot be read, `Invalid` where the store does not allow a deletion, `Unavailable` where
    Postgres or the storage do not answer. The ledger is not marked then.
    """
    ids = frozenset(trajectory_ids)
    with Rewriting(tiers) as work:
        _require_ledger(work.connection, ids)
        tiers.lake.clean_partial()
        tiers.lake.abort_uploads(EVENTS_FOLDER)
        eraser = Eraser()
        files = [file.url for file in tiers.catalog.files()]
        holding = with_content(tiers.lake, files, ids)
        rewritten = work.rewrite(holding, _only(ids, eraser), "erasure") if holding else Rewritten()
        copies = _copies(work, ids)
        removed = _remove(work, copies)
        lost = remove_lost_metadata(work.connection, tiers.lake, tiers.catalog)
        looked_at, purged = purge_versions(tiers.lake, ids)
        left = _left(work, ids)
        if not left:
            with answering(), work.connection.transaction():
                work.connection.execute(_SQL["cold_gone"], {"ids": list(ids)})
        settled = [found for found in (rewritten.settled, removed) if found is not None]
        return ErasedInCold(
            trajectories=len(ids),
            gone=not left,
            files_looked_at=len(files) + copies.looked_at,
            files_rewritten=len(rewritten.files),
            events=eraser.rows,
            bytes=rewritten.bytes + (removed.bytes if removed is not None else 0),
            new_bytes=rewritten.new_bytes,
            snapshots_expired=sum(len(found.snapshots) for found in settled),
            metadata_files=sum(found.metadata_files for found in settled) + lost,
            copies=len(copies.ours),
            versions_looked_at=looked_at,
            versions_removed=sum(found.versions for found in settled) + purged,
            damaged=tuple(sorted(map(str, rewritten.damaged))),
            left=left,
        )


def _require_ledger(conn: Connection, ids: Collection[uuid.UUID]) -> None:
    with answering(), conn.transaction():
        row = conn.execute(_SQL["not_in_ledger"], {"ids": list(ids)}).fetchone()
    if row is not None:
        raise Conflict(
            f"trajectory {row[0]} is not in the ledger, so nothing keeps it from coming back",
            hint="ask for it with: stratalog erase",
        )


def _only(ids: Collection[uuid.UUID], eraser: Eraser) -> Change:
    wanted = {id_.bytes for id_ in ids}
    return lambda row: eraser(row) if row[_ID] in wanted else row


def _copies(work: Rewriting, ids: Collection[uuid.UUID]) -> Copies:
    lake, catalog = work.tiers.lake, work.tiers.catalog
    current = {lake.path_of(url) for url in catalog.snapshot_files()}
    return unnamed_copies(work.connection, lake, current, ids)


def _remove(work: Rewriting, copies: Copies) -> Settled | None:
    """Remove copies with the snapshots that reach them, as a rewrite that has nothing to write."""
    if not copies.ours:
        return None
    conn = work.connection
    plan = note(conn, make_plan(conn, "erasure", copies.ours), "committed")
    return settle(conn, work.tiers.lake, work.tiers.catalog, plan)


def _left(work: Rewriting, ids: Collection[uuid.UUID]) -> tuple[str, ...]:
    """Look at everything again."""
    files = work.tiers.catalog.snapshot_files()
    copies = _copies(work, ids)
    return (
        *(f"{url} is in the table and has content" for url in with_content(work.tiers.lake, files, ids)),
        *(f"{path} was to go and is there" for path in copies.ours),
        *(f"{path} belongs to no run of this database: who shares this storage?" for path in copies.others),
    )
