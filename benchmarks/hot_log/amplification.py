"""Write amplification: bytes that the process writes to the disk, over the bytes of the records that it appends.

Counted by the kernel for this process (/proc/self/io): `write_bytes` grows by a whole page for every page that a write
or a page fault makes dirty, so a page that is written and synced several times counts each time, as it does on the
device; `wchar` is what was passed to write(). Files that are removed before they were written back are subtracted.
"""

from __future__ import annotations

import asyncio
import re
from itertools import islice
from pathlib import Path
from typing import Any

from harness.driven import Call, Driven

from stratalog.hot import HotLog, Receipt

from . import bodies
from .trajectories import Trajectories

AGENTS = 256
"""More than are ever busy at the same time, so that each makes one call at a time."""
WARM_UP_TIMEOUT_S = 120.0


def amplify(home: str, rate: float, seconds: float) -> dict[str, Any]:
    """Events of 1 KB at `rate` in an open loop, while a sidecar follows and the log is pruned."""

    async def work() -> dict[str, Any]:
        driven = Driven()
        async with HotLog.open(home) as log:
            warm = await log.start(tenant="default", task="warm up")
            await log.append(warm, bodies.finished(), barrier="replicated", timeout_s=WARM_UP_TIMEOUT_S)
            first, before = log.durable_lsn, _written()
            calls = [_queued(Trajectories(log, _ignore)) for _ in range(AGENTS)]
            await driven.drive_at_random(calls, rate, seconds, seed=1)
            after, last = _written(), log.durable_lsn
            behind, pruned = last - log.replicated_lsn, log.engine.pruned_lsn
            sample = list(islice(log.engine.scan(max(first, pruned) + 1, last), 4096))
        mean = sum(bodies.record_bytes(envelope) for envelope in sample) / len(sample)
        records = mean * (last - first)
        return {
            **driven.result(),
            "record_bytes": records,
            "amplification": (after["write_bytes"] - before["write_bytes"]) / records,
            "passed": (after["wchar"] - before["wchar"]) / records,
            "behind": behind,
            "pruned": pruned,
        }

    return asyncio.run(work())


def _queued(agent: Trajectories) -> Call:
    """An agent whose turn comes while it is still busy waits for itself."""
    lock = asyncio.Lock()

    async def call() -> None:
        async with lock:
            await agent.append()

    return call


def _ignore(receipt: Receipt) -> None:
    pass


def _written() -> dict[str, int]:
    found = {name: int(value) for name, value in re.findall(r"(\w+): (\d+)", Path("/proc/self/io").read_text())}
    return {"write_bytes": found["write_bytes"] - found["cancelled_write_bytes"], "wchar": found["wchar"]}
