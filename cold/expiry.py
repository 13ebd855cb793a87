"""Expires old snapshots of the cold table, and deletes the bytes that only they needed.

A snapshot goes when it has not been the current one for `older_than`, nobody has pinned it, and its run is marked: who
completes a run after a crash looks for its id among the snapshots, so one that is not marked must stay. Nothing is done
while a plan is open, nor while a consolidation runs; rewrites that are open are ended first.

Order: one commit takes the snapshots out of the history; then manifests go, then the lists that name them, then old
versions of the metadata, then leftovers (written more than a day ago, and named by nothing). Every deletion is looked
at again afterwards. A crash leaves files that are only too many: of what expired, the versions of the metadata go last,
and the next run finds in them what was still to be deleted. What the current snapshot names is never touched.

Parquet that no snapshot names goes only where its name carries a run of this database, and metadata that nothing names
only where no other table has metadata in the folder: two databases that share a storage must not clean up each other.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import pairwise

import msgspec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from stratalog.schemas.errors import Conflict, Invalid, Unavailable
from stratalog.schemas.settings import duration_us
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering

from . import pins
from .catalog import RUN_ID
from .installation import Tiers
from .lake import Lake
from .metadata_files import Named, moment, named_by, past, read_version, versions
from .rewrite_leftovers import METADATA_FOLDER
from .rewrite_settle import settle_open
from .storage import Entry

OLDER_THAN = "7d"
OLDER_THAN_MIN = dt.timedelta(hours=1)
"""Whoever has just read which snapshot is current must be able to read its files."""
LEFTOVER_AGE = dt.timedelta(days=1)
"""A file that nothing names may be one of a commit that is on its way."""
_RUN_ID_CHARS = 36

_SQL = statements("storage")


class Expired(msgspec.Struct, frozen=True):
    """What went, or would go: snapshots, files and bytes; and files that nothing names and that stay all the same."""

    snapshots: tuple[int, ...] = ()
    metadata_files: int = 0
    data_files: int = 0
    bytes: int = 0
    unknown: tuple[str, ...] = ()


def expire(
    tiers: Tiers,
    older_than: str = OLDER_THAN,
    *,
    dry_run: bool = False,
    now: dt.datetime | None = None,
    pinned: frozenset[int] = frozenset(),
) -> Expired:
    """Expire what has been old for `older_than`, then delete its bytes.

    Snapshots that readers have pinned, and those of `pinned`, stay whole.

    Raises `Locked` while a consolidation runs, `Conflict` while a plan is open, `Invalid` for a duration that is none
    or too short, `Unavailable` where Postgres or the storage do not answer: the same call goes on from there.
    """
    now = now or dt.datetime.now(dt.UTC)
    cutoff = now - age_of(older_than, OLDER_THAN_MIN)
    with tiers.consolidation(), closing(tiers.connect()) as conn:
        _refuse_open_plans(conn)
        if not dry_run:
            settle_open(conn, tiers.lake, tiers.catalog)
        table = tiers.catalog.table()
        if table is None:
            return Expired()
        # A reader that pins from now on finds the current snapshot: nobody else can commit.
        read = {pin.snapshot_id for pin in pins.live(conn) if pin.snapshot_id is not None}
        going = _expirable(conn, table, cutoff, pinned | read)
        stays = [snapshot for snapshot in table.metadata.snapshots if snapshot not in going]
        # What stays must be readable before anything goes.
        keep = named_by(tiers.catalog, table, stays)
        if going and not dry_run:
            tiers.catalog.expire(table, [snapshot.snapshot_id for snapshot in going])
            table = _reloaded(tiers)
            keep = named_by(tiers.catalog, table, table.metadata.snapshots)
        metadata = list(dict.fromkeys(_past_files(tiers, table, going, keep, cutoff)))
        unknown, lost = _lost_metadata(tiers, table, keep, set(metadata), now)
        strangers, leftovers = _leftovers(tiers.lake, conn, keep, now)
        sizes = _sizes(tiers.lake, (*metadata, *lost, *leftovers))
        if not dry_run:
            _delete(tiers.lake, sizes)
        data = sum(path in sizes for path in leftovers)
        return Expired(
            tuple(snapshot.snapshot_id for snapshot in going),
            len(sizes) - data,
            data,
            sum(sizes.values()),
            (*unknown, *strangers),
        )


def age_of(text: str, shortest: dt.timedelta) -> dt.timedelta:
    """A duration of at least `shortest`; raises `Invalid`."""
    try:
        age = dt.timedelta(microseconds=duration_us(text))
    except (ValueError, OverflowError) as error:
        raise Invalid(str(error), hint="write a duration such as 7d") from error
    if age < shortest:
        raise Invalid(f"{text} is too short: others may be using it still", hint=f"give at least {shortest}")
    return age


def _refuse_open_plans(conn: Connection) -> None:
    with answering(), conn.transaction():
        row = conn.execute(_SQL["open_plans"]).fetchone()
    if row != (0,):
        raise Conflict(
            "a consolidation is planned and not completed, so it may still look for its snapshot",
            hint="complete it with: stratalog consolidate",
        )


def _expirable(conn: Connection, table: Table, cutoff: dt.datetime, pinned: frozenset[int]) -> list[Snapshot]:
    metadata = table.metadata
    fixed = pinned | {ref.snapshot_id for ref in metadata.refs.values()} | {metadata.current_snapshot_id}
    history = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    old = [
        snapshot
        for snapshot, successor in pairwise(history)
        if snapshot.snapshot_id not in fixed and moment(successor.timestamp_ms) < cutoff
    ]
    with answering(), conn.transaction():
        run_ids = [run_id for snapshot in old if (run_id := _run_id(snapshot)) is not None]
        marked = {run_id for (run_id,) in conn.execute(_SQL["marked_runs"], {"run_ids": run_ids})}
    return [snapshot for snapshot in old if (run_id := _run_id(snapshot)) is None or run_id in marked]


def _run_id(snapshot: Snapshot) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(RUN_ID)


def _reloaded(tiers: Tiers) -> Table:
    table = tiers.catalog.table()
    if table is None:
        raise Unavailable("the cold table has gone while its snapshots expired")
    return table


def _past_files(
    tiers: Tiers, table: Table, going: Iterable[Snapshot], keep: Named, cutoff: dt.datetime
) -> Iterator[str]:
    """Files of snapshots that are gone, also of those that an earlier run has expired; then the old versions."""
    here = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    logged = versions(tiers.catalog, table)
    yield from past(tiers.lake, tiers.catalog, table, going, keep)
    for version in logged:
        earlier = read_version(tiers.lake, table, version.path)
        if earlier is not None:
            gone = [snapshot for snapshot in earlier.snapshots if snapshot.snapshot_id not in here]
            yield from past(tiers.lake, tiers.catalog, table, gone, keep)
    yield from (version.path for version in logged if version.superseded_at < cutoff)


def _lost_metadata(
    tiers: Tiers, table: Table, keep: Named, found: set[str], now: dt.datetime
) -> tuple[list[str], list[str]]:
    """Metadata that nothing names, older than a day: what must stay because it may be another table's, and the rest."""
    known = keep.metadata | found | {version.path for version in versions(tiers.catalog, table)}
    lost = [entry for entry in tiers.lake.files(METADATA_FOLDER) if entry.path not in known]
    for entry in lost:
        if entry.path.endswith(".metadata.json"):
            other = read_version(tiers.lake, table, entry.path)
            # One without any snapshot was never anybody's table: earlier versions left one with each commit.
            if other is not None and other.snapshots and other.table_uuid != table.metadata.table_uuid:
                return [entry.path for entry in lost], []
    return [], [entry.path for entry in lost if _is_abandoned(entry, now)]


