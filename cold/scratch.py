"""A private folder for files that are being written, which outlives neither its process nor the next cleaning.

The folder is locked (flock) as long as it is open. The kernel releases the lock when the process dies, however it dies;
a scratch folder that can be locked was therefore left by a dead process and is removed by `clean_scratch`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import threading
from pathlib import Path

from .storage import PARTIAL_PREFIX


class Scratch:
    """A locked folder below `parent`, made when it is first asked for; safe for several threads."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._guard = threading.Lock()
        self._path: Path | None = None
        self._descriptor = -1

    def folder(self) -> Path:
        """The folder; its `parent` must exist."""
        with self._guard:
            while self._path is None or not self._path.is_dir():
                self._release()
                path = self._parent / f"{PARTIAL_PREFIX}{secrets.token_hex(8)}"
                path.mkdir(mode=0o700)
                # A cleaner may come between making and locking: then the folder is gone, and another is made.
                with contextlib.suppress(FileNotFoundError):
                    self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX)
                    self._path = path
            return self._path

    def file(self) -> Path:
        """A new name in the folder."""
        return self.folder() / secrets.token_hex(8)

    def close(self) -> None:
        """Remove the folder with what is in it; harmless when there is none."""
        with self._guard:
            if self._path is not None:
                shutil.rmtree(self._path, ignore_errors=True)
            self._release()

    def _release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._path, self._descriptor = None, -1


def clean_scratch(parent: Path) -> int:
    """Remove the scratch folders of dead processes below `parent`; returns how many."""
    if not parent.is_dir():
        return 0
    return sum(_clean(path) for path in sorted(parent.glob(f"{PARTIAL_PREFIX}*")))


def _clean(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
        return True
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return False  # another cleaner was faster
    finally:
        os.close(descriptor)
