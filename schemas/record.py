"""The trajectory record: everything the harness knows about a trajectory, as a fold over its events.

`apply` is pure and total: no clock, no randomness, no I/O, and it never raises. What cannot be (a result without an
intent, work after the end) is listed as an anomaly. What it says still counts, because tokens were spent and effects
may have happened, but only TrajectoryReopened gets an ended trajectory going again. Folding the same events gives the
same record, so recovery needs the log and nothing more.

Turn n begins with its ContextBuilt, or with its ModelReplied where no context was recorded, and lasts until the next
one begins; a context that is built again before its reply came belongs to the same turn. What precedes the first turn
is turn 0. `Summary` counts in the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from . import events as ev
from .blobs import Text
from .codec import Event
from .counts import add_cost, add_count
from .status import ENDED, open_status

ANOMALIES_MAX = 256
"""Anomalies kept with their text; beyond that they are counted."""
CONTEXT_REFERENCES_MAX = 1 << 20
"""References in one context; a hostile context could double with every event."""
NEVER_DISPATCHED = frozenset({"denied", "cancelled", "not_dispatched"})
"""Results that answer a call which never had an intent."""
IN_DOUBT = frozenset({"timeout", "unknown"})
"""Results that tell the model something and leave the effect in doubt."""


class Anomaly(msgspec.Struct, frozen=True):
    """Something that the rules of a trajectory do not allow, where it was seen."""

    sequence_number: int
    reason: str


class OpenIntent(msgspec.Struct, frozen=True):
    """An intent whose outcome is not known: after a crash, or a timeout, this action is in doubt."""

    sequence_number: int
    tool_call_id: str
    tool: str
    idempotency_key: str = ""
    effect: str = ""
    settlement: str = ""


class Spent(msgspec.Struct):
    """What the trajectory has used so far."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    tool_calls: int = 0


class Versions(msgspec.Struct):
    """The versions in force; drift is a difference from these."""

    agent: str = ""
    agent_version: str = ""
    model: ev.Model = ev.Model()
    served_model: str = ""
    served_version: str = ""
    prompt_template: ev.PromptTemplate = ev.PromptTemplate()
    tool_schemas: dict[str, str] = {}


class TrajectoryRecord(msgspec.Struct):
    """The state of a trajectory after its last applied event.

    `status` is one of those of `status.py`. Times are µs since 1970. `context` holds the resolved references of the
    last ContextBuilt.
    """

    trajectory_id: str = ""
    tenant: str = ""
    status: str = "pending"
    sequence_number: int = -1
    turn: int = 0
    epoch: int = 0
    holder: str = ""
    task_started: bool = False
    started_at: int | None = None
    """The time of the first event."""
    last_event_at: int | None = None
    finished_at: int | None = None
    budget: ev.Budget = ev.Budget()
    budget_remaining: ev.Budget = ev.Budget()
    spent: Spent = msgspec.field(default_factory=Spent)
    pending_approvals: dict[str, int] = {}
    """Tool-call id to the sequence number of its ApprovalRequested."""
    open_intents: dict[int, OpenIntent] = {}
    unsettled: dict[int, str] = {}
    """Intents whose settlement came out `unknown`, to the method that was tried."""
    settled: dict[int, str] = {}
    """Intents settled before their result came, to the outcome; the result may still follow."""
    escalations: dict[str, int] = {}
    plan: tuple[ev.PlanStep, ...] = ()
    plan_text: Text = ""
    versions: Versions = msgspec.field(default_factory=Versions)
    checkpoint_sequence: int | None = None
    checkpoint_covers: int | None = None
    record_snapshot: str = ""
    workspace_snapshot: str = ""
    context: tuple[tuple[int, int], ...] = ()
    context_sequence: int | None = None
    context_hash: str = ""
    turn_open: bool = False
    """A context was built for this turn and its reply is still to come."""
    cancel_requested: bool = False
    labels: dict[str, str] = {}
    source: ev.Source | None = None
    parent: str = ""
    parent_sequence: int | None = None
    children: dict[str, str] = {}
    events: int = 0
    unknown_events: int = 0
    anomalies: list[Anomaly] = []
    anomaly_count: int = 0

    @property
    def ended(self) -> bool:
        """Whether the trajectory has a TaskFinished that was not reopened."""
        return self.status in ENDED


def apply(record: TrajectoryRecord, event: Event) -> TrajectoryRecord:
    """The record after one more event; `record` itself is left as it was."""
    return fold(record, (event,))


def fold(initial: TrajectoryRecord, events: Iterable[Event]) -> TrajectoryRecord:
    """The record after `events`, in order; `initial` itself is left as it was."""
    record = copy.deepcopy(initial)
    for event in events:
        _step(record, event)
    return record


