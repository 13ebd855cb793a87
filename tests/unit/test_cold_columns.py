"""Whatever a body contains, its row gives back the exact bytes; and the columns hold what queries look for."""

from __future__ import annotations

import json
import uuid

import msgspec
import pytest
from fix_json import odd_bodies
from hypothesis import given
from hypothesis import strategies as st

from stratalog.cold.columns import COLUMN_OF, Place, Row, body_of, row_of
from stratalog.cold.rows import batch_of, rows_of
from stratalog.schemas import events as ev
from stratalog.schemas.arrow import INDEX, NAMES
from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.codec import encode_body, kind_of
from stratalog.schemas.envelope import Envelope, Header
from stratalog.schemas.errors import Corrupt

PLACE = Place(20_000, "atlas-4", "atlas-4")
ID = uuid.UUID("01941f29-7c00-7000-8000-000000000001")


def row_for(kind: str, body: bytes, *, version: int = ev.SCHEMA_VERSION, erased: bool = False) -> Row:
    header = Header("acme", ID, 3, 1, 1_735_689_600_000_001, kind, version, bytes(32), b"d" * 32)
    return row_of(Envelope(7, 0, header, body, b"h" * 32, erased), 2, PLACE)


def through_arrow(row: Row) -> Row:
    return next(rows_of(batch_of([row])))


def values(body: ev.Body) -> dict[str, object]:
    row = row_for(kind_of(body), encode_body(body))
    assert body_of(row) == encode_body(body)
    return {name: row[index] for name, index in INDEX.items() if row[index] is not None}


@given(odd_bodies())
def test_any_json_comes_back_exactly(case: tuple[str, bytes]) -> None:
    kind, body = case
    row = row_for(kind, body)
    assert body_of(row) == body
    assert body_of(through_arrow(row)) == body


@given(st.sampled_from([*sorted(ev.KINDS), "SomethingNew"]), st.binary(max_size=60))
def test_any_bytes_come_back_exactly(kind: str, body: bytes) -> None:
    row = row_for(kind, body)
    assert body_of(through_arrow(row)) == body


@given(st.data())
def test_our_own_encoding_needs_no_second_copy(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(ev.KINDS)))
    text = st.text(st.characters(codec="utf-8"), max_size=20)
    typed = {
        str: text,
        bool: st.booleans(),
        int: st.integers(-(2**62), 2**62),
        float: st.floats(allow_nan=False, allow_infinity=False),
    }
    given_fields: dict[str, object] = {}
    for field in msgspec.structs.fields(ev.KINDS[kind]):
        for plain, strategy in typed.items():
            if field.type in (plain, plain | None, ev.Text if plain is str else plain):
                given_fields[field.encode_name] = data.draw(strategy)
        if field.type is msgspec.Raw:
            given_fields[field.encode_name] = ev.raw_json(data.draw(st.dictionaries(text, text, max_size=2)))
    body = _decoded(kind, given_fields)
    row = row_for(kind, encode_body(body))
    assert row[INDEX["body_raw"]] is None
    rest = json.loads(row[INDEX["rest"]] or "{}")
    assert not [name for name in rest if (kind, name) in COLUMN_OF and isinstance(given_fields.get(name), str)]
    assert body_of(through_arrow(row)) == encode_body(body)


def _decoded(kind: str, fields: dict[str, object]) -> ev.Body:
    required = {
        field.encode_name: {str: "x", int: 1, dict[str, str]: {}}.get(field.type, "x")
        for field in msgspec.structs.fields(ev.KINDS[kind])
        if field.required and field.encode_name not in fields
    }
    literals = {"decision": {"Authorized": "allow", "ApprovalResolved": "denied", "DriftResolved": "pin"}.get(kind)}
    if kind == "IntentSettled":
        literals = {"method": "probe", "outcome": "unknown"}
    if kind == "TaskFinished":
        literals = {"status": "failed"}
    chosen = {name: value for name, value in literals.items() if value is not None}
    return msgspec.convert({**required, **fields, **chosen}, ev.KINDS[kind])


