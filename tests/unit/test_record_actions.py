"""What the fold makes of actions and contexts: intents, results, settlements, approvals, references."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fix_bodies import decoded

from stratalog.schemas import record as record_module
from stratalog.schemas.events import (
    ApprovalRequested,
    ApprovalResolved,
    ContextBuilt,
    EscalationResolved,
    EventBody,
    IntentSettled,
    LateResult,
    TaskFinished,
    TaskStarted,
    ToolIntent,
    ToolResult,
)
from stratalog.schemas.record import TrajectoryRecord, fold

START = TaskStarted(task="count")
INTENT = ToolIntent(tool_call_id="1", tool="greet", idempotency_key="k", effect="irreversible", settlement="probe")
ASK = ApprovalRequested(tool_call_id="1")


def state(*events: EventBody) -> TrajectoryRecord:
    """The record after these events."""
    return fold(TrajectoryRecord(), decoded(events))


def reasons(record: TrajectoryRecord) -> list[str]:
    assert record.anomaly_count == len(record.anomalies)
    return [anomaly.reason for anomaly in record.anomalies]


# --- what is pending -------------------------------------------------------------------------------------------------


def test_pending_approvals() -> None:
    record = state(START, ASK, ApprovalRequested(tool_call_id="2"))
    assert record.pending_approvals == {"1": 1, "2": 2}
    record = state(START, ASK, ASK, ApprovalResolved(tool_call_id="1", decision="approved"))
    assert record.pending_approvals == {}
    assert reasons(record) == []


def test_an_answer_that_nobody_asked_for() -> None:
    answer = ApprovalResolved(tool_call_id="1", decision="approved")
    assert reasons(state(START, answer)) == ["approval of 1 was not requested"]
    assert reasons(state(START, msgspec.structs.replace(answer, inferred=True))) == []
    assert reasons(state(START, EscalationResolved(escalation_id="e", decision="go"))) == [
        "escalation e was not raised"
    ]


def test_an_intent_is_open_until_its_result() -> None:
    record = state(START, INTENT)
    assert record.open_intents[1] == record_module.OpenIntent(1, "1", "greet", "k", "irreversible", "probe")
    record = state(START, INTENT, ToolResult(tool_call_id="1", intent=1, status="error"))
    assert record.open_intents == {}
    assert reasons(record) == []


def test_repeated_tool_call_ids_are_told_apart_by_their_intent() -> None:
    record = state(START, INTENT, INTENT, ToolResult(tool_call_id="1", intent=1))
    assert list(record.open_intents) == [2]


@pytest.mark.parametrize("intent", [None, 0, 7])
def test_a_result_without_an_intent_is_an_anomaly(intent: int | None) -> None:
    record = state(START, INTENT, ToolResult(tool_call_id="1", intent=intent))
    assert reasons(record) == ["result of 1 without an open intent"]
    assert list(record.open_intents) == [1]


def test_two_results_are_an_anomaly() -> None:
    result = ToolResult(tool_call_id="1", intent=1)
    assert reasons(state(START, INTENT, result, result)) == ["result of 1 without an open intent"]


@pytest.mark.parametrize("status", ["denied", "cancelled", "not_dispatched"])
def test_what_was_never_dispatched_needs_no_intent(status: Any) -> None:
    assert reasons(state(START, ToolResult(tool_call_id="1", status=status))) == []


@pytest.mark.parametrize("status", ["timeout", "unknown"])
def test_a_timeout_is_in_doubt_not_failed(status: Any) -> None:
    late = ToolResult(tool_call_id="1", intent=1, status=status)
    record = state(START, INTENT, late)
    assert list(record.open_intents) == [1]
    assert reasons(record) == []
    assert state(START, INTENT, late, ToolResult(tool_call_id="1", intent=1)).open_intents == {}


@pytest.mark.parametrize("outcome", ["happened", "did_not_happen"])
def test_settlement_and_the_result_after_it(outcome: Any) -> None:
    settled = IntentSettled(intent=1, method="probe", outcome=outcome)
    record = state(START, INTENT, settled)
    assert (record.open_intents, record.unsettled, record.settled) == ({}, {}, {1: outcome})
    record = state(START, INTENT, settled, ToolResult(tool_call_id="1", intent=1))
    assert (record.open_intents, record.unsettled, record.settled) == ({}, {}, {})
    assert reasons(record) == []


def test_a_settlement_that_found_nothing_out() -> None:
    unknown = IntentSettled(intent=1, method="probe", outcome="unknown")
    record = state(START, INTENT, unknown)
    assert (record.open_intents, record.unsettled) == ({}, {1: "probe"})
    record = state(START, INTENT, unknown, IntentSettled(intent=1, method="escalation", outcome="happened"))
    assert (record.unsettled, record.settled) == ({}, {1: "happened"})
    assert reasons(record) == []


def test_settling_what_is_not_open_is_an_anomaly() -> None:
    settled = IntentSettled(intent=1, method="probe", outcome="happened")
    assert reasons(state(START, settled)) == ["settled intent 1, which is not open"]
    result = ToolResult(tool_call_id="1", intent=1)
    assert reasons(state(START, INTENT, result, settled)) == ["settled intent 1, which is not open"]


def test_a_late_result_closes_its_intent() -> None:
    record = state(START, INTENT, TaskFinished(status="cancelled"), LateResult(tool_call_id="1", intent=1))
    assert record.open_intents == {}
    assert reasons(record) == []
    assert record.status == "cancelled"


# --- context ---------------------------------------------------------------------------------------------------------


def test_contexts_build_on_the_one_before() -> None:
    record = state(
        START,
        ContextBuilt(appended=((0, 0), (1, 0), (1, 1)), context_hash="h1"),
        ContextBuilt(base=1, kept=((0, 3),), appended=((5, 0),)),
        ContextBuilt(base=2, kept=((0, 1), (2, 4)), appended=((9, 0),), context_hash="h3"),
    )
    assert record.context == ((0, 0), (1, 1), (5, 0), (9, 0))
    assert (record.context_sequence, record.context_hash) == (3, "h3")
    assert reasons(record) == []


def test_a_context_in_full_forgets_the_one_before() -> None:
    assert state(START, ContextBuilt(appended=((0, 0),)), ContextBuilt(appended=((1, 0),))).context == ((1, 0),)


def test_a_context_on_another_base_is_an_anomaly() -> None:
    record = state(START, ContextBuilt(appended=((0, 0),)), ContextBuilt(base=0, kept=((0, 9),)))
    assert reasons(record) == ["context builds on 0, which is not the last one"]
    assert record.context == ((0, 0),)


def test_a_context_that_doubles_is_stopped() -> None:
    events: list[EventBody] = [START, ContextBuilt(appended=((0, 0),))]
    events += [ContextBuilt(base=number, kept=((0, 1 << 40),) * 2) for number in range(1, 60)]
    record = state(*events)
    assert len(record.context) <= record_module.CONTEXT_REFERENCES_MAX
    assert any("context has more than" in reason for reason in reasons(record))