def _step(record: TrajectoryRecord, event: Event) -> None:
    header = event.header
    if header.sequence_number != record.sequence_number + 1:
        _anomaly(record, header.sequence_number, f"expected event {record.sequence_number + 1}")
    record.sequence_number = header.sequence_number
    record.events += 1
    record.epoch = max(record.epoch, header.epoch)
    if record.started_at is None:
        record.started_at = header.created_at
    record.last_event_at = header.created_at
    if not record.trajectory_id:
        record.trajectory_id, record.tenant = str(header.trajectory_id), header.tenant
    if record.ended and event.kind not in ev.ALLOWED_AFTER_END and event.kind not in ev.BOOKKEEPING:
        _anomaly(record, header.sequence_number, f"{event.kind} after the end")
    body = event.body
    if isinstance(body, ev.Unknown):
        record.unknown_events += 1
        return
    handler = _HANDLERS.get(type(body))
    if handler is not None:
        handler(record, event, body)


def _anomaly(record: TrajectoryRecord, sequence_number: int, reason: str) -> None:
    record.anomaly_count += 1
    if len(record.anomalies) < ANOMALIES_MAX:
        record.anomalies.append(Anomaly(sequence_number, reason))


def _refresh_status(record: TrajectoryRecord) -> None:
    if not record.ended:
        record.status = open_status(
            escalations=record.escalations,
            approvals=record.pending_approvals,
            imported=record.source is not None,
        )


def _task_started(record: TrajectoryRecord, event: Event, body: ev.TaskStarted) -> None:
    if record.task_started:
        _anomaly(record, event.header.sequence_number, "TaskStarted twice")
        return
    record.task_started = True
    record.budget = record.budget_remaining = body.budget
    record.versions = Versions(
        agent=body.agent,
        agent_version=body.agent_version,
        model=body.model,
        prompt_template=body.prompt_template,
        tool_schemas=dict(body.tool_schemas),
    )
    record.workspace_snapshot = body.workspace_snapshot
    record.labels.update(body.labels)
    record.source, record.parent, record.parent_sequence = body.source, body.parent, body.parent_sequence
    _refresh_status(record)


def _context_built(record: TrajectoryRecord, event: Event, body: ev.ContextBuilt) -> None:
    kept: list[tuple[int, int]] = []
    if body.base is not None:
        if body.base != record.context_sequence:
            _anomaly(record, event.header.sequence_number, f"context builds on {body.base}, which is not the last one")
        for start, stop in body.kept:
            kept += record.context[max(start, 0) : max(stop, 0)]
            if len(kept) > CONTEXT_REFERENCES_MAX:
                break
    kept += body.appended
    if len(kept) > CONTEXT_REFERENCES_MAX:
        _anomaly(record, event.header.sequence_number, f"context has more than {CONTEXT_REFERENCES_MAX} references")
        kept.clear()
    record.context = tuple(kept)
    record.context_sequence = event.header.sequence_number
    record.context_hash = body.context_hash
    if not record.turn_open:
        record.turn += 1
        record.turn_open = True


def _model_replied(record: TrajectoryRecord, event: Event, body: ev.ModelReplied) -> None:
    if record.turn_open:
        record.turn_open = False
    else:
        record.turn += 1
    spent = record.spent
    spent.input_tokens = add_count(spent.input_tokens, body.input_tokens)
    spent.output_tokens = add_count(spent.output_tokens, body.output_tokens)
    spent.cost_usd = add_cost(spent.cost_usd, body.cost_usd)
    if body.served_model:
        record.versions.served_model, record.versions.served_version = body.served_model, body.served_version
    _refresh_status(record)


def _authorized(record: TrajectoryRecord, event: Event, body: ev.Authorized) -> None:
    if body.budget_remaining != ev.Budget():
        record.budget_remaining = body.budget_remaining


def _approval_requested(record: TrajectoryRecord, event: Event, body: ev.ApprovalRequested) -> None:
    record.pending_approvals[body.tool_call_id] = event.header.sequence_number
    _refresh_status(record)


def _approval_resolved(record: TrajectoryRecord, event: Event, body: ev.ApprovalResolved) -> None:
    if record.pending_approvals.pop(body.tool_call_id, None) is None and not body.inferred:
        _anomaly(record, event.header.sequence_number, f"approval of {body.tool_call_id} was not requested")
    _refresh_status(record)


def _tool_intent(record: TrajectoryRecord, event: Event, body: ev.ToolIntent) -> None:
    sequence_number = event.header.sequence_number
    record.spent.tool_calls += 1
    record.open_intents[sequence_number] = OpenIntent(
        sequence_number, body.tool_call_id, body.tool, body.idempotency_key, body.effect, body.settlement
    )


def _tool_result(record: TrajectoryRecord, event: Event, body: ev.ToolResult | ev.LateResult) -> None:
    if body.intent is None and body.status in NEVER_DISPATCHED:
        return
    if not any(body.intent in due for due in (record.open_intents, record.unsettled, record.settled)):
        _anomaly(record, event.header.sequence_number, f"result of {body.tool_call_id} without an open intent")
    elif body.intent is not None and body.status not in IN_DOUBT:
        _close(record, body.intent)


