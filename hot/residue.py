"""Searching files for bytes that must not be there any more.

Files are read in blocks of some MB that overlap by the longest needle, so nothing hides at a border, and memory stays
bounded. What cannot be read raises; a file that goes away meanwhile is passed over, as is a socket.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from stratalog.schemas.errors import Invalid

from .faults import translating

BLOCK_BYTES = 8 << 20


class Found(msgspec.Struct, frozen=True):
    """A needle, by its index, at an offset of a file."""

    path: Path
    offset: int
    needle_index: int


def search_files(folder: Path, needles: Sequence[bytes]) -> Iterator[Found]:
    """Every place where one of `needles` lies in the files at or below `folder`, links not followed; file by file.

    Raises `Invalid` for an empty needle, `InDoubt` where a file cannot be read.
    """
    if not all(needles):
        raise Invalid("an empty needle is everywhere", hint="search for some bytes")
    for path in _files(folder):
        yield from search_file(path, needles)


def search_file(path: Path, needles: Sequence[bytes], block_bytes: int = BLOCK_BYTES) -> Iterator[Found]:
    """Every place where one of `needles` lies in a file; nothing where it has gone."""
    overlap = max((len(needle) for needle in needles), default=1) - 1
    with translating(f"searching {path}"):
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError:
            return
        with file:
            buffer = bytearray(block_bytes + overlap)
            start = kept = 0
            while read := file.readinto(memoryview(buffer)[kept:]):
                end = kept + read
                yield from (
                    Found(path, start + place, index)
                    for index, needle in enumerate(needles)
                    for place in _places(buffer, needle, end, max(0, kept - len(needle) + 1))
                )
                keep = min(overlap, end)
                buffer[:keep] = buffer[end - keep : end]
                start, kept = start + end - keep, keep


def _places(buffer: bytearray, needle: bytes, end: int, after: int) -> Iterator[int]:
    """Where a needle begins, from `after` on: what ends before was seen in the block before."""
    place = buffer.find(needle, after, end)
    while place >= 0:
        yield place
        place = buffer.find(needle, place + 1, end)


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_file() and not folder.is_symlink():
        yield folder
        return
    for parent, _, names in os.walk(folder, onerror=_refuse):
        for name in sorted(names):
            path = Path(parent, name)
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue
            if stat.S_ISREG(mode):
                yield path


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
