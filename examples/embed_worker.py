"""An asyncio worker: twenty agents work at the same time, and all of them append through one log.

Each step of an agent is durable before the next one begins; a tool runs only after its intent is on disk. The appends
of agents that wait at the same time share one sync. At the end one trajectory is read back and folded into its record.

    python examples/embed_worker.py [HOME]     (by default a temporary home)
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import uuid

from stratalog.hot import HotLog
from stratalog.schemas.events import (
    MessageReceived,
    Model,
    ModelReplied,
    Part,
    TaskFinished,
    TaskStarted,
    ToolCall,
    ToolIntent,
    ToolResult,
    raw_json,
)
from stratalog.schemas.record import TrajectoryRecord, fold

AGENTS = 20
TURNS = 5


async def count_words(text: str) -> str:
    """The tool: it takes a moment, as the world does."""
    await asyncio.sleep(0.001)
    return str(len(text.split()))


async def run_agent(log: HotLog, number: int) -> uuid.UUID:
    """One trajectory from its task to its end; returns its id."""
    task = TaskStarted(task=f"count words, agent {number}", agent="counter", model=Model(name="scripted-1"))
    trajectory = await log.start(tenant="default", body=task)
    await log.append(trajectory, MessageReceived(role="user", parts=(Part(text="Count the words of five lines."),)))
    for turn in range(TURNS):
        await run_turn(log, trajectory, f"call-{turn}", "so it goes " * (turn + 1))
    await log.append(trajectory, TaskFinished(status="completed", result="five lines counted"))
    return trajectory


async def run_turn(log: HotLog, trajectory: uuid.UUID, call_id: str, line: str) -> None:
    """A reply, the intent of its tool call, the call, its result."""
    arguments = raw_json({"text": line})
    call = ToolCall(tool_call_id=call_id, tool="count_words", arguments=arguments)
    await log.append(trajectory, ModelReplied(tool_calls=(call,), input_tokens=20, output_tokens=8))
    intent = await log.append(
        trajectory, ToolIntent(tool_call_id=call_id, tool="count_words", arguments=arguments, effect="read")
    )
    output = await count_words(line)  # not one line earlier: now the intent is on disk
    result = ToolResult(tool_call_id=call_id, intent=intent.sequence_number, tool="count_words", output=output)
    await log.append(trajectory, result)


async def work(home: str) -> None:
    """Run the agents, then read the first trajectory back."""
    async with HotLog.open(home) as log:
        trajectories = await asyncio.gather(*(run_agent(log, number) for number in range(AGENTS)))
        print(f"{len(trajectories)} trajectories, {log.durable_lsn} events durable in log {log.log_id}")

        events = list(log.read(trajectories[0]))
        print("the first one:", ", ".join(event.kind for event in events[:5]), "…")
        record = fold(TrajectoryRecord(), events)
    print(f"its record: {record.status}, {record.turn} turns, {record.spent.output_tokens} output tokens")
    print(f"            {len(record.open_intents)} intents open, {record.anomaly_count} anomalies")
    assert record.status == "completed" and record.turn == TURNS and not record.open_intents


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(work(sys.argv[1] if len(sys.argv) > 1 else folder))


if __name__ == "__main__":
    main()
