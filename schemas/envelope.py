"""The envelope: who, when, which, and the hash chain; and the bytes in which an event lies in the hot log.

`docs/format.md` is the specification of these bytes. Where an event lies (log, LSN, back-pointer) is not part of what
it is: the hash covers the header alone, the header covers the body by its digest, and the digest is keyed with a
secret of the trajectory. Once erasure has destroyed the secret and the body, the digest reveals nothing and the chain
still verifies.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import uuid
from functools import lru_cache

import msgspec

from .errors import Corrupt, Invalid

HEADER_VERSION = 1
RECORD_VERSION = 1
HASH_BYTES = 32
SECRET_BYTES = 32
GENESIS_HASH = bytes(HASH_BYTES)
"""`previous_hash` of the first event of a trajectory."""
FIRST_SEQUENCE = 0
KIND_LENGTH_MAX = 128
EVENT_BYTES_MAX = 1 << 20

_DOMAIN = b"stratalog.event.v1\0"
_HEADER = struct.Struct(">BBH16sQQq32s32sBB")
_HASHED = struct.Struct(f">{len(_DOMAIN)}sBBH16sQQq32s32sBB")
_RECORD = struct.Struct(">BBQH")

_sha256 = hashlib.sha256
_IPAD, _OPAD = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))
_KEY_PADDING = bytes(64 - SECRET_BYTES)
SECRETS_KEPT_MAX = 4096
"""For so many trajectories at once the keyed hash states are kept in memory."""
NAMES_KEPT_MAX = 4096

FLAG_ERASED = 1
FLAG_SECRET = 2


class Header(msgspec.Struct, frozen=True):
    """The hashed part of an event. `created_at` is in µs since 1970 (UTC); `epoch` is the fencing token."""

    tenant: str
    trajectory_id: uuid.UUID
    sequence_number: int
    epoch: int
    created_at: int
    kind: str
    schema_version: int
    previous_hash: bytes
    body_digest: bytes

    def encode(self) -> bytes:
        """The header's bytes, version 1."""
        return encode_header(
            self.tenant,
            self.trajectory_id,
            self.sequence_number,
            self.epoch,
            self.created_at,
            self.kind,
            self.schema_version,
            self.previous_hash,
            self.body_digest,
        )

    @classmethod
    def decode(cls, data: bytes) -> Header:
        """Read a header; raises `Corrupt` for bytes that are none."""
        try:
            version, reserved, schema, tid, seq, epoch, created, previous, digest, n_tenant, n_kind = (
                _HEADER.unpack_from(data)
            )
            names = data[_HEADER.size :]
            if version != HEADER_VERSION or reserved or len(names) != n_tenant + n_kind:
                raise ValueError(f"header version {version}, reserved byte {reserved}, {len(names)} bytes of names")
            tenant, kind = _decoded_names(names, n_tenant)
        except (struct.error, ValueError) as error:
            raise Corrupt(f"not an event header: {error}") from error
        return cls(tenant, _uuid_of(tid), seq, epoch, created, kind, schema, previous, digest)


@lru_cache(maxsize=NAMES_KEPT_MAX)
def _decoded_names(names: bytes, tenant_length: int) -> tuple[str, str]:
    """Tenant and kind from the end of a header; raises `ValueError`."""
    return names[:tenant_length].decode("ascii"), names[tenant_length:].decode()


@lru_cache(maxsize=NAMES_KEPT_MAX)
def _uuid_of(sixteen: bytes) -> uuid.UUID:
    """Few trajectories are read at a time, and making an id takes as long as hashing a header."""
    return uuid.UUID(bytes=sixteen)


def encode_header(
    tenant: str,
    trajectory_id: uuid.UUID,
    sequence_number: int,
    epoch: int,
    created_at: int,
    kind: str,
    schema_version: int,
    previous_hash: bytes,
    body_digest: bytes,
) -> bytes:
    """`Header.encode`, without the header: for each event that is appended."""
    names, tenant_length, kind_length = _encoded_names(tenant, kind)
    return (
        _HEADER.pack(
            HEADER_VERSION,
            0,  # reserved
            schema_version,
            trajectory_id.bytes,
            sequence_number,
            epoch,
            created_at,
            previous_hash,
            body_digest,
            tenant_length,
            kind_length,
        )
        + names
    )


class Envelope(msgspec.Struct, frozen=True):
    """An event as it lies in a log: its place, its header, its body.

    `secret` is present on the first event of a segment (`previous_lsn == 0`). `body` is empty where `erased`.
    """

    lsn: int
    previous_lsn: int
    header: Header
    body: bytes
    hash: bytes
    erased: bool = False
    secret: bytes | None = None


def hash_header(encoded: bytes) -> bytes:
    """SHA-256 over the domain and the header's bytes: the hash of the event."""
    return hashlib.sha256(_DOMAIN + encoded).digest()


