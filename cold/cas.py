"""Content-addressed storage: bulky content by tenant and SHA-256, loose as it was put, or in packs.

    <url>/<tenant>/<first two digits>/<sha256>    one piece, as it is
    <url>/<tenant>/packs/<sha256 of the file>.pack   many pieces, compressed together (pack_format.py)

`put` returns after the content is durable, `get` verifies what it reads. A name says what must be in it, so writers
need no locks: whoever writes, writes the same. A file with other content under its name (a leftover of a broken disk or
of a foreign program) is replaced by the next `put` and never served by `get`. Tenants share nothing.

Content is put loose, always, also where a pack has it: a pack may be about to be written again without it. It is looked
for loose first, then in packs; packing deletes the loose copy only when the pack can be found.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

import msgspec

from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.errors import Corrupt, Invalid, NotFound, Unavailable
from stratalog.schemas.ids import TENANT_PATTERN, check_tenant

from .storage import Entry, Storage, open_storage

if TYPE_CHECKING:
    from .pack_shelf import PackShelf
    from .pack_table import PackTable

LOOKS_MAX = 2
"""A piece may go from loose into a pack between looking at the one and at the other."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ErasedContent(msgspec.Struct, frozen=True):
    """What an erasure of content has removed: loose files, pieces from packs, packs written again, and damage met."""

    loose: int = 0
    packed: int = 0
    packs: int = 0
    problems: tuple[str, ...] = ()


