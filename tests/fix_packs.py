"""Packs for tests: pieces of content, and a store of which they are."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from pathlib import Path

from stratalog.cold.cas import FsContentStore, loose_path
from stratalog.cold.owner import NAME
from stratalog.cold.pack_rewrite import publish
from stratalog.cold.pack_writer import Made, PackWriter
from stratalog.schemas.blobs import BlobRef


def report_of_tests(number: int, lines: int = 900) -> bytes:
    """What a run of a test suite prints: a third of a piece's lines are those of the run before."""
    chance = random.Random(number)
    head = f"============ test session starts ============\nplatform linux, rootdir: /repo\ncollected {lines} items\n"
    body = (
        f"tests/test_{line % 60}.py::test_{line * 7919 % 997}[param{line % 11}] "
        f"{'PASSED' if chance.random() > 0.02 else 'FAILED'} [{line * 100 // lines:3d}%] {chance.random():.2f}s\n"
        for line in range(lines)
    )
    return (head + "".join(body)).encode()


def put_all(store: FsContentStore, contents: Iterable[bytes], tenant: str = "acme") -> list[str]:
    """Put pieces loose; their digests."""
    digests = []
    for content in contents:
        ref = BlobRef.of(content, "text/plain")
        store.put(tenant, ref, content)
        digests.append(ref.sha256)
    return digests


def pack_all(store: FsContentStore, contents: Iterable[bytes], tenant: str = "acme") -> Made:
    """A pack of pieces, as packing leaves it: nothing of them is loose."""
    writer = PackWriter(tenant, store.storage.scratch() / "made")
    for content in contents:
        writer.add(hashlib.sha256(content).digest(), content)
        store.storage.delete(loose_path(tenant, hashlib.sha256(content).hexdigest()))
    return publish(store.storage, tenant, writer)


def files_of(store: FsContentStore) -> list[Path]:
    """All files of a store in a folder, but for the mark of its owner."""
    found = (path for path in Path(store.url.removeprefix("file://")).rglob("*") if path.is_file())
    return sorted(path for path in found if path.name != NAME)
