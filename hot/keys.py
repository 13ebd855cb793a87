"""The keys of the hot log's key spaces; `docs/format.md` lists them.

events   LSN (8 bytes, big-endian)                    the record of an event
blobs    LSN ‖ SHA-256                                content that the event refers to
chunks   content id (16) ‖ index (4)                  a large content in pieces, synced before its event
meta     a name                                       see below
"""

from __future__ import annotations

import uuid

import msgspec

META_IDENTITY = b"identity"
META_DURABLE = b"durable"
"""The last LSN of the group before the one that wrote this: all up to it was durable then."""
META_PRUNED = b"pruned"
META_HEADS = b"heads"
"""The LSN up to which the stored heads are current."""
HEAD_PREFIX = b"h/"
LIVE_PREFIX = b"l/"
"""Trajectories that still need their events here, with the first LSN they need."""
NOTE_PREFIX = b"n/"
IMPORT_NOTE_PREFIX = NOTE_PREFIX + b"import/"
"""And the id of a trajectory: notes about that one alone, which go with it."""
ERASED_PREFIX = b"e/"
"""Trajectories that were erased here, or must not come here: `ERASING`, or `GONE` once no file has a byte of them."""
META_LEFTOVERS = b"leftovers"
"""There while files may hold bytes that no event leads to: of pieces, or of events, that were given up."""
OPENING_PREFIX = b"o/"
"""Where the log ended when it was opened, to the random id of that opening: see `openings.py`."""
CHUNKED_PREFIX = b"c/"
"""LSN ‖ SHA-256 of a large content, to its id and length."""

ERASING, GONE = b"\1", b"\0"
LSN_MAX = (1 << 64) - 1


def lsn_key(lsn: int) -> bytes:
    """The key of an event."""
    return lsn.to_bytes(8, "big")


def lsn_of(key: bytes) -> int:
    """The LSN at the start of a key."""
    return int.from_bytes(key[:8], "big")


def blob_key(lsn: int, sha256: bytes) -> bytes:
    """The key of a content; `sha256` is the digest, 32 bytes."""
    return lsn_key(lsn) + sha256


def chunk_key(content_id: bytes, index: int) -> bytes:
    """The key of a piece of a large content."""
    return content_id + index.to_bytes(4, "big")


def prefix_end(prefix: bytes) -> bytes:
    """The smallest key after all keys that start with `prefix`."""
    short = prefix.rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1])


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An LSN and the hash of the event there; LSN 0 is before the first event."""

    lsn: int = 0
    hash: bytes = b""


class Cursor(Position, frozen=True, array_like=True, gc=False):
    """How far a log was replicated; `opening` is the id of the one that wrote the event there, empty if unknown."""

    opening: bytes = b""


class Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last event of a trajectory in this log. `first_lsn` starts its segment here; erasure empties `secret`."""

    tenant: str
    trajectory_id: uuid.UUID
    lsn: int
    sequence_number: int
    hash: bytes
    epoch: int
    secret: bytes
    first_lsn: int
    first_sequence: int
    imported: bool = False
    ended: bool = False


class Chunked(msgspec.Struct, frozen=True, array_like=True):
    """Where a large content lies."""

    content_id: bytes
    size: int
    chunks: int


encode = msgspec.msgpack.encode
decode_head = msgspec.msgpack.Decoder(Head).decode
decode_position = msgspec.msgpack.Decoder(Position).decode
decode_chunked = msgspec.msgpack.Decoder(Chunked).decode