def _leftovers(lake: Lake, conn: Connection, keep: Named, now: dt.datetime) -> tuple[list[str], list[str]]:
    """Parquet that no snapshot names, older than a day: that of no run of ours, and that of ours."""
    lost = [
        entry.path
        for entry in lake.files()
        if entry.path.endswith(".parquet") and entry.path not in keep.data and _is_abandoned(entry, now)
    ]
    with answering(), conn.transaction():
        run_ids = sorted({_run_in(path) for path in lost})
        known = {run_id for (run_id,) in conn.execute(_SQL["known_runs"], {"run_ids": run_ids})}
    return [path for path in lost if _run_in(path) not in known], [path for path in lost if _run_in(path) in known]


def _run_in(path: str) -> str:
    return path.rpartition("/")[2][:_RUN_ID_CHARS]


def _is_abandoned(entry: Entry, now: dt.datetime) -> bool:
    # A store that does not tell when says 0.
    return 0 < entry.modified_s < (now - LEFTOVER_AGE).timestamp()


def _sizes(lake: Lake, paths: Iterable[str]) -> dict[str, int]:
    """The bytes of the files that are there, in the order in which they are to go."""
    return {path: entry.size for path in paths if (entry := lake.entry(path)) is not None}


def _delete(lake: Lake, paths: Iterable[str]) -> None:
    for path in paths:
        lake.delete(path)
    for path in paths:
        if lake.exists(path):
            raise Unavailable(f"{lake.url_of(path)} was deleted and is still there", hint="run the same command again")
