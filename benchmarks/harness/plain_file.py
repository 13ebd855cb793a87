"""The baseline of every append: the same bytes to the end of a plain file, with the same group commit.

One thread takes what queued while the last sync ran, writes it with one call, syncs, and releases the waiters. No
encoding, no hashing, no index: what a durable append costs at least.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Self

GROUP_RECORDS_MAX = 256


class PlainFile:
    """Durable appends for coroutines and threads."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._queue: list[tuple[bytes, asyncio.Future[None] | threading.Lock]] = []
        self._work = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._work:
            self._closing = True
            self._work.notify()
        self._thread.join()
        os.close(self._descriptor)

    async def append(self, record: bytes) -> None:
        """Append a record; returns when it is on disk."""
        done = asyncio.get_running_loop().create_future()
        with self._work:
            self._queue.append((record, done))
            self._work.notify()
        await done

    def append_blocking(self, record: bytes) -> None:
        """`append`, for threads."""
        gate = threading.Lock()
        gate.acquire()
        with self._work:
            self._queue.append((record, gate))
            self._work.notify()
        gate.acquire()

    def _run(self) -> None:
        while True:
            with self._work:
                while not self._queue and not self._closing:
                    self._work.wait()
                if not self._queue:
                    return
                group, self._queue = self._queue[:GROUP_RECORDS_MAX], self._queue[GROUP_RECORDS_MAX:]
            os.write(self._descriptor, b"".join(record for record, _ in group))
            os.fdatasync(self._descriptor)
            waiting = []
            for _, done in group:
                if isinstance(done, asyncio.Future):
                    waiting.append(done)
                else:
                    done.release()
            if waiting:
                waiting[0].get_loop().call_soon_threadsafe(_release, waiting)


def _release(waiters: list[asyncio.Future[None]]) -> None:
    for done in waiters:
        done.set_result(None)
