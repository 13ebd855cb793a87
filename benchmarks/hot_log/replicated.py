"""The barrier `replicated`: an append that waits until Postgres has the event too."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from harness.driven import Driven

from stratalog.hot import HotLog

from . import bodies

WARM_UP_TIMEOUT_S = 120.0
WARNING = (
    "Postgres, the sidecar and the log shared one host and one disk in this run: the barrier `replicated` then costs "
    "what it costs, but does not survive the loss of the host. For that, Postgres must run on another one."
)


def append_replicated(home: str, appenders: int, seconds: float) -> dict[str, Any]:
    """Coroutines in a closed loop, with the barrier and without it."""

    async def work() -> dict[str, Any]:
        replicated, local = Driven(), Driven()
        body = bodies.result()
        async with HotLog.open(home) as log:
            ids = await bodies.start(log, appenders)
            await log.append(ids[0], body, barrier="replicated", timeout_s=WARM_UP_TIMEOUT_S)
            await local.drive([partial(log.append, trajectory_id, body) for trajectory_id in ids], seconds / 2)
            await log.append(ids[0], body, barrier="replicated", timeout_s=WARM_UP_TIMEOUT_S)
            calls = [partial(log.append, trajectory_id, body, barrier="replicated") for trajectory_id in ids]
            await replicated.drive(calls, seconds)
        return {"replicated": replicated.result(), "local": local.result()}

    return asyncio.run(work())
