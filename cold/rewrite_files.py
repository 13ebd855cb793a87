"""Which data files a rewrite has to take together, and which hold the events of given trajectories.

A segment may go over from one file of a run to the next, and verifying reads the files of a run one after the other. So
a rewrite takes whole stretches of a run, cut where a segment starts. Files that hold a trajectory are found by the
bounds of their row groups, then exactly, by reading the ids of those row groups that may have one.
"""

from __future__ import annotations

import bisect
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.schemas.arrow import INDEX
from stratalog.schemas.errors import Conflict, Corrupt, NotFound

from .catalog import RunFile
from .lake import Lake
from .storage import translated

_ID = INDEX["trajectory_id"]


class Unit(msgspec.Struct, frozen=True):
    """Files of one run in one folder that hold whole segments, in the order of their rows."""

    folder: str
    """The path of the folder in the lake."""
    files: tuple[RunFile, ...]


def closed_units(lake: Lake, table: Sequence[RunFile], wanted: Collection[str]) -> list[Unit]:
    """The units that the files `wanted` (URLs) belong to; `table` are all files of the snapshot, by URL.

    Raises `Conflict` where the table has not all of them, `Corrupt` where a file next to one cannot be read.
    """
    missing = set(wanted) - {file.url for file in table}
    if missing:
        raise Conflict(f"the table does not have {min(missing)}", hint="it has changed meanwhile: run it again")
    runs: dict[tuple[str, str], list[RunFile]] = {}
    for file in sorted(table, key=lambda file: file.url):
        runs.setdefault(_run_of(file.url), []).append(file)
    units = []
    for (folder, _), files in runs.items():
        places = [place for place, file in enumerate(files) if file.url in set(wanted)]
        for stretch in _stretches(lake, files, places):
            units.append(Unit(lake.path_of(folder), tuple(files[place] for place in stretch)))
    return units


def _run_of(url: str) -> tuple[str, str]:
    folder, _, name = url.rpartition("/")
    return folder, name.rsplit("-", 2)[0]


def _stretches(lake: Lake, files: Sequence[RunFile], places: Sequence[int]) -> Iterator[range]:
    end = 0
    for place in places:
        if place < end:
            continue  # the one before has it
        start = place
        while start > end and not _starts_segment(lake, files[start].url):
            start -= 1
        end = place + 1
        while end < len(files) and not _starts_segment(lake, files[end].url):
            end += 1
        yield range(start, end)


def _starts_segment(lake: Lake, url: str) -> bool:
    with _parquet(lake, url) as file:
        first = next(file.iter_batches(1, row_groups=[0], columns=["segment_last_sequence"], use_threads=False), None)
        return first is None or bool(first.column(0).is_valid()[0].as_py())


def files_holding(lake: Lake, urls: Collection[str], trajectory_ids: Collection[uuid.UUID]) -> dict[str, int]:
    """Those of the files that hold events of the trajectories, with how many rows; exact, whatever bounds there are.

    Raises `Corrupt` for a file that cannot be read: it may hold some.
    """
    wanted = sorted(id_.bytes for id_ in trajectory_ids)
    found = {}
    for url in urls:
        with _parquet(lake, url) as file:
            rows = sum(len(places) for _, places in places_of(file, wanted))
        if rows:
            found[url] = rows
    return found


def places_of(file: pq.ParquetFile, wanted: Sequence[bytes]) -> Iterator[tuple[int, list[int]]]:
    """The row groups that have rows of the trajectories `wanted` (ids, sorted), and the places of these rows there."""
    known = set(wanted)
    for group in range(file.num_row_groups):
        statistics = file.metadata.row_group(group).column(_ID).statistics
        if statistics is not None and statistics.has_min_max:
            low, high = _bytes(statistics.min), _bytes(statistics.max)
            if bisect.bisect_left(wanted, low) == bisect.bisect_right(wanted, high):
                continue
        column = file.read_row_group(group, columns=["trajectory_id"], use_threads=False).column(0)
        ids = (id_ for chunk in column.chunks for id_ in _storage(chunk).to_pylist())
        places = [place for place, id_ in enumerate(ids) if id_ in known]
        if places:
            yield group, places


def _bytes(value: Any) -> bytes:
    return value.bytes if isinstance(value, uuid.UUID) else bytes(value)


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array


@contextmanager
def open_parquet(stream: BinaryIO, where: str) -> Iterator[pq.ParquetFile]:
    """An open Parquet file; raises `Corrupt` where it cannot be read."""
    try:
        with translated("read", where), pq.ParquetFile(stream, page_checksum_verification=True) as file:
            yield file
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise Corrupt(f"{where} cannot be read: {error}", hint="nothing was changed; see: stratalog verify") from error


@contextmanager
def _parquet(lake: Lake, url: str) -> Iterator[pq.ParquetFile]:
    try:
        with lake.open(url) as stream, open_parquet(stream, url) as file:
            yield file
    except NotFound as error:
        raise Corrupt(f"{url} is gone", hint="nothing was changed; see: stratalog verify") from error
