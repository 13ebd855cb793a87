"""Making bytes go from the files of a RocksDB database, while it is open and written to.

What was replaced or deleted stays in three kinds of files, and each has its step:

- write-ahead logs: all key spaces are flushed, so that RocksDB removes the logs that were written before;
- tables: those that overlap the ranges are compacted down to the bottommost level, each rewritten once;
- blob files: a value that nothing refers to stays in its file as long as a neighbour in it is needed. So all tables
  of such a key space are compacted with the garbage collection of blobs at a cutoff of 1.0, which moves every value
  that is needed into a new file.

RocksDB compacts nothing by itself meanwhile: a compaction that began before could carry what is to go into a new file.
At the end each file that was there before must be gone; RocksDB removes them a moment after they are of no use.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocksdict import BottommostLevelCompaction, CompactOptions

from stratalog.schemas.errors import DiskBudgetExceeded, Unavailable
from stratalog.schemas.protocols import Range

_KEY_BYTES = {"events": 8, "blobs": 40, "chunks": 20}
"""By the length of its keys a table is told to be one of this key space; RocksDB does not say."""
_NEVER, _ALWAYS = {"disable_auto_compactions": "true"}, {"disable_auto_compactions": "false"}
_MOVE_ALL, _MOVE_OLDEST = ({"blob_garbage_collection_age_cutoff": cutoff} for cutoff in ("1.0", "0.25"))
ROUNDS_MAX = 3
GONE_WAIT_S = 20.0
_POLL_S = 0.005

Using = Callable[[str], contextlib.AbstractContextManager[None]]


class Purge:
    """One purge of the database at `path`; `using` keeps it open during each piece of work."""

    def __init__(
        self, path: Path, families: Mapping[str, Any], blob_spaces: Sequence[str], using: Using, free_min: float
    ) -> None:
        self._path = path
        self._families = families
        self._blob_spaces = blob_spaces
        self._using = using
        self._free_min = free_min

    def run(self, ranges: Sequence[Range], pause: Callable[[], None]) -> None:
        """See `Store.purge`."""
        moving = sorted({wanted.space for wanted in ranges if wanted.space in self._blob_spaces})
        self._check_room(moving)
        logs = {path.name for path in self._files(".log") if _size(path)}
        for space, family in self._families.items():
            pause()
            with self._using(f"flushing {space}"):
                family.flush(True)
        for _ in range(ROUNDS_MAX):
            with self._compacting_alone(moving):
                old = logs | ({path.name for path in self._files(".blob")} if moving else set())
                for piece in self._pieces(ranges):
                    pause()
                    self._compact(piece)
            if self._are_gone(old, moving, pause):
                return
        raise Unavailable(f"files of {self._path} that have erased bytes are still in use", hint="ask again later")

    def _check_room(self, moving: Sequence[str]) -> None:
        """A compaction writes its new files before the old ones go; a full disk would end the log."""
        needed = sum(_size(path) for path in self._files(".blob")) if moving else 0
        disk = shutil.disk_usage(self._path)
        if disk.free - needed < disk.total * self._free_min:
            raise DiskBudgetExceeded(
                f"{self._path} needs {needed} bytes to be written anew, and {disk.free} are free",
                hint="free disk space, then erase again",
            )

    @contextlib.contextmanager
    def _compacting_alone(self, moving: Sequence[str]) -> Iterator[None]:
        self._set(_NEVER, self._families)
        try:
            self._set(_MOVE_ALL, moving)
            while self._running():
                time.sleep(_POLL_S)
            yield
        finally:
            self._set(_MOVE_OLDEST, moving)
            self._set(_ALWAYS, self._families)

    def _set(self, options: dict[str, str], spaces: Sequence[str] | Mapping[str, Any]) -> None:
        for space in spaces:
            with self._using(f"changing options of {space}"):
                self._families[space].set_options(options)

    def _running(self) -> int:
        with self._using("looking for compactions"):
            return int(self._families["events"].property_int_value("rocksdb.num-running-compactions") or 0)

    def _compact(self, piece: Range) -> None:
        options = CompactOptions()
        options.set_exclusive_manual_compaction(False)
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
        with self._using(f"compacting {piece.space}"):
            self._families[piece.space].compact_range(piece.start, piece.stop, options)

    def _pieces(self, ranges: Sequence[Range]) -> Iterator[Range]:
        """The ranges, so that each table of the bottommost level lies in one piece, and a piece has few of them."""
        for space in sorted({wanted.space for wanted in ranges}):
            wanted = [one for one in ranges if one.space == space]
            if space in self._blob_spaces:
                yield Range(space)  # the values of one file may be referred to from any table
                continue
            tables = self._tables(space)
            for one in merged(wanted, tables):
                yield from split(one, tables)

    def _tables(self, space: str) -> list[tuple[bytes, bytes]]:
        with self._using("listing files"):
            files = self._families[space].live_files()
        length = _KEY_BYTES.get(space)
        found = [file for file in files if len(file["start_key"] or b"") == len(file["end_key"] or b"") == length]
        level = max((file["level"] for file in found), default=0)
        return sorted((file["start_key"], file["end_key"]) for file in found if file["level"] == level)

    def _are_gone(self, old: set[str], moving: Sequence[str], pause: Callable[[], None]) -> bool:
        newest = max((_number(path.name) for path in self._path.iterdir()), default=0)
        deadline = time.monotonic() + GONE_WAIT_S
        while self._left(old, newest):
            if time.monotonic() > deadline:
                return False
            pause()
            time.sleep(_POLL_S)
        return True

    def _left(self, old: set[str], newest: int) -> set[str]:
        """What is still there of `old`, and of tables that are of no use any more."""
        with self._using("listing files"):
            live = {file["name"].lstrip("/") for file in self._families["events"].live_files()}
        names = {path.name for path in self._path.iterdir()}
        unused = {name for name in names if name.endswith(".sst") and name not in live and _number(name) <= newest}
        return names & old | unused

    def _files(self, suffix: str) -> list[Path]:
        return [path for path in self._path.iterdir() if path.suffix == suffix]


def merged(ranges: Sequence[Range], tables: Sequence[tuple[bytes, bytes]]) -> list[Range]:
    """Ranges of one key space in order, joined where they meet or the same table has something of both."""
    joined: list[Range] = []
    for one in sorted(ranges, key=lambda wanted: wanted.start):
        last = joined[-1] if joined else None
        if last is None or not _together(last, one, tables):
            joined.append(one)
        elif last.stop is not None and (one.stop is None or one.stop > last.stop):
            joined[-1] = Range(last.space, last.start, one.stop)
    return joined


def _together(first: Range, second: Range, tables: Sequence[tuple[bytes, bytes]]) -> bool:
    stop = first.stop
    return stop is None or second.start <= stop or any(low < stop and second.start <= high for low, high in tables)


def split(one: Range, tables: Sequence[tuple[bytes, bytes]]) -> Iterator[Range]:
    """The parts of a range, each up to the end of a table."""
    start = one.start
    for _, high in tables:
        if start <= high and (one.stop is None or high < one.stop):
            yield Range(one.space, start, high)
            start = high + b"\0"
    if one.stop is None or start < one.stop:
        yield Range(one.space, start, one.stop)


def _number(name: str) -> int:
    stem = name.partition(".")[0]
    return int(stem) if stem.isdigit() else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # RocksDB removes files at any time
        return 0
