"""The fold: pure, total, the same step by step; and what each kind of event does to the record."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from fix_bodies import START_US, bodies, decoded, loose
from hypothesis import given
from hypothesis import strategies as st

from stratalog.schemas import record as record_module
from stratalog.schemas.codec import Event, decode_event, encode_body
from stratalog.schemas.events import (
    ALLOWED_AFTER_END,
    KINDS,
    Annotation,
    ApprovalRequested,
    ApprovalResolved,
    Authorized,
    Budget,
    CancelRequested,
    Checkpoint,
    ChildFinished,
    ChildStarted,
    ContextBuilt,
    DriftResolved,
    EscalationRaised,
    EscalationResolved,
    EventBody,
    LabelsSet,
    MessageReceived,
    Model,
    ModelReplied,
    PlanStep,
    PlanUpdated,
    PromptTemplate,
    TaskFinished,
    TaskStarted,
    ToolIntent,
    TrajectoryClaimed,
    TrajectoryForked,
    TrajectoryReleased,
    TrajectoryReopened,
    Unknown,
)
from stratalog.schemas.record import TrajectoryRecord, apply, fold
from stratalog.schemas.status import ENDED
from stratalog.schemas.values import Source
from stratalog.testing import envelopes, workload

START = TaskStarted(task="count")
INTENT = ToolIntent(tool_call_id="1", tool="greet", idempotency_key="k", effect="irreversible", settlement="probe")
any_body = bodies | st.builds(Unknown, st.just("Future"), st.binary(max_size=8))
any_events = st.lists(
    st.builds(loose, any_body, st.integers(0, 20), epoch=st.integers(0, 3), created_at=st.integers(0, START_US)),
    max_size=25,
)


def state(*events: EventBody) -> TrajectoryRecord:
    """The record after these events."""
    return fold(TrajectoryRecord(), decoded(events))


def reasons(record: TrajectoryRecord) -> list[str]:
    assert record.anomaly_count == len(record.anomalies)
    return [anomaly.reason for anomaly in record.anomalies]


# --- purity and totality ---------------------------------------------------------------------------------------------


@given(any_events)
def test_any_events_in_any_order_fold(events: list[Event]) -> None:
    record = fold(TrajectoryRecord(), events)
    assert record.events == len(events)
    assert record.status in {*ENDED, "pending", "running", "waiting_approval", "escalated", "imported"}


@given(any_events)
def test_the_same_twice_and_step_by_step(events: list[Event]) -> None:
    record = TrajectoryRecord()
    for event in events:
        record = apply(record, event)
    assert record == fold(TrajectoryRecord(), events) == fold(TrajectoryRecord(), iter(events))


@given(any_events, any_events)
def test_the_initial_record_is_left_alone(before: list[Event], after: list[Event]) -> None:
    initial = fold(TrajectoryRecord(), before)
    kept = copy.deepcopy(initial)
    assert fold(initial, after) == fold(TrajectoryRecord(), [*before, *after])
    assert initial == kept
    assert TrajectoryRecord() == TrajectoryRecord(status="pending")


@given(any_events)
def test_a_snapshot_of_the_record_can_be_continued(events: list[Event]) -> None:
    record = fold(TrajectoryRecord(), events)
    restored = msgspec.json.decode(msgspec.json.encode(record), type=TrajectoryRecord)
    assert restored == record


def test_generated_trajectories_fold_without_anomalies() -> None:
    for profile in ("mixed", "running"):
        for trajectory in workload(5, 40, profile):
            events = [decode_event(envelope) for envelope in envelopes(trajectory)]
            record = fold(TrajectoryRecord(), events)
            assert reasons(record) == []
            half = fold(TrajectoryRecord(), events[: len(events) // 2])
            assert fold(half, events[len(events) // 2 :]) == record


def test_anomalies_are_bounded() -> None:
    record = fold(TrajectoryRecord(), [loose(INTENT, 5)] * 1000)
    assert record.anomaly_count == 1000
    assert len(record.anomalies) == record_module.ANOMALIES_MAX


# --- status ----------------------------------------------------------------------------------------------------------

ASK = ApprovalRequested(tool_call_id="1")
RAISE = EscalationRaised(escalation_id="e")


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([], "pending"),
        ([MessageReceived(role="user")], "pending"),
        ([START], "running"),
        ([TaskStarted(source=Source(format="claude-code"))], "imported"),
        ([START, ASK], "waiting_approval"),
        ([START, ASK, ApprovalResolved(tool_call_id="1", decision="approved")], "running"),
        ([START, ASK, ApprovalResolved(tool_call_id="1", decision="denied")], "running"),
        ([START, ASK, ApprovalResolved(tool_call_id="2", decision="denied")], "waiting_approval"),
        ([START, RAISE], "escalated"),
        ([START, ASK, RAISE], "escalated"),
        ([START, ASK, RAISE, EscalationResolved(escalation_id="e", decision="go")], "waiting_approval"),
        ([START, RAISE, EscalationResolved(escalation_id="e", decision="go")], "running"),
        ([START, CancelRequested()], "running"),
        ([START, TaskFinished(status="completed")], "completed"),
        ([START, TaskFinished(status="failed")], "failed"),
        ([START, ASK, TaskFinished(status="cancelled")], "cancelled"),
        ([START, TaskFinished(status="failed"), TaskFinished(status="completed")], "failed"),
        ([START, TaskFinished(status="failed"), TrajectoryReopened()], "running"),
        ([START, ASK, TaskFinished(status="failed"), TrajectoryReopened()], "waiting_approval"),
        ([START, TaskFinished(status="failed"), ModelReplied(), ASK, RAISE, START], "failed"),
    ],
)
def test_status(events: list[EventBody], status: str) -> None:
    assert state(*events).status == status


def test_the_end_and_a_reopening() -> None:
    ended = state(START, TaskFinished(status="completed"))
    assert ended.ended
    assert ended.finished_at == START_US + 1000
    reopened = state(START, TaskFinished(status="completed"), TrajectoryReopened())
    assert not reopened.ended
    assert reopened.finished_at is None
    assert reasons(state(START, TrajectoryReopened())) == ["reopened without an end"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_follow_the_end(kind: str) -> None:
    body = decoded([KINDS[kind](**_required(kind))])[0].body
    record = state(START, INTENT, TaskFinished(status="completed"), body)
    told = f"{kind} after the end" in reasons(record)
    bookkeeping = kind in ("TrajectoryClaimed", "TrajectoryReleased", "ResultRejected")
    assert told == (kind not in ALLOWED_AFTER_END and not bookkeeping)
    assert record.ended == (kind != "TrajectoryReopened")


def _required(kind: str) -> dict[str, Any]:
    values = {
        "intent": 1,
        "status": "ok" if kind != "TaskFinished" else "failed",
        "labels": {},
        "token": 1,
        "covers": 0,
    }
    values |= {"method": "probe", "outcome": "happened", "parent_sequence": 0, "last_replicated_lsn": 0}
    values["decision"] = {"Authorized": "allow", "ApprovalResolved": "denied", "DriftResolved": "pin"}.get(kind, "go")
    names = [field.name for field in msgspec.structs.fields(KINDS[kind]) if field.required]
    return {name: values.get(name, "1") for name in names} | ({"intent": 1} if kind == "LateResult" else {})


# --- turns, tokens, budgets ------------------------------------------------------------------------------------------


def test_turns() -> None:
    context, reply = ContextBuilt(), ModelReplied()
    assert state(START, MessageReceived(role="user")).turn == 0
    assert state(START, context).turn == 1
    assert state(START, context, reply).turn == 1
    assert state(START, context, context, reply).turn == 1, "the call was tried again"
    assert state(START, context, reply, INTENT, context).turn == 2
    assert state(START, reply, reply).turn == 2, "a source without contexts"
    assert state(START, context, TaskFinished(status="failed"), TrajectoryReopened(), context).turn == 2


def test_tokens_and_cost_add_up() -> None:
    spent = state(
        START,
        ModelReplied(input_tokens=100, output_tokens=7, cost_usd=0.5),
        ModelReplied(),
        ModelReplied(input_tokens=20, output_tokens=3, cost_usd=0.25),
        INTENT,
    ).spent
    assert (spent.input_tokens, spent.output_tokens, spent.cost_usd, spent.tool_calls) == (120, 10, 0.75, 1)


def test_absurd_token_counts_stay_within_64_bits() -> None:
    spent = state(START, ModelReplied(input_tokens=1 << 80, output_tokens=-5), ModelReplied(input_tokens=3)).spent
    assert (spent.input_tokens, spent.output_tokens) == ((1 << 63) - 1, 0)


def test_budgets() -> None:
    granted, left = Budget(tokens=1000, cost_usd=2.0), Budget(tokens=400, cost_usd=1.5)
    record = state(TaskStarted(budget=granted))
    assert (record.budget, record.budget_remaining) == (granted, granted)
    allowed = Authorized(tool_call_id="1", decision="allow", budget_remaining=left)
    record = state(TaskStarted(budget=granted), allowed, Authorized(tool_call_id="2", decision="deny"))
    assert (record.budget, record.budget_remaining) == (granted, left)


def test_absurd_costs_stay_finite() -> None:
    record = state(START, ModelReplied(cost_usd=1.7e308), ModelReplied(cost_usd=1.7e308))
    assert record.spent.cost_usd == 1e15
    odd = [loose(ModelReplied(cost_usd=cost), 0) for cost in (float("nan"), float("inf"), -0.5)]
    assert fold(TrajectoryRecord(), odd).spent.cost_usd == -0.5


# --- the rest --------------------------------------------------------------------------------------------------------


def test_the_current_plan_is_the_last_one() -> None:
    record = state(
        START, PlanUpdated(steps=(PlanStep(title="a"),)), PlanUpdated(steps=(PlanStep(title="b"),), text="t")
    )
    assert record.plan == (PlanStep(title="b"),)
    assert record.plan_text == "t"


def test_labels() -> None:
    record = state(TaskStarted(labels={"a": "1", "b": ""}), LabelsSet(labels={"a": "", "c": "3"}))
    assert record.labels == {"b": "", "c": "3"}


def test_versions_and_drift() -> None:
    start = TaskStarted(
        agent_version="1",
        model=Model(name="m", version="1"),
        prompt_template=PromptTemplate(name="p", version="1"),
        tool_schemas={"t": "1"},
    )
    changes = [("model", "m"), ("prompt_template", "p"), ("tool_schema", "t"), ("agent", "")]
    for decision, version in (("pin", "1"), ("refuse", "1"), ("cross_over", "2")):
        drifts = [DriftResolved(component=c, decision=decision, name=n, new="2") for c, n in changes]  # type: ignore[arg-type]
        versions = state(start, *drifts).versions
        assert versions.model == Model(name="m", version=version)
        assert versions.prompt_template == PromptTemplate(name="p", version=version)
        assert (versions.tool_schemas, versions.agent_version) == ({"t": version}, version)


def test_the_model_that_served() -> None:
    versions = state(START, ModelReplied(served_model="m", served_version="3"), ModelReplied()).versions
    assert (versions.served_model, versions.served_version) == ("m", "3")


def test_checkpoints() -> None:
    record = state(
        TaskStarted(workspace_snapshot="w0"),
        Checkpoint(covers=0, record_snapshot="r1", workspace_snapshot="w1"),
        Checkpoint(covers=1, record_snapshot="r2"),
    )
    assert (record.checkpoint_sequence, record.checkpoint_covers) == (2, 1)
    assert (record.record_snapshot, record.workspace_snapshot) == ("r2", "w1")


def test_holders_and_epochs() -> None:
    record = state(START, TrajectoryClaimed(holder="h", token=4))
    assert (record.holder, record.epoch) == ("h", 4)
    record = state(START, TrajectoryClaimed(holder="h", token=4), TrajectoryReleased(holder="h", token=4))
    assert (record.holder, record.epoch) == ("", 4)


def test_family() -> None:
    record = state(
        TaskStarted(parent="p", parent_sequence=3),
        ChildStarted(child="c"),
        ChildStarted(child="d"),
        ChildFinished(child="c", status="failed"),
        ChildFinished(child="x"),
    )
    assert (record.parent, record.parent_sequence) == ("p", 3)
    assert record.children == {"c": "failed", "d": "running", "x": "finished"}
    assert reasons(record) == ["child x was not started"]
    assert state(START, TrajectoryForked(parent="q", parent_sequence=8)).parent == "q"


def test_a_second_start_changes_nothing() -> None:
    record = state(TaskStarted(agent="a", labels={"x": "1"}), TaskStarted(agent="b", labels={"x": "2"}))
    assert (record.versions.agent, record.labels) == ("a", {"x": "1"})
    assert reasons(record) == ["TaskStarted twice"]


def test_holes_and_foreign_events_are_told() -> None:
    record = fold(TrajectoryRecord(), [loose(START, 0), loose(INTENT, 2), loose(Unknown("New", b"{}"), 3)])
    assert reasons(record) == ["expected event 1"]
    assert (record.sequence_number, record.events, record.unknown_events) == (3, 3, 1)


def test_annotations_change_nothing() -> None:
    before, after = state(START), state(START, Annotation(name="score", score=1.0))
    changed = {"sequence_number": 1, "events": 2, "last_event_at": after.last_event_at}
    assert after == msgspec.structs.replace(before, **changed)
    assert encode_body(Annotation(name="score", score=1.0)) == b'{"name":"score","score":1.0}'
