"""Streams rows into Parquet files of bounded size; memory is bounded by one row group, whatever comes.

Files are written to the lake's scratch folder and published whole, under a name that carries their SHA-256; so nobody
ever sees half a file, and writing the same rows again makes the same files. A crash leaves scratch files, or published
files that no snapshot names; the next attempt of the run removes those of its folders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.schemas.arrow import COLUMNS, EVENTS, INDEX
from stratalog.schemas.settings import ColdSettings

from .columns import Row
from .lake import Lake
from .rows import batch_of
from .spread import NewEvent

ROW_OVERHEAD_BYTES = 256
"""What a row is taken to need besides its body."""
CUT_FROM = 0.75
"""From this share of its limit on a file ends where a segment does: what is rewritten later then shares no segment with
its neighbours, which would have to be rewritten, too."""
BLOOM_DISTINCT = 2_000
"""Trajectories that a row group's bloom filter is laid out for; fewer make it smaller."""

_STARTS = INDEX["segment_last_sequence"]
FILE_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": [column.name for column in COLUMNS if column.dictionary],
    "write_statistics": [column.name for column in COLUMNS if column.statistics],
    "column_encoding": dict.fromkeys(("sequence_number", "created_at", "turn", "epoch"), "DELTA_BINARY_PACKED"),
    "write_page_index": True,
    "write_page_checksum": True,
    "bloom_filter_options": {"trajectory_id": {"ndv": BLOOM_DISTINCT, "fpp": 0.01}},
    "sorting_columns": [pq.SortingColumn(INDEX["trajectory_id"]), pq.SortingColumn(INDEX["sequence_number"])],
    # The Arrow schema in base64 would be repeated in every footer; the Parquet types say it all.
    "store_schema": False,
}


class File(msgspec.Struct, frozen=True):
    """A published file: its absolute URL, rows, bytes and SHA-256 (hex)."""

    url: str
    rows: int
    bytes: int
    sha256: str


class EventsWriter:
    """Writes rows, sorted by (trajectory id, sequence number), to files named `<run_id>-<n>-<sha256>` in one folder.

    `finish` publishes the last file and returns all of them, in the order of their rows. Leaving the context without it
    removes what is still unpublished. The numbers begin with `first`; `to_batch` makes a row group of what was added.
    """

    def __init__(
        self,
        lake: Lake,
        folder: str,
        run_id: str,
        settings: ColdSettings,
        *,
        first: int = 0,
        to_batch: Callable[[Sequence[Any]], pa.RecordBatch] = batch_of,
    ) -> None:
        self.files: list[File] = []
        self._first = first
        self._lake = lake
        self._folder = folder
        self._run_id = run_id
        self._settings = settings
        self._rows: list[Row | NewEvent] = []
        self._to_batch = to_batch
        self._pending_bytes = 0
        self._open: _OpenFile | None = None

    def __enter__(self) -> EventsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows = []
        if self._open is not None:
            self._open.abandon()
            self._open = None

    def add(self, row: Row | NewEvent, body_bytes: int) -> None:
        """Take the next row; `body_bytes` is the length of its body."""
        if self._nearly_full() and _starts(row):
            if self._rows:
                self._write_group()
            self._publish()
        size = body_bytes + ROW_OVERHEAD_BYTES
        full = len(self._rows) >= self._settings.row_group_rows
        if full or (self._rows and self._pending_bytes + size > self._settings.row_group_bytes_max):
            self._write_group()
        self._rows.append(row)
        self._pending_bytes += size

    def finish(self) -> list[File]:
        """Publish what is left; returns all files."""
        if self._rows:
            self._write_group()
        self._publish()
        return self.files

    def _nearly_full(self) -> bool:
        return self._open is not None and self._open.position() >= CUT_FROM * self._settings.file_bytes_max

    @property
    def _number(self) -> int:
        return self._first + len(self.files)

    def _write_group(self) -> None:
        # The group's uncompressed size is an upper bound of what it adds, so no file exceeds the limit.
        if self._open is not None and self._open.position() + self._pending_bytes > self._settings.file_bytes_max:
            self._publish()
        if self._open is None:
            scratch = self._lake.scratch() / f"{self._run_id}-{self._number:05d}.parquet.tmp"
            self._open = _OpenFile(scratch, self._settings.zstd_level)
        self._open.write(self._to_batch(self._rows))
        self._rows = []
        self._pending_bytes = 0

    def _publish(self) -> None:
        if self._open is None:
            return
        opened, self._open = self._open, None
        try:
            opened.close()
            digest, size = opened.digest()
            name = f"{self._run_id}-{self._number:05d}-{digest[:16]}.parquet"
            url = self._lake.publish(opened.path, f"{self._folder}/{name}")
        except BaseException:
            opened.abandon()
            raise
        self.files.append(File(url, opened.rows, size, digest))


def _starts(row: Row | NewEvent) -> bool:
    return (row.start if isinstance(row, NewEvent) else row[_STARTS]) is not None


class _OpenFile:
    """One Parquet file that is being written to scratch."""

    def __init__(self, path: Path, zstd_level: int) -> None:
        self.path = path
        self.rows = 0
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pq.ParquetWriter(self._sink, EVENTS, compression_level=zstd_level, **FILE_OPTIONS)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write one row group."""
        self._writer.write_batch(batch, row_group_size=batch.num_rows)
        self.rows += batch.num_rows

    def position(self) -> int:
        """Bytes written so far."""
        position: int = self._sink.tell()
        return position

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()
        self._sink.close()

    def digest(self) -> tuple[str, int]:
        """SHA-256 (hex) and size of the closed file."""
        with self.path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest(), self.path.stat().st_size

    def abandon(self) -> None:
        """Remove the unpublished file."""
        self._sink.close()
        self.path.unlink(missing_ok=True)
