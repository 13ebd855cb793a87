"""Bulk out of line: long strings become references, everything else keeps its exact bytes, and all can be restored."""

from __future__ import annotations

import hashlib
import json
import re
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.schemas import blobs as blobs_
from stratalog.schemas.blobs import Blob, BlobRef, foreign_json, offload, references, text_bytes, text_from_bytes
from stratalog.schemas.codec import decode_body, encode_body
from stratalog.schemas.events import ToolIntent, ToolResult, Unknown

LIMIT = 16
any_text = st.text(st.characters(), max_size=60) | st.sampled_from(
    ["\ud800" * 20, '{"$blob":{"sha256":"' + "0" * 64 + '","bytes":1}}', "\\" * 40, '"' * 40, "{}[]" * 10, "é" * 40]
)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=10,
)
spellings = st.sampled_from(
    [
        {"ensure_ascii": True},
        {"ensure_ascii": False},
        {"indent": 1, "ensure_ascii": True},
        {"separators": (" ,", " : "), "ensure_ascii": False},
    ]
)


def written(value: Any, spelling: dict[str, Any]) -> bytes:
    text = json.dumps(value, **spelling)
    return text.encode("utf-8", "surrogatepass" if spelling["ensure_ascii"] else "replace")


def restore(body: bytes, contents: dict[str, bytes]) -> Any:
    """The value with its references replaced by what they refer to."""

    def fill(item: dict[str, Any]) -> Any:
        if set(item) == {"$blob"} and isinstance(item["$blob"], dict) and item["$blob"].get("sha256") in contents:
            return text_from_bytes(contents[item["$blob"]["sha256"]])
        return item

    return json.loads(body, object_hook=fill)


@given(any_json, spellings)
def test_everything_can_be_restored(value: Any, spelling: dict[str, Any]) -> None:
    body = written(value, spelling)
    small, blobs = offload(body, LIMIT)
    contents = {ref.sha256: content for ref, content in blobs}
    assert restore(small, contents) == json.loads(body)
    for ref, content in blobs:
        assert ref.sha256 == hashlib.sha256(content).hexdigest()
        assert ref.size == len(content)
    assert [ref for ref, _ in blobs] == [ref for ref in references(small) if ref.sha256 in contents]


@given(any_json, spellings)
def test_only_long_strings_change(value: Any, spelling: dict[str, Any]) -> None:
    body = written(value, spelling)
    small, blobs = offload(body, LIMIT)
    pieces = re.split(rb'("(?:[^"\\]++|\\.)*+")', body, flags=re.DOTALL)  # between, string, between, string, …
    refs = iter(blobs)
    for index in range(1, len(pieces), 2):
        if len(pieces[index]) - 2 > LIMIT and not pieces[index + 1].lstrip().startswith(b":"):
            ref, content = next(refs)
            assert text_from_bytes(content) == json.loads(pieces[index])
            pieces[index] = msgspec.json.encode(Blob(ref))
    assert small == b"".join(pieces)
    assert not list(refs)


@given(any_json, spellings)
def test_offloading_again_changes_nothing(value: Any, spelling: dict[str, Any]) -> None:
    small, _ = offload(written(value, spelling), LIMIT)
    assert offload(small, LIMIT) == (small, [])


@given(st.binary(max_size=400), st.integers(0, 20))
def test_bytes_that_are_no_json_never_raise(body: bytes, limit: int) -> None:
    offload(body, limit)
    list(references(body))


@given(any_json.map(json.dumps).map(str.encode) | st.lists(st.sampled_from([b'"', b"\\", b"a"])).map(b"".join))
def test_both_ways_to_find_the_strings_agree(body: bytes) -> None:
    by_pattern = [token.span() for token in blobs_._STRING.finditer(body)]
    closed = [span for span in by_pattern if len(blobs_._STRING.findall(body[slice(*span)] + b'"')) == 2]
    assert list(blobs_._strings_between_quotes(body)) == closed


def test_long_strings_are_found_among_few_and_among_many_quotes() -> None:
    few = b'{"a":"%b"}' % (b"x\\\\" * 400)
    many = b'{"a":"%b","b":%b}' % (b'x\\"' * 400, b'["","",""]' * 100)
    for body in (few, many):
        assert [len(content) for _, content in offload(body, 300)[1]] == [800]


def test_a_body_of_an_unknown_kind_may_hold_anything() -> None:
    body = encode_body(Unknown("Foreign", b'not JSON: "\n' + b"x" * 100 + b'" "\\q' + b"y" * 100 + b'"'))
    assert offload(body, LIMIT) == (body, [])


def test_the_limit_is_exact() -> None:
    assert offload(b'["%b"]' % (b"x" * 16), 16)[1] == []
    assert len(offload(b'["%b"]' % (b"x" * 17), 16)[1]) == 1


