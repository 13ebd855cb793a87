"""The jsonb projection: small, never a reason to lose an event, and only what Postgres takes."""

from __future__ import annotations

import json

import pytest
from fix_history import MemoryLog, Story, assert_sound, copy, message, row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratalog.schemas.events import ToolResult, Unknown
from stratalog.warm import projection
from stratalog.warm.database import Connection
from stratalog.warm.queries import read_events

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]

HOSTILE = [
    b'{"a":"\\u0000"}',
    b'{"a":"\\ud800"}',
    b'{"a":NaN}',
    b'{"a":1e400000}',
    b'{"a":' + b"9" * 140_000 + b"}",
    b"[" * 10_000 + b"]" * 10_000,
    b"\xff\xfe",
    b"",
    b"not json",
    b'{"a":"' + b"x" * 5000 + b'\\u0000"}',
    b'{"a":1}{"b":2}',
]


def test_bodies_that_jsonb_refuses_keep_their_place_and_their_bytes(warm: Connection) -> None:
    story, log = Story().tell(1), MemoryLog()
    for raw in HOSTILE:
        story.write(Unknown("Foreign", b""), raw=raw)
        story.write(ToolResult(tool_call_id="1"), raw=raw)
    story.write(message("fine"))
    log.append(story, story.events)
    assert copy(warm, log).admitted == len(story.events)
    assert [e.body for e in read_events(warm, story.trajectory_id)] == [e.body for e in story.events]
    # The first and the last, and twice two where the culprit was cut or left out.
    assert row(warm, "SELECT count(payload) FROM all_events") == (6,)
    assert_sound(warm)


def test_a_projection_that_postgres_refuses_after_all_costs_only_the_projection(
    warm: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = projection.project
    monkeypatch.setattr(projection, "project", lambda body: "{no json" if b"parts" in body else real(body))
    story, log = Story().tell(3), MemoryLog()
    log.append(story, story.events)
    assert copy(warm, log).admitted == 3
    assert row(warm, "SELECT count(*), count(payload) FROM all_events") == (3, 0)
    assert_sound(warm)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.integers(0, 3000).map("é".__mul__),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(json_values.map(json.dumps).map(str.encode) | st.binary(max_size=50), max_size=8))
def test_jsonb_takes_whatever_is_projected(warm: Connection, bodies: list[bytes]) -> None:
    texts = [text for text in map(projection.project, bodies) if text is not None]
    with warm.transaction():
        found = warm.execute("SELECT count(x::jsonb) FROM unnest(%s::text[]) x", [texts]).fetchone()
    assert found == (len(texts),)


def test_projections_are_small_whatever_the_body(warm: Connection) -> None:
    long = json.dumps({"a": "x" * 100_000, "b": ["y" * 3000] * 100, "c": 1, "$blob": {"sha256": "0" * 64}}).encode()
    projected = json.loads(projection.project(long) or "")
    assert projected["a"] == "x" * projection.STRING_BYTES_MAX and projected["c"] == 1 and "b" not in projected
    assert projected["$blob"] == {"sha256": "0" * 64}
    assert projection.project(json.dumps(["y" * 1000] * 1000).encode()) is None
