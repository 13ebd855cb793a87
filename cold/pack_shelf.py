"""The packs of a content store as its readers see them: opened when they are needed, their indexes kept in memory.

A piece is looked for in the packs that are open, then where Postgres says it lies, if there is one, then in all packs
of the tenant: so whoever has nothing but the store finds everything, too, at the price of reading each index once.
Packs never change, but one may be replaced by another that has its pieces; whoever meets one that is gone looks again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from stratalog.schemas.errors import Corrupt, NotFound

from .pack_file import FOLDER, PackFile, pack_name, pack_path
from .pack_format import Piece
from .pack_table import PackTable
from .storage import Entry, Storage

LOOKS_MAX = 4
"""How often a piece is looked for again because its pack was replaced meanwhile."""


class PackShelf:
    """The packs below a storage; safe for several threads."""

    def __init__(self, storage: Storage, table: PackTable | None = None) -> None:
        self.table = table
        self._storage = storage
        self._guard = threading.Lock()
        self._open: dict[tuple[str, str], PackFile] = {}
        self._damaged: dict[tuple[str, str], Corrupt] = {}

    def get(self, tenant: str, digest: bytes) -> bytes | None:
        """The content of a piece, verified, or `None`; `Corrupt` where it, or a pack that may have it, is damaged."""
        for _ in range(LOOKS_MAX):
            found = self._find(tenant, digest)
            if found is None:
                for (owner, _name), error in list(self._damaged.items()):
                    if owner == tenant:
                        raise error
                return None
            pack, piece = found
            try:
                return pack.read(piece)
            except NotFound:
                self.forget(tenant, pack.name)
        return None

    def has(self, tenant: str, digest: bytes) -> bool:
        """Whether a pack has the piece (not verified)."""
        return self._find(tenant, digest) is not None

    def entries(self, tenant: str) -> Iterator[Entry]:
        """The files of the packs that are listed for a tenant."""
        for entry in self._storage.files(f"{tenant}/{FOLDER}"):
            if pack_name(entry.path) is not None:
                yield entry

    def names(self, tenant: str) -> dict[str, int]:
        """The packs that are listed for a tenant, by name, and the length of each."""
        return {name: entry.size for entry in self.entries(tenant) if (name := pack_name(entry.path)) is not None}

    def all(self, tenant: str, problems: list[str] | None = None) -> Iterator[PackFile]:
        """Every pack of a tenant, opened; one that is damaged is added to `problems`, or raised without them."""
        for name, size in self._refresh(tenant).items():
            try:
                yield self.open(tenant, name, size)
            except NotFound:
                continue  # replaced meanwhile
            except Corrupt as error:
                if problems is None:
                    raise
                problems.append(error.message)

    def open(self, tenant: str, name: str, size: int) -> PackFile:
        """A pack, with its index read; raises `NotFound`, `Corrupt`."""
        key = (tenant, name)
        with self._guard:
            if key in self._damaged:
                raise self._damaged[key]
            pack = self._open.get(key)
        if pack is None:
            try:
                pack = PackFile(self._storage, tenant, name, size)
            except Corrupt as error:
                self._damaged[key] = error
                raise
            with self._guard:
                self._open[key] = pack
        return pack

    def size_of(self, tenant: str, name: str) -> int | None:
        """The length of a pack, `None` if it is gone; asked for by its name, so a listing that lags does not matter."""
        entry = self._storage.entry(pack_path(tenant, name))
        return None if entry is None else entry.size

    def forget(self, tenant: str, name: str) -> None:
        """Close a pack: it is gone."""
        with self._guard:
            self._open.pop((tenant, name), None)
            self._damaged.pop((tenant, name), None)

    def _find(self, tenant: str, digest: bytes) -> tuple[PackFile, Piece] | None:
        with self._guard:
            opened = [pack for (owner, _), pack in self._open.items() if owner == tenant]
        for pack in opened:
            if (piece := pack.index.find(digest)) is not None:
                return pack, piece
        place = None if self.table is None else self.table.find(tenant, digest)
        if place is not None:
            found = self._in(tenant, *place, digest)
            if found is not None:
                return found
        for name, size in self._refresh(tenant).items():
            found = self._in(tenant, name, size, digest)
            if found is not None:
                return found
        return None

    def _in(self, tenant: str, name: str, size: int, digest: bytes) -> tuple[PackFile, Piece] | None:
        try:
            pack = self.open(tenant, name, size)
        except (NotFound, Corrupt):
            return None  # a damaged one is remembered, and raised where the piece is nowhere else
        piece = pack.index.find(digest)
        return None if piece is None else (pack, piece)

    def _refresh(self, tenant: str) -> dict[str, int]:
        """The packs that are listed now; what is open and not listed stays open until reading it fails."""
        listed = self.names(tenant)
        with self._guard:
            for key in [key for key in self._damaged if key[0] == tenant and key[1] not in listed]:
                del self._damaged[key]
        return listed
