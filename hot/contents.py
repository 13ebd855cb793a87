"""Bulky content in the hot log: small ones in the batch of their event, large ones in pieces before it.

A large content would hold up everybody in its group, so its pieces are committed on their own; a marker tells pieces
whose event never became durable, and they are removed at the next open.
"""

from __future__ import annotations

import hashlib
import re
import threading
import uuid
from collections.abc import Sequence

from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.schemas.protocols import Put, Store

from . import keys
from .keys import Chunked

CHUNK_BYTES = 1 << 20
"""Larger contents go in pieces of this size."""
MARKER_PREFIX = b"x/"
_SHA256 = re.compile("[0-9a-f]{64}")
_OPEN, _TAKEN = b"\1", b"\0"

Content = tuple[BlobRef, bytes]
Placed = tuple[BlobRef, bytes | Chunked]
"""A content, or where its pieces already lie."""


class Contents:
    """The content of one log. `place` may be called from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._leftovers_lock = threading.Lock()

    def place(self, contents: Sequence[Placed]) -> list[Placed]:
        """Commit the pieces of large contents, which waits for the disk; small ones are handed back as they are."""
        return [
            (ref, self._write_chunks(content) if isinstance(content, bytes) and is_large(ref) else content)
            for ref, content in contents
        ]

    def abandon(self, contents: Sequence[Placed]) -> None:
        """Remove the pieces of contents whose event was refused."""
        placed = [content.content_id for _, content in contents if isinstance(content, Chunked)]
        self._note_leftovers(placed)
        for content_id in placed:
            self._forget_chunks(content_id)

    def _write_chunks(self, content: bytes) -> Chunked:
        content_id = uuid.uuid4().bytes
        view = memoryview(content)
        count = 0
        for start in range(0, len(content), CHUNK_BYTES):
            puts = [Put("chunks", keys.chunk_key(content_id, count), bytes(view[start : start + CHUNK_BYTES]))]
            if count == 0:
                puts.append(Put("meta", MARKER_PREFIX + content_id, _OPEN))
            self._store.commit(puts)
            count += 1
        return Chunked(content_id, len(content), count)

    def puts(self, lsn: int, prepared: Sequence[Placed]) -> list[Put]:
        """What to commit with the event at `lsn` that refers to these contents."""
        puts: list[Put] = []
        for ref, content in prepared:
            key = keys.blob_key(lsn, bytes.fromhex(ref.sha256))
            if isinstance(content, Chunked):
                puts.append(Put("meta", keys.CHUNKED_PREFIX + key, keys.encode(content)))
                puts.append(Put("meta", MARKER_PREFIX + content.content_id, _TAKEN))
            else:
                puts.append(Put("blobs", key, content))
        return puts

    def get(self, lsn: int, sha256: str) -> bytes:
        """The content that the event at `lsn` refers to; raises `NotFound`, or `Corrupt` where the digest differs."""
        if not 0 < lsn <= keys.LSN_MAX or _SHA256.fullmatch(sha256) is None:
            raise NotFound(f"there is no content {sha256!r} of an event at LSN {lsn}")
        key = keys.blob_key(lsn, bytes.fromhex(sha256))
        content = self._store.get("blobs", key)
        if content is None:
            pointer = self._store.get("meta", keys.CHUNKED_PREFIX + key)
            if pointer is None:
                raise NotFound(f"content {sha256} of the event at LSN {lsn} is not in this log")
            content = self._read_chunks(keys.decode_chunked(pointer))
        if hashlib.sha256(content).hexdigest() != sha256:
            raise Corrupt(f"content {sha256} of the event at LSN {lsn} does not match its digest")
        return content

    def _read_chunks(self, chunked: Chunked) -> bytes:
        pieces = [value for _, value in self._store.scan("chunks", chunked.content_id, _after(chunked.content_id))]
        return b"".join(pieces)

    def forget(self, first_lsn: int, stop_lsn: int) -> None:
        """Remove the contents of the events from `first_lsn` up to, not including, `stop_lsn`."""
        start, stop = keys.lsn_key(first_lsn), keys.lsn_key(stop_lsn)
        self._store.delete_range("blobs", start, stop)
        pointers = list(self._store.scan("meta", keys.CHUNKED_PREFIX + start, keys.CHUNKED_PREFIX + stop))
        for _, value in pointers:
            self._forget_chunks(keys.decode_chunked(value).content_id)
        if pointers:
            self._store.delete_range("meta", keys.CHUNKED_PREFIX + start, keys.CHUNKED_PREFIX + stop)

    def erase(self, lsn: int) -> list[int]:
        """Remove the contents of one event; returns their sizes. Its files still have them until they are purged."""
        start, stop = keys.lsn_key(lsn), keys.lsn_key(lsn + 1)
        sizes = [len(content) for _, content in self._store.scan("blobs", start, stop)]
        pointers = self._store.scan("meta", keys.CHUNKED_PREFIX + start, keys.CHUNKED_PREFIX + stop)
        sizes += [keys.decode_chunked(value).size for _, value in pointers]
        if sizes:
            self.forget(lsn, lsn + 1)
        return sizes

    def forget_orphans(self) -> int:
        """Remove pieces whose event never became durable; only at open, when nobody appends. Returns how many."""
        orphans = [
            key[len(MARKER_PREFIX) :]
            for key, state in self._store.scan("meta", MARKER_PREFIX, keys.prefix_end(MARKER_PREFIX))
            if state == _OPEN
        ]
        self._note_leftovers(orphans)
        for content_id in orphans:
            self._forget_chunks(content_id)
        return len(orphans)

    def _note_leftovers(self, content_ids: Sequence[bytes]) -> None:
        """Their bytes stay in files for a while, and no event leads there: an erasure has to know."""
        if content_ids:
            with self._leftovers_lock:
                self._store.commit([Put("meta", keys.META_LEFTOVERS, content_ids[-1])])

    def forget_leftovers(self, noted: bytes) -> None:
        """All that was given up before this note was read is gone from the files."""
        with self._leftovers_lock:
            if self._store.get("meta", keys.META_LEFTOVERS) == noted:
                self._store.delete_range("meta", keys.META_LEFTOVERS, keys.META_LEFTOVERS + b"\0")

    def _forget_chunks(self, content_id: bytes) -> None:
        self._store.delete_range("chunks", content_id, _after(content_id))
        marker = MARKER_PREFIX + content_id
        self._store.delete_range("meta", marker, marker + b"\0")


def is_large(ref: BlobRef) -> bool:
    """Whether a content is too large for the group of its event."""
    return ref.size > CHUNK_BYTES


def _after(content_id: bytes) -> bytes:
    return content_id + b"\xff\xff\xff\xff\xff"
