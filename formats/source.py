"""What every reader yields: trajectories that begin, their events in file order, and what was wrong with the file.

The stream is a pure function of the file's bytes and name: no clock, no file times. Several trajectories may come out
of one file (inline sub-agents, embedded documents); `key` tells them apart. A reader never raises for what a file
contains; it raises `OSError` where the file cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from stratalog.schemas.events import Body, TaskStarted

if TYPE_CHECKING:
    from .head import Head


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory begins; always its first item, and `body` its event 0."""

    key: str
    started_at: int | None
    """µs since 1970, or `None` for a source without any time."""
    run_id: str
    agent_id: str
    first_record: bytes
    """SHA-256 of the bytes of the first native record."""
    body: TaskStarted
    parent_key: str = ""
    """The trajectory of the same file that this one is a sub-agent of."""


class Entry(msgspec.Struct, frozen=True):
    """The next event of the trajectory `key`; without a time it happened when the event before it did."""

    key: str
    body: Body
    created_at: int | None = None


class Problem(msgspec.Struct, frozen=True):
    """Something that could not be read; `line` counts from 1 where the format has lines."""

    line: int | None
    reason: str


class Cut(msgspec.Struct, frozen=True):
    """The file ends here, at this many bytes, in the middle of something: what follows would be other if it went on.

    The last items come after it. An import that stores the cut, and gives it to `read` when the file has grown, gets
    the same items again and then the growth.
    """

    offset: int


Item = Begin | Entry | Problem | Cut


class Reader(Protocol):
    """One foreign format."""

    name: str

    def sniff(self, head: Head) -> bool:
        """Whether the file is of this format, judged by what it contains."""
        ...

    def read(self, path: Path, cuts: Sequence[int] = ()) -> Iterator[Item]:
        """The items of the file, in file order; at each of `cuts` (ascending) as if the file had ended there."""
        ...
