"""Tells a torn tail (normal after a power loss) from damage in the middle of RocksDB's write-ahead log.

RocksDB itself cannot: a bad record looks the same to it wherever it lies. The rule: a bad record after which a valid
record with a higher sequence number follows is damage, since appends reach the file in order; otherwise it is a tail
that was being written. The layout of the file is RocksDB's documented log format: blocks of 32 KiB; records with a
masked CRC-32C (4 bytes), length (2), type (1), for recyclable types also the log number (4).
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

import google_crc32c
import msgspec

BLOCK_BYTES = 32 << 10
SECTOR_BYTES = 512
RESYNC_BYTES_MAX = 1 << 20
"""How far behind a bad record every offset is tried; farther on only those where blocks, and so records, begin."""

_RECORD = struct.Struct("<IHB")
_SEQUENCE = struct.Struct("<Q")
_RECYCLABLE = range(5, 9)
_FIRST_OF_BATCH = (1, 2, 5, 6)
_TYPE_MAX = 11
_BATCH_HEADER_BYTES = 12


class WalReport(msgspec.Struct, frozen=True):
    """What a log file holds: `verdict` is clean, torn_tail or damaged; `bad_at` is the first bad offset."""

    verdict: str
    records: int
    bad_at: int | None = None


def scan_wal(path: Path) -> WalReport:
    """Read one log file through; the cost is one CRC per record."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return WalReport("clean", 0)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _scan(view)


def torn_at(path: Path) -> int | None:
    """Where the last record of a file in this format begins, if a sector of it is missing: it was never synced.

    RocksDB writes its manifest in this format, too, and refuses to open where a power loss has torn the last record:
    its sectors reach the disk in any order, and those that do not are zeros. A record that is wrong in another way, or
    that valid ones follow, is damage, and not this.
    """
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            bad_at = _scan(view).bad_at
            if bad_at is None or not _misses_a_sector(view, bad_at) or _valid_after(view, bad_at + 1):
                return None
            return bad_at


def _misses_a_sector(data: mmap.mmap, offset: int) -> bool:
    for start in range(offset - offset % SECTOR_BYTES, len(data), SECTOR_BYTES):
        if not any(data[max(start, offset) : start + SECTOR_BYTES]):
            return True
    return False


def _valid_after(data: mmap.mmap, offset: int) -> bool:
    ends = ((place // BLOCK_BYTES + 1) * BLOCK_BYTES for place in range(offset, len(data)))
    return any(_record_at(data, offset + step, min(end, len(data))) for step, end in enumerate(ends))


def _scan(data: mmap.mmap) -> WalReport:
    end = _end_of_data(data)
    offset = records = 0
    last_sequence = 0
    while offset < end:
        block_end = min((offset // BLOCK_BYTES + 1) * BLOCK_BYTES, len(data))
        if block_end - offset < _RECORD.size:
            offset = block_end
            continue
        record = _record_at(data, offset, block_end)
        if record is None:
            sequence = _sequence_after(data, offset + 1, end)
            damaged = sequence is not None and sequence > last_sequence
            return WalReport("damaged" if damaged else "torn_tail", records, offset)
        length, sequence = record
        if sequence is not None:
            last_sequence = sequence
        records += 1
        offset += length
    return WalReport("clean", records)


def _end_of_data(data: mmap.mmap) -> int:
    """The file may be preallocated: zeros at its end are not data."""
    end = len(data)
    while end > 0:
        start = max(0, end - BLOCK_BYTES)
        block = data[start:end].rstrip(b"\0")
        if block:
            return start + len(block)
        end = start
    return 0


def _record_at(data: mmap.mmap, offset: int, block_end: int) -> tuple[int, int | None] | None:
    """Length and (for the first part of a batch) sequence number of a valid record at `offset`, else `None`."""
    if offset + _RECORD.size > block_end:
        return None
    crc, length, kind = _RECORD.unpack_from(data, offset)
    header = _RECORD.size + (4 if kind in _RECYCLABLE else 0)
    stop = offset + header + length
    if kind == 0 or kind > _TYPE_MAX or stop > block_end:
        return None
    if _mask(google_crc32c.value(data[offset + 6 : stop])) != crc:
        return None
    sequence = None
    if kind in _FIRST_OF_BATCH and length >= _BATCH_HEADER_BYTES:
        (sequence,) = _SEQUENCE.unpack_from(data, offset + header)
    return header + length, sequence


def _sequence_after(data: mmap.mmap, offset: int, end: int) -> int | None:
    """The sequence number of the first valid start of a batch behind a bad record."""
    everywhere = offset + RESYNC_BYTES_MAX
    while offset < end:
        block_end = min((offset // BLOCK_BYTES + 1) * BLOCK_BYTES, len(data))
        record = _record_at(data, offset, block_end)
        if record is None:
            offset = offset + 1 if offset < everywhere else block_end
            continue
        if record[1] is not None:
            return record[1]
        offset += record[0]
    return None


def _mask(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
