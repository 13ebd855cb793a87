"""Event bodies: every kind survives, Table 1 of the specification is covered, what is foreign keeps its bytes."""

from __future__ import annotations

import json

import msgspec
import pytest
from fix_bodies import bodies, filled, filled_bodies, json_values
from hypothesis import given
from hypothesis import strategies as st

from stratalog.schemas.codec import decode_body, encode_body, kind_of
from stratalog.schemas.errors import Invalid
from stratalog.schemas.events import KINDS, Body, Opaque, Part, ToolIntent, ToolResult, Unknown, raw_json

TABLE_1 = {
    "TaskStarted": {
        "task specification": ("task", "specification"),
        "model identifier and version": ("model",),
        "sampling parameters": ("sampling",),
        "prompt-template version": ("prompt_template",),
        "tool-schema versions": ("tool_schemas",),
        "workspace snapshot id": ("workspace_snapshot",),
    },
    "ContextBuilt": {
        "ordered message references": ("base", "kept", "appended"),
        "retrieved items": ("retrieved",),
        "hash of the assembled context": ("context_hash",),
        "clocks and seeds read": ("readings",),
    },
    "ModelReplied": {
        "verbatim reply": ("text", "reasoning", "verbatim"),
        "tool calls with their ids": ("tool_calls",),
        "stop reason": ("stop_reason",),
        "token counts": ("input_tokens", "output_tokens"),
        "model version actually served": ("served_model", "served_version"),
    },
    "Authorized": {
        "tool-call id": ("tool_call_id",),
        "decision": ("decision",),
        "policy version": ("policy_version",),
        "budget remaining": ("budget_remaining",),
    },
    "ApprovalRequested": {"tool-call id": ("tool_call_id",), "expiry": ("expires_at",)},
    "ApprovalResolved": {
        "tool-call id": ("tool_call_id",),
        "approver": ("approver",),
        "decision": ("decision",),
        "expiry": ("expires_at",),
    },
    "ToolIntent": {
        "tool-call id": ("tool_call_id",),
        "tool name": ("tool",),
        "arguments": ("arguments",),
        "idempotency key": ("idempotency_key",),
    },
    "ToolResult": {
        "tool-call id": ("tool_call_id",),
        "status": ("status",),
        "output, or its hash and a pointer": ("output", "full"),
        "duration": ("duration_ms",),
    },
    "Compacted": {"turns covered": ("first_turn", "last_turn"), "summary as produced": ("summary",)},
    "Checkpoint": {
        "log position covered": ("covers",),
        "record snapshot id": ("record_snapshot",),
        "workspace snapshot id": ("workspace_snapshot",),
    },
}


@pytest.mark.parametrize("kind", TABLE_1)
def test_table_1_has_every_field(kind: str) -> None:
    body = filled(KINDS[kind])
    written = json.loads(encode_body(body))
    for wanted, names in TABLE_1[kind].items():
        assert all(name in written for name in names), f"{kind}: {wanted}"


def test_table_1_decisions() -> None:
    for decision in ("allow", "deny", "hold"):
        raw = json.dumps({"tool_call_id": "1", "decision": decision}).encode()
        assert not isinstance(decode_body("Authorized", raw), Unknown)


def test_there_are_31_kinds() -> None:
    assert len(KINDS) == 31
    assert all(name == struct.__name__ for name, struct in KINDS.items())


@pytest.mark.parametrize("body", filled_bodies(), ids=kind_of)
def test_every_field_survives(body: Body) -> None:
    encoded = encode_body(body)
    again = decode_body(kind_of(body), encoded)
    assert type(again) is type(body)
    assert encode_body(again) == encoded
    assert set(json.loads(encoded)) == set(msgspec.structs.asdict(body)), "a field is missing in the JSON"


@given(bodies)
def test_any_body_survives(body: Body) -> None:
    encoded = encode_body(body)
    again = decode_body(kind_of(body), encoded)
    assert type(again) is type(body)
    assert encode_body(again) == encoded
    assert isinstance(json.loads(encoded), dict)


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_left_out(kind: str) -> None:
    struct = KINDS[kind]
    required = [field.name for field in msgspec.structs.fields(struct) if field.required]
    written = json.loads(encode_body(filled(struct)))
    smallest = decode_body(kind, json.dumps({name: written[name] for name in required}).encode())
    assert not isinstance(smallest, Unknown)
    assert sorted(json.loads(encode_body(smallest))) == sorted(required)


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("FutureKind", b'{"a": 1}'),
        ("ToolIntent", b"{}"),
        ("ToolIntent", b'{"tool_call_id": 5, "tool": "x"}'),
        ("Authorized", b'{"tool_call_id":"1","decision":"perhaps"}'),
        ("ToolResult", b"not JSON"),
        ("ToolResult", b""),
        ("ToolResult", b'{"tool_call_id":"\xff\xfe"}'),
        ("ToolResult", b'{"tool_call_id":"1","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        ("ToolResult", b'{"tool_call_id":"1","intent":' + b"9" * 5_000 + b"}"),
        ("ToolResult", b'{"tool_call_id":"1","duration_ms":NaN}'),
    ],
)
def test_what_does_not_fit_is_unknown_and_keeps_its_bytes(kind: str, raw: bytes) -> None:
    body = decode_body(kind, raw)
    if isinstance(body, Unknown):
        assert (body.kind, body.raw) == (kind, raw)
        assert body.reason
        assert encode_body(body) == raw
        assert kind_of(body) == kind
    else:
        assert kind == "ToolResult", "only what fits is decoded"


def test_fields_of_a_later_version_do_not_hide_the_event() -> None:
    body = decode_body("ToolIntent", b'{"tool_call_id":"1","tool":"t","added_in_v2":[1,2]}')
    assert body == ToolIntent(tool_call_id="1", tool="t")


@given(st.sampled_from([*KINDS, "Other"]), st.binary(max_size=60) | json_values.map(lambda v: json.dumps(v).encode()))
def test_decoding_never_raises(kind: str, raw: bytes) -> None:
    decode_body(kind, raw)


def test_raw_json_keeps_its_spelling() -> None:
    spelled = b'{"b": 1.50, "a": [ 1e3, "\\u00e9" ], "b": 2}'
    body = ToolIntent(tool_call_id="1", tool="t", arguments=msgspec.Raw(spelled))
    again = decode_body("ToolIntent", encode_body(body))
    assert isinstance(again, ToolIntent)
    assert bytes(again.arguments) == spelled


@pytest.mark.parametrize("raw", [b"", b"nope", b'{"a":', b"1 2", b"{}}"])
def test_raw_bytes_that_are_no_json_are_refused(raw: bytes) -> None:
    with pytest.raises(Invalid, match="no JSON form"):
        encode_body(ToolIntent(tool_call_id="1", tool="t", arguments=msgspec.Raw(raw)))
    with pytest.raises(Invalid, match="no JSON form"):
        encode_body(KINDS["MessageReceived"](role="user", parts=(Part(data=msgspec.Raw(raw)),)))


def test_lone_surrogates_are_refused_with_a_hint() -> None:
    with pytest.raises(Invalid) as raised:
        encode_body(Opaque(format="x", raw_text="\ud800"))
    assert "Opaque" in raised.value.hint


def test_raw_json_of_a_value() -> None:
    body = ToolResult(tool_call_id="1", data=raw_json({"a": [1, None]}))
    assert encode_body(body) == b'{"tool_call_id":"1","data":{"a":[1,null]}}'
