"""Writes the planned segments of one folder to Parquet, checking every event on the way.

Each event read from the warm tier must follow the one before, have the hash that warm stored for it, and a body that
its digest covers; each segment must end at the planned hash; all content that it refers to must be in the content
store. A trajectory of which that is not true is damaged: it is named with the reason, and nothing of the folder is
handed on, because its rows are among the others. The caller leaves it out of the plan and writes the folder again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

from stratalog.schemas.blobs import MARKER, references
from stratalog.schemas.envelope import digest_body, hash_event
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.protocols import ContentStore
from stratalog.schemas.settings import ColdSettings
from stratalog.schemas.summary import Summary
from stratalog.warm.copying import Copied
from stratalog.warm.database import Connection

from .columns import INTEGER_MAX, Place
from .lake import Lake
from .plan import Group, Item, Run, items
from .spread import NewEvent, spread
from .warm_events import warm_events
from .writer import EventsWriter, File

DIGESTS_REMEMBERED_MAX = 50_000


class GroupWritten(msgspec.Struct, frozen=True):
    """The files of a folder in the order of their rows; none where `damaged` names trajectories."""

    files: tuple[File, ...]
    damaged: dict[uuid.UUID, str]


def write_group(
    conn: Connection, lake: Lake, store: ContentStore, settings: ColdSettings, run: Run, group: Group
) -> GroupWritten:
    """Write one folder's part of a run; the same plan and events give the same files."""
    damaged: dict[uuid.UUID, str] = {}
    content = _Content(store, group.tenant)
    with EventsWriter(lake, group.folder, str(run.run_id), settings, to_batch=spread) as writer:
        for item, events in _segments(conn, run, group, content):
            try:
                for event in events:
                    if not damaged:
                        writer.add(event, len(event.body))
            except Corrupt as error:
                damaged[item.trajectory_id] = error.message
        files = () if damaged else tuple(writer.finish())
    return GroupWritten(files, damaged)


def _segments(conn: Connection, run: Run, group: Group, content: _Content) -> Iterator[tuple[Item, Iterator[NewEvent]]]:
    """Each item with its checked events; what the consumer leaves of them is skipped."""
    stream = warm_events(conn, items(conn, run, group))
    for item, event in stream:
        rest = _until_end(event, stream)
        yield item, _checked(item, group, rest, content)
        for _ in rest:
            pass


def _until_end(event: Copied | None, stream: Iterator[tuple[Item, Copied | None]]) -> Iterator[Copied]:
    while event is not None:
        yield event
        _, event = next(stream)


def _checked(item: Item, group: Group, events: Iterator[Copied], content: _Content) -> Iterator[NewEvent]:
    place = Place(group.date, group.slug, item.model)
    sequence, previous = item.first_sequence - 1, item.previous_hash
    start: dict[str, Any] | None = None
    for event in events:
        sequence += 1
        if event.sequence_number != sequence:
            raise Corrupt(f"event {sequence} is missing, the next one is {event.sequence_number}")
        _check_body(event, item.secret)
        previous = _hash(event, group.tenant, previous)
        if previous != event.hash:
            raise Corrupt(f"event {sequence} has another hash than the warm tier stored for it")
        if MARKER in event.body:
            content.require(event.body)
        start = _start_values(item) if sequence == item.first_sequence else None
        yield NewEvent(
            place,
            group.tenant,
            event.trajectory,
            sequence,
            event.epoch,
            event.created_at,
            event.schema_version,
            event.turn,
            event.body_digest,
            event.erased,
            event.kind,
            event.body,
            start,
        )
    if sequence != item.last_sequence or previous != item.last_hash:
        raise Corrupt(
            f"the warm tier has its events up to {sequence}, but the plan ends with {item.last_sequence} "
            "and another hash"
        )


def _check_body(event: Copied, secret: bytes | None) -> None:
    """Raise `Corrupt` unless the body is the one that the event's digest covers."""
    if event.erased:
        return
    if secret is None:
        raise Corrupt(f"event {event.sequence_number} has a body but the trajectory's secret is gone")
    if digest_body(secret, event.sequence_number, event.body) != event.body_digest:
        raise Corrupt(f"body of event {event.sequence_number} does not match its digest")


def _hash(event: Copied, tenant: str, previous_hash: bytes) -> bytes:
    return hash_event(
        tenant,
        event.trajectory,
        event.sequence_number,
        event.epoch,
        event.created_at,
        event.kind,
        event.schema_version,
        previous_hash,
        event.body_digest,
    )


def _start_values(item: Item) -> dict[str, Any]:
    """The segment columns of a segment's first row."""
    try:
        summary = item.decoded_summary()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"its summary is damaged: {error}") from error
    return {
        "segment_last_sequence": item.last_sequence,
        "segment_previous_hash": item.previous_hash,
        "segment_last_hash": item.last_hash,
        "segment_secret": item.secret,
        **_summary_values(summary),
    }


def _summary_values(summary: Summary) -> dict[str, Any]:
    source = summary.source
    return {
        "trajectory_status": summary.status,
        "trajectory_started_at": summary.started_at,
        "trajectory_finished_at": summary.finished_at,
        "trajectory_last_event_at": summary.last_event_at,
        "trajectory_turns": min(summary.turn, INTEGER_MAX),
        "trajectory_events": summary.events,
        "trajectory_input_tokens": min(summary.input_tokens, INTEGER_MAX),
        "trajectory_output_tokens": min(summary.output_tokens, INTEGER_MAX),
        "trajectory_cost_usd": summary.cost_usd,
        "trajectory_labels": msgspec.json.encode(summary.labels).decode(),
        "trajectory_source": None if source is None else msgspec.json.encode(source).decode(),
        "trajectory_undated": summary.undated,
        "trajectory_agent": summary.agent,
    }


class _Content:
    """Whether the content that bodies refer to is there; asks once for the same digest."""

    def __init__(self, store: ContentStore, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._there: set[str] = set()

    def require(self, body: bytes) -> None:
        for ref in references(body):
            if ref.sha256 in self._there:
                continue
            if not self._store.has(self._tenant, ref.sha256):
                raise Corrupt(f"content {ref.sha256} is not in the content store")
            if len(self._there) >= DIGESTS_REMEMBERED_MAX:
                self._there.clear()
            self._there.add(ref.sha256)
