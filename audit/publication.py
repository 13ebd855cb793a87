"""Where signed tree heads are kept outside the database: a file of the home, and the storage of the cold tier.

    HOME/audit/<tenant>.heads.jsonl                  one head a line, in the order of publication; fsynced
    <cold.url>/audit/heads/<tenant>/<size>-<root>.json   the same heads, each put on the condition that it is new

A head counts as published once it is in the file; it is then put into the storage. What a crash leaves is a torn last
line, which the next append cuts off, or a head that the storage still lacks, which the next sealing puts there first.
Neither place ever replaces a head. Versioning or Object Lock on the bucket keeps others from doing it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stratalog.cold.installation import Installation
from stratalog.cold.storage import Storage, open_storage, translated
from stratalog.hot.files import FileLock, make_folder, sync_folder
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.ids import check_tenant

from .heads import SignedHead, decode_head
from .leaf_files import LeafFiles

HEADS_FOLDER = "audit/heads"
_NAME = re.compile(r"([1-9][0-9]{0,18})-([0-9a-f]{64})\.json")


class HeadFile:
    """The heads of one tenant in a file of the home."""

    def __init__(self, folder: Path, tenant: str) -> None:
        self.path = folder / f"{check_tenant(tenant)}.heads.jsonl"

    def read(self) -> list[SignedHead]:
        """All heads, oldest first; a torn last line was never published. Raises `Corrupt`."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        found = []
        for number, line in enumerate(content.splitlines(keepends=True), start=1):
            if not line.endswith(b"\n"):
                break
            try:
                found.append(decode_head(line))
            except Corrupt as error:
                raise Corrupt(
                    f"{self.path}, line {number}: {error.message}", hint="restore it from a backup"
                ) from error
        return found

    def append(self, head: SignedHead) -> None:
        """Add a head; durable when it returns."""
        make_folder(self.path.parent)
        lock = FileLock(self.path.with_suffix(".lock"))
        lock.acquire(wait=True)
        try:
            with translated("write", str(self.path)):
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                with os.fdopen(descriptor, "r+b") as file:
                    end = file.read().rfind(b"\n") + 1
                    file.truncate(end)
                    file.seek(end)
                    file.write(head.encode())
                    file.flush()
                    os.fsync(file.fileno())
                sync_folder(self.path.parent)
        finally:
            lock.release()


class StoredHead(msgspec.Struct, frozen=True):
    """A head in the storage, by its name; what is in the object may differ, and must not."""

    path: str
    tree_size: int
    root_hash: str


class HeadStore:
    """The heads of one tenant in the storage of the cold tier."""

    def __init__(self, storage: Storage, tenant: str) -> None:
        self._storage = storage
        self._folder = f"{HEADS_FOLDER}/{check_tenant(tenant)}"
        self._tenant = tenant

    def list(self) -> list[StoredHead]:
        """What is there, by size and root; files of other names are passed over."""
        found = []
        for entry in self._storage.files(self._folder):
            name = _NAME.fullmatch(entry.path.rpartition("/")[2])
            if name is not None:
                found.append(StoredHead(entry.path, int(name[1]), name[2]))
        return sorted(found, key=lambda head: (head.tree_size, head.root_hash))

    def read(self, stored: StoredHead) -> SignedHead:
        """The head in an object; raises `Corrupt` where it is not the one that its name says."""
        try:
            head = decode_head(self._storage.read(stored.path))
        except Corrupt as error:
            raise Corrupt(f"{self._storage.url}/{stored.path}: {error.message}") from error
        if (head.tenant, head.tree_size, head.root_hash) != (self._tenant, stored.tree_size, stored.root_hash):
            raise Corrupt(f"{self._storage.url}/{stored.path} holds another head than its name says")
        return head

    def keep(self, head: SignedHead) -> SignedHead:
        """Put a head unless one of this size and root is there; returns the one that is. Never replaces anything."""
        stored = StoredHead(f"{self._folder}/{head.tree_size}-{head.root_hash}.json", head.tree_size, head.root_hash)
        if self._storage.entry(stored.path) is None:
            self._storage.put_new(stored.path, head.encode())
        return self.read(stored)


class Publication:
    """Both places of one tenant, and the copies of its leaves."""

    def __init__(self, file: HeadFile, store: HeadStore, leaves: LeafFiles) -> None:
        self.file = file
        self.store = store
        self.leaves = leaves

    def newest(self) -> list[SignedHead]:
        """The newest head of each place; what one of them lacks of these two is added to it."""
        heads = self.file.read()
        stored = self.store.list()
        found = []
        if heads:
            last = max(heads, key=lambda head: head.tree_size)
            found.append(last)
            if not any((head.tree_size, head.root_hash) == (last.tree_size, last.root_hash) for head in stored):
                self.store.keep(last)
        if stored:
            kept = self.store.read(stored[-1])
            found.append(kept)
            if not any((head.tree_size, head.root_hash) == (kept.tree_size, kept.root_hash) for head in heads):
                self.file.append(kept)
        return found

    def publish(self, head: SignedHead) -> None:
        """Keep a head in both places, the file first."""
        self.file.append(head)
        self.store.keep(head)


@contextlib.contextmanager
def open_publication(installation: Installation, tenant: str) -> Iterator[Publication]:
    """Both places of a tenant, as the settings of the installation name them."""
    settings = installation.settings.cold
    storage = open_storage(settings.url or f"file://{installation.home.folder('cold')}", settings.storage_options)
    try:
        folder = installation.home.path / "audit"
        yield Publication(HeadFile(folder, tenant), HeadStore(storage, tenant), LeafFiles(storage, tenant))
    finally:
        storage.close()
