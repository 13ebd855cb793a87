"""A delayed sync: who is held up by it, and what the settings W and B_max do."""

from __future__ import annotations

import asyncio
import ctypes
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from harness.driven import Call, Driven

from stratalog.hot import HotLog
from stratalog.hot.amortisation import GroupCost, effective_us, expected_group, gathered
from stratalog.hot.device import quantile
from stratalog.hot.home import Home

from . import bodies, slow_sync

TICK_S = 0.0005
APPENDERS = 16
TRAJECTORIES = 64


class Ticks:
    """Something that wakes every `TICK_S` and notes by how much it came late."""

    def __init__(self) -> None:
        self._late: list[float] = []

    def note(self, before: float) -> None:
        """It slept from `before` until now."""
        self._late.append(time.perf_counter() - before - TICK_S)

    def result(self) -> dict[str, float]:
        """Late by, in ms."""
        return {
            "ticks": len(self._late),
            "p99_ms": quantile(self._late, 0.99) * 1e3,
            "max_ms": max(self._late) * 1e3,
        }


def stall(home: str, syncing: str, seconds: float) -> dict[str, Any]:
    """How late another thread and the event loop come while something syncs, and whether that holds them up.

    `syncing` is `log` (coroutines append), `nobody`, or `holding` (a thread syncs without giving the interpreter
    lock away: the control, which must show a stall).
    """

    async def work() -> dict[str, Any]:
        thread, loop = Ticks(), Ticks()
        measuring, stop = threading.Event(), threading.Event()

        def tick() -> None:
            while not stop.is_set():
                before = time.perf_counter()
                time.sleep(TICK_S)
                if measuring.is_set():
                    thread.note(before)

        async def tick_loop() -> None:
            while not stop.is_set():
                before = time.perf_counter()
                await asyncio.sleep(TICK_S)
                if measuring.is_set():
                    loop.note(before)

        ticking = threading.Thread(target=tick)
        ticking.start()
        watching = asyncio.create_task(tick_loop())
        try:
            events, syncs = await _SYNCING[syncing](home, seconds, measuring)
        finally:
            stop.set()
            ticking.join()
            await watching
        return {"thread": thread.result(), "loop": loop.result(), "events": events, "syncs": syncs}

    return asyncio.run(work())


async def _log(home: str, seconds: float, measuring: threading.Event) -> tuple[int, int]:
    async with HotLog.open(home, serve=False) as log:
        ids = await bodies.start(log, APPENDERS)
        body, driven, before = bodies.result(), Driven(), slow_sync.count()
        measuring.set()
        await driven.drive([partial(log.append, trajectory_id, body) for trajectory_id in ids], seconds)
        measuring.clear()  # opening and closing a log is not what is measured
        return len(driven.latencies), slow_sync.count() - before


async def _nobody(home: str, seconds: float, measuring: threading.Event) -> tuple[int, int]:
    measuring.set()
    await asyncio.sleep(seconds)
    return 0, 0


async def _holding(home: str, seconds: float, measuring: threading.Event) -> tuple[int, int]:
    fdatasync = ctypes.PyDLL(None).fdatasync  # unlike CDLL it keeps the interpreter lock
    end = time.perf_counter() + seconds
    syncs = 0

    def sync() -> None:
        nonlocal syncs
        with tempfile.TemporaryFile() as file:
            while time.perf_counter() < end:
                os.write(file.fileno(), bytes(1024))
                fdatasync(file.fileno())
                syncs += 1

    measuring.set()
    await asyncio.to_thread(sync)
    return 0, syncs


_SYNCING: dict[str, Callable[[str, float, threading.Event], Any]] = {
    "log": _log,
    "nobody": _nobody,
    "holding": _holding,
}


@contextmanager
def _settings(home: str, window_us: int, events_max: int) -> Iterator[Home]:
    flags = {"hot.group_window_us": window_us, "hot.group_events_max": events_max}
    yield Home.open(home, create=True, flags=flags)


def sweep(home: str, window_us: int, events_max: int, rate: float, seconds: float, barrier_us: float) -> dict[str, Any]:
    """One setting of W and B_max: `rate` events/s in an open loop, or 256 coroutines in a closed one where it is 0.

    `barrier_us` is the delay; what is predicted takes it for the whole barrier.
    """

    async def work() -> tuple[dict[str, float], int]:
        driven = Driven()
        with _settings(home, window_us, events_max) as opened:
            async with HotLog.open(opened, serve=False) as log:
                ids = await bodies.start(log, TRAJECTORIES if rate else 256)
                body, before = bodies.result(), slow_sync.count()
                calls: list[Call] = [partial(log.append, trajectory_id, body) for trajectory_id in ids]
                if rate:
                    await driven.drive_at_random(calls, rate, seconds, seed=1)
                else:
                    await driven.drive(calls, seconds)
                return driven.result(), slow_sync.count() - before

    measured, syncs = asyncio.run(work())
    arriving = measured["events"] / measured["seconds"]
    group = measured["events"] / max(1, syncs)
    printed = expected_group(arriving, window_us, events_max)
    with_barrier = gathered(GroupCost(1, 0, barrier_us), arriving, window_us, events_max)
    return {
        **measured,
        "syncs": syncs,
        "group": group,
        "group_eq2": printed,
        "group_eq2_with_barrier": with_barrier,
        "cost_us": effective_us(window_us, 0, barrier_us, group),
        "cost_eq3_us": effective_us(window_us, 0, barrier_us, printed),
        "cost_eq3_with_barrier_us": effective_us(window_us, 0, barrier_us, with_barrier),
    }
