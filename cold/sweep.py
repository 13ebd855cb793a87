"""Deletes content that nothing refers to: condemn, wait, look again, delete.

A piece without a reference is condemned: a row in Postgres, with the time. A later sweep, at least `grace` after that,
looks for references anew; a piece that still has none, that nobody has put again, and whose row still stands, goes.

Why no content is lost to somebody who is just putting it: a writer takes the row away first (`warm.condemned.spare`),
then puts the content, then commits the event that refers to it. The sweep holds the row, locked, while it deletes. So
either the row is gone before the sweep can lock it, and nothing is deleted; or the writer waits until the file is gone,
and puts it again. A row that is made after that starts a grace of its own, within which the event is committed: the
grace must be longer than the longest writer takes from `spare` to its commit, or it is counted again from there. As
clocks only that of Postgres matters; that the file's own time must be older than the grace, too, is a second guard for
those who put content without asking Postgres.

What lies in a pack is marked as dead in it, in the same transaction in which a loose copy is deleted; then packs of
which too much is dead are written again without it. Until then a dead piece can still be read, but nobody relies on it:
whoever puts content puts it loose.

A crash at any point leaves rows of content that is gone, or content that is condemned: the next sweep goes on.
One content store belongs to one database (`owner.py`): content of another would have no reference here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice

import msgspec

from stratalog.schemas.errors import Unavailable
from stratalog.schemas.statements import statements
from stratalog.warm.condemned import spare
from stratalog.warm.database import Connection, answering

from .cas import FsContentStore, loose_path
from .expiry import age_of
from .installation import Tiers
from .owner import require_owner
from .pack_rewrite import compact, finish_replaced
from .packs import table_of
from .roots import Roots, find_roots

GRACE = "24h"
GRACE_MIN = dt.timedelta(hours=1)
DEAD_SHARE_MAX = 0.3
"""A pack of which more than this share is not needed is written again."""
BATCH_PIECES = 50
"""Few: whoever puts one of them waits until all are deleted."""

_SQL = statements("sweep")
Piece = tuple[str, bytes]
"""Tenant and SHA-256."""


class Swept(msgspec.Struct, frozen=True):
    """Pieces of content: needed, newly condemned, spared (needed or put again), waiting for the grace, deleted.

    `bytes` are those of loose files and what packs have become smaller by; a piece that is dead in a pack is deleted,
    too, and frees its bytes when that pack is written again.
    """

    needed: int = 0
    condemned: int = 0
    spared: int = 0
    waiting: int = 0
    deleted: int = 0
    bytes: int = 0
    packs: int = 0
    """Packs that were written again or removed."""
    problems: tuple[str, ...] = ()
    """Packs that are damaged and stay as they are."""


class _Found(msgspec.Struct):
    """What walking the store has found."""

    new: list[Piece]
    needed: list[Piece]
    again: list[Piece]
    due: dict[Piece, int]
    gone: list[Piece]
    waiting: int = 0


def sweep(
    tiers: Tiers,
    store: FsContentStore,
    grace: str = GRACE,
    *,
    dry_run: bool = False,
    dead_share_max: float = DEAD_SHARE_MAX,
    now: dt.datetime | None = None,
) -> Swept:
    """Condemn what nothing refers to, and delete what has been condemned for `grace`; `dry_run` only counts.

    Raises `Locked` while a consolidation runs, `Conflict` while a partition is being dropped, `Invalid` for a grace
    that is none or too short, `Corrupt` or `NotFound` where references cannot be read: nothing is deleted then; and
    `Unavailable`, after which the same call goes on.
    """
    wait = age_of(grace, GRACE_MIN)
    with tiers.consolidation(), closing(tiers.connect()) as conn:
        # Before the references are read: who commits one later has put its content within the grace.
        cutoff = (now or _now(conn)) - wait
        roots = find_roots(conn, tiers.lake, tiers.catalog)
        found = _walk(store, roots, _condemned(conn), cutoff)
        deleted, packs, freed, problems = found.due, 0, 0, list[str]()
        if not dry_run:
            # Looking through all of it takes long enough for somebody to have taken the storages over.
            require_owner(tiers)
            deleted = _apply(conn, store, found, cutoff)
            finish_replaced(store.storage, store.shelf)
            packs, freed, problems = compact(store.storage, store.shelf, dead_share_max)
        return Swept(
            len(roots),
            len(found.new),
            len(found.needed) + len(found.again),
            found.waiting,
            len(deleted),
            sum(deleted.values()) + freed,
            packs,
            tuple(problems),
        )


def _now(conn: Connection) -> dt.datetime:
    with answering(), conn.transaction():
        row = conn.execute(_SQL["now"]).fetchone()
    assert row is not None
    now: dt.datetime = row[0]
    return now


def _condemned(conn: Connection) -> dict[Piece, dt.datetime]:
    with answering(), conn.transaction():
        return {(tenant, bytes(digest)): since for tenant, digest, since in conn.execute(_SQL["condemned"])}


def _walk(store: FsContentStore, roots: Roots, condemned: dict[Piece, dt.datetime], cutoff: dt.datetime) -> _Found:
    """Judge every piece that lies there, loose or in a pack. `condemned` is used up."""
    found = _Found([], [], [], {}, [])
    for piece, size, modified_s in _pieces(store):
        since = condemned.pop(piece, None)
        if piece in roots:
            found.needed += [] if since is None else [piece]
        elif since is None:
            found.new.append(piece)
        elif since > cutoff:
            found.waiting += 1
        elif modified_s >= cutoff.timestamp():
            found.again.append(piece)
        else:
            found.due[piece] = size
    found.gone = sorted(condemned)
    return found


def _pieces(store: FsContentStore) -> Iterator[tuple[Piece, int, float]]:
    """Every piece once: the bytes of its loose file, and when that was last put, 0 where it is only in a pack."""
    packed = {(tenant, digest) for tenant, digest, _ in table_of(store).live()}
    for tenant in store.tenants():
        for entry in store.entries(tenant):
            piece = (tenant, bytes.fromhex(entry.path.rpartition("/")[2]))
            packed.discard(piece)
            yield piece, entry.size, entry.modified_s
    for piece in sorted(packed):
        yield piece, 0, 0.0


def _apply(conn: Connection, store: FsContentStore, found: _Found, cutoff: dt.datetime) -> dict[Piece, int]:
    for pieces in _batches([*found.needed, *found.gone]):
        spare(conn, ((tenant, digest.hex()) for tenant, digest in pieces))
    for name, pieces in (("condemn", found.new), ("condemn_again", found.again)):
        for batch in _batches(pieces):
            with answering(), conn.transaction():
                conn.execute(_SQL[name], _values(batch))
    deleted: dict[Piece, int] = {}
    for batch in _batches(sorted(found.due)):
        deleted |= _delete(conn, store, {piece: found.due[piece] for piece in batch}, cutoff)
    return deleted


def _delete(conn: Connection, store: FsContentStore, due: dict[Piece, int], cutoff: dt.datetime) -> dict[Piece, int]:
    """Delete those whose row still stands, holding it; the rows go with the end of the transaction."""
    with answering(), conn.transaction():
        conn.execute(_SQL["unlimited"])
        rows = conn.execute(_SQL["lock_due"], {**_values(list(due)), "cutoff": cutoff}).fetchall()
        pieces = [(tenant, bytes(digest)) for tenant, digest in rows]
        going = [piece for piece in pieces if store.delete_unused(piece[0], piece[1].hex(), cutoff.timestamp())]
        for tenant, digest in going:
            if store.storage.entry(loose_path(tenant, digest.hex())) is not None:
                raise Unavailable(
                    f"content {digest.hex()} of {tenant} was deleted and is still there", hint="run it again"
                )
        table_of(store).kill(conn, going)
        conn.execute(_SQL["spare"], _values(going))
    return {piece: due[piece] for piece in going}


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    source = iter(pieces)
    while batch := list(islice(source, BATCH_PIECES)):
        yield batch


def _values(pieces: Sequence[Piece]) -> dict[str, list[str] | list[bytes]]:
    return {"tenants": [tenant for tenant, _ in pieces], "digests": [digest for _, digest in pieces]}
