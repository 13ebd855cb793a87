"""From an event as a caller gives it to the puts that make it durable: encode, offload, chain.

`prepare` needs no lock and no disk and does the work that grows with the size; `place` waits for the disk where content
is large; `Stager.stage` runs under the log's lock, gives out LSNs and extends the chains, for all its events or none.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence

import msgspec

from stratalog.schemas import blobs as blobs_
from stratalog.schemas import ids
from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.chain import START, Link
from stratalog.schemas.codec import decode_body, encode_body, kind_of
from stratalog.schemas.envelope import (
    HASH_BYTES,
    SECRET_BYTES,
    check_kind,
    digest_body,
    encode_header,
    encode_record,
    hash_header,
)
from stratalog.schemas.errors import Conflict, Erased, Invalid, NotFound
from stratalog.schemas.events import KINDS, SCHEMA_VERSION, EventBody, TrajectoryClaimed, Unknown
from stratalog.schemas.protocols import Put
from stratalog.schemas.settings import HotSettings

from . import keys
from .contents import Contents, Placed, is_large
from .heads import Heads, flagged
from .keys import Head, Position

CREATED_AT_MAX = 253_402_300_799_999_999
"""The last µs of the year 9999."""
EPOCH_MAX = (1 << 63) - 1
"""Fencing tokens and sequence numbers are bigints in the warm tier."""
CONTENTS_BYTES_MAX = (1 << 31) - (32 << 20)
"""The most content of one event: it must fit into one frame of the tail service."""


_NO_CONTENTS: list[Placed] = []


class NewEvent(msgspec.Struct, frozen=True):
    """An event to append: `created_at` in µs since 1970 (default: now), `blobs` the content that the body refers to."""

    body: EventBody
    created_at: int | None = None
    blobs: tuple[tuple[BlobRef, bytes], ...] = ()


def contents_of(blobs: Sequence[bytes]) -> tuple[tuple[BlobRef, bytes], ...]:
    """Contents with their references."""
    return tuple((BlobRef.of(content), content) for content in blobs)


class Receipt(msgspec.Struct, frozen=True, gc=False):
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
    contents: list[Placed]
    created_at: int

    @property
    def small_bytes(self) -> int:
        """Bytes of the contents that are committed together with the event."""
        return sum(ref.size for ref, content in self.contents if isinstance(content, bytes))

    @property
    def is_large(self) -> bool:
        """Whether it has content that must be placed before the event is staged."""
        return any(is_large(ref) and isinstance(content, bytes) for ref, content in self.contents)


def prepare(event: NewEvent, settings: HotSettings, now_us: int) -> PreparedEvent:
    """Encode an event and put its bulk out of line; raises `Invalid`."""
    body = event.body
    kind = type(body).__name__
    if kind not in KINDS:
        kind = check_kind(kind_of(body))
    encoded = encode_body(body)
    offloaded: list[tuple[BlobRef, bytes]] = []
    if len(encoded) > settings.inline_bytes_max:
        encoded, offloaded = blobs_.offload(encoded, settings.inline_bytes_max)
    if len(encoded) > settings.event_bytes_max:
        raise _too_large(kind, len(encoded), settings.event_bytes_max)
    if isinstance(body, TrajectoryClaimed):
        check_epoch(body.token)
    given: dict[str, tuple[BlobRef, bytes]] = {}
    if event.blobs or offloaded or blobs_.MARKER in encoded:
        given = _given_contents(event.blobs, offloaded, settings.blob_bytes_max)
        _check_references(kind, encoded, given)
    created_at = now_us if event.created_at is None else event.created_at
    if not isinstance(created_at, int) or not 0 <= created_at <= CREATED_AT_MAX:
        raise Invalid(f"created_at {created_at} is not a time between 1970 and 9999, in µs")
    # As it will be read: what the log learns from a body must be the same now and when it is opened again.
    if isinstance(body, Unknown):
        body = decode_body(kind, encoded)
    return PreparedEvent(body, kind, encoded, list(given.values()) if given else _NO_CONTENTS, created_at)


def _too_large(kind: str, size: int, bytes_max: int) -> Invalid:
    return Invalid(
        f"this {kind} has {size} bytes, more than event_bytes_max ({bytes_max})",
        hint="put large values into strings, which go out of line, or raise hot.event_bytes_max",
    )


def place(prepared: PreparedEvent, contents: Contents) -> PreparedEvent:
    """Make large content durable; the event must be staged or the content abandoned."""
    return msgspec.structs.replace(prepared, contents=contents.place(prepared.contents))


def check_epoch(epoch: int) -> int:
    """Return a fencing token, or raise `Invalid` for one that does not fit into 63 bits."""
    if not 0 <= epoch <= EPOCH_MAX:
        raise Invalid(f"the fencing token {epoch} is not between 0 and {EPOCH_MAX}")
    return epoch


def _given_contents(
    given: Sequence[tuple[BlobRef, bytes]], offloaded: Sequence[tuple[BlobRef, bytes]], bytes_max: int
) -> dict[str, tuple[BlobRef, bytes]]:
    for ref, content in given:
        if ref.size != len(content) or ref.sha256 != hashlib.sha256(content).hexdigest():
            raise Invalid(f"the content given for {ref.sha256} is not the one that this names")
    contents = {ref.sha256: (ref, content) for ref, content in (*given, *offloaded)}
    sizes = [ref.size for ref, _ in contents.values()]
    if any(size > bytes_max for size in sizes) or sum(sizes) > CONTENTS_BYTES_MAX:
        raise Invalid(
            f"contents of {sum(sizes)} bytes are too large: {bytes_max} each, {CONTENTS_BYTES_MAX} for one event",
            hint="store it elsewhere and record where, or raise hot.blob_bytes_max",
        )
    return contents


def _check_references(kind: str, encoded: bytes, given: Mapping[str, tuple[BlobRef, bytes]]) -> None:
    referred = set()
    for ref in blobs_.references(encoded):
        if ref.sha256 not in given or given[ref.sha256][0].size != ref.size:
            raise Invalid(
                f"this {kind} refers to content {ref.sha256} of {ref.size} bytes, which was not given",
                hint="pass the content in blobs=, with every event that refers to it",
            )
        referred.add(ref.sha256)
    for sha256 in given:
        if sha256 not in referred:
            raise Invalid(
                f"this {kind} does not refer to content {sha256}, which was given: it would be lost",
                hint="put Blob(BlobRef.of(content)) into the body",
            )


class Stager:
    """Gives out LSNs and extends chains. Not thread-safe: the log calls it under its lock."""

    def __init__(self, log_id: uuid.UUID, heads: Heads, contents: Contents, last: Position) -> None:
        self._log_id = log_id
        self._heads = heads
        self._contents = contents
        self.last = last

    def start(self, tenant: str, trajectory_id: uuid.UUID, secret: bytes) -> Head:
        """The head of a trajectory before its first event; raises `Conflict` where it exists."""
        self._check_not_erased(trajectory_id)
        if self._heads.get(trajectory_id) is not None:
            raise Conflict(f"trajectory {trajectory_id} is already in this log", hint="append to it instead")
        return _head_before(tenant, trajectory_id, START, 0, secret)

    def resume(self, tenant: str, trajectory_id: uuid.UUID, after: Link, epoch: int, secret: bytes) -> Head:
        """The head of a trajectory that goes on here after it was elsewhere: its next event starts a segment."""
        ids.check_tenant(tenant)
        if len(secret) != SECRET_BYTES or len(after.hash) != HASH_BYTES:
            raise Invalid(f"a secret has {SECRET_BYTES} bytes and a hash {HASH_BYTES}")
        if not START.sequence_number <= after.sequence_number < EPOCH_MAX:
            raise Invalid(f"{after.sequence_number} is not a sequence number")
        check_epoch(epoch)
        self._check_not_erased(trajectory_id)
        return _head_before(tenant, trajectory_id, after, epoch, secret)

    def known(self, trajectory_id: uuid.UUID) -> Head:
        """The head of a trajectory that is here; raises `NotFound`."""
        head = self._heads.get(trajectory_id)
        if head is None:
            self._check_not_erased(trajectory_id)
            raise NotFound(f"trajectory {trajectory_id} is not in this log", hint="start it, or resume it here")
        if not head.secret:
            raise _erased(trajectory_id)
        return head

    def _check_not_erased(self, trajectory_id: uuid.UUID) -> None:
        if self._heads.is_erased(trajectory_id):
            raise _erased(trajectory_id)

    def stage(self, head: Head, events: Sequence[PreparedEvent]) -> tuple[list[Put], list[Receipt], int]:
        """The puts of `events` after `head`, their receipts, and the bytes they take. Changes nothing if it raises."""
        puts: list[Put] = []
        receipts: list[Receipt] = []
        following: list[Head] = []
        size = 0
        lsn = self.last.lsn
        for event in events:
            lsn += 1
            head, record = self._next(head, event, lsn)
            puts.append(Put("events", keys.lsn_key(lsn), record))
            size += len(record)
            if event.contents:
                puts += self._contents.puts(lsn, event.contents)
                size += event.small_bytes
            receipts.append(Receipt(self._log_id, lsn, head.trajectory_id, head.sequence_number, head.hash))
            head = flagged(head, event.kind, event.body)
            following.append(head)
        for head, event in zip(following, events, strict=True):
            self._heads.advance(head, event.kind)
        self.last = Position(head.lsn, head.hash)
        return puts, receipts, size

    def _next(self, head: Head, event: PreparedEvent, lsn: int) -> tuple[Head, bytes]:
        encoded = event.encoded
        sequence_number = head.sequence_number + 1
        epoch = event.body.token if isinstance(event.body, TrajectoryClaimed) else head.epoch
        header = encode_header(
            head.tenant,
            head.trajectory_id,
            sequence_number,
            epoch,
            event.created_at,
            event.kind,
            SCHEMA_VERSION,
            head.hash,
            digest_body(head.secret, sequence_number, encoded),
        )
        starts = head.lsn == 0
        following = Head(
            head.tenant,
            head.trajectory_id,
            lsn,
            sequence_number,
            hash_header(header),
            epoch,
            head.secret,
            lsn if starts else head.first_lsn,
            sequence_number if starts else head.first_sequence,
            head.imported,
            head.ended,
        )
        return following, encode_record(head.lsn, header, encoded, secret=head.secret if starts else None)


def _erased(trajectory_id: uuid.UUID) -> Erased:
    return Erased(f"trajectory {trajectory_id} was erased, nothing can be added to it")


def _head_before(tenant: str, trajectory_id: uuid.UUID, after: Link, epoch: int, secret: bytes) -> Head:
    return Head(tenant, trajectory_id, 0, after.sequence_number, after.hash, epoch, secret, 0, 0)
