"""Streams events out of Postgres by one binary COPY, a row at a time, with as little work for each as can be.

Every statement that is read here selects `trajectory_id, sequence_number, epoch, created_at, schema_version, turn,
cryptographic_hash, body_digest, erased, event_type, tenant, body`: columns of a fixed length first, so that one
`struct` takes them apart. Postgres sends one message for each row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stratalog.schemas.envelope import HASH_BYTES
from stratalog.schemas.errors import Corrupt

from .database import Connection

_FIXED = struct.Struct(f">h4x16s4xq4xq4xq4xi4xqi{HASH_BYTES}si{HASH_BYTES}s4x?i")
_LENGTH = struct.Struct(">i")
_FIELDS = 12
_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_PREAMBLE_BYTES = len(_SIGNATURE) + 8
_END = b"\xff\xff"
_EPOCH_US = 946_684_800_000_000
"""2000-01-01, from which Postgres counts, in µs since 1970."""


class Copied(msgspec.Struct, frozen=True):
    """A row of `all_events`; `trajectory` is the 16 bytes of the id, `created_at` in µs since 1970."""

    trajectory: bytes
    sequence_number: int
    epoch: int
    created_at: int
    schema_version: int
    turn: int
    hash: bytes
    body_digest: bytes
    erased: bool
    kind: str
    tenant: str
    body: bytes


def copied_events(conn: Connection, statement: bytes, parameters: Mapping[str, Any]) -> Iterator[Copied]:
    """The rows that a `COPY … TO STDOUT (FORMAT binary)` gives, inside the caller's transaction.

    Nothing else can be asked on the connection before the end. Raises `Corrupt` for a row that is none of ours.
    """
    with conn.cursor() as cursor, cursor.copy(statement, parameters) as copy:
        for message in copy:
            data = bytes(message)
            if data.startswith(_SIGNATURE):
                data = data[_PREAMBLE_BYTES:]
            if data == _END:
                continue
            yield _row(data)


def _row(data: bytes) -> Copied:
    try:
        fields, id_, sequence, epoch, created, version, turn, n_hash, digest, n_body, body_digest, erased, length = (
            _FIXED.unpack_from(data)
        )
        if fields != _FIELDS or n_hash != HASH_BYTES or n_body != HASH_BYTES:
            raise ValueError("its hashes have another length")
        at = _FIXED.size
        kind = data[at : at + length].decode()
        at += length
        (length,) = _LENGTH.unpack_from(data, at)
        tenant = data[at + 4 : at + 4 + length].decode()
        at += 4 + length
        (length,) = _LENGTH.unpack_from(data, at)
        body = data[at + 4 :]
        if len(body) != length:
            raise ValueError("its lengths do not fit")
    except (struct.error, ValueError) as error:
        raise Corrupt(f"a row of the warm tier is not an event: {error}") from error
    return Copied(
        id_, sequence, epoch, created + _EPOCH_US, version, turn, digest, body_digest, erased, kind, tenant, body
    )
