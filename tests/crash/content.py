"""The event with a number: the writer makes it, and the checker, which knows only the number, makes it again."""

from __future__ import annotations

import random

from stratalog.hot import HotLog
from stratalog.schemas.blobs import Blob
from stratalog.schemas.codec import Event
from stratalog.schemas.events import TaskStarted, ToolResult

INLINE_BYTES_MAX = 2048
LARGE_BYTES = (1 << 20) + 4096
LARGE_EVERY = 101
"""One event in so many has a content that is placed in pieces before it."""


def text_of(number: int) -> str:
    """The text of an event: mostly short, sometimes so long that it goes out of line."""
    source = random.Random(number)
    if number % LARGE_EVERY == LARGE_EVERY - 1:
        return source.randbytes(1024).hex() * (LARGE_BYTES // 2048)
    size = source.choice([1100, 2100, 5000]) if number % 7 == 0 else source.choice([0, 10, 100, 400])
    return source.randbytes(size).hex()


def body_of(number: int) -> ToolResult:
    """The event with a number."""
    return ToolResult(tool_call_id=str(number), output=text_of(number))


def start_of(number: int) -> TaskStarted:
    """The event with a number where it starts a trajectory."""
    return TaskStarted(task=str(number))


def number_of(event: Event) -> int | None:
    """The number of an event, `None` where nobody has written such a one."""
    body = event.body
    text = body.tool_call_id if isinstance(body, ToolResult) else body.task if isinstance(body, TaskStarted) else ""
    return int(text) if isinstance(text, str) and text.isdecimal() else None


def differs(log: HotLog, lsn: int, event: Event, number: int) -> bool:
    """Whether a stored event is not the one with this number, to the last byte of its content."""
    if isinstance(event.body, TaskStarted):
        return event.body != start_of(number)
    assert isinstance(event.body, ToolResult)
    output = event.body.output
    if isinstance(output, Blob):
        output = log.blob(lsn, output.ref.sha256).decode()
    return output != text_of(number)
