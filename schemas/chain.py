"""One trajectory's hash chain: making the next link, and checking links that were stored.

The checks are the same in every tier: sequence numbers are dense, each event names the hash of the one before, and
each body matches its digest. Where a body was erased, the digest stands for it.
"""

from __future__ import annotations

import uuid

import msgspec

from .envelope import FIRST_SEQUENCE, GENESIS_HASH, Envelope, Header, check_body, digest_body, hash_header
from .errors import Corrupt


class Link(msgspec.Struct, frozen=True):
    """A position in a chain: the event's sequence number and its hash."""

    sequence_number: int
    hash: bytes


START = Link(FIRST_SEQUENCE - 1, GENESIS_HASH)
"""The position before the first event."""


def next_header(
    after: Link,
    *,
    tenant: str,
    trajectory_id: uuid.UUID,
    epoch: int,
    created_at: int,
    kind: str,
    schema_version: int,
    secret: bytes,
    body: bytes,
) -> tuple[bytes, Link]:
    """The encoded header of the event that follows `after`, and the position it makes."""
    sequence_number = after.sequence_number + 1
    header = Header(
        tenant,
        trajectory_id,
        sequence_number,
        epoch,
        created_at,
        kind,
        schema_version,
        after.hash,
        digest_body(secret, sequence_number, body),
    ).encode()
    return header, Link(sequence_number, hash_header(header))


def check_link(after: Link, envelope: Envelope) -> Link:
    """Check that an event follows `after`; returns its position, raises `Corrupt` that says what does not fit."""
    header = envelope.header
    if header.sequence_number != after.sequence_number + 1:
        raise Corrupt(
            f"trajectory {header.trajectory_id}: event {after.sequence_number + 1} is missing, "
            f"the next one is {header.sequence_number}"
        )
    if header.previous_hash != after.hash:
        raise Corrupt(f"trajectory {header.trajectory_id}: event {header.sequence_number} does not extend the chain")
    return Link(header.sequence_number, envelope.hash)


class ChainCheck:
    """Checks one segment of one trajectory, event by event, from its stored bytes."""

    def __init__(self, secret: bytes | None, after: Link = START) -> None:
        self.position = after
        self._secret = secret

    def feed(self, envelope: Envelope) -> None:
        """Check the next event: place, link and body. Raises `Corrupt`."""
        position = check_link(self.position, envelope)
        if self._secret is None and not envelope.erased:
            raise Corrupt(
                f"trajectory {envelope.header.trajectory_id}: event {position.sequence_number} has a body "
                "but the trajectory's secret is gone"
            )
        if self._secret is not None:
            check_body(envelope, self._secret)
        self.position = position
