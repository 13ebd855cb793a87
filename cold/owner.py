"""A storage belongs to one database: a mark in it says to which, and nobody else deletes or writes there.

    <cold.url>/owner.json   <cold.cas_url>/owner.json

The references of another database are not seen here, so its content would look as if nobody needed it. Whoever deletes,
packs or consolidates therefore looks at the marks first. A storage without one is adopted where everything in it is
known to this database, by a put that succeeds only once: of two databases that try, one is refused.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from stratalog.schemas.errors import Conflict, Corrupt, NotFound
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering

if TYPE_CHECKING:
    from .cas import FsContentStore
    from .installation import Tiers
    from .storage import Storage

NAME = "owner.json"
YOUNG_S = 3600.0
"""Content that is younger may be that of an event which is not committed yet."""
TAKE_OVER = "stratalog storage owner --take-over"
_RUN_ID_CHARS = 36

_SQL = statements("owner")


class Owner(msgspec.Struct, frozen=True):
    """The mark: the id of a database, and since when the storage belongs to it."""

    database_id: str
    since: str
    product: str = "stratalog"


class Place(msgspec.Struct, frozen=True):
    """A storage and whom it belongs to, `None` if it has no mark."""

    url: str
    owner: Owner | None
    ours: bool


def require_owner(tiers: Tiers) -> None:
    """Make sure that lake and content store belong to this database; adopts one without a mark where that is safe.

    Raises `Conflict` where one belongs to another database or may, `Corrupt` for a damaged mark, and what reading
    references raises.
    """
    with closing(tiers.connect()) as conn:
        ours = database_id(conn)
        for storage in (tiers.lake.storage, tiers.store.storage):
            owner = read_owner(storage)
            if owner is None:
                strange = _strange(conn, tiers, storage)
                if strange is not None:
                    raise Conflict(
                        f"{storage.url} does not say whose it is, and this database does not know {strange}",
                        hint=f"if no other database uses it, run: {TAKE_OVER}",
                    )
                owner = _adopt(storage, ours)
            if owner.database_id != ours:
                raise Conflict(
                    f"{storage.url} belongs to another database ({owner.database_id}, since {owner.since})",
                    hint="set cold.url and cold.cas_url to storages of its own; or, if the other database is gone for "
                    f"good, run: {TAKE_OVER}",
                )


def places(tiers: Tiers) -> list[Place]:
    """The lake and the content store, and whom they belong to."""
    with closing(tiers.connect()) as conn:
        ours = database_id(conn)
    found = [(storage.url, read_owner(storage)) for storage in (tiers.lake.storage, tiers.store.storage)]
    return [Place(url, owner, owner is not None and owner.database_id == ours) for url, owner in found]


def take_over(tiers: Tiers) -> None:
    """Make both storages belong to this database, whomever they belonged to."""
    with closing(tiers.connect()) as conn:
        mark(database_id(conn), (tiers.lake.storage, tiers.store.storage))


def mark(database: str, storages: Iterable[Storage]) -> None:
    """Write the mark of a database, over any other."""
    for storage in storages:
        storage.put(NAME, _encode(database))


def database_id(conn: Connection) -> str:
    """The id of this database."""
    with answering(), conn.transaction():
        row = conn.execute(_SQL["database_id"]).fetchone()
    if row is None:
        raise Corrupt("the table installation is empty", hint="restore the database from a backup")
    found: str = row[0]
    return found


def renew(conn: Connection) -> None:
    """Give this database an id of its own: it was restored from that of another. Part of the caller's transaction."""
    conn.execute(_SQL["renew"])


def read_owner(storage: Storage) -> Owner | None:
    """The mark of a storage, or `None`; raises `Corrupt` for one that cannot be read."""
    try:
        return msgspec.json.decode(storage.read(NAME), type=Owner)
    except NotFound:
        return None
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{storage.url}/{NAME} is damaged: {error}", hint=f"write it anew: {TAKE_OVER}") from error


def _adopt(storage: Storage, ours: str) -> Owner:
    storage.put_new(NAME, _encode(ours))
    owner = read_owner(storage)
    if owner is None:
        raise Conflict(f"{storage.url}/{NAME} was written and is gone", hint="somebody removes it: find out who")
    return owner


def _encode(database: str) -> bytes:
    return msgspec.json.encode(Owner(database, dt.datetime.now(dt.UTC).isoformat(timespec="seconds")))


def _strange(conn: Connection, tiers: Tiers, storage: Storage) -> str | None:
    """Something in a storage without a mark that this database does not know, or `None`."""
    if storage is tiers.lake.storage:
        return _strange_file(conn, tiers)
    return _strange_content(conn, tiers, tiers.store)


def _strange_file(conn: Connection, tiers: Tiers) -> str | None:
    named = {tiers.lake.path_of(url) for url in tiers.catalog.snapshot_files()}
    runs = {
        entry.path.rpartition("/")[2][:_RUN_ID_CHARS]: entry.path
        for entry in tiers.lake.files()
        if entry.path not in named
    }
    with answering(), conn.transaction():
        known = {run_id for (run_id,) in conn.execute(_SQL["known_runs"], {"run_ids": sorted(runs)})}
    return next((path for run_id, path in runs.items() if run_id not in known), None)


def _strange_content(conn: Connection, tiers: Tiers, store: FsContentStore) -> str | None:
    tenants = list(store.tenants())
    if not tenants:
        return None
    from .roots import find_roots

    roots = find_roots(conn, tiers.lake, tiers.catalog)
    for tenant in tenants:
        for entry in store.entries(tenant):
            sha256 = entry.path.rpartition("/")[2]
            if (tenant, bytes.fromhex(sha256)) not in roots and entry.modified_s < time.time() - YOUNG_S:
                return f"content {sha256} of {tenant}"
        for pack in store.shelf.all(tenant):
            for piece in pack.index.pieces():
                if (tenant, piece.digest) not in roots:
                    return f"content {piece.digest.hex()} of {tenant}"
    return None
