"""Publishing a pack, writing one again without some of its pieces, and removing one.

Order: the new pack is published, read back from storage and compared piece by piece; then the rows in Postgres say in
one step that the pieces lie there and that the old pack is on its way out; then its file is deleted, with all versions
that a bucket has of it, and looked for again; then it is forgotten. Readers find every needed piece all the time. A
crash leaves a pack that is only too many, which the next run removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from stratalog.schemas.errors import Corrupt, NotFound, Unavailable

from .pack_file import PackFile, pack_path
from .pack_shelf import PackShelf
from .pack_table import PackTable
from .pack_writer import Made, PackWriter
from .storage import Storage


class Rewritten(msgspec.Struct, frozen=True):
    """What a pack became: the new one if anything was left, the pieces that went, the bytes that were freed, damage."""

    made: Made | None
    gone: tuple[bytes, ...]
    freed: int
    problems: tuple[str, ...] = ()


def publish(storage: Storage, tenant: str, writer: PackWriter) -> Made:
    """Finish a pack and put it where it belongs; it was read back whole when this returns."""
    made = writer.finish()
    storage.move(writer.path, pack_path(tenant, made.name))
    problems: list[str] = []
    back = {piece.digest for piece, _ in PackFile(storage, tenant, made.name, made.bytes).scan(problems)}
    if problems or back != {piece.digest for piece in made.index.pieces()}:
        what = [*problems, f"pack {made.name} of {tenant}: pieces are missing"][0]
        raise Corrupt(
            f"what was written does not read back: {what}", hint="check the storage; nothing relies on it yet"
        )
    return made


def rewrite(
    storage: Storage, shelf: PackShelf, pack: PackFile, drop: Callable[[bytes], bool], *, forced: bool = False
) -> Rewritten:
    """Write a pack again without the pieces that `drop` names, then remove it.

    Raises `Corrupt` for a damaged pack, unless `forced`: then what is whole is kept, and the rest goes with the pack.
    """
    tenant = pack.tenant
    writer = PackWriter(tenant, storage.scratch() / f"{pack.name}.rewritten")
    problems: list[str] = []
    gone: list[bytes] = []
    try:
        for piece, content in pack.scan(problems):
            if drop(piece.digest):
                gone.append(piece.digest)
            else:
                writer.add(piece.digest, content)
        if problems and not forced:
            raise Corrupt(problems[0], hint="restore the pack from a backup")
        made = publish(storage, tenant, writer) if len(writer) else None
    finally:
        writer.abandon()
    if made is not None and made.name == pack.name:
        return Rewritten(made, (), 0, tuple(problems))
    if shelf.table is not None:
        if made is not None:
            shelf.table.lock_like(storage, pack_path(tenant, pack.name), pack_path(tenant, made.name))
        shelf.table.replace(tenant, pack.name, made)
    remove(storage, shelf, tenant, pack.name)
    return Rewritten(made, tuple(gone), pack.size - (made.bytes if made else 0), tuple(problems))


def remove(storage: Storage, shelf: PackShelf, tenant: str, name: str) -> None:
    """Delete the file of a pack of which nothing is needed, make sure that it is gone, and forget it."""
    path = pack_path(tenant, name)
    if shelf.table is not None:
        shelf.table.unlock(storage, path)
    # Erasure must find no older version of a pack that it does not know any more.
    storage.purge(path)
    if storage.entry(path) is not None:
        raise Unavailable(f"pack {name} of {tenant} was deleted and is still there", hint="run it again")
    shelf.forget(tenant, name)
    if shelf.table is not None:
        shelf.table.forget_pack(tenant, name)


def finish_replaced(storage: Storage, shelf: PackShelf) -> int:
    """Remove the packs that are on their way out, which a crash has left; returns how many."""
    if shelf.table is None:
        return 0
    with shelf.table.locked():
        left = [row for row in shelf.table.packs() if row.replaced]
        for row in left:
            remove(storage, shelf, row.tenant, row.name)
    return len(left)


def adopt(storage: Storage, shelf: PackShelf, tenants: Iterable[str]) -> list[str]:
    """Note the packs that no row knows, once all of each was read; returns what is wrong with damaged ones."""
    table = shelf.table
    if table is None:
        return []
    problems: list[str] = []
    known = {(row.tenant, row.name) for row in table.packs()}
    for tenant in tenants:
        for name in sorted(name for name in shelf.names(tenant) if (tenant, name) not in known):
            with table.locked():
                problems += _adopt(storage, shelf, table, tenant, name)
    return problems


def _adopt(storage: Storage, shelf: PackShelf, table: PackTable, tenant: str, name: str) -> list[str]:
    # Asked for under the lock: an erasure may have removed it since it was listed.
    size = shelf.size_of(tenant, name)
    if size is None:
        return []
    problems: list[str] = []
    try:
        pack = shelf.open(tenant, name, size)
        for _ in pack.scan(problems):
            pass
    except NotFound:
        return []
    except Corrupt as error:
        return [error.message]
    if not problems:
        table.adopt(tenant, Made(name, pack.index, size))
    return problems


def compact(storage: Storage, shelf: PackShelf, dead_share_max: float) -> tuple[int, int, list[str]]:
    """Write packs again of which more than this share is not needed; how many, the bytes freed, and what is damaged.

    A piece leaves a pack only where a row says that nothing needs it, or that it lies in another pack, which has it.
    """
    table = shelf.table
    if table is None:
        return 0, 0, []
    count = freed = 0
    problems: list[str] = []
    for row in table.packs():
        dead = row.raw_bytes - row.live_bytes
        if row.replaced or (row.live_pieces and dead <= dead_share_max * row.raw_bytes):
            continue
        with table.locked():
            try:
                pack = shelf.open(row.tenant, row.name, row.bytes)
                done = rewrite(storage, shelf, pack, _droppable(shelf, table, pack).__contains__)
            except (NotFound, Corrupt) as error:
                problems.append(error.message)
                continue
        if done.gone:
            count += 1
            freed += done.freed
    return count, freed, problems


def _droppable(shelf: PackShelf, table: PackTable, pack: PackFile) -> set[bytes]:
    digests = [piece.digest for piece in pack.index.pieces()]
    known = table.known(pack.tenant, digests)
    found = set()
    for digest, place in known.items():
        if place.pack == pack.name:
            if place.dead:
                found.add(digest)
        elif (size := shelf.size_of(pack.tenant, place.pack)) is not None:
            other = shelf.open(pack.tenant, place.pack, size)
            if other.index.find(digest) is not None:
                found.add(digest)
    return found
