"""Moves loose content of consolidated trajectories into packs: plan, pack, read-back, rows, then the loose copies go.

    finish ─▶ adopt ─▶ plan ─▶ publish (written, read back) ─▶ rows ─▶ delete loose ─▶ note files

The plan is what data files of the cold table refer to that were not looked through yet. A pack is published and read
back from storage, every piece compared; then its rows are committed; then, once the pack is listed, the loose copies
are deleted. So a piece can be read all the time. Whoever puts one meanwhile puts it loose: either that copy stays and
the next run removes it, or it is deleted when the pack has it; both are right.

A crash leaves a pack without rows, which the next run adopts, or loose copies of what is packed, which it removes; data
files are noted last, so what was not packed is planned again. Erasure waits for the one pack that is being made.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby, islice

import msgspec

from stratalog.schemas.arrow import INDEX
from stratalog.schemas.errors import Corrupt, Invalid, NotFound

from .cas import FsContentStore, loose_path
from .installation import Tiers
from .lake import Lake
from .pack_rewrite import adopt, finish_replaced, publish
from .pack_table import BATCH, PackTable
from .pack_writer import PackWriter
from .roots import digests_in, referring_rows
from .storage import Entry

PACK_BYTES_MAX = 64 << 20
"""How much content a pack has before it is compressed; a larger piece has one of its own."""


class Packed(msgspec.Struct, frozen=True):
    """What was packed: pieces and their bytes, packs and theirs, loose files deleted; and what is left, and why."""

    pieces: int = 0
    raw_bytes: int = 0
    packs: int = 0
    bytes: int = 0
    deleted: int = 0
    waiting: int = 0
    """Loose copies that stay because no listing shows their pack yet; the next run deletes them."""
    problems: tuple[str, ...] = ()


def pack(tiers: Tiers, *, dry_run: bool = False, pack_bytes_max: int = PACK_BYTES_MAX) -> Packed:
    """Pack what can be packed; `dry_run` only counts it.

    Raises `Locked` while a consolidation runs, `Unavailable`: the same call goes on from there. Damage becomes a
    problem, and the rest is packed.
    """
    store = tiers.store
    table = table_of(store)
    with tiers.consolidation():
        files = sorted(tiers.lake.path_of(file.url) for file in tiers.catalog.files())
        new = sorted(set(files) - table.looked_through(files))
        work = _Packing(tiers.lake, store, table, pack_bytes_max)
        if dry_run:
            return work.count(new)
        store.clean_partial()
        finish_replaced(store.storage, store.shelf)
        work.problems += adopt(store.storage, store.shelf, store.tenants())
        for tenant, paths in groupby(new, _tenant_of):
            work.pack_tenant(tenant, list(paths))
        for tenant in store.tenants():
            work.delete_duplicates(tenant)
        table.forget_files(files)
        return work.done()


def table_of(store: FsContentStore) -> PackTable:
    """The table of a store that was opened with one; raises `Invalid` otherwise."""
    if store.shelf.table is None:
        raise Invalid("this content store was opened without Postgres", hint="open it by Installation.tiers")
    return store.shelf.table


class _Packing:
    """One run."""

    def __init__(self, lake: Lake, store: FsContentStore, table: PackTable, pack_bytes_max: int) -> None:
        self.problems: list[str] = []
        self._lake = lake
        self._store = store
        self._table = table
        self._pack_bytes_max = pack_bytes_max
        self._writer: PackWriter | None = None
        self._lock = ExitStack()
        self._pieces = self._raw_bytes = self._packs = self._bytes = self._deleted = self._waiting = 0

    def done(self) -> Packed:
        """What has been done."""
        return Packed(
            self._pieces,
            self._raw_bytes,
            self._packs,
            self._bytes,
            self._deleted,
            self._waiting,
            tuple(self.problems),
        )

    def count(self, paths: Sequence[str]) -> Packed:
        """What a run would pack."""
        for tenant, own in groupby(paths, _tenant_of):
            for _, digests in self._planned(tenant, list(own)):
                known = self._table.known(tenant, digests)
                for digest in digests:
                    entry = self._store.storage.entry(loose_path(tenant, digest.hex()))
                    if digest not in known and entry is not None:
                        self._pieces += 1
                        self._raw_bytes += entry.size
        return self.done()

    def pack_tenant(self, tenant: str, paths: Sequence[str]) -> None:
        """Pack what these data files refer to; those of which everything is packed are noted."""
        good: list[str] = []
        try:
            for path, digests in self._planned(tenant, paths):
                before = len(self.problems)
                known = self._table.known(tenant, digests)
                for digest in digests:
                    if digest not in known or (known[digest].dead and not self._revived(tenant, digest)):
                        self._add(tenant, digest)
                good += [path] if len(self.problems) == before else []
            self._end_pack(tenant)
        finally:
            self._abandon()
        self._table.note_files(good)

    def delete_duplicates(self, tenant: str) -> None:
        """Delete loose copies of what a listed pack has: left by a crash, or put since."""
        listed = self._store.shelf.names(tenant)
        for batch in _batches(self._store.entries(tenant)):
            digests = [bytes.fromhex(entry.path.rpartition("/")[2]) for entry in batch]
            for digest, known in self._table.known(tenant, digests).items():
                if not known.dead and known.pack in listed:
                    with self._table.locked():
                        if self._readable(tenant, digest):
                            self._delete_loose(tenant, digest)

    def _planned(self, tenant: str, paths: Iterable[str]) -> Iterator[tuple[str, list[bytes]]]:
        """What each data file refers to and none before it: by trajectory, and within one by tool."""
        seen: set[bytes] = set()
        for path in paths:
            found: dict[bytes, tuple[bytes, str, int]] = {}
            try:
                for row in referring_rows(self._lake, path):
                    key = (row[INDEX["trajectory_id"]], row[INDEX["tool"]] or "", row[INDEX["sequence_number"]])
                    for digest in _digests(digests_in(row)):
                        if digest not in seen:
                            found.setdefault(digest, key)
            except (Corrupt, NotFound) as error:
                self.problems.append(error.message)
            seen |= found.keys()
            yield path, sorted(found, key=found.__getitem__)

    def _add(self, tenant: str, digest: bytes) -> None:
        if self._writer is None:
            # From before the first piece is read until its loose copy is gone: what is erased meanwhile would be back.
            self._lock.enter_context(self._table.locked())
            self._writer = PackWriter(tenant, self._store.storage.scratch() / f"{uuid.uuid4()}.pack")
        try:
            content = self._store.get_loose(tenant, digest.hex())
        except NotFound:
            if not self._table.dropped(tenant, digest):
                self.problems.append(f"content {digest.hex()} of {tenant} is missing")
            return
        except Corrupt as error:
            self.problems.append(error.message)
            return
        if self._writer.raw_bytes and self._writer.raw_bytes + len(content) > self._pack_bytes_max:
            self._end_pack(tenant)
            self._add(tenant, digest)
            return
        self._writer.add(digest, content)

    def _end_pack(self, tenant: str) -> None:
        writer, store = self._writer, self._store
        if writer is None or not len(writer):
            return
        made = publish(store.storage, tenant, writer)
        self._table.record(tenant, made)
        self._packs += 1
        self._bytes += made.bytes
        self._pieces += len(made.index)
        self._raw_bytes += made.index.raw_bytes
        if made.name in store.shelf.names(tenant):
            for piece in made.index.pieces():
                self._delete_loose(tenant, piece.digest)
        else:
            # Whoever has nothing but the store finds packs by listing them.
            self._waiting += len(made.index)
        self._abandon()

    def _abandon(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
        self._writer = None
        self._lock.close()

    def _revived(self, tenant: str, digest: bytes) -> bool:
        """Take a piece that nothing had referred to as needed again; whether its pack still has it."""
        with self._table.locked():
            if not self._readable(tenant, digest):
                return False
            self._table.revive(tenant, [digest])
            return True

    def _readable(self, tenant: str, digest: bytes) -> bool:
        try:
            return self._store.shelf.get(tenant, digest) is not None
        except Corrupt as error:
            self.problems.append(error.message)
            return False

    def _delete_loose(self, tenant: str, digest: bytes) -> None:
        self._store.storage.delete(loose_path(tenant, digest.hex()))
        self._deleted += 1


def _tenant_of(path: str) -> str:
    return path.partition("/tenant=")[2].partition("/")[0]


def _digests(texts: Iterable[str]) -> Iterator[bytes]:
    """Those of some references that can be digests."""
    for text in texts:
        try:
            digest = bytes.fromhex(text)
        except ValueError:
            continue
        if len(digest) == 32:
            yield digest


def _batches(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    while batch := list(islice(entries, BATCH)):
        yield batch
