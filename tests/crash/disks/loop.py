"""An ext4 file system in a file, whose power can be cut: what had not reached the device is gone.

EXT4_IOCSHUTDOWN (the ioctl GOINGDOWN of xfs) with NOLOGFLUSH stops the file system at once: no page and no journal
entry is written any more. Mounting it again replays the journal, as after a power failure.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .mounts import command, missing, unmount

SIZE_BYTES = 96 << 20
MEMORY_BYTES = 400 << 20
"""The image and its templates lie in memory: the disk under test is the one that matters, not the one below it."""
SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
_OPTIONS = ("-E", "lazy_itable_init=0,lazy_journal_init=0", "-J", "size=4")


def why_not() -> str:
    """Why there can be no such disk here; empty where there can."""
    return missing("mkfs.ext4", "losetup", "mount", device="/dev/loop-control")


def make_image(path: Path) -> Path:
    """Make an empty file system in a file, as a template for disks."""
    with path.open("wb") as file:
        file.truncate(SIZE_BYTES)
    command("mkfs.ext4", "-F", "-q", *_OPTIONS, path)
    return path


def in_memory(place: Path) -> None:
    """Make a folder whose files lie in memory; harmless where it is one."""
    if not os.path.ismount(place):
        place.mkdir(exist_ok=True)
        command("mount", "-t", "tmpfs", "-o", f"size={MEMORY_BYTES}", "tmpfs", place)


class LoopDisk:
    """A mounted copy of an image; `path` is where."""

    def __init__(self, template: Path, folder: Path) -> None:
        self.path = folder / "disk"
        self.path.mkdir(parents=True, exist_ok=True)
        self._template = template
        self._memory = folder / "memory"
        self._image = self._memory / "image"

    def renew(self, template: Path | None = None) -> None:
        """Begin with an empty file system, or with a copy of another one."""
        unmount(self.path)
        in_memory(self._memory)
        command("cp", "--sparse=auto", template or self._template, self._image)
        self.mount()

    def save(self, name: str) -> Path:
        """Unmount, and keep a copy of the file system in a template with this name."""
        unmount(self.path)
        command("cp", "--sparse=auto", self._image, self._memory / name)
        return self._memory / name

    def mount(self) -> None:
        """Mount it, replaying its journal."""
        command("mount", "-o", "loop", self._image, self.path)

    def cut_power(self) -> None:
        """Stop the file system at once."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def restart(self) -> None:
        """Unmount and mount: the power is back. Nobody may use it."""
        unmount(self.path)
        self.mount()

    def close(self) -> None:
        """Unmount; the loop device goes with it."""
        unmount(self.path)
        unmount(self._memory)


@contextmanager
def loop_disk(template: Path, folder: Path) -> Iterator[LoopDisk]:
    """An empty disk, unmounted with the block."""
    disk = LoopDisk(template, folder)
    try:
        disk.renew()
        yield disk
    finally:
        disk.close()
