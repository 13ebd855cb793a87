"""Reads published Parquet files back from storage and checks them from their bytes alone.

The whole file must have the digest that is in its name, and every page its checksum, also where no chain would show a
change; what the rows say is then checked by `SegmentCheck`. A file that
cannot be read is a problem of that file, never a reason to stop. Memory is bounded by one batch of rows.
"""

from __future__ import annotations

import errno
import hashlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.schemas.arrow import INDEX
from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.schemas.protocols import ContentStore

from .columns import Row
from .lake import Lake
from .rows import PLAIN, column, rows_of
from .segments import Found, Problem, SegmentCheck
from .storage import translated
from .stored import Stored, stored_in

T = TypeVar("T")
BATCH_ROWS = 8_192
"""A row group bounds them in bytes."""
BLOCK_BYTES = 1 << 20
DIGEST_IN_NAME = re.compile(r"-([0-9a-f]{16})\.parquet$")
BLOBS_REMEMBERED_MAX = 50_000
"""Digests that are not checked twice; beyond that the memory starts again."""


def read_rows(lake: Lake, url: str) -> Iterator[Row]:
    """The rows of one file, in order; raises `Corrupt` for bytes that are not what was written."""
    return _read(lake, url, rows_of)


def read_events(lake: Lake, url: str, trajectory: bytes | None = None) -> Iterator[Stored]:
    """The events of one file, in order; raises `Corrupt` for bytes that are not what was written.

    Of one trajectory (the 16 bytes of its id) only the row groups that may have it are read; then nothing is said of
    the rest of the file.
    """
    if trajectory is None:
        return _read(lake, url, stored_in)
    return _read_some(lake, url, trajectory)


def _read_some(lake: Lake, url: str, trajectory: bytes) -> Iterator[Stored]:
    try:
        with translated("read", url), lake.open(url) as stream:
            for batch in _batches_in(stream, trajectory):
                wanted = pc.equal(column(batch, "trajectory_id"), pa.scalar(trajectory, PLAIN["trajectory_id"]))
                yield from stored_in(batch.filter(wanted))
    except NotFound as error:
        raise Corrupt("the file is gone") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise Corrupt(f"the file cannot be read: {error}") from error


def _read(lake: Lake, url: str, convert: Callable[[pa.RecordBatch], Iterable[T]]) -> Iterator[T]:
    try:
        with translated("read", url), _whole(lake, lake.path_of(url)) as stream:
            for batch in _batches_in(stream):
                yield from convert(batch)
    except NotFound as error:
        raise Corrupt("the file is gone") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise Corrupt(f"the file cannot be read: {error}") from error


@contextmanager
def _whole(lake: Lake, path: str) -> Iterator[BinaryIO]:
    """A file that has been read once from end to end and has the digest that is in its name.

    What lies in an object store is fetched to scratch, so that it is transferred once.
    """
    digest = hashlib.sha256()
    with lake.open(path) as stream, _copy_for(lake) as copy:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
            if copy is not None:
                copy.write(block)
        named = DIGEST_IN_NAME.search(path)
        if named is not None and not digest.hexdigest().startswith(named[1]):
            raise Corrupt("the file is not the one that its name says")
        source = stream if copy is None else copy
        source.seek(0)
        yield source


@contextmanager
def _copy_for(lake: Lake) -> Iterator[BinaryIO | None]:
    if lake.is_local:
        yield None
        return
    with tempfile.TemporaryFile(dir=lake.scratch()) as copy:
        yield copy


def _batches_in(stream: BinaryIO, trajectory: bytes | None = None) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(stream, page_checksum_verification=True) as file:
            groups = list(range(file.num_row_groups))
            if trajectory is not None:
                groups = [group for group in groups if _may_hold(file.metadata.row_group(group), trajectory)]
            yield from file.iter_batches(BATCH_ROWS, groups, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        # Arrow reports a wrong checksum as an OSError without a number; others come from the storage.
        if isinstance(error, OSError) and error.errno not in (None, errno.EIO):
            raise
        raise Corrupt(f"the file cannot be read: {error}") from error


def _may_hold(group: pq.RowGroupMetaData, trajectory: bytes) -> bool:
    """Whether a row group may have a trajectory, as far as its statistics tell."""
    known = group.column(INDEX["trajectory_id"]).statistics
    return known is None or not known.has_min_max or bool(known.min <= trajectory <= known.max)


def begins_segment(lake: Lake, url: str) -> bool:
    """Whether the first row of a file begins a segment; not if that cannot be told."""
    try:
        with lake.open(url) as stream, pq.ParquetFile(stream) as file:
            first = file.read_row_group(0, columns=["segment_last_sequence"]).column(0)
            return bool(first[0].is_valid)
    except (NotFound, pa.ArrowException, OSError, IndexError):
        return False  # what is wrong with it is found when it is read


class BlobCheck:
    """Checks that content is there and has its digest; the same content is looked at once."""

    def __init__(self, store: ContentStore) -> None:
        self.checked = 0
        self._store = store
        self._known: dict[tuple[str, str], str | None] = {}

    def __call__(self, tenant: str, sha256: str) -> str | None:
        """What is wrong with this content, or `None`."""
        key = (tenant, sha256)
        if key not in self._known:
            if len(self._known) >= BLOBS_REMEMBERED_MAX:
                self._known.clear()
            self._known[key] = self._look(tenant, sha256)
            self.checked += 1
        return self._known[key]

    def _look(self, tenant: str, sha256: str) -> str | None:
        try:
            self._store.get(tenant, sha256)
        except NotFound:
            return f"content {sha256} is missing"
        except Corrupt as error:
            return f"content {sha256} is damaged: {error.message}"
        return None


def check_files(lake: Lake, urls: Iterable[str], content_problem: Callable[[str, str], str | None]) -> Iterator[Found]:
    """Check files whose rows follow each other; yields each whole segment, and each problem."""
    check = SegmentCheck(content_problem)
    url = ""
    for url in urls:
        try:
            for event in read_events(lake, url):
                found = check.feed(event, url)
                if found:
                    yield from found
        except Corrupt as error:
            yield from check.end(url)
            yield Problem(url, None, error.message)
    yield from check.end(url)
