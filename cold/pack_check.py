"""Checks packs from their bytes against what Postgres knows of them, and makes the rows again from the packs.

Found and named: a pack or block that is damaged and the pieces which that costs, a pack that is gone, a piece that no
row knows, a row that leads nowhere. The rows can always be made again; a damaged pack comes back from a backup.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stratalog.schemas.errors import Corrupt, NotFound

from .cas import FsContentStore
from .pack_file import PackFile
from .pack_rewrite import finish_replaced
from .pack_table import PackTable
from .pack_writer import Made
from .packs import table_of

REINDEX = "stratalog storage reindex"


class PacksChecked(msgspec.Struct, frozen=True):
    """How many packs and pieces in them were read, their content in bytes, and what is wrong."""

    packs: int = 0
    pieces: int = 0
    bytes: int = 0
    problems: tuple[str, ...] = ()


class Reindexed(msgspec.Struct, frozen=True):
    """Packs that were looked at, rows that were made and removed, and what is wrong with packs."""

    packs: int = 0
    made: int = 0
    removed: int = 0
    problems: tuple[str, ...] = ()


def check_packs(store: FsContentStore, *, read_data: bool = True) -> PacksChecked:
    """Read every pack of a store, or with `read_data` off their indexes alone; what is wrong becomes a problem.

    A store that was opened with Postgres is also compared with its rows. Raises `Unavailable`.
    """
    packs = pieces = size = 0
    problems: list[str] = []
    table = store.shelf.table
    rows = [] if table is None else [row for row in table.packs() if not row.replaced]
    for tenant in store.tenants():
        known = {row.name for row in rows if row.tenant == tenant}
        there: set[str] = set()
        for pack in store.shelf.all(tenant, problems):
            there.add(pack.name)
            packs += 1
            size += pack.index.raw_bytes
            pieces += len(pack.index)
            if read_data:
                problems += _read(pack)
            if table is not None and (pack.name in known or not _is_leftover(table, pack)):
                problems += _compare(table, pack)
        for name in sorted(known - there):
            # Named or not listed yet: only its name tells.
            if store.shelf.size_of(tenant, name) is None:
                problems.append(f"pack {name} of {tenant} is gone: restore it from a backup")
    return PacksChecked(packs, pieces, size, tuple(dict.fromkeys(problems)))


def reindex(store: FsContentStore) -> Reindexed:
    """Make the rows again from the packs: those that are missing are made, those that lead nowhere are removed.

    A piece that a row calls dead stays so. Raises `Invalid` for a store without Postgres, `Locked`, `Unavailable`.
    """
    table = table_of(store)
    packs = made = removed = 0
    problems: list[str] = []
    with table.locked():
        finish_replaced(store.storage, store.shelf)
        for row in table.packs():
            if store.shelf.size_of(row.tenant, row.name) is None:
                removed += row.pieces
                table.replace(row.tenant, row.name, None)
                table.forget_pack(row.tenant, row.name)
        for tenant in store.tenants():
            for pack in store.shelf.all(tenant, problems):
                packs += 1
                removed += _remove_false(table, pack)
                made += table.adopt(tenant, Made(pack.name, pack.index, pack.size))
    return Reindexed(packs, made, removed, tuple(problems))


def _is_leftover(table: PackTable, pack: PackFile) -> bool:
    """Whether all of a pack that no row knows lies elsewhere: a crash has left it, and the next run removes it."""
    digests = [piece.digest for piece in pack.index.pieces()]
    return len(table.known(pack.tenant, digests)) == len(digests)


def _read(pack: PackFile) -> Iterable[str]:
    problems: list[str] = []
    try:
        for _ in pack.scan(problems):
            pass
    except NotFound:
        return []  # replaced meanwhile
    except Corrupt as error:
        return [*problems, error.message]
    return problems


def _compare(table: PackTable, pack: PackFile) -> Iterable[str]:
    index = pack.index
    known = table.known(pack.tenant, [piece.digest for piece in index.pieces()])
    missing = [piece.digest.hex() for piece in index.pieces() if piece.digest not in known]
    if missing:
        yield (
            f"pack {pack.name} of {pack.tenant}: the index in Postgres lacks {len(missing)} of {len(index)} pieces, "
            f"the first is {missing[0]}: make it again with: {REINDEX}"
        )
    false = _false_rows(table, pack)
    if false:
        yield (
            f"pack {pack.name} of {pack.tenant}: the index in Postgres says wrongly where {len(false)} pieces are, "
            f"the first is {min(false).hex()}: make it again with: {REINDEX}"
        )


def _false_rows(table: PackTable, pack: PackFile) -> list[bytes]:
    found = []
    for digest, (start, length, _) in table.pieces(pack.tenant, pack.name).items():
        piece = pack.index.find(digest)
        if piece is None or (piece.offset, piece.length) != (start, length):
            found.append(digest)
    return found


def _remove_false(table: PackTable, pack: PackFile) -> int:
    false = _false_rows(table, pack)
    table.forget_pieces(pack.tenant, false)
    return len(false)
