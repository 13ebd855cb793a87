"""Short pieces of work in which every file operation is a point to crash at."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any

from .disks import shim
from .ledger import Ledger
from .sabotage import apply
from .writer import Writer

FIRST_NUMBER = 90
"""So that the events of the first session contain one with large content."""
NEXT_NUMBER = 1000
"""The first number of what is done after the preparation."""


def prepare(home: str, ledger: str, workload: str) -> int:
    """What must be there before the work begins; the process then ends as if it had been killed."""
    return asyncio.run(_WORKLOADS[workload][0](Writer(home, Ledger(ledger), random.Random(1), FIRST_NUMBER)))


def work(home: str, ledger: str, workload: str, number: int, arm: dict[str, Any], sabotage: str = "") -> str:
    """Do the work, with the shim armed; returns the code of the error it ended with, or nothing."""
    apply(sabotage)
    shim.arm(**arm)
    writer = Writer(home, Ledger(ledger), random.Random(2), number)
    asyncio.run(_WORKLOADS[workload][1](writer))
    return writer.failure.code if writer.failure else ""


async def _nothing(writer: Writer) -> int:
    return FIRST_NUMBER


async def _groups(writer: Writer) -> int:
    """The first start of a home, and groups of events with contents in the batch and before it."""
    await writer.session(events=range(30, 31), appenders=3)
    return next(writer.numbers)


async def _killed_groups(writer: Writer) -> int:
    """Groups by a process that never closed its log: the next open has a write-ahead log to recover."""

    async def killed() -> None:
        await writer.session(events=range(40, 41), appenders=3, before_close=lambda: os._exit(0))

    await killed()
    return 0


async def _prune(writer: Writer) -> int:
    """A prune between events."""
    await writer.session(events=range(6, 7), appenders=2, prunes=True)
    await writer.session(events=range(4, 5), appenders=1, prunes=True)
    return 0


async def _reopen(writer: Writer) -> int:
    """Recovery, an event, an orderly close, and once more."""
    for _ in range(2):
        await writer.session(events=range(1, 2), appenders=1)
    return 0


async def _erase(writer: Writer) -> int:
    """An erasure of the oldest trajectory while others append."""
    await writer.session(events=range(6, 7), appenders=2, erases=True)
    return 0


Work = Callable[[Writer], Any]
_WORKLOADS: dict[str, tuple[Work, Work]] = {
    "groups": (_nothing, _groups),
    "prune": (_groups, _prune),
    "reopen": (_killed_groups, _reopen),
    "erase": (_killed_groups, _erase),
}
WORKLOADS = tuple(_WORKLOADS)
