"""Making bytes go from the files of a RocksDB database, while it is open and written to.

What was replaced or deleted stays in three kinds of files, and each has its step:

- write-ahead logs: all key spaces are flushed, so that RocksDB removes the logs that were written before;
- tables: what overlaps the ranges is compacted down to the bottommost level, where the new value meets the old one, and
  only the new one is written;
- blob files: a value that nothing refers to stays in its file as long as a neighbour in it is needed. So all tables of
  such a key space are compacted with the garbage collection of blobs at a cutoff of 1.0, which moves every value that
  is needed into a new file.

RocksDB compacts nothing by itself during one of these compactions: that could carry what is to go into a new file. It
removes files a moment after they are of no use, so at the end those that were there before are waited for.
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

_MOVE_ALL, _MOVE_OLDEST = ({"blob_garbage_collection_age_cutoff": cutoff} for cutoff in ("1.0", "0.25"))
ROUNDS_MAX = 3
GONE_WAIT_S = 10.0
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
        for space in tuple(self._families):
            pause()
            with self._using(f"flushing {space}"):
                self._families[space].flush(True)  # a variable would keep it, and with it the database's lock
        for _ in range(ROUNDS_MAX):
            old = logs | (self._blob_files() if len(moving) == len(self._blob_spaces) else set())
            for wanted in hulls(ranges):
                pause()
                if wanted.space not in moving:
                    self._compact(wanted)
            for space in moving:
                pause()
                with self._moving_all(space):  # the values of one file may be referred to from any table
                    self._compact(Range(space))
            if self._are_gone(old, pause):
                return
        raise Unavailable(f"files of {self._path} that have erased bytes are still in use", hint="ask again later")

    def _check_room(self, moving: Sequence[str]) -> None:
        """A compaction writes its new files before the old ones go; a full disk would end the log."""
        needed = sum(_size(path) for path in self._files(".blob" if moving else ".sst"))
        disk = shutil.disk_usage(self._path)
        if disk.free - needed < disk.total * self._free_min:
            raise DiskBudgetExceeded(
                f"{self._path} needs {needed} bytes to be written anew, and {disk.free} are free",
                hint="free disk space, then erase again",
            )

    @contextlib.contextmanager
    def _moving_all(self, space: str) -> Iterator[None]:
        self._set(space, _MOVE_ALL)
        try:
            yield
        finally:
            self._set(space, _MOVE_OLDEST)

    def _set(self, space: str, options: dict[str, str]) -> None:
        with self._using(f"changing options of {space}"):
            self._families[space].set_options(options)

    def _compact(self, wanted: Range) -> None:
        """Each table once. Also what is at the bottommost level already, where RocksDB may have moved a table with the
        old value beside that with the new one."""
        options = CompactOptions()
        options.set_exclusive_manual_compaction(True)
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
        with self._using(f"compacting {wanted.space}"):
            self._families[wanted.space].compact_range(wanted.start or None, wanted.stop, options)

    def _are_gone(self, old: set[str], pause: Callable[[], None]) -> bool:
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

    def _blob_files(self) -> set[str]:
        return {path.name for path in self._files(".blob")}

    def _files(self, suffix: str) -> list[Path]:
        return [path for path in self._path.iterdir() if path.suffix == suffix]


def hulls(ranges: Sequence[Range]) -> list[Range]:
    """For each key space the one range around those given: a flushed table reaches over them anyway."""
    around: dict[str, Range] = {}
    for one in ranges:
        known = around.get(one.space, one)
        stop = None if one.stop is None or known.stop is None else max(one.stop, known.stop)
        around[one.space] = Range(one.space, min(one.start, known.start), stop)
    return list(around.values())


def _number(name: str) -> int:
    stem = name.partition(".")[0]
    return int(stem) if stem.isdigit() else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # RocksDB removes files at any time
        return 0
