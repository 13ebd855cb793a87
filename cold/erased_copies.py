"""Copies of erased content in the cold tier that no rewrite comes to: what the current snapshot does not name.

Leftovers of attempts that died, files that a compaction has replaced and readers still need, manifests with the bounds
of columns, and on a versioned bucket what was deleted. A data file goes when it holds content of the trajectories and
its name carries a run of this database; one of somebody else's, who shares the storage, is named and stays.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec
import pyarrow.parquet as pq

from stratalog.schemas.errors import Corrupt
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering

from .catalog import Catalog
from .erased_rows import has_content
from .lake import EVENTS_FOLDER, Lake
from .metadata_files import named_by
from .rewrite_files import open_parquet, places_of
from .rewrite_leftovers import METADATA_FOLDER, stale_metadata
from .rewrite_settle import delete_all
from .rows import rows_of

RUN_ID_CHARS = 36
_SQL = statements("rewrites")


class Copies(msgspec.Struct, frozen=True):
    """Data files that hold content: those that may go, those of others, those that cannot be read."""

    ours: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    looked_at: int = 0


def content_rows(file: pq.ParquetFile, wanted: Sequence[bytes]) -> int:
    """How many rows of the trajectories `wanted` (ids, sorted) have content."""
    rows = 0
    for group, places in places_of(file, wanted):
        for batch in file.read_row_group(group, use_threads=False).take(places).to_batches():
            rows += sum(map(has_content, rows_of(batch)))
    return rows


def with_content(lake: Lake, places: Iterable[str], trajectory_ids: Collection[uuid.UUID]) -> list[str]:
    """The files (paths or URLs) that have content of the trajectories; raises `Corrupt` for an unreadable one."""
    wanted = sorted(id_.bytes for id_ in trajectory_ids)
    found = []
    for place in places:
        with lake.open(place) as stream, open_parquet(stream, place) as file:
            if content_rows(file, wanted):
                found.append(place)
    return found


def unnamed_copies(
    conn: Connection, lake: Lake, current: Collection[str], trajectory_ids: Collection[uuid.UUID]
) -> Copies:
    """Data files with content that are not among those of the current snapshot (`current`, paths)."""
    unnamed = [
        entry.path
        for entry in lake.files(EVENTS_FOLDER)
        if entry.path not in current and entry.path.endswith(".parquet")
    ]
    holding = [path for path in unnamed if _may_hold(lake, path, trajectory_ids)]
    known = known_ids(conn, holding)
    return Copies(
        tuple(path for path in holding if run_in(path) in known),
        tuple(path for path in holding if run_in(path) not in known),
        len(unnamed),
    )


def _may_hold(lake: Lake, path: str, trajectory_ids: Collection[uuid.UUID]) -> bool:
    try:
        return bool(with_content(lake, [path], trajectory_ids))
    except Corrupt:
        return True  # nothing needs it, and nobody can say what is in it


def remove_lost_metadata(conn: Connection, lake: Lake, catalog: Catalog) -> int:
    """Remove manifests that nothing names and that tell of data files of ours which are gone; returns how many."""
    table = catalog.table()
    if table is None:
        return 0
    there = {entry.path for entry in lake.files(EVENTS_FOLDER)}
    known: dict[str, bool] = {}

    def gone(path: str) -> bool:
        if path in there or not path.startswith(f"{EVENTS_FOLDER}/"):
            return False
        run = run_in(path)
        if run not in known:
            known[run] = bool(known_ids(conn, [path]))
        return known[run]

    stale = stale_metadata(lake, catalog, table, named_by(catalog, table, table.metadata.snapshots).metadata, gone)
    delete_all(lake, stale, purge=True)
    return len(stale)


def purge_versions(lake: Lake, trajectory_ids: Collection[uuid.UUID]) -> tuple[int, int]:
    """Remove what a versioned store keeps of deleted files: data files with content of the trajectories, and manifests.

    Returns how many old versions were looked at, and how many went.
    """
    wanted = sorted(id_.bytes for id_ in trajectory_ids)
    looked_at = 0
    going: list[str] = []
    for version in lake.kept_versions(EVENTS_FOLDER):
        looked_at += 1
        if version.path.endswith(".parquet") and version.path not in going:
            with lake.open_version(version) as stream:
                try:
                    with open_parquet(stream, version.path) as file:
                        holds = bool(content_rows(file, wanted))
                except Corrupt:
                    holds = True
            if holds:
                going.append(version.path)
    for version in lake.kept_versions(METADATA_FOLDER):
        looked_at += 1
        if version.path.endswith(".avro"):
            going.append(version.path)
    return looked_at, delete_all(lake, dict.fromkeys(going), purge=True)


def known_ids(conn: Connection, paths: Iterable[str]) -> frozenset[str]:
    """The runs and rewrites of this database that the names of data files carry."""
    with answering(), conn.transaction():
        return frozenset(_ids(conn, sorted(set(map(run_in, paths)))))


def _ids(conn: Connection, ids: list[str]) -> Iterator[str]:
    yield from (id_ for (id_,) in conn.execute(_SQL["known_ids"], {"ids": ids}).fetchall())


def run_in(path: str) -> str:
    """The id that begins the name of a data file."""
    return path.rpartition("/")[2][:RUN_ID_CHARS]
