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

from stratalog.schemas.blobs import references
from stratalog.schemas.chain import ChainCheck, Link
from stratalog.schemas.envelope import Envelope, Header, hash_header
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.protocols import ContentStore
from stratalog.schemas.settings import ColdSettings
from stratalog.schemas.summary import Summary
from stratalog.warm.database import Connection

from .columns import Place, Row, row_of
from .lake import Lake
from .plan import Group, Item, Run, items
from .segments import mark_start
from .warm_events import WarmEvent, warm_events
from .writer import EventsWriter, File

INTEGER_MAX = (1 << 63) - 1
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
    with EventsWriter(lake, group.folder, str(run.run_id), settings) as writer:
        for item, rows in _segments(conn, run, group, content):
            try:
                for row, size in rows:
                    if not damaged:
                        writer.add(row, size)
            except Corrupt as error:
                damaged[item.trajectory_id] = error.message.removeprefix(f"trajectory {item.trajectory_id}: ")
        files = () if damaged else tuple(writer.finish())
    return GroupWritten(files, damaged)


def _segments(
    conn: Connection, run: Run, group: Group, content: _Content
) -> Iterator[tuple[Item, Iterator[tuple[Row, int]]]]:
    """Each item with its checked rows; what the consumer leaves of them is skipped."""
    stream = warm_events(conn, items(conn, run, group))
    for item, event in stream:
        rest = _until_end(event, stream)
        yield item, _checked_rows(item, group, rest, content)
        for _ in rest:
            pass


def _until_end(event: WarmEvent | None, stream: Iterator[tuple[Item, WarmEvent | None]]) -> Iterator[WarmEvent]:
    while event is not None:
        yield event
        _, event = next(stream)


def _checked_rows(
    item: Item, group: Group, events: Iterator[WarmEvent], content: _Content
) -> Iterator[tuple[Row, int]]:
    place = Place(group.date, group.slug, item.model)
    check = ChainCheck(item.secret, Link(item.first_sequence - 1, item.previous_hash))
    for event in events:
        envelope = _envelope(item, group.tenant, event, check.position.hash)
        check.feed(envelope)
        if envelope.hash != event.hash:
            raise Corrupt(f"event {event.sequence_number} has another hash than the warm tier stored for it")
        content.require(event.body)
        row = row_of(envelope, event.turn, place)
        if event.sequence_number == item.first_sequence:
            mark_start(row, _start_values(item))
        yield row, len(event.body)
    if check.position != Link(item.last_sequence, item.last_hash):
        raise Corrupt(
            f"the warm tier has its events up to {check.position.sequence_number}, "
            f"but the plan ends with {item.last_sequence} and another hash"
        )


def _envelope(item: Item, tenant: str, event: WarmEvent, previous_hash: bytes) -> Envelope:
    header = Header(
        tenant,
        item.trajectory_id,
        event.sequence_number,
        event.epoch,
        event.created_at,
        event.kind,
        event.schema_version,
        previous_hash,
        event.body_digest,
    )
    return Envelope(0, 0, header, event.body, hash_header(header.encode()), event.erased)


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