def hash_event(
    tenant: str,
    trajectory: bytes,
    sequence_number: int,
    epoch: int,
    created_at: int,
    kind: str,
    schema_version: int,
    previous_hash: bytes,
    body_digest: bytes,
) -> bytes:
    """`hash_header(Header(…).encode())` without the header, for whoever checks many; `trajectory` is 16 bytes.

    Raises `Corrupt` for values that no header holds.
    """
    try:
        names, tenant_length, kind_length = _encoded_names(tenant, kind)
        if len(previous_hash) != HASH_BYTES or len(body_digest) != HASH_BYTES:
            raise ValueError("a hash or digest of another length")
        fixed = _HASHED.pack(
            _DOMAIN,
            HEADER_VERSION,
            0,  # reserved
            schema_version,
            trajectory,
            sequence_number,
            epoch,
            created_at,
            previous_hash,
            body_digest,
            tenant_length,
            kind_length,
        )
    except (struct.error, ValueError) as error:
        raise Corrupt(f"event {sequence_number} has a value that no header holds: {error}") from error
    return _sha256(fixed + names).digest()


@lru_cache(maxsize=NAMES_KEPT_MAX)
def _encoded_names(tenant: str, kind: str) -> tuple[bytes, int, int]:
    """The end of a header, with the lengths of its two parts."""
    tenant_bytes, kind_bytes = tenant.encode("ascii"), kind.encode()
    return tenant_bytes + kind_bytes, len(tenant_bytes), len(kind_bytes)


def digest_body(secret: bytes, sequence_number: int, body: bytes) -> bytes:
    """HMAC-SHA256 of the body under a key of its own, derived from the trajectory's secret (32 bytes).

    `HMAC(HMAC(secret, sequence number), body)` by RFC 2104, spelled out: the two hash states that depend on the secret
    alone are kept, which saves two of the six compressions of each event.
    """
    inner, outer = _keyed(secret)
    inner, outer = inner.copy(), outer.copy()
    inner.update(sequence_number.to_bytes(8, "big"))
    outer.update(inner.digest())
    key = outer.digest() + _KEY_PADDING
    return _sha256(key.translate(_OPAD) + _sha256(key.translate(_IPAD) + body).digest()).digest()


@lru_cache(maxsize=SECRETS_KEPT_MAX)
def _keyed(secret: bytes) -> tuple[hashlib._Hash, hashlib._Hash]:
    """The inner and outer hash states of HMAC-SHA256 under a trajectory's secret."""
    if len(secret) != SECRET_BYTES:
        raise Corrupt(f"a trajectory's secret has {SECRET_BYTES} bytes, not {len(secret)}")
    block = secret + _KEY_PADDING
    return _sha256(block.translate(_IPAD)), _sha256(block.translate(_OPAD))


def check_kind(kind: str) -> str:
    """Return `kind`, or raise `Invalid` for a name that the header cannot hold."""
    if not kind or not kind.isprintable() or len(kind.encode()) > KIND_LENGTH_MAX:
        raise Invalid(f"{kind!r} is not an event kind", hint=f"use 1 to {KIND_LENGTH_MAX} printable bytes")
    return kind


def encode_record(
    previous_lsn: int, header: bytes, body: bytes, *, secret: bytes | None = None, erased: bool = False
) -> bytes:
    """The value under which an event is stored in the hot log; the key is its LSN."""
    flags = (FLAG_ERASED if erased else 0) | (FLAG_SECRET if secret is not None else 0)
    return b"".join((_RECORD.pack(RECORD_VERSION, flags, previous_lsn, len(header)), header, secret or b"", body))


def decode_record(lsn: int, value: bytes) -> Envelope:
    """Read a stored event; raises `Corrupt` for bytes that are none. The chain is not checked here."""
    try:
        version, flags, previous_lsn, header_length = _RECORD.unpack_from(value)
    except struct.error as error:
        raise Corrupt(f"event at LSN {lsn} is too short") from error
    if version != RECORD_VERSION or flags & ~(FLAG_ERASED | FLAG_SECRET):
        raise Corrupt(f"event at LSN {lsn} has record version {version} and flags {flags}")
    start = _RECORD.size + header_length
    if len(value) < start:
        raise Corrupt(f"event at LSN {lsn} ends within its header")
    encoded = value[_RECORD.size : start]
    secret = None
    if flags & FLAG_SECRET:
        secret = value[start : start + SECRET_BYTES]
        start += SECRET_BYTES
    if len(value) < start or (flags & FLAG_ERASED and len(value) > start):
        raise Corrupt(f"event at LSN {lsn} ends within its secret, or is erased and has a body")
    header = Header.decode(encoded)
    erased = flags & FLAG_ERASED != 0
    return Envelope(lsn, previous_lsn, header, value[start:], hash_header(encoded), erased, secret)


def check_body(envelope: Envelope, secret: bytes) -> None:
    """Raise `Corrupt` if the body is not the one that the header covers."""
    if envelope.erased:
        return
    header = envelope.header
    if not hmac.compare_digest(digest_body(secret, header.sequence_number, envelope.body), header.body_digest):
        raise Corrupt(f"body of event {header.sequence_number} of {header.trajectory_id} does not match its digest")