def test_fields_with_a_meaning_when_absent_are_filled_in() -> None:
    row = values(ev.ToolResult(tool_call_id="c", output="out", exit_code=3))
    assert (row["status"], row["inferred"], row["role"], row["output"]) == ("ok", False, "tool", "out")
    assert row["rest"] == '{"exit_code":3}'


def test_a_default_that_is_spelled_out_comes_back_spelled_out() -> None:
    body = b'{"tool_call_id":"c","status":"ok","inferred":false}'
    row = row_for("ToolResult", body)
    assert body_of(row) == body
    assert row[INDEX["body_raw"]] is None and row[INDEX["status"]] == "ok"


def test_one_plain_part_is_the_text_and_nothing_else() -> None:
    row = values(ev.MessageReceived(role="user", parts=(ev.Part(text="hello"),)))
    assert (row["role"], row["text"]) == ("user", "hello") and "rest" not in row


def test_several_parts_are_joined_for_queries_and_kept() -> None:
    row = values(ev.MessageReceived(role="user", parts=(ev.Part(text="one"), ev.Part(text="two"))))
    assert row["text"] == "one\n\ntwo"
    assert json.loads(str(row["rest"])) == {"parts": [{"text": "one"}, {"text": "two"}]}


def test_content_that_lies_elsewhere_leaves_its_column_empty() -> None:
    ref = BlobRef.of(b"x" * 100, "text/plain", "xxx")
    row = values(ev.ToolResult(tool_call_id="c", output=Blob(ref)))
    assert "output" not in row and row["blob"] == ref.sha256
    assert json.loads(str(row["rest"]))["output"]["$blob"]["bytes"] == 100


@pytest.mark.parametrize(
    ("kind", "field", "column"),
    [
        ("TaskStarted", "task", "text"),
        ("Compacted", "summary", "text"),
        ("TaskFinished", "result", "text"),
        ("Annotation", "note", "text"),
        ("PlanUpdated", "text", "text"),
        ("Opaque", "raw_text", "text"),
        ("ToolIntent", "arguments", "arguments"),
    ],
)
def test_where_fields_go(kind: str, field: str, column: str) -> None:
    assert COLUMN_OF[kind, field] == column


def test_every_column_of_a_field_exists_and_none_takes_two_fields() -> None:
    assert set(COLUMN_OF.values()) <= set(NAMES)
    assert len({(kind, column) for (kind, _), column in COLUMN_OF.items()}) == len(COLUMN_OF)


def test_an_erased_event_keeps_its_digest_and_nothing_of_the_body() -> None:
    row = row_for("ToolResult", b"", erased=True)
    kept = {name for name, index in INDEX.items() if row[index] is not None} - set(NAMES[: INDEX["turn"] + 1])
    assert kept == {"erased", "body_digest"} and body_of(row) == b""


def test_another_schema_version_is_kept_as_it_is() -> None:
    body = b'{"tool_call_id":"c","output":"out"}'
    row = row_for("ToolResult", body, version=2)
    assert row[INDEX["body_raw"]] == body and row[INDEX["output"]] is None


def test_a_row_without_a_rule_is_refused() -> None:
    row = row_for("ToolResult", b'{"tool_call_id":"c"}')
    row[INDEX["schema_version"]] = 9
    with pytest.raises(Corrupt, match="no rebuild rule"):
        body_of(row)


def test_a_rest_that_is_no_object_is_refused() -> None:
    row = row_for("ToolResult", b'{"tool_call_id":"c","exit_code":1}')
    row[INDEX["rest"]] = "["
    with pytest.raises(Corrupt, match="not a JSON object"):
        body_of(row)


def test_deep_nesting_is_kept_as_it_is() -> None:
    body = b'{"tool_call_id":"c","arguments":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    assert body_of(row_for("ToolIntent", body)) == body
