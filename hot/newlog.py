"""A new log comes into being whole and owned: made in a draft folder, locked, then renamed to its place."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from stratalog.schemas import ids
from stratalog.schemas.errors import Locked

from .files import FileLock, sync_folder
from .home import Home
from .logfile import LogFile

DRAFT_PREFIX = ".new-"


class Draft:
    """A log in the making; its lock is held, and stays held under its final name."""

    def __init__(self, home: Home, role: str, previous_log_id: str = "", salvaged_from: str = "") -> None:
        self._hot = home.folder("hot")
        _forget_abandoned(self._hot)
        while True:
            self.log_id = ids.new_log_id()
            self.path = self._hot / f"{DRAFT_PREFIX}{self.log_id}"
            self.path.mkdir(mode=0o700)
            self.lock = FileLock(self.path / "OWNER")
            try:
                self.lock.acquire()
                break
            except (FileNotFoundError, Locked):
                continue  # another process took it for abandoned before it was locked
        self._file = LogFile(str(self.log_id), role, time.time_ns() // 1000, previous_log_id, salvaged_from)

    def finish(self) -> Path:
        """Put it in its place; returns that."""
        self._file.write(self.path)
        place = self._hot / str(self.log_id)
        self.path.rename(place)
        sync_folder(self._hot)
        return place


def _forget_abandoned(hot: Path) -> None:
    """Remove drafts of processes that were killed."""
    for path in hot.glob(f"{DRAFT_PREFIX}*"):
        lock = FileLock(path / "OWNER")
        try:
            lock.acquire()
        except (FileNotFoundError, Locked):
            continue
        shutil.rmtree(path, ignore_errors=True)
        lock.release()
