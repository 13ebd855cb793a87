"""What the tiers expect of each other: a store for the hot log, one for bulky content, and all that holds content."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from .blobs import BlobRef

Key = bytes
Value = bytes


class Put(msgspec.Struct, frozen=True, gc=False):
    """One key to write; `space` is the name of a key space (column family)."""

    space: str
    key: Key
    value: Value


class Range(msgspec.Struct, frozen=True, order=True):
    """The keys `start <= key < stop` of a key space; no `stop`: to its end."""

    space: str
    start: Key = b""
    stop: Key | None = None


def go_on() -> None:
    """Between two pieces of work: go on."""


class Store(Protocol):
    """An ordered key-value store with one durable, atomic commit. One process at a time; calls from any thread.

    `commit` returns only after all its puts are on the device: either all of them survive a crash or none. An exception
    from it leaves open whether they do (`InDoubt`), and the store refuses further commits until it is opened again.
    Readers see what was committed, and may see what is being committed. Reads never return damaged bytes: they
    raise `Corrupt`.
    """

    def commit(self, puts: Sequence[Put]) -> None:
        """Write all `puts` atomically and durably."""

    def get(self, space: str, key: Key) -> Value | None:
        """The value of `key`, or `None`."""

    def scan(self, space: str, start: Key, stop: Key | None = None) -> Iterator[tuple[Key, Value]]:
        """Pairs with `start <= key < stop`, in order; iterates to the end or raises, never stops early."""

    def last(self, space: str) -> tuple[Key, Value] | None:
        """The pair with the greatest key, or `None`."""

    def delete_range(self, space: str, start: Key, stop: Key) -> None:
        """Forget `start <= key < stop`; durable at the latest with the next commit."""

    def purge(self, ranges: Sequence[Range], pause: Callable[[], None] = go_on) -> None:
        """Make the bytes go of what was replaced or deleted in `ranges` before this call: when it returns, no file
        holds such a value, and all that was written before is durable. Takes as long as it takes to write the
        neighbours anew; other calls go on meanwhile. `pause` is called between pieces of the work and may raise to
        stop it; the same call later goes on. Raises `DiskBudgetExceeded` where there is no room for the new files.
        """

    def disk_bytes(self) -> int:
        """Bytes on disk, roughly."""

    def close(self) -> None:
        """Release the store; further calls raise."""


class ContentStore(Protocol):
    """Bulky content by tenant and SHA-256. Content is never shared across tenants: its existence would leak.

    `put` returns only after the content is durable; `get` verifies it and raises `Corrupt` when it differs and
    `NotFound` when it is not there.
    """

    def put(self, tenant: str, ref: BlobRef, content: bytes) -> None:
        """Store `content`, whose digest is in `ref`; storing it again is harmless."""

    def get(self, tenant: str, sha256: str) -> bytes:
        """The content with this digest, verified."""

    def has(self, tenant: str, sha256: str) -> bool:
        """Whether the content is there (not verified)."""

    def digests(self, tenant: str) -> Iterator[str]:
        """The digests stored for a tenant."""

    def tenants(self) -> Iterator[str]:
        """The tenants that have content."""


class HoldsContent(Protocol):
    """A place in Postgres that holds something of what events have said: what erasure, verification and the sweep of
    content walk over (`warm/places.py` is the registry). Each call is part of the caller's transaction.
    """

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that are written anew when something of them was erased."""

    def references(self, conn: Any, ids: Sequence[uuid.UUID] | None = None) -> Iterator[tuple[str, bytes]]:
        """Tenant and body of all that refers to bulky content, of these trajectories or of all."""

    def clear(self, conn: Any, ids: Sequence[uuid.UUID]) -> int:
        """Take away what can be read of these; returns how many rows changed. Hashes and places stay."""

    def readable(self, conn: Any, ids: Sequence[uuid.UUID]) -> list[tuple[str, uuid.UUID]]:
        """What can still be read of these, which must be nothing: what it is, and whose."""
