"""The objects that held trajectories need are locked, where the bucket has Object Lock.

These are the data files of the current snapshot that hold events of a held trajectory, and its content, loose or in
packs. `apply_locks` brings the legal holds of the store into line with the holds in force: new files (after a
consolidation, packing or compaction) are locked, what no hold needs any more is released. A crash leaves objects that
are locked although nothing needs them, or not yet locked; the next `apply_locks` goes on. The store's holds are a
second line: that nothing held is deleted does not depend on them.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing

import msgspec

from stratalog.schemas.arrow import INDEX
from stratalog.schemas.blobs import references
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering
from stratalog.warm.streaming import stream

from .cas import FsContentStore, loose_path
from .columns import Row
from .installation import Tiers
from .lake import EVENTS_FOLDER
from .object_lock import has_object_lock, lock, release
from .pack_file import pack_path
from .rewrite_files import files_holding
from .roots import digests_in, referring_rows

_SQL = statements("object_locks")
Object = tuple[str, str]
"""Place (`lake` or `content`) and the path in it."""


class Locks(msgspec.Struct, frozen=True):
    """What was brought into line; `places` are those whose bucket has Object Lock, without any nothing was done."""

    places: tuple[str, ...] = ()
    locked: int = 0
    released: int = 0
    kept: int = 0


class _Held(msgspec.Struct, frozen=True):
    """Whose objects are to be locked: whole tenants, and single trajectories with their tenant and start day."""

    tenants: frozenset[str]
    trajectories: dict[uuid.UUID, tuple[str, str]]

    def covers(self, row: Row) -> bool:
        """Whether a row of a data file is one of theirs."""
        return row[INDEX["tenant"]] in self.tenants or uuid.UUID(bytes=row[INDEX["trajectory_id"]]) in self.trajectories


def apply_locks(tiers: Tiers) -> Locks:
    """Lock every object that held trajectories need, and release what we have locked and no hold needs any more.

    Raises `Locked` while a consolidation runs, `Corrupt` where a file cannot be read (what it holds is not known then),
    `Unavailable`: the same call goes on from there.
    """
    storages = {"lake": tiers.lake.storage, "content": tiers.store.storage}
    places = tuple(place for place, storage in storages.items() if has_object_lock(storage))
    if not places:
        return Locks()
    with tiers.consolidation(), closing(tiers.connect()) as conn:
        conn.rollback()
        held = _held(conn)
        needed = {one for one in _needed(conn, tiers, held) if one[0] in places}
        with answering(), conn.transaction():
            ours = {(place, path) for place, path in conn.execute(_SQL["locks"]) if place in places}
        # Those that are ours already, too: what was put again has a version that is not locked.
        for place, path in sorted(needed):
            lock(conn, storages[place], place, path)
        for place, path in sorted(ours - needed):
            release(conn, storages[place], place, path)
        return Locks(places, len(needed - ours), len(ours - needed), len(ours & needed))


def _held(conn: Connection) -> _Held:
    with answering(), conn.transaction():
        conn.execute(statements("retention")["unlimited"])
        tenants = frozenset(tenant for (tenant,) in conn.execute(_SQL["held_tenants"]))
        found = {id_: (tenant, day) for id_, tenant, day in conn.execute(_SQL["held_trajectories"])}
    return _Held(tenants, found)


def _needed(conn: Connection, tiers: Tiers, held: _Held) -> Iterator[Object]:
    paths = _files(tiers, held)
    yield from (("lake", path) for path in paths)
    digests: dict[str, set[bytes]] = {}

    def note(tenant: str, found: Iterable[str]) -> None:
        for sha256 in found:
            with contextlib.suppress(ValueError):  # refers to nothing that could be stored
                digests.setdefault(tenant, set()).add(bytes.fromhex(sha256))

    for path in paths:
        for row in referring_rows(tiers.lake, tiers.lake.url_of(path)):
            if held.covers(row):
                note(row[INDEX["tenant"]], digests_in(row))
    values = {"tenants": sorted(held.tenants), "trajectory_ids": sorted(held.trajectories)}
    with answering(), conn.transaction():
        conn.execute(statements("retention")["unlimited"])
        for tenant, body in stream(conn, _SQL["warm_references"], values):
            note(tenant, (ref.sha256 for ref in references(bytes(body))))
    for tenant, wanted in sorted(digests.items()):
        yield from (("content", path) for path in _content(tiers.store, tenant, sorted(wanted)))


def _files(tiers: Tiers, held: _Held) -> list[str]:
    """The files of the current snapshot that hold events of them, as paths in the lake."""
    paths = [tiers.lake.path_of(file.url) for file in tiers.catalog.files()]
    found = {path for path in paths if path.split("/")[1].removeprefix("tenant=") in held.tenants}
    by_folder: dict[str, list[uuid.UUID]] = {}
    for id_, (tenant, day) in held.trajectories.items():
        by_folder.setdefault(f"{EVENTS_FOLDER}/tenant={tenant}/date={day}/", []).append(id_)
    for folder, ids in by_folder.items():
        near = [tiers.lake.url_of(path) for path in paths if path.startswith(folder)]
        found |= {tiers.lake.path_of(url) for url in files_holding(tiers.lake, near, ids)}
    return sorted(found)


def _content(store: FsContentStore, tenant: str, digests: list[bytes]) -> Iterator[str]:
    """The objects that hold these pieces, loose or packed; what is not there has none."""
    packed = {} if store.shelf.table is None else store.shelf.table.known(tenant, digests)
    for digest in digests:
        path = loose_path(tenant, digest.hex())
        if store.storage.entry(path) is not None:
            yield path
        if digest in packed:
            yield pack_path(tenant, packed[digest].pack)
