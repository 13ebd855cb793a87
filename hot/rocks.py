"""The `Store` on RocksDB: one unsynced write batch, then one fdatasync of its write-ahead log per commit.

`write(sync=True)` would hold the interpreter lock through the sync, so the sync is a `flush_wal(True)` of its own,
which releases it. Log records are recovered with `tolerate_corrupted_tail_records`: a torn last record is normal after
a power loss, damage before it refuses to open (the default mode would drop what follows it, silently).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rocksdict import DBCompressionType, DBRecoveryMode, Options, Rdict, ReadOptions, WriteBatch

from stratalog.schemas.errors import Corrupt, InDoubt
from stratalog.schemas.protocols import Put
from stratalog.schemas.settings import HotSettings

from .faults import translate

SPACES = ("events", "blobs", "chunks", "meta")
BLOB_SPACES = ("blobs", "chunks")
_BLOB_BYTES_MIN = 4096


class RocksStore:
    """One RocksDB database with a column family per key space; see `Store` for the contract."""

    def __init__(self, path: Path, settings: HotSettings, *, salvage: bool = False) -> None:
        """Open or create. `salvage` recovers up to the first damage instead of refusing."""
        self.path = path
        self._failed: str | None = None
        mode = DBRecoveryMode.point_in_time() if salvage else DBRecoveryMode.tolerate_corrupted_tail_records()
        options = _options(settings)
        options.set_wal_recovery_mode(mode)
        families = {space: _options(settings, blob_files=space in BLOB_SPACES) for space in SPACES}
        try:
            self._db = Rdict(str(path), options, column_families=families)
            self._families = {space: self._db.get_column_family(space) for space in SPACES}
            self._handles = {space: self._db.get_column_family_handle(space) for space in SPACES}
        except Exception as error:
            raise translate(error, f"opening {path}") from error

    def commit(self, puts: Sequence[Put]) -> None:
        """Write all `puts` atomically and durably."""
        if self._failed is not None:
            raise InDoubt(f"an earlier commit failed: {self._failed}")
        handles = self._handles
        batch = WriteBatch(raw_mode=True)
        for put in puts:
            batch.put(put.key, put.value, handles[put.space])
        try:
            self._db.write(batch)
            self._db.flush_wal(True)
        except Exception as error:
            self._failed = str(error)
            raise translate(error, "committing") from error

    def get(self, space: str, key: bytes) -> bytes | None:
        """The value of `key`, or `None`."""
        try:
            value: bytes | None = self._families[space].get(key)
        except Exception as error:
            raise translate(error, f"reading {space}") from error
        return value

    def scan(self, space: str, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with `start <= key < stop`, in order; to the end, or raises."""
        options = ReadOptions()
        if stop is not None:
            options.set_iterate_upper_bound(stop)
        iterator = self._families[space].iter(options)
        try:
            iterator.seek(start)
            while iterator.valid():
                key, value = iterator.key(), iterator.value()
                if stop is not None and key >= stop:
                    break
                yield key, value
                iterator.next()
            iterator.status()
        except Exception as error:
            raise translate(error, f"scanning {space}") from error
        finally:
            del iterator

    def last(self, space: str) -> tuple[bytes, bytes] | None:
        """The pair with the greatest key, or `None`."""
        iterator = self._families[space].iter()
        try:
            iterator.seek_to_last()
            pair = (iterator.key(), iterator.value()) if iterator.valid() else None
            iterator.status()
        except Exception as error:
            raise translate(error, f"reading the end of {space}") from error
        finally:
            del iterator
        return pair

    def delete_range(self, space: str, start: bytes, stop: bytes) -> None:
        """Forget `start <= key < stop`; in the log with the next commit."""
        if self._failed is not None:
            raise InDoubt(f"an earlier commit failed: {self._failed}")
        try:
            self._families[space].delete_range(start, stop)
        except Exception as error:
            self._failed = str(error)
            raise translate(error, f"pruning {space}") from error

    def disk_bytes(self) -> int:
        """Bytes of all files of the database."""
        return sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())

    def close(self) -> None:
        """Release the database. Column families and handles keep its lock, so they go first."""
        self._families.clear()
        self._handles.clear()
        try:
            self._db.close()
        except Exception as error:
            raise translate(error, "closing") from error


def _options(settings: HotSettings, *, blob_files: bool = False) -> Any:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_paranoid_checks(True)
    options.set_compression_type(DBCompressionType.none())
    options.set_write_buffer_size(settings.memtable_bytes)
    options.set_max_total_wal_size(settings.wal_bytes_max)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(4)
    if blob_files:
        options.set_enable_blob_files(True)
        options.set_min_blob_size(_BLOB_BYTES_MIN)
        options.set_enable_blob_gc(True)
    return options


__all__ = ["SPACES", "Corrupt", "RocksStore"]
