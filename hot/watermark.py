"""A number that only grows, and that threads and coroutines can wait for: the durable LSN, the replicated LSN."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time


class Watermark:
    """Thread-safe; `advance` wakes everybody whose value has been reached."""

    def __init__(self, value: int = 0) -> None:
        self._value = value
        self._closed = False
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._threads = 0
        """How many wait for the condition; mostly nobody does, and `advance` is called for every group."""
        self._futures: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Future[bool]]] = []

    @property
    def value(self) -> int:
        """The value now."""
        return self._value

    def advance(self, value: int) -> None:
        """Raise the value; a smaller one changes nothing."""
        if value <= self._value:
            return
        with self._lock:
            self._value = max(self._value, value)
            if self._threads:
                self._condition.notify_all()
            if not self._futures:
                return
            reached = [entry for entry in self._futures if entry[0] <= value]
            if reached:
                self._futures = [entry for entry in self._futures if entry[0] > value]
        for _, loop, future in reached:
            _resolve(loop, future, True)

    def close(self) -> None:
        """Wake everybody; waiting returns what has been reached."""
        with self._lock:
            self._closed = True
            self._condition.notify_all()
            waiting, self._futures = self._futures, []
        for value, loop, future in waiting:
            _resolve(loop, future, self._value >= value)

    def wait(self, value: int, timeout_s: float | None = None) -> bool:
        """Block until the value is reached; whether it was."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            while self._value < value and not self._closed:
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    break
                self._threads += 1
                try:
                    self._condition.wait(remaining)
                finally:
                    self._threads -= 1
            return self._value >= value

    async def reached(self, value: int, timeout_s: float | None = None) -> bool:
        """Wait in a coroutine until the value is reached; whether it was."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._value >= value or self._closed:
                return self._value >= value
            future: asyncio.Future[bool] = loop.create_future()
            entry = (value, loop, future)
            self._futures.append(entry)
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return self._value >= value
        finally:
            with self._lock:
                if entry in self._futures:
                    self._futures.remove(entry)


def _resolve(loop: asyncio.AbstractEventLoop, future: asyncio.Future[bool], result: bool) -> None:
    def settle() -> None:
        if not future.done():
            future.set_result(result)

    with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits there any more
        loop.call_soon_threadsafe(settle)
