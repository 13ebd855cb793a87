"""The events of the cold tier with their hashes, computed from the columns of the Parquet files alone.

`SegmentCheck` in the cold tier judges whole segments; a leaf may name an event in the middle of one. Here every event's
hash is computed again from the hash before it, and a segment that does not end with its last hash is `Corrupt`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from stratalog.cold.columns import Row, body_of
from stratalog.cold.lake import Lake
from stratalog.cold.readback import read_rows
from stratalog.cold.segments import header_of
from stratalog.schemas.arrow import INDEX
from stratalog.schemas.chain import Link
from stratalog.schemas.envelope import Envelope, Header, digest_body, hash_header
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.ids import from_us, uuid7_time_us

_ID, _SEQUENCE, _ERASED = INDEX["trajectory_id"], INDEX["sequence_number"], INDEX["erased"]
_DIGEST, _SECRET = INDEX["body_digest"], INDEX["segment_secret"]
_LAST, _LAST_HASH, _PREVIOUS = (
    INDEX["segment_last_sequence"],
    INDEX["segment_last_hash"],
    INDEX["segment_previous_hash"],
)


class _Segment(msgspec.Struct):
    trajectory_id: bytes
    secret: bytes | None
    last: Link
    at: Link


def cold_events(lake: Lake, urls: Iterable[str], trajectory_id: uuid.UUID | None = None) -> Iterator[Envelope]:
    """Every event of these files, or of one trajectory in them; LSNs are 0, each carries the secret of its segment.

    A segment may go on in the next file, so the files of one run must follow each other. Raises `Corrupt` where a file
    or a segment is not what was written.
    """
    wanted = None if trajectory_id is None else trajectory_id.bytes
    segment: _Segment | None = None
    for url in urls:
        for row in read_rows(lake, url):
            if wanted is not None and row[_ID] != wanted:
                continue
            if row[_LAST] is not None:
                _check_end(segment)
                segment = _start(row)
            elif segment is None or segment.trajectory_id != row[_ID]:
                raise Corrupt(f"{url}: an event of {uuid.UUID(bytes=row[_ID])} without the start of its segment")
            yield _follow(segment, row)
    _check_end(segment)


def files_of(urls: Iterable[str], tenant: str, trajectory_id: uuid.UUID | None = None) -> list[str]:
    """Those of the table's files that may hold events of a tenant, or of one trajectory, which has its start day."""
    folder = f"/tenant={tenant}/"
    if trajectory_id is not None:
        folder += f"date={from_us(uuid7_time_us(trajectory_id)).date().isoformat()}/"
    return [url for url in urls if folder in url]


def runs_of(urls: Iterable[str]) -> Iterator[list[str]]:
    """The files in groups of the same folder and run, whose rows follow each other."""
    for _, files in groupby(sorted(urls), lambda url: url.rsplit("-", 2)[0]):
        yield list(files)


def _start(row: Row) -> _Segment:
    last, first = Link(row[_LAST], row[_LAST_HASH]), Link(row[_SEQUENCE] - 1, row[_PREVIOUS])
    return _Segment(row[_ID], row[_SECRET], last, first)


def _follow(segment: _Segment, row: Row) -> Envelope:
    id_ = uuid.UUID(bytes=row[_ID])
    if row[_SEQUENCE] != segment.at.sequence_number + 1:
        raise Corrupt(f"trajectory {id_}: event {segment.at.sequence_number + 1} is missing in the cold tier")
    body = body_of(row)
    if row[_ERASED]:
        digest = row[_DIGEST]
    elif segment.secret is None:
        raise Corrupt(f"trajectory {id_}: event {row[_SEQUENCE]} has a body in the cold tier, but the secret is gone")
    else:
        digest = digest_body(segment.secret, row[_SEQUENCE], body)
    if digest is None:
        raise Corrupt(f"trajectory {id_}: event {row[_SEQUENCE]} is erased but has no digest in the cold tier")
    header: Header = header_of(row, id_, segment.at.hash, digest)
    segment.at = Link(header.sequence_number, hash_header(header.encode()))
    return Envelope(0, 0, header, body, segment.at.hash, bool(row[_ERASED]), segment.secret)


def _check_end(segment: _Segment | None) -> None:
    if segment is not None and segment.at != segment.last:
        raise Corrupt(
            f"trajectory {uuid.UUID(bytes=segment.trajectory_id)}: its segment in the cold tier up to event "
            f"{segment.last.sequence_number} does not end with its last hash"
        )
