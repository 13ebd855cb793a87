"""A small disk in memory that can be filled up and emptied again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .mounts import command, missing, unmount


def why_not() -> str:
    """Why there can be no such disk here; empty where there can."""
    return missing("mount")


class SmallDisk:
    """A mounted tmpfs; `path` is where."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def leave(self, free_bytes: int) -> None:
        """Fill it up until so many bytes are free."""
        disk = os.statvfs(self.path)
        wanted = disk.f_bavail * disk.f_frsize - free_bytes
        with self._ballast.open("ab") as file:
            os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, wanted)

    def make_room(self) -> None:
        """Remove what it was filled with."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """An empty disk of a size, unmounted with the block."""
    path.mkdir(parents=True, exist_ok=True)
    command("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", path)
    try:
        yield SmallDisk(path)
    finally:
        unmount(path)
