"""Small files that must be whole after a crash, and locks that the kernel releases when a process dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
import weakref
from pathlib import Path

from stratalog.schemas.errors import Locked


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> Path:
    """Make a folder and what is missing above it, private to the owner and durable; harmless where it exists."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
    return missing[0] if missing else path


def write_durably(path: Path, content: bytes, *, mode: int = 0o600, exclusive: bool = False) -> None:
    """Replace a file: after a crash it holds the old or the new content, whole. `exclusive` keeps an existing one."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        if exclusive:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        else:
            Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    sync_folder(path.parent)


def write_quickly(path: Path, content: bytes) -> None:
    """Replace a file without waiting for the disk: after a power loss it may be old, or empty on some file systems."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


def forget_drafts(path: Path) -> None:
    """Remove what a killed process left of writing `path`; only while nobody writes it."""
    for draft in path.parent.glob(f".{path.name}.*"):
        draft.unlink(missing_ok=True)


class FileLock:
    """An exclusive flock; gone with the process, and not kept by its forked children.

    `note` is written into the file for people and other processes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, *, note: bytes = b"", wait: bool = False) -> None:
        """Take the lock; raises `Locked` at once where another process has it, unless `wait`.

        Raises `FileNotFoundError` where its folder is gone, also when it goes while the lock is being taken.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.fstat(descriptor).st_ino != self.path.stat().st_ino:
                raise FileNotFoundError(f"{self.path} was replaced")  # what was locked is not what lies here now
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, note or f"process {os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise Locked(f"{self.path} is held by {holder or 'another process'}") from None
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held.add(self)

    def release(self) -> None:
        """Give the lock up; harmless when it is not held."""
        if self._descriptor is not None:
            # A child that is being forked just now still has the descriptor: closing ours alone would not unlock.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """Close the descriptor without unlocking, in a child that inherited it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        _held.discard(self)


_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forget_inherited() -> None:
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_forget_inherited)


def modified_s(path: Path) -> float:
    """When a file was last written, s since 1970; now where there is none."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()
