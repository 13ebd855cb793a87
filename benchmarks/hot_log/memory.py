"""Memory over many events: it must not grow with what has gone through the log."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from stratalog.hot import HotLog, Receipt
from stratalog.hot.home import Home

from .trajectories import Trajectories

AGENTS = 64
ACKNOWLEDGE_EVERY = 2048
SAMPLES = 20


def remember(home: str, events: int, memtable_bytes: int) -> dict[str, Any]:
    """Append so many events of 1 KB in trajectories of 64, acknowledged as a sidecar would, so that they are pruned."""
    flags = {"hot.memtable_bytes": memtable_bytes} if memtable_bytes else {}

    async def work() -> dict[str, Any]:
        samples: list[tuple[int, int]] = []
        done = 0
        async with HotLog.open(Home.open(home, create=True, flags=flags), serve=False) as log:
            last: list[Receipt] = []

            def told(receipt: Receipt) -> None:
                last[:] = [receipt]

            async def live() -> None:
                nonlocal done
                agent = Trajectories(log, told)
                while done < events:
                    await agent.append()
                    done += 1
                    if done % ACKNOWLEDGE_EVERY == 0:
                        receipt = last[0]
                        await asyncio.to_thread(log.acknowledge, receipt.lsn, receipt.hash)
                    if done % (events // SAMPLES) == 0:
                        samples.append((done, _resident_bytes()))

            await asyncio.gather(*(live() for _ in range(AGENTS)))
            trajectories = len(log.heads())
        return {"samples": samples, "trajectories": trajectories}

    started = time.perf_counter()
    found = asyncio.run(work())
    return {**found, "events": events, "seconds": time.perf_counter() - started}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
