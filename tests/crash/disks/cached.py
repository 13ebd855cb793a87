"""A disk with a volatile write cache: ext4 on a loop device on a FUSE file that forgets what was not flushed."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .loop import NO_LOG_FLUSH, SHUTDOWN, in_memory
from .mounts import command, missing, unmount

TESTS = Path(__file__).parents[2]
START_TIMEOUT_S = 20.0


def why_not() -> str:
    """Why there can be no such disk here; empty where there can."""
    if importlib.util.find_spec("mfusepy") is None:
        return "mfusepy is not installed"
    return missing("mkfs.ext4", "losetup", "fusermount3", device="/dev/fuse")


class CachedDisk:
    """Like a `LoopDisk`. Without `barriers` ext4 never tells the device to flush."""

    def __init__(self, template: Path, folder: Path, *, barriers: bool = True) -> None:
        self.path = folder / "disk"
        self.path.mkdir(parents=True, exist_ok=True)
        self.unflushed = 0
        """How many blocks were lost or kept by chance, in all power cuts."""
        self._device_at = folder / "device"
        self._device_at.mkdir(exist_ok=True)
        self._template = template
        self._memory = folder / "memory"
        self._image = self._memory / "image"
        self._options = "barrier=1" if barriers else "barrier=0"
        self._program: subprocess.Popen[str] | None = None
        self._loop = ""
        self._starts = 0

    def renew(self) -> None:
        """Begin with an empty file system."""
        self._stop()
        in_memory(self._memory)
        command("cp", "--sparse=auto", self._template, self._image)
        self._start()

    def cut_power(self) -> None:
        """Lose a part of what is in the cache, then stop the file system."""
        assert self._program is not None and self._program.stdin is not None and self._program.stdout is not None
        self._program.stdin.write("x")
        self._program.stdin.flush()
        self.unflushed += int(self._program.stdout.readline().split()[0])
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def restart(self) -> None:
        """The power is back: a device with an empty cache. Nobody may use it."""
        self._stop()
        self._start()

    def close(self) -> None:
        """Unmount everything, and end the program behind it."""
        self._stop()
        unmount(self._memory)

    def _start(self) -> None:
        self._starts += 1
        program = [sys.executable, "-m", "crash.disks.platter", self._image, self._device_at, str(self._starts)]
        self._program = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.fspath(TESTS)},
            text=True,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not os.path.ismount(self._device_at):
            if time.monotonic() > deadline or self._program.poll() is not None:
                raise OSError("the FUSE device did not start")
            time.sleep(0.005)
        self._loop = command("losetup", "--find", "--show", self._device_at / "image")
        command("mount", "-o", self._options, self._loop, self.path)

    def _stop(self) -> None:
        unmount(self.path)
        if self._loop:
            command("losetup", "--detach", self._loop)
            self._loop = ""
        unmount(self._device_at)
        if self._program is not None:
            program, self._program = self._program, None
            assert program.stdin is not None and program.stdout is not None
            program.stdin.close()
            try:
                program.wait(5)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
            program.stdout.close()


@contextmanager
def cached_disk(template: Path, folder: Path, *, barriers: bool = True) -> Iterator[CachedDisk]:
    """An empty disk, unmounted with the block."""
    disk = CachedDisk(template, folder, barriers=barriers)
    try:
        disk.renew()
        yield disk
    finally:
        disk.close()
