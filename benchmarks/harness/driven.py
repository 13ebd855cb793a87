"""Calls made again and again, and how long each took: by coroutines, by threads, or at random moments.

In a closed loop everybody calls again as soon as the call before has returned. In an open loop calls come at the
moments of a Poisson process whether or not those before have returned, and each is timed from the moment it was due:
a stall is then seen by all the calls that came during it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median, quantiles

Call = Callable[[], Awaitable[object]]

_CLOCK_MONOTONIC = 1
_TIMER_ABSOLUTE = 1
_TIMER_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


class Driven:
    """The calls of one thing that is measured; `drive` and the others may be called several times."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.elapsed = 0.0

    async def drive(self, calls: Sequence[Call], seconds: float) -> None:
        """A closed loop: make each call again and again, all of them at the same time."""
        started = time.perf_counter()
        end = started + seconds

        async def repeat(call: Call) -> None:
            before = time.perf_counter()
            while before < end:
                await call()
                after = time.perf_counter()
                self.latencies.append(after - before)
                before = after

        await asyncio.gather(*map(repeat, calls))
        self.elapsed += time.perf_counter() - started

    def drive_threads(self, calls: Sequence[Callable[[], object]], seconds: float) -> None:
        """A closed loop of one thread for each call; a single one runs in this thread."""
        started = time.perf_counter()
        end = started + seconds

        def repeat(call: Callable[[], object]) -> None:
            before = time.perf_counter()
            while before < end:
                call()
                after = time.perf_counter()
                self.latencies.append(after - before)
                before = after

        if len(calls) == 1:
            repeat(calls[0])
        else:
            threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.elapsed += time.perf_counter() - started

    async def drive_at_random(self, calls: Sequence[Call], rate: float, seconds: float, seed: int) -> None:
        """An open loop: `rate` calls a second for so many seconds, by turns; returns when all have returned."""
        source = random.Random(seed)
        started = time.perf_counter()
        due = started + source.expovariate(rate)
        end = started + seconds
        running: set[asyncio.Task[None]] = set()
        made = 0

        async def one(call: Call, due: float) -> None:
            await call()
            self.latencies.append(time.perf_counter() - due)

        with _Timer() as timer:
            while due < end:
                await timer.until(due)
                now = time.perf_counter()
                while due <= now and due < end:
                    task = asyncio.create_task(one(calls[made % len(calls)], due))
                    running.add(task)
                    task.add_done_callback(running.discard)
                    made += 1
                    due += source.expovariate(rate)
        await asyncio.gather(*running)
        self.elapsed += time.perf_counter() - started

    def result(self) -> dict[str, float]:
        """Events, seconds, and the time from call to return (µs)."""
        return {
            "events": len(self.latencies),
            "seconds": self.elapsed,
            "mean_us": sum(self.latencies) / len(self.latencies) * 1e6,
            "p50_us": median(self.latencies) * 1e6,
            "p99_us": quantiles(self.latencies, n=100)[98] * 1e6,
        }


class _TimerSpec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


class _Timer:
    """Wakes a coroutine to the µs; the loop's own timers are rounded up to whole ms."""

    def __enter__(self) -> _Timer:
        self._descriptor = _libc.timerfd_create(_CLOCK_MONOTONIC, _TIMER_FLAGS)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = asyncio.get_running_loop()
        self._woken = self._loop.create_future()
        self._loop.add_reader(self._descriptor, self._wake)
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _wake(self) -> None:
        os.read(self._descriptor, 8)
        if not self._woken.done():
            self._woken.set_result(None)

    async def until(self, moment: float) -> None:
        """Return at a moment of `time.perf_counter`; at once, but after others have run, where that is past."""
        if moment <= time.perf_counter():
            await asyncio.sleep(0)
            return
        self._woken = self._loop.create_future()
        whole, part = divmod(moment, 1)
        at = _TimerSpec(0, 0, int(whole), int(part * 1e9))
        _libc.timerfd_settime(self._descriptor, _TIMER_ABSOLUTE, ctypes.byref(at), None)
        await self._woken
