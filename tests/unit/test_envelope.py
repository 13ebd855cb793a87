"""The bytes of an event: golden values that must never change, and damage that must always show."""

from __future__ import annotations

import uuid

import msgspec
import pytest
from fix_bodies import SECRET
from hypothesis import given
from hypothesis import strategies as st

from stratalog.schemas.codec import decode_event
from stratalog.schemas.envelope import (
    KIND_LENGTH_MAX,
    Envelope,
    Header,
    check_body,
    check_kind,
    decode_record,
    digest_body,
    encode_record,
    hash_header,
)
from stratalog.schemas.errors import Corrupt, Invalid
from stratalog.schemas.events import Unknown

BODY = b'{"tool_call_id":"call-1","tool":"greet"}'
DIGEST = "d9cb6583ba06d0990d13635c246440978fa108d91667fdff6989245e5fa8d162"
HEADER = (
    "01000001019bb9e27c007abc8def0123456789ab0000000000000005000000000000000300064839ac3aa240"
    + "aa" * 32
    + DIGEST
    + "040a61636d65546f6f6c496e74656e74"
)
HASH = "7d3669fa4fbaaa92882ff4c6f1309ee2ea8d6455ff15c4a806f0e28796c8d943"
RECORD = "01000000000000000029007c" + HEADER + BODY.hex()
FIRST_RECORD = "01020000000000000000007c" + HEADER + SECRET.hex() + BODY.hex()
ERASED_RECORD = "01010000000000000029007c" + HEADER


def header() -> Header:
    return Header(
        "acme",
        uuid.UUID("019bb9e2-7c00-7abc-8def-0123456789ab"),
        5,
        3,
        1_768_262_400_123_456,
        "ToolIntent",
        1,
        b"\xaa" * 32,
        bytes.fromhex(DIGEST),
    )


def test_golden_bytes() -> None:
    assert digest_body(SECRET, 5, BODY).hex() == DIGEST
    encoded = header().encode()
    assert encoded.hex() == HEADER
    assert hash_header(encoded).hex() == HASH
    assert encode_record(41, encoded, BODY).hex() == RECORD
    assert encode_record(0, encoded, BODY, secret=SECRET).hex() == FIRST_RECORD
    assert encode_record(41, encoded, b"", erased=True).hex() == ERASED_RECORD


@pytest.mark.parametrize("record", [RECORD, FIRST_RECORD, ERASED_RECORD])
def test_reading_golden_bytes(record: str) -> None:
    first, erased = record == FIRST_RECORD, record == ERASED_RECORD
    assert decode_record(42, bytes.fromhex(record)) == Envelope(
        lsn=42,
        previous_lsn=0 if first else 41,
        header=header(),
        body=b"" if erased else BODY,
        hash=bytes.fromhex(HASH),
        erased=erased,
        secret=SECRET if first else None,
    )


def notices(record: bytes) -> bool:
    """Whether reading the golden events would notice that these are other bytes."""
    try:
        envelope = decode_record(42, record)
        check_body(envelope, SECRET if envelope.secret is None else envelope.secret)
    except Corrupt:
        return True
    return envelope.hash.hex() != HASH


@pytest.mark.parametrize("record", [RECORD, FIRST_RECORD, ERASED_RECORD])
def test_every_truncation_shows(record: str) -> None:
    whole = bytes.fromhex(record)
    assert not notices(whole)
    assert all(notices(whole[:length]) for length in range(len(whole)))


@pytest.mark.parametrize("record", [RECORD, FIRST_RECORD, ERASED_RECORD])
def test_every_flipped_bit_shows(record: str) -> None:
    whole = bytes.fromhex(record)
    unseen = set()
    for position in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            if not notices(bytes(damaged)):
                unseen.add(position)
    # The back-pointer is where an event lies, not what it is: the hash does not cover it. Recovery compares it with
    # the trajectory's head, and RocksDB has a checksum over it.
    assert unseen == set(range(2, 10))


@given(st.binary(max_size=300))
def test_foreign_bytes_are_corrupt_or_an_event(data: bytes) -> None:
    for reader in (lambda: decode_record(1, data), lambda: Header.decode(data)):
        try:
            reader()
        except Corrupt:
            continue


headers = st.builds(
    Header,
    tenant=st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True),
    trajectory_id=st.uuids(),
    sequence_number=st.integers(0, (1 << 64) - 1),
    epoch=st.integers(0, (1 << 64) - 1),
    created_at=st.integers(-(1 << 63), (1 << 63) - 1),
    kind=st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=32),
    schema_version=st.integers(0, (1 << 16) - 1),
    previous_hash=st.binary(min_size=32, max_size=32),
    body_digest=st.binary(min_size=32, max_size=32),
)


@given(headers)
def test_headers_survive(value: Header) -> None:
    assert Header.decode(value.encode()) == value


@given(headers, headers)
def test_different_headers_have_different_bytes(one: Header, other: Header) -> None:
    assert (one == other) == (one.encode() == other.encode())


@given(headers, st.integers(0, (1 << 64) - 1), st.binary(max_size=100), st.none() | st.binary(min_size=32, max_size=32))
def test_records_survive(value: Header, previous_lsn: int, body: bytes, secret: bytes | None) -> None:
    encoded = value.encode()
    record = encode_record(previous_lsn, encoded, body, secret=secret)
    read = decode_record(7, record)
    assert read == Envelope(7, previous_lsn, value, body, hash_header(encoded), False, secret)
    again = encode_record(read.previous_lsn, read.header.encode(), read.body, secret=read.secret)
    assert again == record, "the tail service encodes again what it has decoded"


def test_the_digest_depends_on_secret_place_and_body() -> None:
    digests = {
        digest_body(secret, place, body)
        for secret in (SECRET, bytes(32))
        for place in (0, 1, 1 << 63)
        for body in (b"", b"{}", BODY)
    }
    assert len(digests) == 18


def test_an_erased_event_is_unknown_and_passes_its_check() -> None:
    envelope = decode_record(42, bytes.fromhex(ERASED_RECORD))
    check_body(envelope, SECRET)
    event = decode_event(envelope)
    assert event.erased
    assert event.body == Unknown("ToolIntent", b"", "erased")
    assert event.hash.hex() == HASH


def test_another_body_or_secret_is_corrupt() -> None:
    envelope = decode_record(42, bytes.fromhex(RECORD))
    with pytest.raises(Corrupt, match="does not match its digest"):
        check_body(envelope, bytes(32))
    with pytest.raises(Corrupt, match="does not match its digest"):
        check_body(msgspec.structs.replace(envelope, body=BODY + b" "), SECRET)


def test_other_versions_are_corrupt_not_misread() -> None:
    with pytest.raises(Corrupt, match="record version 2"):
        decode_record(1, b"\2" + bytes.fromhex(RECORD)[1:])
    with pytest.raises(Corrupt, match="header version 2"):
        Header.decode(b"\2" + bytes.fromhex(HEADER)[1:])


@pytest.mark.parametrize("kind", ["ToolIntent", "a", "Größe", "x" * KIND_LENGTH_MAX])
def test_kinds_that_fit(kind: str) -> None:
    assert check_kind(kind) == kind


@pytest.mark.parametrize("kind", ["", "x" * (KIND_LENGTH_MAX + 1), "é" * 65, "a\nb", "a\0b", "\ud800", "\x1b[31m"])
def test_kinds_that_do_not_fit(kind: str) -> None:
    with pytest.raises(Invalid, match="not an event kind"):
        check_kind(kind)
