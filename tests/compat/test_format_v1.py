"""Records of format version 1, as they were written once: every later version must read them, for ever.

The fixtures are never made again. A change that needs other bytes needs another record or header version, and other
files beside these.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fix_bodies import SECRET

from stratalog.schemas.blobs import references
from stratalog.schemas.chain import ChainCheck
from stratalog.schemas.codec import decode_event, encode_body
from stratalog.schemas.envelope import decode_record, encode_record
from stratalog.schemas.events import KINDS, Unknown
from stratalog.schemas.record import TrajectoryRecord, fold

FIXTURES = [
    json.loads(path.read_text()) for path in sorted((Path(__file__).parent.parent / "fixtures/format_v1").iterdir())
]
SPECIAL = {"KindOfALaterVersion"}


def test_there_is_one_of_every_kind_of_version_1() -> None:
    assert len(FIXTURES) == 35
    assert {fixture["kind"] for fixture in FIXTURES} - SPECIAL <= set(KINDS), "a kind was removed"


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: f"{fixture['sequence_number']}-{fixture['kind']}")
def test_a_record_reads_as_it_did(fixture: dict[str, Any]) -> None:
    record = bytes.fromhex(fixture["record"])
    envelope = decode_record(fixture["lsn"], record)
    header = envelope.header
    assert (header.tenant, header.kind, header.schema_version) == ("acme", fixture["kind"], 1)
    assert header.sequence_number == fixture["sequence_number"]
    assert (envelope.lsn, envelope.previous_lsn) == (fixture["lsn"], fixture["previous_lsn"])
    assert envelope.hash.hex() == fixture["hash"]
    assert envelope.erased == fixture["erased"]
    assert envelope.body.decode() == fixture["body"]
    again = encode_record(
        envelope.previous_lsn, header.encode(), envelope.body, secret=envelope.secret, erased=envelope.erased
    )
    assert again == record


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: f"{fixture['sequence_number']}-{fixture['kind']}")
def test_a_body_reads_as_it_did(fixture: dict[str, Any]) -> None:
    body = decode_event(decode_record(fixture["lsn"], bytes.fromhex(fixture["record"]))).body
    if fixture["sequence_number"] in (31, 32, 34):
        assert isinstance(body, Unknown)
        assert body.raw.decode() == fixture["body"]
        return
    assert type(body).__name__ == fixture["kind"]
    # Every field that was written is still known and comes back with its value.
    assert json.loads(encode_body(body)) == json.loads(fixture["body"])


def test_the_chain_verifies() -> None:
    envelopes = [decode_record(fixture["lsn"], bytes.fromhex(fixture["record"])) for fixture in FIXTURES]
    assert envelopes[0].secret == SECRET
    chain = ChainCheck(SECRET)
    for envelope in envelopes:
        chain.feed(envelope)
    assert chain.position.sequence_number == 34
    record = fold(TrajectoryRecord(), map(decode_event, envelopes))
    assert (record.events, record.unknown_events, record.epoch) == (35, 3, 2)


def test_the_reference_is_found() -> None:
    (ref,) = references(decode_record(1, bytes.fromhex(FIXTURES[33]["record"])).body)
    assert ref.size == 3400
    assert ref.preview.startswith("a line of output\n")
