"""Files of the cold table that earlier versions wrote still give the same bytes.

`cold_v1/` holds one trajectory with every kind of event, and its bodies beside it. They were written once, by running
this file (`python tests/compat/test_cold_files.py`), and are never written again: a test that fails here means that
files in somebody's lake would no longer verify. A change of the rules needs a new schema version and a new folder.
"""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from stratalog.cold.columns import Place, body_of, row_of
from stratalog.cold.rows import batch_of, rows_of
from stratalog.cold.segments import Segment, SegmentCheck, mark_start
from stratalog.schemas import events as ev
from stratalog.schemas.arrow import EVENTS, INDEX, SEGMENT
from stratalog.schemas.chain import START, next_header
from stratalog.schemas.codec import encode_body
from stratalog.schemas.envelope import GENESIS_HASH, Envelope, Header

FOLDER = Path(__file__).parent / "cold_v1"
TRAJECTORY = uuid.UUID("01941f29-7c00-7000-8000-0000000000aa")
SECRET = bytes(range(32))
ERASED_AT = 5
ODD_BODIES = (
    ("ToolResult", b'{"tool_call_id":"c","status":"ok","output":"\\u00e9","duration_ms":1e-7}'),
    ("ToolResult", b'{"tool_call_id":"c","duration_ms":12.50,"intent":null}'),
    ("ToolIntent", b'{"tool_call_id":"c","tool":"t","arguments":{"a":-0.0,"b":123456789012345678901234567890}}'),
    ("ToolResult", b'{"tool_call_id":"c", "output":"spaced"}'),
    ("ToolResult", b'{"tool_call_id":"c","output":"a","output":"b"}'),
    ("ModelReplied", b'{"cost_usd":0.1,"text":"other order"}'),
    ("ModelReplied", b'{"text":"new field","cost_usd":1e22,"from_the_future":[1,{"x":"y"}]}'),
    ("ToolResult", b'{"tool_call_id":"c","output":"\\ud800"}'),
    ("FromTheFuture", b'{"a":1}'),
    ("Opaque", b"not json \xff"),
)


def sample(wanted: Any) -> Any:
    """A value of this type, unlike any default; `None` where only nothing will do."""
    plain = {str: "a\n\u00e9\U0001f600", int: 2**53 + 1, float: 0.1, bool: True}
    arguments = getattr(wanted, "__args__", ())
    if wanted in plain:
        return plain[wanted]
    if wanted is msgspec.Raw:
        return ev.raw_json({"k": [1]})
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        fields = {field.encode_name: sample(field.type) for field in msgspec.structs.fields(wanted)}
        return {name: value for name, value in fields.items() if value is not None}
    origin = getattr(wanted, "__origin__", None)
    if origin is dict:
        return {"k": "v"}
    if origin is tuple:
        return [sample(part) for part in arguments if part is not ...]
    if arguments and isinstance(arguments[-1], str):
        return arguments[-1]
    return sample(next(part for part in arguments if part is not type(None)))


def events() -> list[tuple[str, bytes]]:
    bodies = []
    for name, kind in ev.KINDS.items():
        fields = sample(kind)
        if kind is ev.MessageReceived:
            fields["parts"] = [{"text": "hello"}]
        bodies.append((name, encode_body(msgspec.convert(fields, kind))))
    return [*bodies, *ODD_BODIES]


def write() -> None:
    rows, at, listed = [], START, []
    for kind, body in events():
        encoded, at = next_header(
            at, tenant="acme", trajectory_id=TRAJECTORY, epoch=2, created_at=1_735_689_600_000_000 + at.sequence_number,
            kind=kind, schema_version=1, secret=SECRET, body=body,
        )  # fmt: skip
        erased = at.sequence_number == ERASED_AT
        envelope = Envelope(0, 0, Header.decode(encoded), b"" if erased else body, at.hash, erased)
        rows.append(row_of(envelope, 1, Place(20_089, "atlas-4", "atlas-4")))
        listed.append({"kind": kind, "body": base64.b64encode(envelope.body).decode(), "text": repr(envelope.body)})
    start: dict[str, Any] = dict.fromkeys(column.name for column in SEGMENT)
    start |= {"segment_last_sequence": len(rows) - 1, "segment_previous_hash": GENESIS_HASH}
    start |= {"segment_last_hash": at.hash, "segment_secret": SECRET, "trajectory_status": "running"}
    mark_start(rows[0], start)
    FOLDER.mkdir(exist_ok=True)
    with pq.ParquetWriter(FOLDER / "events.parquet", EVENTS, compression="zstd", store_schema=False) as writer:
        writer.write_batch(batch_of(rows))
    (FOLDER / "events.json").write_text(json.dumps({"last_hash": at.hash.hex(), "events": listed}, indent=1) + "\n")


def stored() -> tuple[list[list[Any]], dict[str, Any]]:
    with pq.ParquetFile(FOLDER / "events.parquet") as file:
        rows = [row for batch in file.iter_batches() for row in rows_of(batch)]
    return rows, json.loads((FOLDER / "events.json").read_text())


def test_bodies_of_version_1_come_back_exactly() -> None:
    rows, expected = stored()
    assert [(row[INDEX["kind"]], body_of(row)) for row in rows] == [
        (event["kind"], base64.b64decode(event["body"])) for event in expected["events"]
    ]


def test_the_chain_of_version_1_still_verifies() -> None:
    rows, expected = stored()
    check = SegmentCheck(lambda tenant, sha256: None)
    found = [part for row in rows for part in check.feed(row, "golden")]
    assert [type(part) for part in found] == [Segment]
    assert isinstance(found[0], Segment) and found[0].last_hash.hex() == expected["last_hash"]


def test_every_kind_is_in_the_golden_file() -> None:
    rows, _ = stored()
    assert set(ev.KINDS) <= {row[INDEX["kind"]] for row in rows}


def test_what_is_written_today_is_what_was_written_then() -> None:
    # Not only the bytes but the columns: queries rest on them. A new kind or field may come, an old one may not move.
    rows, expected = stored()
    for row, event in zip(rows, expected["events"], strict=True):
        header = Header("acme", TRAJECTORY, row[INDEX["sequence_number"]], 2, 0, event["kind"], 1, b"", b"")
        if not row[INDEX["erased"]]:
            again = row_of(Envelope(0, 0, header, base64.b64decode(event["body"]), b""), 1, Place(20_089, "", ""))
            assert again[INDEX["role"] : INDEX["erased"]] == row[INDEX["role"] : INDEX["erased"]]


if __name__ == "__main__":
    write()
