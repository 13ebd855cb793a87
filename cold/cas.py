"""Content-addressed storage: bulky content by tenant and SHA-256, as it is.

    <url>/<tenant>/<first two digits>/<sha256>

`put` returns after the content is durable, `get` verifies what it reads. A name says what must be in it, so writers
need no locks: whoever writes, writes the same. A file with other content under its name (a leftover of a broken disk or
of a foreign program) is replaced by the next `put` and never served by `get`. Tenants share nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping

from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.errors import Corrupt, Invalid, NotFound
from stratalog.schemas.ids import TENANT_PATTERN, check_tenant

from .storage import Entry, open_storage

_SHA256 = re.compile(r"[0-9a-f]{64}")


class FsContentStore:
    """A `ContentStore` at any storage URL; safe for several threads and processes."""

    def __init__(self, url: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._storage = open_storage(url, storage_options)
        self.url = self._storage.url

    def put(self, tenant: str, ref: BlobRef, content: bytes) -> None:
        """Store `content`; raises `Corrupt` if it is not what `ref` says."""
        path = _path(tenant, ref.sha256)
        if len(content) != ref.size or hashlib.sha256(content).hexdigest() != ref.sha256:
            raise Corrupt(f"content of {len(content)} bytes is not the blob {ref.sha256} of {ref.size} bytes")
        if not self._storage.keeps(path, content):
            self._storage.put(path, content)

    def get(self, tenant: str, sha256: str) -> bytes:
        """The content, verified; raises `NotFound` or `Corrupt`."""
        path = _path(tenant, sha256)
        try:
            content = self._storage.read(path)
        except NotFound as error:
            raise NotFound(f"blob {sha256} of {tenant} is not in {self.url}", hint=error.hint) from error
        if hashlib.sha256(content).hexdigest() != sha256:
            raise Corrupt(f"blob {sha256} of {tenant} in {self.url} has other content ({len(content)} bytes)")
        return content

    def has(self, tenant: str, sha256: str) -> bool:
        """Whether the content is there (not verified)."""
        return self._storage.entry(_path(tenant, sha256)) is not None

    def delete_unused(self, tenant: str, sha256: str, before_s: float) -> bool:
        """Delete content that was last put before a time (seconds since 1970); returns whether it is gone.

        Only for the sweep, which keeps those who put the same content at the same time away; see `sweep.py`.
        """
        path = _path(tenant, sha256)
        entry = self._storage.entry(path)
        if entry is not None and entry.modified_s >= before_s:
            return False
        self._storage.delete(path)
        return True

    def digests(self, tenant: str) -> Iterator[str]:
        """The digests stored for a tenant, sorted; files of other names are passed over."""
        for entry in self.entries(tenant):
            yield entry.path.rpartition("/")[2]

    def entries(self, tenant: str) -> Iterator[Entry]:
        """The files stored for a tenant, sorted by digest, which is the last name of their path."""
        for shard in self._storage.folders(check_tenant(tenant)):
            if re.fullmatch(r"[0-9a-f]{2}", shard) is None:
                continue
            for entry in self._storage.files(f"{tenant}/{shard}"):
                digest = entry.path.rpartition("/")[2]
                if _SHA256.fullmatch(digest) and entry.path == _path(tenant, digest):
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
        """Remove this object's scratch folder."""
        self._storage.close()


def _path(tenant: str, sha256: str) -> str:
    check_tenant(tenant)
    if _SHA256.fullmatch(sha256) is None:
        raise Invalid(f"{sha256[:80]!r} is not a SHA-256", hint="give 64 hexadecimal digits in lower case")
    return f"{tenant}/{sha256[:2]}/{sha256}"
