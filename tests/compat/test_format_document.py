"""`docs/format.md` is enough: a parser written from that page alone reads what stratalog writes."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import socket
import uuid
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pytest

from stratalog.hot import Home, HotLog
from stratalog.hot.rocks import RocksStore
from stratalog.schemas.settings import HotSettings
from stratalog.testing import GeneratedTrajectory, contents, envelopes, workload, write

DOCUMENT = (Path(__file__).parent.parent.parent / "docs" / "format.md").read_text()
FIXTURES = sorted((Path(__file__).parent.parent / "fixtures" / "format_v1").iterdir())


# --- the parser: from here on nothing but the document ---------------------------------------------------------------


def number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def parse_header(data: bytes) -> dict[str, Any]:
    assert data[0] == 1 and data[1] == 0
    t, k = data[108], data[109]
    assert len(data) == 110 + t + k
    return {
        "schema": number(data[2:4]),
        "trajectory": uuid.UUID(bytes=data[4:20]),
        "sequence": number(data[20:28]),
        "epoch": number(data[28:36]),
        "created_at": int.from_bytes(data[36:44], "big", signed=True),
        "previous_hash": data[44:76],
        "digest": data[76:108],
        "tenant": data[110 : 110 + t].decode("ascii"),
        "kind": data[110 + t :].decode("utf-8"),
        "hash": hashlib.sha256(b"stratalog.event.v1\x00" + data).digest(),
    }


def parse_record(data: bytes) -> dict[str, Any]:
    assert data[0] == 1 and data[1] & ~3 == 0
    h = number(data[10:12])
    after = 12 + h + (32 if data[1] & 2 else 0)
    return {
        **parse_header(data[12 : 12 + h]),
        "erased": bool(data[1] & 1),
        "back": number(data[2:10]),
        "secret": data[12 + h : after] if data[1] & 2 else None,
        "body": data[after:],
    }


def digest(secret: bytes, sequence: int, body: bytes) -> bytes:
    key = hmac.new(secret, sequence.to_bytes(8, "big"), hashlib.sha256).digest()
    return hmac.new(key, body, hashlib.sha256).digest()


def verify(records: list[dict[str, Any]]) -> None:
    previous, secret = bytes(32), records[0]["secret"]
    for sequence, record in enumerate(records):
        assert record["sequence"] == sequence
        assert record["previous_hash"] == previous
        assert record["erased"] or digest(secret, sequence, record["body"]) == record["digest"]
        previous = record["hash"]


def find_references(body: bytes) -> list[dict[str, Any]]:
    found = []
    for match in re.finditer(rb'\{"\$blob":(?=\{)', body):
        found.append(json.JSONDecoder().raw_decode(body[match.end() :].decode())[0])
    return found


def ask(connection: socket.socket, operation: str, **arguments: Any) -> Any:
    payload = msgspec.msgpack.encode([operation, arguments])
    connection.sendall(len(payload).to_bytes(4, "big") + payload)
    with connection.makefile("rb") as stream:
        length = number(stream.read(4))
        result, error, message = msgspec.msgpack.decode(stream.read(length))
    return result if not error else (error, message)


# --- what stratalog writes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_records_of_version_1(path: Path) -> None:
    fixture = json.loads(path.read_text())
    record = parse_record(bytes.fromhex(fixture["record"]))
    for name, key in (
        ("kind", "kind"),
        ("sequence", "sequence_number"),
        ("back", "previous_lsn"),
        ("erased", "erased"),
    ):
        assert record[name] == fixture[key]
    assert record["body"].decode() == fixture["body"]
    assert record["hash"].hex() == fixture["hash"]


def test_the_chain_of_version_1() -> None:
    verify([parse_record(bytes.fromhex(json.loads(path.read_text())["record"])) for path in FIXTURES])


@pytest.mark.parametrize("left_out", range(1, 34))
def test_the_parser_notices_what_is_missing(left_out: int) -> None:
    records = [parse_record(bytes.fromhex(json.loads(path.read_text())["record"])) for path in FIXTURES]
    with pytest.raises(AssertionError):
        verify(records[:left_out] + records[left_out + 1 :])


def test_the_example_of_the_document() -> None:
    body = re.search(r"^body    (.*)$", DOCUMENT, re.MULTILINE)
    named = dict(re.findall(r"^(digest|hash)  +([0-9a-f]{64})$", DOCUMENT, re.MULTILINE))
    assert body is not None
    raw = body.group(1).encode()
    assert digest(bytes(range(32)), 5, raw).hex() == named["digest"]
    start = re.search(r"^header  ([0-9a-f ]+)$", DOCUMENT, re.MULTILINE)
    assert start is not None
    header = bytes.fromhex(start.group(1)) + b"\xaa" * 32 + bytes.fromhex(named["digest"]) + b"\x04\x0aacmeToolIntent"
    assert parse_header(header)["hash"].hex() == named["hash"]
    assert len(header) == 0x7C


@pytest.fixture(scope="module")
def trajectories() -> list[GeneratedTrajectory]:
    return [*workload(21, 4), *workload(21, 1, "bulky")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, trajectories: list[GeneratedTrajectory]) -> Path:
    folder = tmp_path_factory.mktemp("format") / "home"
    with HotLog.open(folder, serve=False) as log:
        write(log, trajectories)
    return folder


def log_folder(home: Path) -> Path:
    (path,) = (home / "hot").iterdir()
    return path


def test_the_database(home: Path, trajectories: list[GeneratedTrajectory]) -> None:
    store = RocksStore(log_folder(home) / "db", HotSettings())
    try:
        events = [(number(key), parse_record(value)) for key, value in store.scan("events", b"")]
        blobs = dict(store.scan("blobs", b""))
        chunks = dict(store.scan("chunks", b""))
        meta = dict(store.scan("meta", b""))
    finally:
        store.close()
    assert [lsn for lsn, _ in events] == list(range(1, len(events) + 1))
    by_lsn = dict(events)
    for trajectory in trajectories:
        mine = [(lsn, record) for lsn, record in events if record["trajectory"] == trajectory.trajectory_id]
        verify([record for _, record in mine])
        assert [record["back"] for _, record in mine] == [0, *(lsn for lsn, _ in mine[:-1])]
        head = msgspec.msgpack.decode(meta[b"h/" + trajectory.trajectory_id.bytes])
        assert head[:6] == [
            trajectory.tenant,
            str(trajectory.trajectory_id),
            mine[-1][0],
            len(mine) - 1,
            mine[-1][1]["hash"],
            0,
        ]
        assert head[6:9] == [trajectory.secret, mine[0][0], 0]
        assert head[10] is True
        assert meta.get(b"l/" + trajectory.trajectory_id.bytes, bytes(8)) == bytes(8)
        wanted = contents(trajectory)
        for lsn, record in mine:
            for reference in find_references(record["body"]):
                key = lsn.to_bytes(8, "big") + bytes.fromhex(reference["sha256"])
                if key in blobs:
                    content = blobs[key]
                    assert len(content) <= 1 << 20
                else:
                    identity, size, count = msgspec.msgpack.decode(meta[b"c/" + key])
                    assert meta[b"x/" + identity] == b"\0"
                    content = b"".join(chunks[identity + index.to_bytes(4, "big")] for index in range(count))
                    assert len(content) == size > 1 << 20
                assert content == wanted[reference["sha256"]]
                assert (len(content), hashlib.sha256(content).hexdigest()) == (reference["bytes"], reference["sha256"])
    for name in (b"durable", b"heads"):
        lsn, named_hash = msgspec.msgpack.decode(meta[name])
        assert by_lsn[lsn]["hash"] == named_hash
    prefixes = {key[:2] for key in meta} - {b"du", b"he", b"pr"}
    assert prefixes <= {b"h/", b"l/", b"n/", b"c/", b"x/", b"o/"}, "a key that the document does not name"


def test_the_files(home: Path) -> None:
    folder = log_folder(home)
    marker = json.loads((home / "home.json").read_bytes())
    assert (marker["version"], marker["product"]) == (1, "stratalog")
    uuid.UUID(marker["home_id"])
    described = json.loads((folder / "log.json").read_bytes())
    assert all(f'"{name}":' in DOCUMENT for name in described), "a member that the document does not name"
    assert described["log_id"] == folder.name
    mark = json.loads((folder / "HEAD").read_bytes())
    assert set(mark) == {"log_id", "lsn", "hash", "closed", "opening", "check"}
    assert mark["closed"] is True and len(mark["opening"]) == 32
    text = f"{mark['log_id']} {mark['lsn']} {mark['hash']} {'True' if mark['closed'] else 'False'} {mark['opening']}"
    assert google_crc32c.value(text.encode()) == mark["check"]
    assert re.fullmatch(rb"process \d+\n", (folder / "OWNER").read_bytes())
    assert {path.name for path in folder.iterdir()} <= {"db", "log.json", "HEAD", "OWNER", "REPLICATED", "WANTED"}


def test_the_tail_protocol(home: Path, trajectories: list[GeneratedTrajectory]) -> None:
    with HotLog.open(home) as log, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(Home.open(home).socket_path(log.log_id)))
        connection.settimeout(30)
        greeting = ask(connection, "hello", log_id=str(log.log_id), lsn=0, hash=b"")
        assert (greeting["durable"], greeting["start"]) == (log.durable_lsn, [0, b""])
        assert [lsn for lsn, _ in greeting["openings"]] == sorted({0, log.durable_lsn})
        after, records = 0, []
        while after < greeting["durable"]:
            reply = ask(connection, "read", after=after, events_max=100, bytes_max=1 << 20, wait_s=0.0)
            for lsn, record, given in reply["events"]:
                assert lsn == after + 1
                after = lsn
                records.append(parse_record(record))
                named = {reference["sha256"] for reference in find_references(records[-1]["body"])}
                assert {json.loads(reference)["sha256"] for reference, _ in given} == named
                for reference, content in given:
                    assert hashlib.sha256(content).hexdigest() == json.loads(reference)["sha256"]
        first = trajectories[0]
        identity = str(first.trajectory_id)
        verify([record for record in records if str(record["trajectory"]) == identity])
        part = ask(connection, "envelopes", trajectory_id=identity, from_sequence=2, events_max=3)
        assert [parse_record(record)["hash"] for _, record in part] == [e.hash for e in envelopes(first)[2:5]]
        assert sorted(head[1] for head in ask(connection, "heads")) == sorted(
            str(t.trajectory_id) for t in trajectories
        )
        assert ask(connection, "status")["durable_lsn"] == after
        assert ask(connection, "acknowledge", lsn=after, hash=records[-1]["hash"], quarantined=[]) is None
        assert log.replicated_lsn == after
        assert ask(connection, "hello", log_id=str(log.log_id), lsn=3, hash=bytes(32))[0] == "cursor_mismatch"
        assert ask(connection, "blob", lsn=1, sha256="0" * 64)[0] == "not_found"
        assert ask(connection, "dance")[0] == "invalid"
