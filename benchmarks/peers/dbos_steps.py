"""DBOS: workflows of steps. DBOS records the outcome of a step; an intent before the effect is a step of its own."""

from __future__ import annotations

import asyncio
import math
import time
from importlib.metadata import version
from urllib.parse import urlencode

from dbos import DBOS, DBOSConfig
from harness.driven import Driven
from psycopg.conninfo import conninfo_to_dict
from request import WARM_UP_S, Request, answer, read_request

CONNECTIONS_MAX = 32


async def drive(request: Request, seconds: float, driven: Driven) -> None:
    """A workflow for each trajectory; only what ends between the start of the last one and the end is counted."""
    counting = asyncio.Event()
    end = math.inf

    @DBOS.step(name="intent")
    async def intend() -> str:
        return request.intent

    @DBOS.step(name="result")
    async def act() -> str:
        return request.result

    @DBOS.workflow(name=f"trajectory-{seconds}")
    async def trajectory() -> None:
        before = time.perf_counter()
        while before < end:
            await intend()
            await act()
            after = time.perf_counter()
            if counting.is_set() and after < end:
                driven.latencies.append(after - before)
            before = after

    handles = [await DBOS.start_workflow_async(trajectory) for _ in range(request.appenders)]
    end = time.perf_counter() + seconds
    counting.set()
    await asyncio.gather(*(handle.get_result() for handle in handles))
    driven.elapsed += seconds


def url(conninfo: str) -> str:
    """A libpq conninfo of a unix socket as the URL that DBOS takes."""
    parts = conninfo_to_dict(conninfo)
    query = urlencode({"host": parts["host"], "port": parts["port"]})
    return f"postgresql://{parts['user']}@/{parts['dbname']}?{query}"


async def main() -> None:
    """Measure."""
    request = read_request()
    config: DBOSConfig = {
        "name": "stratalog-bench",
        "system_database_url": url(request.dsn),
        "sys_db_pool_size": min(request.appenders + 4, CONNECTIONS_MAX),
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()
    try:
        await drive(request, WARM_UP_S, Driven())
        driven = Driven()
        await drive(request, request.seconds, driven)
    finally:
        DBOS.destroy()
    answer(driven, version=version("dbos"))


if __name__ == "__main__":
    asyncio.run(main())
