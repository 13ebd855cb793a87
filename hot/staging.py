"""From an event as a caller gives it to the puts that make it durable: encode, offload, chain.

`prepare` needs no lock and does the work that grows with the size; `Stager.stage` runs under the log's lock, gives out
LSNs and extends the chains.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec

from stratalog.schemas import blobs as blobs_
from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.chain import START, Link, next_header
from stratalog.schemas.codec import encode_body, kind_of
from stratalog.schemas.envelope import check_kind, encode_record
from stratalog.schemas.errors import Conflict, Invalid, NotFound
from stratalog.schemas.events import SCHEMA_VERSION, EventBody, TrajectoryClaimed
from stratalog.schemas.protocols import Put
from stratalog.schemas.settings import HotSettings

from . import keys
from .contents import Contents, Prepared
from .heads import Heads
from .keys import Head, Position

CREATED_AT_MAX = 253_402_300_799_999_999
"""The last µs of the year 9999."""


class NewEvent(msgspec.Struct, frozen=True):
    """An event to append: `created_at` in µs since 1970 (default: now), `blobs` the content that the body refers to."""

    body: EventBody
    created_at: int | None = None
    blobs: tuple[tuple[BlobRef, bytes], ...] = ()


def contents_of(blobs: Sequence[bytes]) -> tuple[tuple[BlobRef, bytes], ...]:
    """Contents with their references."""
    return tuple((BlobRef.of(content), content) for content in blobs)


class Receipt(msgspec.Struct, frozen=True):
    """Proof that an event is durable: where it lies, and its hash."""

    log_id: uuid.UUID
    lsn: int
    trajectory_id: uuid.UUID
    sequence_number: int
    hash: bytes


class PreparedEvent(msgspec.Struct, frozen=True):
    """An event with its bytes."""

    body: EventBody
    kind: str
    encoded: bytes
    contents: list[Prepared]
    created_at: int


def prepare(event: NewEvent, settings: HotSettings, contents: Contents, now_us: int) -> PreparedEvent:
    """Encode an event and put its bulk out of line; large content is durable on return. Raises `Invalid`."""
    kind = check_kind(kind_of(event.body))
    encoded, offloaded = blobs_.offload(encode_body(event.body), settings.inline_bytes_max)
    if len(encoded) > settings.event_bytes_max:
        raise Invalid(
            f"this {kind} has {len(encoded)} bytes, more than event_bytes_max ({settings.event_bytes_max})",
            hint="put large values into strings, which go out of line, or raise hot.event_bytes_max",
        )
    given = _check_contents([*event.blobs, *offloaded], settings.blob_bytes_max)
    for ref in blobs_.references(encoded):
        if ref.sha256 not in given:
            raise Invalid(
                f"this {kind} refers to content {ref.sha256}, which was not given",
                hint="pass the content in blobs=, with every event that refers to it",
            )
    created_at = now_us if event.created_at is None else event.created_at
    if not 0 <= created_at <= CREATED_AT_MAX:
        raise Invalid(f"created_at {created_at} is not a time between 1970 and 9999, in µs")
    return PreparedEvent(event.body, kind, encoded, contents.prepare(list(given.values())), created_at)


def _check_contents(contents: Sequence[tuple[BlobRef, bytes]], bytes_max: int) -> dict[str, tuple[BlobRef, bytes]]:
    given = {}
    for ref, content in contents:
        if ref.size != len(content) or ref.size > bytes_max:
            raise Invalid(f"content {ref.sha256} has {len(content)} bytes, not {ref.size}, or more than {bytes_max}")
        given[ref.sha256] = (ref, content)
    return given


class Stager:
    """Gives out LSNs and extends chains. Not thread-safe: the log calls it under its lock."""

    def __init__(self, log_id: uuid.UUID, heads: Heads, contents: Contents, last: Position) -> None:
        self._log_id = log_id
        self._heads = heads
        self._contents = contents
        self.last = last

    def start(self, tenant: str, trajectory_id: uuid.UUID, secret: bytes) -> Head:
        """The head of a trajectory before its first event; raises `Conflict` where it exists."""
        if self._heads.get(trajectory_id) is not None:
            raise Conflict(f"trajectory {trajectory_id} is already in this log", hint="append to it instead")
        return _head_before(tenant, trajectory_id, START, 0, secret)

    def resume(self, tenant: str, trajectory_id: uuid.UUID, after: Link, epoch: int, secret: bytes) -> Head:
        """The head of a trajectory that goes on here after it was elsewhere: its next event starts a segment."""
        return _head_before(tenant, trajectory_id, after, epoch, secret)

    def known(self, trajectory_id: uuid.UUID) -> Head:
        """The head of a trajectory that is here; raises `NotFound`."""
        head = self._heads.get(trajectory_id)
        if head is None:
            raise NotFound(f"trajectory {trajectory_id} is not in this log", hint="start it, or resume it here")
        return head

    def stage(self, head: Head, events: Sequence[PreparedEvent]) -> tuple[list[Put], list[Receipt], int]:
        """The puts of `events` after `head`, their receipts, and the bytes they take."""
        puts: list[Put] = []
        receipts: list[Receipt] = []
        size = 0
        for event in events:
            head, record = self._next(head, event)
            puts.append(Put("events", keys.lsn_key(head.lsn), record))
            puts += self._contents.puts(head.lsn, event.contents)
            size += len(record) + sum(ref.size for ref, _ in event.contents)
            receipts.append(Receipt(self._log_id, head.lsn, head.trajectory_id, head.sequence_number, head.hash))
            head = self._heads.set(head, event.body)
        return puts, receipts, size

    def _next(self, head: Head, event: PreparedEvent) -> tuple[Head, bytes]:
        lsn = self.last.lsn + 1
        starts = head.lsn == 0
        epoch = event.body.token if isinstance(event.body, TrajectoryClaimed) else head.epoch
        header, link = next_header(
            Link(head.sequence_number, head.hash),
            tenant=head.tenant,
            trajectory_id=head.trajectory_id,
            epoch=epoch,
            created_at=event.created_at,
            kind=event.kind,
            schema_version=SCHEMA_VERSION,
            secret=head.secret,
            body=event.encoded,
        )
        record = encode_record(head.lsn, header, event.encoded, secret=head.secret if starts else None)
        self.last = Position(lsn, link.hash)
        following = Head(
            head.tenant,
            head.trajectory_id,
            lsn,
            link.sequence_number,
            link.hash,
            epoch,
            head.secret,
            lsn if starts else head.first_lsn,
            link.sequence_number if starts else head.first_sequence,
            head.imported,
            head.ended,
        )
        return following, record


def _head_before(tenant: str, trajectory_id: uuid.UUID, after: Link, epoch: int, secret: bytes) -> Head:
    return Head(tenant, trajectory_id, 0, after.sequence_number, after.hash, epoch, secret, 0, 0)
