"""Appends in a closed loop and in an open one, each beside the same bytes to a plain file with the same group commit.

Both by turns in one process, so that a busy machine is busy for both.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from harness.driven import Call, Driven
from harness.plain_file import PlainFile

from stratalog.hot import HotLog

from . import bodies

SLICES = 5
WARM_UP_S = 0.2
TRAJECTORIES = 64
"""Of the open loop."""


@asynccontextmanager
async def _both(home: str, appenders: int, size: str) -> AsyncIterator[tuple[list[Call], list[Call]]]:
    """Calls that append an event to the log, and calls that append its bytes to a file; both warmed up."""
    body = bodies.result(size)
    async with HotLog.open(home, serve=False) as log:
        ids = await bodies.start(log, appenders)
        ours: list[Call] = [partial(log.append, trajectory_id, body) for trajectory_id in ids]
        await Driven().drive(ours, WARM_UP_S)
        record = os.urandom(bodies.stored_bytes(log, ids[0], 1))
        with PlainFile(Path(f"{home}.plain")) as file:
            plain: list[Call] = [partial(file.append, record)] * appenders
            await Driven().drive(plain, WARM_UP_S / 2)
            yield ours, plain


def append(home: str, appenders: int, size: str, seconds: float) -> dict[str, Any]:
    """Coroutines that each append one event after the other, each to a trajectory of its own."""

    async def work() -> dict[str, Any]:
        ours, plain = Driven(), Driven()
        async with _both(home, appenders, size) as (to_log, to_file):
            for _ in range(SLICES):
                await ours.drive(to_log, seconds / SLICES)
                await plain.drive(to_file, seconds / SLICES)
        return {"ours": ours.result(), "file": plain.result()}

    return asyncio.run(work())


def arrive(home: str, rate: float, seconds: float, seed: int) -> dict[str, Any]:
    """Events of 1 KB that arrive at the moments of a Poisson process."""

    async def work() -> dict[str, Any]:
        ours, plain = Driven(), Driven()
        async with _both(home, TRAJECTORIES, "1 KB") as (to_log, to_file):
            for number in range(SLICES):
                await ours.drive_at_random(to_log, rate, seconds / SLICES, seed + number)
                await plain.drive_at_random(to_file, rate, seconds / SLICES, seed + number)
        return {"ours": ours.result(), "file": plain.result()}

    return asyncio.run(work())


def append_blocking(home: str, seconds: float) -> dict[str, Any]:
    """One thread: `append_blocking`, the plain file with its thread, and a bare write and fdatasync."""
    ours, plain, raw = Driven(), Driven(), Driven()
    with HotLog.open(home, serve=False) as log, PlainFile(Path(f"{home}.plain")) as file:
        trajectory_id = log.start_blocking(tenant="default", task="bench")
        call = partial(log.append_blocking, trajectory_id, bodies.result())
        Driven().drive_threads([call], WARM_UP_S)
        record = os.urandom(bodies.stored_bytes(log, trajectory_id, 1))
        with Path(f"{home}.raw").open("ab", buffering=0) as bare:

            def write() -> None:
                bare.write(record)
                os.fdatasync(bare.fileno())

            for _ in range(SLICES):
                ours.drive_threads([call], seconds / SLICES)
                plain.drive_threads([partial(file.append_blocking, record)], seconds / SLICES)
                raw.drive_threads([write], seconds / SLICES)
    return {"ours": ours.result(), "file": plain.result(), "raw": raw.result()}


def step(home: str, appenders: int, seconds: float) -> dict[str, Any]:
    """Durable steps: an intent, then a result, each waited for."""

    async def work() -> dict[str, Any]:
        ours, plain = Driven(), Driven()
        intent, result = bodies.intent(), bodies.result()
        async with HotLog.open(home, serve=False) as log:
            ids = await bodies.start(log, appenders)

            async def to_log(trajectory_id: Any) -> None:
                await log.append(trajectory_id, intent)
                await log.append(trajectory_id, result)

            to_logs: list[Call] = [partial(to_log, trajectory_id) for trajectory_id in ids]
            await Driven().drive(to_logs, WARM_UP_S)
            records = [os.urandom(bodies.stored_bytes(log, ids[0], number)) for number in (1, 2)]
            with PlainFile(Path(f"{home}.plain")) as file:

                async def to_file() -> None:
                    for record in records:
                        await file.append(record)

                for _ in range(SLICES):
                    await ours.drive(to_logs, seconds / SLICES)
                    await plain.drive([to_file] * appenders, seconds / SLICES)
        return {"ours": ours.result(), "file": plain.result(), "record_bytes": [len(record) for record in records]}

    return asyncio.run(work())
