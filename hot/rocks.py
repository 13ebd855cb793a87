"""The `Store` on RocksDB: one unsynced write batch, then one fdatasync of its write-ahead log per commit.

`write(sync=True)` would hold the interpreter lock through the sync, so the sync is a `flush_wal(True)` of its own,
which releases it. Log records are recovered with `tolerate_corrupted_tail_records`: an incomplete last record is normal
after a power loss, damage before it refuses to open (the default mode would drop what follows it, silently).

Commits follow each other: after a failed sync a later one can succeed although the pages of the first are gone, so
nobody may be told "durable" by a sync that began before the failure was known.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rocksdict import DBCompressionType, DBRecoveryMode, Options, Rdict, ReadOptions, WriteBatch

from stratalog.schemas.errors import Corrupt, InDoubt, Invalid
from stratalog.schemas.protocols import Put, Range, go_on
from stratalog.schemas.settings import HotSettings

from .faults import translate
from .purge import Purge

SPACES = ("events", "blobs", "chunks", "meta")
BLOB_SPACES = ("blobs", "chunks")
SCAN_PAIRS_MAX = 256
SCAN_BYTES_MAX = 2 << 20
"""A scan reads this much at a time and holds nothing in between: a live iterator would keep the database's lock."""
_BLOB_BYTES_MIN = 4096

Pair = tuple[bytes, bytes]


class _Process:
    """Whether RocksDB can be used in this process: its threads are started once and are not in a forked child."""

    used = forked = False

    @classmethod
    def use(cls) -> None:
        if cls.forked:
            raise Invalid(
                "a hot log cannot be opened in a process that was forked from one that had opened a hot log",
                hint="start processes with the methods spawn or forkserver of multiprocessing",
            )
        cls.used = True

    @classmethod
    def after_fork(cls) -> None:
        cls.forked = cls.used


os.register_at_fork(after_in_child=_Process.after_fork)