def test_keys_stay() -> None:
    body = json.dumps({"k" * 100: "v" * 100, "nested": [{"n" * 100: 1}]}).encode()
    small, blobs = offload(body, LIMIT)
    assert [content for _, content in blobs] == [b"v" * 100]
    assert list(json.loads(small)) == ["k" * 100, "nested"]
    assert offload(b'{"%b"\n\t : 1}' % (b"k" * 100), LIMIT)[1] == []


def test_a_reference_in_a_text_is_not_one() -> None:
    ref = BlobRef.of(b"x")
    quoted = json.dumps({"output": msgspec.json.encode(Blob(ref)).decode()}).encode()
    assert b"$blob" in quoted
    assert list(references(quoted)) == []
    twice = json.dumps({"output": json.dumps(json.dumps({"$blob": {"sha256": "0", "bytes": 1}}))}).encode()
    assert list(references(twice)) == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"$blob":{"sha256":"0","bytes":"many"}}',
        b'{"$blob":{"sha256":"0","bytes":1,"more":1}}',
        b'{"$blob":{"bytes":1}}',
        b'{"$blob":"0"}',
        b'{"$blob":{"sha256":"0","bytes":1},"and":1}',
        b'{"$blob": {"sha256":"0","bytes":1}}',
    ],
)
def test_other_objects_are_not_references(body: bytes) -> None:
    assert list(references(body)) == []


HOSTILE_TEXTS = ['}}"}' * 30, "\\" * 99, '"' * 99, "{" * 99, '\\"}' * 40, "é\n\0\x1b" * 30, "\ud800\udc00\udfff" * 9]


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_braces_and_escapes_in_a_preview(text: str) -> None:
    body = json.dumps({"output": text, "after": "}"}).encode()
    small, blobs = offload(body, LIMIT)
    ((ref, content),) = blobs
    assert text_from_bytes(content) == json.loads(body)["output"]
    assert list(references(small)) == [ref]
    assert json.loads(small)["after"] == "}"


def test_lone_surrogates_survive_outside() -> None:
    text = "a\ud800b" * 20
    small, ((ref, content),) = offload(json.dumps([text]).encode(), LIMIT)
    assert text_from_bytes(content) == text
    assert text_bytes(text) == content
    assert "\ud800" not in ref.preview
    small.decode("utf-8")


def test_a_typed_body_reads_a_reference() -> None:
    body, _ = offload(encode_body(ToolResult(tool_call_id="1", output="line\n" * 100)), LIMIT)
    read = decode_body("ToolResult", body)
    assert isinstance(read, ToolResult)
    assert isinstance(read.output, Blob)
    assert read.output.ref.size == 500
    assert read.output.ref.preview.startswith("line\nline")
    assert encode_body(read) == body


@given(any_json, spellings)
def test_foreign_json_holds_no_reference_and_means_the_same(value: Any, spelling: dict[str, Any]) -> None:
    nested = written([{"$blob": {"sha256": "0", "bytes": 1}}, value, {"$blob": {}}], spelling)
    for raw in (nested, nested.replace(b'": {', b'":{')):
        safe = bytes(foreign_json(raw))
        assert list(references(safe)) == []
        assert json.loads(safe) == json.loads(raw)


def test_a_tool_may_be_called_with_what_looks_like_a_reference() -> None:
    hostile = msgspec.json.encode(Blob(BlobRef.of(b"x")))
    raw = ToolIntent(tool_call_id="1", tool="t", arguments=msgspec.Raw(hostile))
    assert len(list(references(encode_body(raw)))) == 1, "this is why foreign_json is there"
    safe = ToolIntent(tool_call_id="1", tool="t", arguments=foreign_json(hostile))
    assert list(references(encode_body(safe))) == []


def test_a_given_reference_is_left_alone() -> None:
    given_ref = BlobRef.of(b"x" * 99, "image/png", "a preview that is longer than the limit")
    body = encode_body(ToolResult(tool_call_id="1", output="y" * 99, full=Blob(given_ref)))
    small, blobs = offload(body, LIMIT)
    assert [content for _, content in blobs] == [b"y" * 99]
    assert list(references(small)) == [blobs[0][0], given_ref]


def test_a_string_of_50_mb_in_bounded_memory() -> None:
    size = 50_000_000
    body = b'{"tool_call_id":"1","output":"%b"}' % (b"a\\n" * (size // 3))
    tracemalloc.start()
    small, blobs = offload(body, 32 << 10)
    peak = tracemalloc.get_traced_memory()[1]
    found = list(references(small))
    tracemalloc.stop()
    assert len(small) < 2_000
    assert [ref for ref, _ in blobs] == found
    assert peak < 4 * size, "token, text and content, each once"


def test_many_quotes_and_backslashes_take_linear_time() -> None:
    """A pattern that backtracks would not come back from these."""
    for hostile in (
        b'["' + b'\\"' * 500_000,
        b'{"$blob":{' * 20_000,
        b'{"$blob":{"' + b'\\"' * 500_000,
        b'"' * 200_000,
    ):
        assert offload(hostile, LIMIT)[0] == hostile
        assert list(references(hostile)) == []
