"""The events that are appended."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec

from stratalog.hot import HotLog
from stratalog.schemas.blobs import references
from stratalog.schemas.envelope import Envelope, encode_record
from stratalog.schemas.events import TaskFinished, ToolIntent, ToolResult

LINE = "src/jobs/retry.py::test_flush_batch[17] PASSED\n"
ARGUMENTS = msgspec.Raw(msgspec.json.encode({"command": ["pytest", "-q", "tests/jobs"], "timeout_s": 120}))
SIZES = {"1 KB": 1024, "4 KB": 4096, "100 KB": 100 * 1024}
"""Bytes of an event as stored; the last one has its output out of line, as a blob."""
HEADER_BYTES = 240
"""About what an event takes beside its output."""


def result(size: str = "1 KB") -> ToolResult:
    """A tool's result that takes about this much."""
    wanted = SIZES[size] - HEADER_BYTES
    output = (LINE * (wanted // len(LINE) + 1))[: wanted - wanted // len(LINE)]  # a line end takes two bytes in JSON
    return ToolResult(tool_call_id="c1", tool="run_command", output=output, duration_ms=12.5, exit_code=0)


def intent() -> ToolIntent:
    """A tool's intent."""
    return ToolIntent(tool_call_id="c1", tool="run_command", arguments=ARGUMENTS, idempotency_key="k" * 32)


def finished() -> TaskFinished:
    """The end of a trajectory."""
    return TaskFinished(status="completed", result="done")


async def start(log: HotLog, count: int) -> Sequence[uuid.UUID]:
    """So many new trajectories."""
    return [await log.start(tenant="default", task="bench") for _ in range(count)]


def stored_bytes(log: HotLog, trajectory_id: uuid.UUID, sequence_number: int) -> int:
    """Bytes of an event in the log: its record and the content it refers to."""
    envelope = next(iter(log.envelopes(trajectory_id, sequence_number)))
    return record_bytes(envelope) + sum(ref.size for ref in references(envelope.body))


def record_bytes(envelope: Envelope) -> int:
    """Bytes of an event's record."""
    return len(encode_record(1, envelope.header.encode(), envelope.body))