def _intent_settled(record: TrajectoryRecord, event: Event, body: ev.IntentSettled) -> None:
    if body.intent not in record.open_intents and body.intent not in record.unsettled:
        _anomaly(record, event.header.sequence_number, f"settled intent {body.intent}, which is not open")
        return
    _close(record, body.intent)
    if body.outcome == "unknown":
        record.unsettled[body.intent] = body.method
    else:
        record.settled[body.intent] = body.outcome


def _close(record: TrajectoryRecord, intent: int) -> None:
    record.open_intents.pop(intent, None)
    record.unsettled.pop(intent, None)
    record.settled.pop(intent, None)


def _checkpoint(record: TrajectoryRecord, event: Event, body: ev.Checkpoint) -> None:
    record.checkpoint_sequence, record.checkpoint_covers = event.header.sequence_number, body.covers
    record.record_snapshot = body.record_snapshot
    record.workspace_snapshot = body.workspace_snapshot or record.workspace_snapshot


def _claimed(record: TrajectoryRecord, event: Event, body: ev.TrajectoryClaimed) -> None:
    record.holder = body.holder


def _released(record: TrajectoryRecord, event: Event, body: ev.TrajectoryReleased) -> None:
    record.holder = ""


def _drift(record: TrajectoryRecord, event: Event, body: ev.DriftResolved) -> None:
    if body.decision != "cross_over":
        return
    versions = record.versions
    if body.component == "model":
        versions.model = msgspec.structs.replace(versions.model, version=body.new)
    elif body.component == "prompt_template":
        versions.prompt_template = msgspec.structs.replace(versions.prompt_template, version=body.new)
    elif body.component == "tool_schema":
        versions.tool_schemas[body.name] = body.new
    elif body.component == "agent":
        versions.agent_version = body.new


def _escalation_raised(record: TrajectoryRecord, event: Event, body: ev.EscalationRaised) -> None:
    record.escalations[body.escalation_id] = event.header.sequence_number
    _refresh_status(record)


def _escalation_resolved(record: TrajectoryRecord, event: Event, body: ev.EscalationResolved) -> None:
    if record.escalations.pop(body.escalation_id, None) is None:
        _anomaly(record, event.header.sequence_number, f"escalation {body.escalation_id} was not raised")
    _refresh_status(record)


def _plan(record: TrajectoryRecord, event: Event, body: ev.PlanUpdated) -> None:
    record.plan, record.plan_text = body.steps, body.text


def _labels(record: TrajectoryRecord, event: Event, body: ev.LabelsSet) -> None:
    for name, value in body.labels.items():
        if value:
            record.labels[name] = value
        else:
            record.labels.pop(name, None)


def _cancel(record: TrajectoryRecord, event: Event, body: ev.CancelRequested) -> None:
    record.cancel_requested = True


def _finished(record: TrajectoryRecord, event: Event, body: ev.TaskFinished) -> None:
    if record.ended:
        return  # already an anomaly: work after the end
    record.status, record.finished_at = body.status, event.header.created_at
    record.turn_open = False


def _reopened(record: TrajectoryRecord, event: Event, body: ev.TrajectoryReopened) -> None:
    if not record.ended:
        _anomaly(record, event.header.sequence_number, "reopened without an end")
    record.status, record.finished_at = "running", None
    _refresh_status(record)


def _forked(record: TrajectoryRecord, event: Event, body: ev.TrajectoryForked) -> None:
    record.parent, record.parent_sequence = body.parent, body.parent_sequence


def _child_started(record: TrajectoryRecord, event: Event, body: ev.ChildStarted) -> None:
    record.children[body.child] = "running"


def _child_finished(record: TrajectoryRecord, event: Event, body: ev.ChildFinished) -> None:
    if body.child not in record.children:
        _anomaly(record, event.header.sequence_number, f"child {body.child} was not started")
    record.children[body.child] = body.status or "finished"


_HANDLERS: dict[type, Callable[[TrajectoryRecord, Event, Any], None]] = {
    ev.TaskStarted: _task_started,
    ev.ContextBuilt: _context_built,
    ev.ModelReplied: _model_replied,
    ev.Authorized: _authorized,
    ev.ApprovalRequested: _approval_requested,
    ev.ApprovalResolved: _approval_resolved,
    ev.ToolIntent: _tool_intent,
    ev.ToolResult: _tool_result,
    ev.LateResult: _tool_result,
    ev.IntentSettled: _intent_settled,
    ev.Checkpoint: _checkpoint,
    ev.TrajectoryClaimed: _claimed,
    ev.TrajectoryReleased: _released,
    ev.DriftResolved: _drift,
    ev.EscalationRaised: _escalation_raised,
    ev.EscalationResolved: _escalation_resolved,
    ev.PlanUpdated: _plan,
    ev.LabelsSet: _labels,
    ev.CancelRequested: _cancel,
    ev.TaskFinished: _finished,
    ev.TrajectoryReopened: _reopened,
    ev.TrajectoryForked: _forked,
    ev.ChildStarted: _child_started,
    ev.ChildFinished: _child_finished,
}
"""Kinds without a handler (MessageReceived, Compacted, HarnessInput, …) carry content, not state."""
