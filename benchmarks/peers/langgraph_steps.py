"""LangGraph's Postgres checkpointer, called directly: a checkpoint before the effect, its writes after it.

One checkpointer for the application, as its documentation has it; it serialises its calls. The graph engine is left
out, in favour of LangGraph.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from harness.driven import Call, Driven
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from request import WARM_UP_S, Request, answer, read_request

CONNECTIONS_MAX = 32


def stepping(saver: AsyncPostgresSaver, thread_id: str, request: Request) -> Call:
    """The steps of one trajectory."""
    config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}

    async def step() -> None:
        nonlocal config
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"intent": request.intent}
        config = await saver.aput(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {})
        await saver.aput_writes(config, [("result", request.result)], "task-1")

    return step


async def measure(*, checkpointers: int | None) -> None:
    """Measure with so many checkpointers, by default one for each trajectory, all on one pool of connections."""
    request = read_request()
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    size = min(request.appenders, CONNECTIONS_MAX)
    async with AsyncConnectionPool(request.dsn, min_size=size, max_size=size, kwargs=options, open=False) as pool:
        await AsyncPostgresSaver(pool).setup()
        savers = [AsyncPostgresSaver(pool) for _ in range(checkpointers or request.appenders)]
        calls = [stepping(savers[number % len(savers)], f"t{number}", request) for number in range(request.appenders)]
        await Driven().drive(calls, WARM_UP_S)
        driven = Driven()
        await driven.drive(calls, request.seconds)
    answer(driven, version=version("langgraph-checkpoint-postgres"), connections=size)


if __name__ == "__main__":
    asyncio.run(measure(checkpointers=1))
