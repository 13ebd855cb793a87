"""The events of the cold tier as envelopes, with their exact bodies and their hashes, from the Parquet files alone.

`SegmentCheck` judges whole segments; here every event's hash is computed again from the hash before it, and a segment
that does not end with its last hash is `Corrupt`. What belongs to an erased trajectory is given as an erased event,
also where the files still have its body.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby, pairwise
from operator import attrgetter

import msgspec

from stratalog.schemas.chain import Link
from stratalog.schemas.envelope import Envelope, Header
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.ids import from_us, uuid7_time_us
from stratalog.warm import erasure_ledger
from stratalog.warm.database import Connection

from .installation import Installation
from .lake import Lake
from .pins import pinned_snapshot
from .readback import read_events
from .segments import digest_of, hash_of
from .stored import Start, Stored

NOTHING: frozenset[uuid.UUID] = frozenset()


class ColdFiles(msgspec.Struct, frozen=True):
    """The lake, and the URLs of the files that the table consists of now; `erased` trajectories give no bodies."""

    lake: Lake
    urls: list[str]
    erased: frozenset[uuid.UUID] = NOTHING


class _Segment(msgspec.Struct):
    trajectory_id: uuid.UUID
    key: bytes
    last: Link
    at: Link
    secret: bytes | None


@contextmanager
def open_cold(installation: Installation, conn: Connection, reader: str) -> Iterator[ColdFiles]:
    """The files of the current snapshot, which stay until the end of the block (see `pins.py`).

    `reader` says who, for people. Raises what `pinned_snapshot` raises.
    """
    with pinned_snapshot(installation.home, reader) as snapshot, installation.lake() as lake:
        # After the snapshot: what is erased later is in it, and the reader was before.
        erased = frozenset(entry.trajectory_id for entry in erasure_ledger.entries(conn))
        yield ColdFiles(lake, snapshot.files, erased)


def cold_events(
    lake: Lake, urls: Iterable[str], trajectory_id: uuid.UUID | None = None, erased: Container[uuid.UUID] = NOTHING
) -> Iterator[Envelope]:
    """Every event of these files, or of one trajectory in them; LSNs are 0, each carries the secret of its segment.

    A segment may go on in the next file, so the files of one run must follow each other. Raises `Corrupt` where a file
    or a segment is not what was written.
    """
    segment: _Segment | None = None
    for url in urls:
        for event in read_events(lake, url, None if trajectory_id is None else trajectory_id.bytes):
            if event.start is not None:
                _check_end(segment)
                segment = _begin(event, event.start)
            elif segment is None or segment.key != event.trajectory:
                id_ = uuid.UUID(bytes=event.trajectory)
                raise Corrupt(f"{url}: an event of {id_} without the start of its segment")
            yield _follow(segment, event, masked=segment.trajectory_id in erased)
    _check_end(segment)


def events_of(cold: ColdFiles, tenant: str, trajectory_id: uuid.UUID) -> list[Envelope]:
    """All events of one trajectory in their order, whatever runs have brought them; raises `Corrupt` for a gap."""
    urls = files_of(cold.urls, tenant, trajectory_id)
    found = list(cold_events(cold.lake, urls, trajectory_id, cold.erased))
    found.sort(key=attrgetter("header.sequence_number"))  # the names of runs say nothing of their order
    for before, after in pairwise(found):
        if after.header.previous_hash != before.hash:
            raise Corrupt(
                f"trajectory {trajectory_id}: event {after.header.sequence_number} in the cold tier does not follow "
                f"event {before.header.sequence_number}"
            )
    return found


def files_of(urls: Iterable[str], tenant: str | None, trajectory_id: uuid.UUID | None = None) -> list[str]:
    """Those of the table's files that may hold events of a tenant, or of one trajectory, which has its start day."""
    folder = "" if tenant is None else f"/tenant={tenant}/"
    day = "" if trajectory_id is None else f"/date={day_of(trajectory_id)}/"
    return [url for url in urls if folder in url and day in url]


def day_of(trajectory_id: uuid.UUID) -> str:
    """The start day of a trajectory, as it is in the path of its files."""
    return from_us(uuid7_time_us(trajectory_id)).date().isoformat()


def runs_of(urls: Iterable[str]) -> Iterator[list[str]]:
    """The files in groups of the same folder and run, whose rows follow each other."""
    for _, files in groupby(sorted(urls), lambda url: url.rsplit("-", 2)[0]):
        yield list(files)


def _begin(event: Stored, start: Start) -> _Segment:
    id_ = uuid.UUID(bytes=event.trajectory)
    if start.previous_hash is None or start.last_hash is None:
        raise Corrupt(f"trajectory {id_}: the start of a segment in the cold tier lacks its hashes")
    last, at = Link(start.last_sequence, start.last_hash), Link(event.sequence_number - 1, start.previous_hash)
    return _Segment(id_, event.trajectory, last, at, start.secret)


def _follow(segment: _Segment, event: Stored, *, masked: bool) -> Envelope:
    id_, sequence = segment.trajectory_id, event.sequence_number
    if sequence != segment.at.sequence_number + 1:
        raise Corrupt(f"trajectory {id_}: event {segment.at.sequence_number + 1} is missing in the cold tier")
    if isinstance(event.body, Corrupt):
        raise event.body
    try:
        digest = digest_of(event, segment.secret, event.body)
    except Corrupt as error:
        raise Corrupt(f"trajectory {id_}: in the cold tier {error.message}") from error
    header = Header(
        event.tenant,
        id_,
        sequence,
        event.epoch,
        event.created_at,
        event.kind,
        event.schema_version,
        segment.at.hash,
        digest,
    )
    segment.at = Link(sequence, hash_of(event, segment.at.hash, digest))
    envelope = Envelope(0, 0, header, event.body, segment.at.hash, event.erased, segment.secret)
    return without_body(envelope) if masked else envelope


def without_body(envelope: Envelope) -> Envelope:
    """The same event as an erased one."""
    return msgspec.structs.replace(envelope, body=b"", erased=True, secret=None)


def _check_end(segment: _Segment | None) -> None:
    if segment is not None and segment.at != segment.last:
        raise Corrupt(
            f"trajectory {segment.trajectory_id}: its segment in the cold tier up to event "
            f"{segment.last.sequence_number} does not end with its last hash"
        )
