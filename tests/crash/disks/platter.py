"""A program that shows one file, `image`, as a device with a volatile write cache (FUSE).

What is written stays in the cache until the device is told to flush it. A byte on the standard input is a power cut: a
random part of the blocks in the cache reaches the platter, in no order, the rest is gone, and the device is dead.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import sys
import threading
from typing import Any

import mfusepy

BLOCK_BYTES = 4096


class Platter(mfusepy.Operations):  # type: ignore[misc]
    """The device; `path` holds what has reached the platter."""

    use_ns = True

    def __init__(self, path: str, seed: int) -> None:
        self._file = os.open(path, os.O_RDWR)
        self._size = os.fstat(self._file).st_size
        self._cache: dict[int, bytes] = {}
        self._dead = False
        self._lock = threading.Lock()
        self._random = random.Random(seed)

    def getattr(self, path: str, handle: Any = None) -> dict[str, int]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        if path == "/image":
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": self._size}
        raise mfusepy.FuseOSError(errno.ENOENT)

    def readdir(self, path: str, handle: Any) -> list[str]:
        return [".", "..", "image"]

    def open(self, path: str, flags: int) -> int:
        return 0

    def read(self, path: str, size: int, offset: int, handle: Any) -> bytes:
        first, stop = offset // BLOCK_BYTES, -(-(offset + size) // BLOCK_BYTES)
        with self._lock:
            data = b"".join(self._block(number) for number in range(first, stop))
        return data[offset - first * BLOCK_BYTES :][:size]

    def write(self, path: str, data: bytes, offset: int, handle: Any) -> int:
        with self._lock:
            self._check_alive()
            done = 0
            while done < len(data):
                number, start = divmod(offset + done, BLOCK_BYTES)
                part = data[done : done + BLOCK_BYTES - start]
                block = self._block(number)
                self._cache[number] = block[:start] + part + block[start + len(part) :]
                done += len(part)
        return len(data)

    def fsync(self, path: str, data_only: int, handle: Any) -> int:
        with self._lock:
            self._check_alive()
            self._keep(list(self._cache))
            self._cache.clear()
        return 0

    def flush(self, path: str, handle: Any) -> int:
        return 0

    def cut(self) -> str:
        """The power is gone."""
        with self._lock:
            self._dead = True
            share = self._random.choice([0.0, 0.2, 0.5, 0.8])
            kept = [number for number in self._cache if self._random.random() < share]
            self._keep(kept)
            return f"{len(self._cache)} {len(kept)}"

    def _block(self, number: int) -> bytes:
        cached = self._cache.get(number)
        return cached or os.pread(self._file, BLOCK_BYTES, number * BLOCK_BYTES).ljust(BLOCK_BYTES, b"\0")

    def _keep(self, numbers: list[int]) -> None:
        for number in numbers:
            os.pwrite(self._file, self._cache[number], number * BLOCK_BYTES)

    def _check_alive(self) -> None:
        if self._dead:
            raise mfusepy.FuseOSError(errno.EIO)


def main(path: str, place: str, seed: str) -> None:
    platter = Platter(path, int(seed))

    def wait_for_the_cut() -> None:
        if os.read(0, 1):
            print(platter.cut(), flush=True)

    threading.Thread(target=wait_for_the_cut, daemon=True).start()
    mfusepy.FUSE(platter, place, foreground=True, nothreads=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
