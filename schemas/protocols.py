"""What the tiers expect of each other: a store for the hot log, one for bulky content, and all that holds content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

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


class Holding(msgspec.Struct, frozen=True):
    """Content of one trajectory in one place."""

    place: str
    tenant: str
    trajectory_id: str
    events: int
    bytes: int
    blobs: tuple[str, ...] = ()


class HoldsContent(Protocol):
    """A place that holds content of trajectories: what retention, hold, erasure, verify and backup walk over."""

    place: str

    def holdings(self, trajectory_ids: Iterable[str] | None = None) -> Iterator[Holding]:
        """What lies here, of these trajectories or of all."""

    def blob_roots(self) -> Iterator[tuple[str, str]]:
        """(tenant, SHA-256) of every piece of content that must not be swept."""
