"""LangGraph's Postgres checkpointer with one for each trajectory, so that nothing is serialised: its best case."""

from __future__ import annotations

import asyncio

from langgraph_steps import measure

if __name__ == "__main__":
    asyncio.run(measure(checkpointers=None))
