"""The lines of a file, one at a time: memory is that of the longest line, whatever the file's size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Line(msgspec.Struct, frozen=True):
    """A line with its end; `number` counts from 1, `start` is its offset in the file."""

    number: int
    start: int
    whole: bytes

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.start + len(self.whole)

    @property
    def ended(self) -> bool:
        """Whether it has a line feed, which a last line may lack."""
        return self.whole.endswith(b"\n")

    def content(self, start: int = 0, stop: int | None = None) -> bytes:
        """A part of the line without blank space around it and without a byte order mark."""
        part = self.whole if start == 0 and stop is None else self.whole[start:stop]
        if self.start + start == 0:
            part = part.removeprefix(BYTE_ORDER_MARK)
        return part.strip(b" \t\r\n")


def lines(path: Path) -> Iterator[Line]:
    """All lines, blank ones too."""
    start = 0
    with path.open("rb") as stream:
        for number, whole in enumerate(stream, 1):
            yield Line(number, start, whole)
            start += len(whole)
