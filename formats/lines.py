"""The lines of a file, one at a time: memory is that of the longest line, whatever the file's size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Line(msgspec.Struct, frozen=True):
    """A line without its end; `number` counts from 1, `ended` is false for a last line without a line feed."""

    number: int
    raw: bytes
    ended: bool


def lines(path: Path) -> Iterator[Line]:
    """The lines that are not blank; a byte order mark and carriage returns at line ends are no part of them."""
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, 1):
            ended = raw.endswith(b"\n")
            if number == 1:
                raw = raw.removeprefix(BYTE_ORDER_MARK)
            raw = raw.strip(b" \t\r\n")
            if raw:
                yield Line(number, raw, ended)