class FsContentStore:
    """A `ContentStore` at any storage URL; safe for several threads and processes."""

    def __init__(
        self, url: str, storage_options: Mapping[str, str] | None = None, table: PackTable | None = None
    ) -> None:
        """`table` tells where pieces lie in packs and is kept true; without one, the packs' own indexes are read."""
        self._storage = open_storage(url, storage_options)
        self.url = self._storage.url
        self._table = table
        self._shelf: PackShelf | None = None

    @property
    def storage(self) -> Storage:
        """Where the files lie."""
        return self._storage

    @property
    def shelf(self) -> PackShelf:
        """The packs."""
        if self._shelf is None:
            from .pack_shelf import PackShelf  # with Arrow, which whoever only puts does not need

            self._shelf = PackShelf(self._storage, self._table)
        return self._shelf

    def put(self, tenant: str, ref: BlobRef, content: bytes) -> None:
        """Store `content`; raises `Corrupt` if it is not what `ref` says."""
        path = loose_path(tenant, ref.sha256)
        if len(content) != ref.size or hashlib.sha256(content).hexdigest() != ref.sha256:
            raise Corrupt(f"content of {len(content)} bytes is not the blob {ref.sha256} of {ref.size} bytes")
        if not self._storage.keeps(path, content):
            self._storage.put(path, content)

    def get(self, tenant: str, sha256: str) -> bytes:
        """The content, verified; raises `NotFound` or `Corrupt`."""
        loose_path(tenant, sha256)
        damaged: Corrupt | None = None
        for _ in range(LOOKS_MAX):
            try:
                return self.get_loose(tenant, sha256)
            except NotFound:
                damaged = None
            except Corrupt as error:
                damaged = error
            content = self.shelf.get(tenant, bytes.fromhex(sha256))
            if content is not None:
                return content
            if damaged is not None:
                raise damaged
        why = "" if self._table is None else self._table.dropped(tenant, bytes.fromhex(sha256))
        if why:
            hint = "the event is there, with the length and the beginning; see docs/retention.md"
            raise NotFound(f"blob {sha256} of {tenant} was dropped by {why}", hint=hint)
        hint = "see what is there with: stratalog verify"
        raise NotFound(f"blob {sha256} of {tenant} is not in {self.url}", hint=hint)

    def get_loose(self, tenant: str, sha256: str) -> bytes:
        """The content of a loose piece, verified; raises `NotFound` or `Corrupt`."""
        content = self._storage.read(loose_path(tenant, sha256))
        if hashlib.sha256(content).hexdigest() != sha256:
            raise Corrupt(f"blob {sha256} of {tenant} in {self.url} has other content ({len(content)} bytes)")
        return content

    def has(self, tenant: str, sha256: str) -> bool:
        """Whether the content is there (not verified)."""
        path = loose_path(tenant, sha256)
        for _ in range(LOOKS_MAX):
            if self._storage.entry(path) is not None or self.shelf.has(tenant, bytes.fromhex(sha256)):
                return True
        return False

    def delete_unused(self, tenant: str, sha256: str, before_s: float) -> bool:
        """Delete loose content that was last put before a time (seconds since 1970); returns whether it is gone.

        Only for those who keep others that put the same content at the same time away; see `sweep.py`.
        """
        path = loose_path(tenant, sha256)
        entry = self._storage.entry(path)
        if entry is not None and entry.modified_s >= before_s:
            return False
        self._storage.delete(path)
        return True

    def erase_content(self, tenant: str, digests: Iterable[str]) -> ErasedContent:
        """Remove content (SHA-256 in hex) for good, loose and from every pack; it is gone when this returns.

        Packs that have some of it are written again without it at once. Repeating it is harmless, and necessary where
        it was interrupted. The caller has made sure that nothing needs the content and that nobody is just putting it.
        Damaged packs go, too, without what is damaged in them; it is named in `problems`.

        Raises `Corrupt` where the index of a pack is damaged, so that it cannot be told what is in it, `Locked` while
        others write packs for too long, `Unavailable`.
        """
        wanted = sorted(set(digests))
        paths = [loose_path(tenant, sha256) for sha256 in wanted]
        with nullcontext() if self._table is None else self._table.locked():
            loose = sum(self._remove(path) for path in paths)
            done = self._erase_packed(tenant, frozenset(map(bytes.fromhex, wanted)))
            if self._table is not None:
                self._table.forget_pieces(tenant, map(bytes.fromhex, wanted))
        return msgspec.structs.replace(done, loose=loose)

    def digests(self, tenant: str) -> Iterator[str]:
        """The digests stored for a tenant, loose or packed, sorted; files of other names are passed over."""
        packed = {piece.digest.hex() for pack in self.shelf.all(tenant, []) for piece in pack.index.pieces()}
        packed.update(entry.path.rpartition("/")[2] for entry in self.entries(tenant))
        yield from sorted(packed)

    def entries(self, tenant: str) -> Iterator[Entry]:
        """The loose files stored for a tenant, sorted by digest, which is the last name of their path."""
        for shard in self._storage.folders(check_tenant(tenant)):
            if re.fullmatch(r"[0-9a-f]{2}", shard) is None:
                continue
            for entry in self._storage.files(f"{tenant}/{shard}"):
                digest = entry.path.rpartition("/")[2]
                if _SHA256.fullmatch(digest) and entry.path == loose_path(tenant, digest):
                    yield entry

    def tenants(self) -> Iterator[str]:
        """The tenants that have content, sorted."""
        for name in self._storage.folders(""):
            if TENANT_PATTERN.fullmatch(name):
                yield name

    def clean_partial(self) -> int:
        """Remove what killed writers have left; returns how many."""
        return self._storage.clean_partial()

    def close(self) -> None:
        """Remove this object's scratch folder, and close the connection of its table."""
        self._storage.close()
        if self._table is not None:
            self._table.close()

    def _remove(self, path: str) -> bool:
        if self._table is not None:
            self._table.unlock(self._storage, path)
        versions = self._storage.purge(path)
        if self._storage.entry(path) is not None:
            raise Unavailable(f"{self.url}/{path} was deleted and is still there", hint="run it again")
        return versions > 0

    def _erase_packed(self, tenant: str, digests: frozenset[bytes]) -> ErasedContent:
        from .pack_rewrite import rewrite

        packs = list(self.shelf.all(tenant))
        if self._table is not None:
            # A listing may lag behind: what Postgres names is asked for by its name.
            names = {known.pack for known in self._table.known(tenant, sorted(digests)).values()}
            for name in sorted(names - {pack.name for pack in packs}):
                if (size := self.shelf.size_of(tenant, name)) is not None:
                    packs.append(self.shelf.open(tenant, name, size))
        done = ErasedContent()
        for pack in packs:
            here = {digest for digest in digests if pack.index.find(digest) is not None}
            if here:
                result = rewrite(self._storage, self.shelf, pack, digests.__contains__, forced=True)
                done = ErasedContent(0, done.packed + len(here), done.packs + 1, (*done.problems, *result.problems))
        return done


def loose_path(tenant: str, sha256: str) -> str:
    """Where a loose piece lies; raises `Invalid` for what is no tenant or no digest."""
    check_tenant(tenant)
    if _SHA256.fullmatch(sha256) is None:
        raise Invalid(f"{sha256[:80]!r} is not a SHA-256", hint="give 64 hexadecimal digits in lower case")
    return f"{tenant}/{sha256[:2]}/{sha256}"