class RocksStore:
    """One RocksDB database with a column family per key space; see `Store` for the contract."""

    def __init__(self, path: Path, settings: HotSettings, *, mode: DBRecoveryMode | None = None) -> None:
        """Open or create. `mode` is another recovery mode, to salvage what a damaged database still has."""
        _Process.use()
        self.path = path
        self._failed: str | None = None
        self._free_min = settings.disk_free_min
        self._commit_lock = threading.Lock()
        self._purge_lock = threading.Lock()
        self._users = 0
        self._closed = False
        self._mutex = threading.Lock()
        self._free = threading.Condition(self._mutex)
        try:
            if mode is None:
                _check_spaces(path)
            options = _options(settings)
            options.set_wal_recovery_mode(mode or DBRecoveryMode.tolerate_corrupted_tail_records())
            families = {space: _options(settings, blob_files=space in BLOB_SPACES) for space in SPACES}
            self._db = Rdict(str(path), options, column_families=families)
            self._families = {space: self._db.get_column_family(space) for space in SPACES}
            self._handles = {space: self._db.get_column_family_handle(space) for space in SPACES}
        except Exception as error:
            raise translate(error, f"opening {path}") from error

    def _enter(self, doing: str) -> None:
        with self._mutex:
            if self._closed:
                raise Invalid(f"{doing}: the store is closed")
            self._users += 1

    def _leave(self) -> None:
        with self._mutex:
            self._users -= 1
            if self._closed and not self._users:
                self._free.notify_all()

    @contextlib.contextmanager
    def _using(self, doing: str) -> Iterator[None]:
        """Keep the database open while it is used, and translate its errors."""
        self._enter(doing)
        try:
            yield
        except Exception as error:
            raise translate(error, doing) from error
        finally:
            self._leave()

    def commit(self, puts: Sequence[Put]) -> None:
        """Write all `puts` atomically and durably."""
        with self._commit_lock:
            self._enter("committing")  # not by `with`: this is called for every group
            try:
                self._check_writable()
                self._write_and_sync(puts)
            except Exception as error:
                raise translate(error, "committing") from error
            finally:
                self._leave()

    def _write_and_sync(self, puts: Sequence[Put]) -> None:
        handles = self._handles
        batch = WriteBatch(raw_mode=True)
        for put in puts:
            batch.put(put.key, put.value, handles[put.space])
        try:
            if puts:  # an empty batch would be in a log that no flush ends
                self._db.write(batch)
            self._db.flush_wal(True)
        except Exception as error:
            self._failed = str(error)
            raise

    def _check_writable(self) -> None:
        if self._failed is not None:
            raise InDoubt(f"an earlier commit failed: {self._failed}")

    def get(self, space: str, key: bytes) -> bytes | None:
        """The value of `key`, or `None`."""
        self._enter("reading")  # not by `with`: this is called for every event that is read
        try:
            value: bytes | None = self._families[space].get(key)
        except Exception as error:
            raise translate(error, f"reading {space}") from error
        finally:
            self._leave()
        return value

    def scan(self, space: str, start: bytes, stop: bytes | None = None) -> Iterator[Pair]:
        """Pairs with `start <= key < stop`, in order; to the end, or raises."""
        while True:
            pairs, more = self._part(space, start, stop)
            yield from pairs
            if not more:
                return
            start = pairs[-1][0] + b"\0"

    def _part(self, space: str, start: bytes, stop: bytes | None) -> tuple[list[Pair], bool]:
        """The next pairs, and whether there may be more."""
        pairs: list[Pair] = []
        size = 0
        with self._using(f"scanning {space}"):
            options = ReadOptions()
            if stop is not None:
                options.set_iterate_upper_bound(stop)
            iterator = self._families[space].iter(options)
            iterator.seek(start)
            while iterator.valid():
                key, value = iterator.key(), iterator.value()
                if stop is not None and key >= stop:
                    break
                pairs.append((key, value))
                size += len(value)
                if len(pairs) >= SCAN_PAIRS_MAX or size >= SCAN_BYTES_MAX:
                    return pairs, True
                iterator.next()
            iterator.status()
        return pairs, False

    def last(self, space: str) -> Pair | None:
        """The pair with the greatest key, or `None`."""
        with self._using(f"reading the end of {space}"):
            iterator = self._families[space].iter()
            iterator.seek_to_last()
            pair = (iterator.key(), iterator.value()) if iterator.valid() else None
            iterator.status()
        return pair

    def delete_range(self, space: str, start: bytes, stop: bytes) -> None:
        """Forget `start <= key < stop`; in the log with the next commit."""
        with self._commit_lock, self._using(f"pruning {space}"):
            self._check_writable()
            try:
                self._families[space].delete_range(start, stop)
            except Exception as error:
                self._failed = str(error)
                raise

    def purge(self, ranges: Sequence[Range], pause: Callable[[], None] = go_on) -> None:
        """See `Store.purge`."""
        with self._purge_lock:
            Purge(self.path, self._families, BLOB_SPACES, self._using, self._free_min).run(ranges, pause)

    def disk_bytes(self) -> int:
        """Bytes of all files of the database."""
        size = 0
        for file in self.path.iterdir():
            with contextlib.suppress(FileNotFoundError):  # compaction removes files at any time
                size += file.stat().st_size
        return size

    def close(self) -> None:
        """Wait for calls in progress, then release the database. Column families keep its lock, so they go first."""
        with self._free:
            if self._closed:
                return
            self._closed = True
            while self._users:
                self._free.wait()
        self._families.clear()
        self._handles.clear()
        try:
            self._db.close()
        except Exception as error:
            raise translate(error, "closing") from error


def _check_spaces(path: Path) -> None:
    """Raise `Corrupt` where a database that holds something has lost a key space: RocksDB would make it anew, empty.

    A first open that was killed has not made all of them, and holds nothing yet.
    """
    if not (path / "CURRENT").exists():
        return
    missing = set(SPACES).difference(Rdict.list_cf(str(path), Options(raw_mode=True)))
    held = [file.name for file in path.iterdir() if file.suffix in (".log", ".sst", ".blob") and file.stat().st_size]
    if missing and held:
        raise Corrupt(f"{path} has lost the key spaces {', '.join(sorted(missing))}, but there is {held[0]}")


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
