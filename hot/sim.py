"""The `Store` in memory, on a disk that can crash: what was not synced may be gone, as on a real device."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterator, Sequence

from stratalog.schemas.errors import InDoubt, Invalid
from stratalog.schemas.protocols import Put, Range, go_on

Operation = Put | tuple[str, bytes, bytes]
"""A put, or a range that was deleted: (space, start, stop)."""


class SimDisk:
    """Survives the stores on it: what is durable, and batches that were written but not yet synced.

    `fault` is called before each step (`write`, `sync`) and may raise, to fail there.
    """

    def __init__(self, fault: Callable[[str], None] | None = None) -> None:
        self.batches: list[tuple[Operation, ...]] = []
        self.synced = 0
        self.fault = fault or (lambda step: None)

    def crash(self, keep: int = 0) -> None:
        """Lose power: of the batches that were not synced, the first `keep` have reached the device."""
        del self.batches[self.synced + keep :]
        self.synced = len(self.batches)

    def forget(self, ranges: Sequence[Range]) -> None:
        """Forget the values of puts in `ranges` that a later synced operation replaced or deleted."""
        kept: list[tuple[Operation, ...]] = []
        replaced: set[tuple[str, bytes]] = set()
        deleted: list[tuple[str, bytes, bytes]] = []
        for batch in reversed(self.batches[: self.synced]):
            operations: list[Operation] = []
            for operation in reversed(batch):
                if not isinstance(operation, Put):
                    deleted.append(operation)
                    operations.append(operation)
                    continue
                place = (operation.space, operation.key)
                gone = place in replaced or any(
                    space == operation.space and start <= operation.key < stop for space, start, stop in deleted
                )
                replaced.add(place)
                if not gone or not any(_is_in(operation, wanted) for wanted in ranges):
                    operations.append(operation)
            kept.append(tuple(reversed(operations)))
        self.batches[: self.synced] = reversed(kept)


def _is_in(put: Put, wanted: Range) -> bool:
    return wanted.space == put.space and wanted.start <= put.key and (wanted.stop is None or put.key < wanted.stop)


class SimStore:
    """A store on a `SimDisk`; see `Store` for the contract."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._values: dict[str, dict[bytes, bytes]] = {}
        self._keys: dict[str, list[bytes]] = {}
        self._failed = self._closed = False
        self._mutex = threading.Lock()
        for batch in disk.batches:
            self._apply(batch)
        disk.synced = len(disk.batches)  # RocksDB, too, makes durable what it recovers

    def _apply(self, batch: Sequence[Operation]) -> None:
        for operation in batch:
            if isinstance(operation, Put):
                values, keys = self._space(operation.space)
                if operation.key not in values:
                    bisect.insort(keys, operation.key)
                values[operation.key] = operation.value
            else:
                space, start, stop = operation
                values, keys = self._space(space)
                first, last = bisect.bisect_left(keys, start), bisect.bisect_left(keys, stop)
                for key in keys[first:last]:
                    del values[key]
                del keys[first:last]

    def _space(self, space: str) -> tuple[dict[bytes, bytes], list[bytes]]:
        return self._values.setdefault(space, {}), self._keys.setdefault(space, [])

    def _check_open(self) -> None:
        if self._closed:
            raise Invalid("the store is closed")

    def _write(self, batch: tuple[Operation, ...], *, sync: bool) -> None:
        self._check_open()
        if self._failed:
            raise InDoubt("an earlier commit failed")
        disk = self._disk
        try:
            disk.fault("write")
            with self._mutex:
                disk.batches.append(batch)
                self._apply(batch)
                written = len(disk.batches)
            if sync:
                disk.fault("sync")  # others may read and write meanwhile, as beside a real sync
                with self._mutex:
                    disk.synced = max(disk.synced, written)
        except OSError as error:
            self._failed = True
            raise InDoubt(f"committing: {error}") from error

    def commit(self, puts: Sequence[Put]) -> None:
        """Write all `puts` atomically and durably."""
        self._write(tuple(puts), sync=True)

    def get(self, space: str, key: bytes) -> bytes | None:
        """The value of `key`, or `None`."""
        self._check_open()
        return self._space(space)[0].get(key)

    def scan(self, space: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with `start <= key < stop`, in order; what is removed meanwhile is left out."""
        self._check_open()
        with self._mutex:
            values, keys = self._space(space)
            last = len(keys) if stop is None else bisect.bisect_left(keys, stop)
            found = keys[bisect.bisect_left(keys, start) : last]
        for key in found:
            self._check_open()
            value = values.get(key)
            if value is not None:
                yield key, value

    def last(self, space: str) -> tuple[bytes, bytes] | None:
        """The pair with the greatest key, or `None`."""
        self._check_open()
        with self._mutex:
            values, keys = self._space(space)
            return (keys[-1], values[keys[-1]]) if keys else None

    def delete_range(self, space: str, start: bytes, stop: bytes) -> None:
        """Forget `start <= key < stop`; durable with the next commit."""
        self._write(((space, start, stop),), sync=False)

    def purge(self, ranges: Sequence[Range], pause: Callable[[], None] = go_on) -> None:
        """See `Store.purge`: of what was written, only what is still valid stays."""
        pause()
        self._write((), sync=True)
        with self._mutex:
            self._disk.forget(ranges)

    def disk_bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(len(key) + len(value) for values in self._values.values() for key, value in values.items())

    def close(self) -> None:
        """Release the store; further calls raise."""
        self._closed = True
