"""The summary is the record in small: what both know must be the same after any events."""

from __future__ import annotations

import msgspec
import pytest
from fix_bodies import START_US, bodies, decoded, loose
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.schemas.codec import Event, decode_event
from stratalog.schemas.events import (
    ApprovalRequested,
    ApprovalResolved,
    ContextBuilt,
    LabelsSet,
    MessageReceived,
    ModelReplied,
    Source,
    TaskFinished,
    TaskStarted,
    ToolIntent,
    ToolResult,
    Unknown,
)
from stratalog.schemas.record import TrajectoryRecord, fold
from stratalog.schemas.summary import Summary
from stratalog.testing import envelopes, workload


def summarize(events: list[Event]) -> Summary:
    summary = Summary()
    for event in events:
        summary.advance(event)
    return summary


def agree(summary: Summary, record: TrajectoryRecord) -> None:
    assert summary.status == record.status
    assert summary.ended == record.ended
    assert (summary.turn, summary.turn_open) == (record.turn, record.turn_open)
    assert summary.events == record.events
    assert summary.input_tokens == record.spent.input_tokens
    assert summary.output_tokens == record.spent.output_tokens
    assert summary.cost_usd == record.spent.cost_usd
    assert summary.labels == record.labels
    assert summary.model == record.versions.model.name
    assert summary.agent == record.versions.agent
    assert sorted(summary.pending_approvals) == sorted(record.pending_approvals)
    assert sorted(summary.escalations) == sorted(record.escalations)
    assert (summary.source, summary.parent) == (record.source, record.parent)
    assert summary.started_at == record.started_at
    assert summary.last_event_at == record.last_event_at
    assert summary.finished_at == record.finished_at


@pytest.mark.parametrize("profile", ["mixed", "small", "running"])
def test_agrees_on_the_workload(profile: str) -> None:
    for trajectory in workload(11, 40, profile):
        events = [decode_event(envelope) for envelope in envelopes(trajectory)]
        agree(summarize(events), fold(TrajectoryRecord(), events))


@settings(max_examples=400)
@given(
    st.lists(
        st.builds(
            loose,
            bodies | st.just(Unknown("Future", b"{}")),
            st.integers(0, 20),
            created_at=st.integers(0, START_US),
        ),
        max_size=25,
    )
)
def test_agrees_on_any_events(events: list[Event]) -> None:
    # A drift that is crossed over changes the record's model version, never its name.
    agree(summarize(events), fold(TrajectoryRecord(), events))


def test_a_summary_that_was_stored_goes_on() -> None:
    (trajectory,) = workload(3, 1)
    events = [decode_event(envelope) for envelope in envelopes(trajectory)]
    stored = Summary()
    for event in events:
        stored.advance(event)
        stored = msgspec.msgpack.decode(msgspec.msgpack.encode(stored), type=Summary)
    assert stored == summarize(events)


def test_the_turn_of_an_event() -> None:
    events = decoded(
        [
            TaskStarted(),
            MessageReceived(role="user"),
            ContextBuilt(),
            ModelReplied(),
            ToolIntent(tool_call_id="1", tool="t"),
            ToolResult(tool_call_id="1", intent=4),
            ContextBuilt(),
            ContextBuilt(),
            ModelReplied(),
            ModelReplied(),
        ]
    )
    summary = Summary()
    assert [summary.advance(event) for event in events] == [0, 0, 1, 1, 1, 1, 2, 2, 2, 3]


def test_an_approval_asked_twice_is_answered_once() -> None:
    ask = ApprovalRequested(tool_call_id="1")
    summary = summarize(decoded([TaskStarted(), ask, ask, ApprovalResolved(tool_call_id="1", decision="denied")]))
    assert (summary.pending_approvals, summary.status) == ([], "running")


def test_only_named_labels_are_removed() -> None:
    summary = summarize(decoded([TaskStarted(labels={"a": "", "b": "1"}), LabelsSet(labels={"b": "", "c": "2"})]))
    assert summary.labels == {"a": "", "c": "2"}


def test_undated_and_source() -> None:
    source = Source(format="atif", run_id="r")
    summary = summarize(decoded([TaskStarted(labels={"undated": "true"}, source=source)]))
    assert summary.undated
    assert summary.source == source
    assert not Summary().undated


def test_any_counts_can_be_stored() -> None:
    huge = ModelReplied(input_tokens=1 << 100, output_tokens=-(1 << 100))
    summary = summarize(decoded([TaskStarted(), huge, huge, TaskFinished(status="failed")]))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(summary), type=Summary) == summary
