"""Ends rewrites that were begun: takes away what they have replaced, or undoes those that were never committed.

    planned ──▶ committed ──▶ done          its old files, and what names them, are gone
       └──────▶ undone                      its new files are gone

The caller holds the lock on consolidation. Every step may have been done before: what was committed is looked up in the
table, what is gone is left alone, and `done` is noted after all old files were looked for and not found. Before new
files of a rewrite go, the table is fenced off, so that a commit that is on its way since before cannot name them any
more.

Readers are waited for, so that no file that they have pinned goes; erasure does not wait. What cannot go because it is
being read stays `committed`, which hinders nobody, and the next call tries again.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from stratalog.schemas.errors import Conflict, Unavailable
from stratalog.warm.database import Connection

from . import pins
from .catalog import Catalog
from .lake import Lake
from .metadata_files import named_by
from .object_lock import hand_over
from .rewrite_commit import fence, has_rewrite
from .rewrite_leftovers import snapshots_naming, stale_metadata
from .rewrite_plan import Plan, note, open_plans


class Settled(msgspec.Struct, frozen=True):
    """What became of a rewrite: snapshots expired, files deleted and their bytes; or who still reads its old files."""

    plan: Plan
    snapshots: tuple[int, ...] = ()
    metadata_files: int = 0
    data_files: int = 0
    bytes: int = 0
    versions: int = 0
    """Versions of these files that a store had, where it was told to keep none."""
    readers: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.plan.state in ("done", "undone")


def settle_open(conn: Connection, lake: Lake, catalog: Catalog, *, wait_s: float = 0.0) -> list[Settled]:
    """End all rewrites that earlier processes have begun; waits `wait_s` at most for the readers of each."""
    return [settle(conn, lake, catalog, plan, wait_s=wait_s) for plan in open_plans(conn)]


def settle(conn: Connection, lake: Lake, catalog: Catalog, plan: Plan, *, wait_s: float = 0.0) -> Settled:
    """End one rewrite.

    Raises `Conflict` where a tag or a branch of the table still has the old files, `Unavailable` where Postgres or the
    storage do not answer or keep what was deleted: the same call goes on from there.
    """
    if plan.state == "planned":
        if not has_rewrite(catalog, str(plan.rewrite_id)):
            fence(catalog, str(plan.rewrite_id))
        if not has_rewrite(catalog, str(plan.rewrite_id)):
            return _undo(conn, lake, plan)
        plan = note(conn, plan, "committed")
    return _take_away(conn, lake, catalog, plan, wait_s)


def _undo(conn: Connection, lake: Lake, plan: Plan) -> Settled:
    folders = {path.rpartition("/")[0] for path in plan.old}
    new = [
        entry
        for folder in sorted(folders)
        for entry in lake.files(folder)
        if entry.path.rpartition("/")[2].startswith(f"{plan.rewrite_id}-")
    ]
    versions = delete_all(lake, (entry.path for entry in new), purge=True)
    return Settled(note(conn, plan, "undone"), (), 0, len(new), sum(entry.size for entry in new), versions)


def _take_away(conn: Connection, lake: Lake, catalog: Catalog, plan: Plan, wait_s: float) -> Settled:
    old = frozenset(plan.old)
    table = catalog.table()
    going: list[int] = []
    metadata: list[str] = []
    if table is not None:
        going = [snapshot.snapshot_id for snapshot in snapshots_naming(catalog, table, old)]
        _refuse_references(table, going, plan)
        if plan.kind != "erasure":
            harmless = {snapshot.snapshot_id for snapshot in table.metadata.snapshots} - set(going)
            readers = pins.wait_for(conn, seconds_max=wait_s, reading=harmless)
            if readers:
                return Settled(plan, readers=tuple(pin.reader for pin in readers))
        metadata = _out_of_history(lake, catalog, table, going, old)
    sizes = {path: entry.size for path in (*metadata, *plan.old) if (entry := lake.entry(path)) is not None}
    purge = plan.kind != "compaction"
    hand_over(conn, lake, plan.rewrite_id, plan.old)
    versions = delete_all(lake, metadata, purge=purge) + delete_all(lake, plan.old, purge=purge)
    data = sum(path in sizes for path in plan.old)
    done = note(conn, plan, "done")
    return Settled(done, tuple(going), len(sizes) - data, data, sum(sizes.values()), versions)


def _out_of_history(lake: Lake, catalog: Catalog, table: Table, going: list[int], old: frozenset[str]) -> list[str]:
    """Take snapshots out of the history; returns the metadata that nothing names then and that tells of `old`."""
    if going:
        catalog.expire(table, going)
        table = _table(catalog)
    named = named_by(catalog, table, table.metadata.snapshots)
    if not named.data.isdisjoint(old):
        raise Conflict(f"the table has {min(named.data & old)} again", hint="run the same command again")
    return stale_metadata(lake, catalog, table, named.metadata, old.__contains__)


def _table(catalog: Catalog) -> Table:
    table = catalog.table()
    if table is None:
        raise Unavailable("the cold table has gone while its files were rewritten")
    return table


def _refuse_references(table: Table, going: Iterable[int], plan: Plan) -> None:
    held = set(going)
    for name, reference in table.metadata.refs.items():
        if reference.snapshot_id in held:
            what = "the table itself" if name == MAIN_BRANCH else f"{name!r}, a branch or tag of the table,"
            raise Conflict(
                f"{what} still has files that rewrite {plan.rewrite_id} has replaced",
                hint="somebody else has set it: remove it with the tool that made it, then run this again",
            )


def delete_all(lake: Lake, paths: Iterable[str], *, purge: bool) -> int:
    """Delete files and make sure that they are gone; `purge` also takes all that a store keeps of them.

    Returns how many versions were purged; raises `Unavailable` for a file that is still there.
    """
    gone = list(paths)
    versions = 0
    for path in gone:
        if purge:
            versions += lake.purge(path)
        else:
            lake.delete(path)
    for path in gone:
        if lake.exists(path):
            raise Unavailable(f"{lake.url_of(path)} was deleted and is still there", hint="run the same command again")
    return versions
