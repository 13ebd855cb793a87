"""The hash chain: whatever is changed, left out or moved shows; what was erased does not hide the rest."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest
from fix_bodies import SECRET, chained
from hypothesis import given
from hypothesis import strategies as st

from stratalog.schemas.chain import START, ChainCheck, Link, check_link
from stratalog.schemas.envelope import Envelope, hash_header
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.events import Annotation, TaskStarted, ToolIntent, ToolResult
from stratalog.testing import envelopes as envelopes_of
from stratalog.testing import workload

BODIES = [
    TaskStarted(task="count"),
    ToolIntent(tool_call_id="1", tool="count"),
    ToolResult(tool_call_id="1", intent=1, output="3"),
    Annotation(name="score", score=1.0),
]


def check(envelopes: list[Envelope], secret: bytes | None = SECRET, after: Link = START) -> Link:
    chain = ChainCheck(secret, after)
    for envelope in envelopes:
        chain.feed(envelope)
    return chain.position


def erased(envelope: Envelope) -> Envelope:
    return msgspec.structs.replace(envelope, body=b"", erased=True, secret=None)


def forged(envelope: Envelope, **changes: Any) -> Envelope:
    """The event with another header, and the hash that fits it."""
    header = msgspec.structs.replace(envelope.header, **changes)
    return msgspec.structs.replace(envelope, header=header, hash=hash_header(header.encode()))


def test_a_chain_is_accepted() -> None:
    events = chained(BODIES)
    assert check(events) == Link(3, events[-1].hash)
    assert check([]) == START


def test_a_later_segment_is_accepted_after_its_predecessor() -> None:
    events = chained(BODIES)
    assert check(events[2:], after=Link(1, events[1].hash)) == Link(3, events[-1].hash)
    with pytest.raises(Corrupt, match="is missing"):
        check(events[2:])
    with pytest.raises(Corrupt, match="does not extend the chain"):
        check(events[2:], after=Link(1, bytes(32)))


@pytest.mark.parametrize("left_out", range(3))
def test_a_missing_event_shows(left_out: int) -> None:
    events = chained(BODIES)
    with pytest.raises(Corrupt, match="is missing"):
        check(events[:left_out] + events[left_out + 1 :])


def test_a_repeated_or_moved_event_shows() -> None:
    first, second, third, fourth = chained(BODIES)
    for wrong in ([first, first], [first, third, second, fourth], [second]):
        with pytest.raises(Corrupt):
            check(wrong)


CHANGES: list[dict[str, Any]] = [
    {"tenant": "other"},
    {"trajectory_id": uuid.UUID(int=1)},
    {"sequence_number": 9},
    {"epoch": 1},
    {"created_at": 0},
    {"kind": "Other"},
    {"schema_version": 2},
    {"previous_hash": bytes(32)},
    {"body_digest": bytes(32)},
]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: next(iter(changes)))
@pytest.mark.parametrize("at", [1, 2])
def test_a_changed_header_shows_in_the_next_event(at: int, changes: dict[str, Any]) -> None:
    events = chained(BODIES)
    events[at] = forged(events[at], **changes)
    with pytest.raises(Corrupt):
        check(events)


@given(st.integers(0, 3), st.integers(0, 200), st.integers(1, 255))
def test_a_changed_body_shows(at: int, position: int, difference: int) -> None:
    events = chained(BODIES)
    body = bytearray(events[at].body)
    body[position % len(body)] ^= difference
    events[at] = msgspec.structs.replace(events[at], body=bytes(body))
    with pytest.raises(Corrupt, match="does not match its digest"):
        check(events)


@given(st.sets(st.integers(0, 3)))
def test_erased_events_keep_the_chain(places: set[int]) -> None:
    events = chained(BODIES)
    last = check(events)
    for place in places:
        events[place] = erased(events[place])
    assert check(events) == last


def test_without_its_secret_only_an_erased_trajectory_verifies() -> None:
    events = chained(BODIES)
    assert check([erased(event) for event in events], secret=None) == Link(3, events[-1].hash)
    with pytest.raises(Corrupt, match="secret is gone"):
        check(events, secret=None)


def test_an_erased_chain_still_shows_a_missing_event() -> None:
    events = [erased(event) for event in chained(BODIES)]
    with pytest.raises(Corrupt, match="is missing"):
        check([events[0], *events[2:]], secret=None)


def test_another_trajectory_cannot_be_spliced_in() -> None:
    mine, other = chained(BODIES), chained([TaskStarted(task="else"), *BODIES[1:]])
    with pytest.raises(Corrupt, match="does not extend the chain"):
        check_link(Link(0, mine[0].hash), other[1])


def test_generated_trajectories_verify() -> None:
    for trajectory in workload(1, 20):
        made = envelopes_of(trajectory)
        assert check(made, trajectory.secret).sequence_number == len(made) - 1
