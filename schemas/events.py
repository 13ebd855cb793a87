"""The kinds of events, one frozen struct each, with the JSON field names they have in the log.

The first ten are those of the specification's Table 1; the rest is what its prose needs. A struct is the *body* of an
event; who wrote it, when and where it lies is the envelope (`envelope.py`). Fields with their default value are left
out of the JSON. A reader never drops or refuses what it does not know: an unknown kind decodes to `Unknown`, a body
that does not fit its kind to `Unknown` as well, and both keep their exact bytes in every tier.

Actions are identified by the sequence number of their `ToolIntent`; `tool_call_id` threads proposal, authorization,
intent and result, but real agents repeat such ids. Messages are referred to by (sequence number, part).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .blobs import Blob, Text
from .values import Budget as Budget
from .values import HarnessReading as HarnessReading
from .values import MessageReference as MessageReference
from .values import Model as Model
from .values import Part as Part
from .values import PlanStep as PlanStep
from .values import PromptTemplate as PromptTemplate
from .values import RetrievedItem as RetrievedItem
from .values import Source as Source
from .values import ToolCall as ToolCall
from .values import Unknown as Unknown
from .values import raw_json as raw_json

SCHEMA_VERSION = 1


class Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all event bodies."""


# --- Table 1 -----------------------------------------------------------------------------------------------------


class TaskStarted(Body, frozen=True, kw_only=True):
    """Once, before the first turn: the task, and the versions that a resume or replay must match."""

    task: Text = ""
    specification: msgspec.Raw = msgspec.Raw()
    """The task in structured form, any JSON."""
    agent: str = ""
    agent_version: str = ""
    model: Model = Model()
    sampling: msgspec.Raw = msgspec.Raw()
    prompt_template: PromptTemplate = PromptTemplate()
    tool_schemas: dict[str, str] = {}
    """Tool name to schema version."""
    workspace_snapshot: str = ""
    budget: Budget = Budget()
    labels: dict[str, str] = {}
    parent: str = ""
    """Trajectory id of the parent, for a sub-agent or a fork."""
    parent_sequence: int | None = None
    source: Source | None = None


class ContextBuilt(Body, frozen=True, kw_only=True):
    """Before each model call: which messages the model sees, as references, delta-coded against the context before.

    The references are those of `base` (the ContextBuilt event just before this one) restricted to the index ranges
    in `kept`, followed by `appended`. Without a base they are `appended` alone.
    """

    base: int | None = None
    kept: tuple[tuple[int, int], ...] = ()
    """Half-open index ranges into the base's references."""
    appended: tuple[MessageReference, ...] = ()
    retrieved: tuple[RetrievedItem, ...] = ()
    context_hash: str = ""
    """SHA-256 (hex) of the assembled context as it was sent."""
    readings: tuple[HarnessReading, ...] = ()
    message_count: int = 0
    inferred: bool = False


class ModelReplied(Body, frozen=True, kw_only=True):
    """After each model call: the only copy of a sample that cannot be drawn again."""

    text: Text = ""
    reasoning: Text = ""
    tool_calls: tuple[ToolCall, ...] = ()
    stop_reason: str = ""
    input_tokens: int | None = None
    """All input tokens, cached ones included."""
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: float | None = None
    served_model: str = ""
    served_version: str = ""
    reply_id: str = ""
    duration_ms: float | None = None
    verbatim: msgspec.Raw = msgspec.Raw()
    """The provider's reply as it came, where the fields above do not say it all; any JSON."""


class Authorized(Body, frozen=True, kw_only=True):
    """After policy and budget checks: why an action was allowed, denied or held."""

    tool_call_id: str
    decision: Literal["allow", "deny", "hold"]
    tool: str = ""
    policy_version: str = ""
    budget_remaining: Budget = Budget()
    reason: str = ""
    inferred: bool = False


class ApprovalRequested(Body, frozen=True, kw_only=True):
    """A call is held until a person answers."""

    tool_call_id: str
    approval_id: str = ""
    tool: str = ""
    intent_hash: str = ""
    """SHA-256 (hex) of the exact call that the approval is for."""
    reason: str = ""
    expires_at: str = ""
    inferred: bool = False


class ApprovalResolved(Body, frozen=True, kw_only=True):
    """A person, or the expiry, has answered."""

    tool_call_id: str
    decision: Literal["approved", "denied", "expired", "withdrawn"]
    approval_id: str = ""
    tool: str = ""
    approver: str = ""
    reason: str = ""
    expires_at: str = ""
    inferred: bool = False


class ToolIntent(Body, frozen=True, kw_only=True):
    """After authorization, durably, before dispatch: from here on the effect may have happened."""

    tool_call_id: str
    tool: str
    arguments: msgspec.Raw = msgspec.Raw()
    idempotency_key: str = ""
    effect: Literal["", "read", "local", "reversible", "irreversible"] = ""
    settlement: Literal["", "idempotency_key", "probe", "escalate"] = ""
    tool_version: str = ""
    barrier: Literal["", "local", "replicated"] = ""
    inferred: bool = False


class ToolResult(Body, frozen=True, kw_only=True):
    """When the tool returns: closes the intent and replaces the tool in a replay."""

    tool_call_id: str
    status: Literal["ok", "error", "timeout", "denied", "cancelled", "not_dispatched", "unknown"] = "ok"
    intent: int | None = None
    """Sequence number of the ToolIntent; `None` for a result without a call, which real files contain."""
    tool: str = ""
    output: Text = ""
    """What was delivered to the model."""
    full: Blob | None = None
    """The whole output, where truncation delivered less."""
    data: msgspec.Raw = msgspec.Raw()
    """The structured result, any JSON."""
    duration_ms: float | None = None
    exit_code: int | None = None
    error: str = ""
    inferred: bool = False


class Compacted(Body, frozen=True, kw_only=True):
    """The context was summarised; the summary is kept as produced."""

    summary: Text = ""
    first_turn: int = 0
    last_turn: int = 0
    """The turns covered, both included."""
    first_sequence: int | None = None
    last_sequence: int | None = None
    trigger: str = ""
    tokens_before: int | None = None


class Checkpoint(Body, frozen=True, kw_only=True):
    """Appended after the record and the workspace snapshot are durable."""

    covers: int
    """The last sequence number that the snapshots include."""
    record_snapshot: str = ""
    workspace_snapshot: str = ""
    turn: int = 0
    reason: str = ""
    inferred: bool = False


# --- what the prose needs ------------------------------------------------------------------------------------------


class MessageReceived(Body, frozen=True, kw_only=True):
    """A message that contexts refer to and that the model did not write: system, user, injected."""

    role: str
    parts: tuple[Part, ...] = ()
    author: str = ""
    injected: bool = False
    """Put there by the harness (reminders, hooks, listings), not by a person."""


class TrajectoryClaimed(Body, frozen=True, kw_only=True):
    """A holder owns the trajectory from here on, under a fencing token (the epoch of the envelope)."""

    holder: str
    token: int
    log_id: str = ""
    reason: str = ""


class TrajectoryReleased(Body, frozen=True, kw_only=True):
    """The holder gave the trajectory up."""

    holder: str
    token: int
    reason: str = ""


class HarnessInput(Body, frozen=True, kw_only=True):
    """A value the harness read (clock, random, id, listing), served from here in a replay."""

    source: str
    name: str = ""
    value: msgspec.Raw = msgspec.Raw()


class DriftResolved(Body, frozen=True, kw_only=True):
    """Something changed behind a stable name, and what was done about it."""

    component: str
    """model, prompt_template, tool_schema, agent, …"""
    decision: Literal["pin", "cross_over", "refuse"]
    name: str = ""
    old: str = ""
    new: str = ""
    from_turn: int = 0
    reason: str = ""


class IntentSettled(Body, frozen=True, kw_only=True):
    """An intent in doubt was resolved."""

    intent: int
    method: Literal["idempotency_key", "probe", "escalation", "result"]
    outcome: Literal["happened", "did_not_happen", "unknown"]
    tool_call_id: str = ""
    evidence: msgspec.Raw = msgspec.Raw()


class EscalationRaised(Body, frozen=True, kw_only=True):
    """The runtime cannot decide and asks a person."""

    escalation_id: str
    reason: str = ""
    intent: int | None = None
    question: str = ""


class EscalationResolved(Body, frozen=True, kw_only=True):
    """A person has decided."""

    escalation_id: str
    decision: str
    resolver: str = ""
    evidence: msgspec.Raw = msgspec.Raw()


class ResultRejected(Body, frozen=True, kw_only=True):
    """A result that must not reach the model, kept as evidence."""

    tool_call_id: str
    reason: str
    status: str = ""
    output: Text = ""


class HostLost(Body, frozen=True, kw_only=True):
    """The log of an earlier holder cannot be reached; what it had after this position is unknown."""

    log_id: str
    last_replicated_lsn: int
    last_sequence: int = -1
    reason: str = ""


class PlanUpdated(Body, frozen=True, kw_only=True):
    """The current plan, whole."""

    steps: tuple[PlanStep, ...] = ()
    text: Text = ""


class LabelsSet(Body, frozen=True, kw_only=True):
    """Labels added or changed; an empty value removes one."""

    labels: dict[str, str]


class CancelRequested(Body, frozen=True, kw_only=True):
    """Somebody wants the trajectory to stop."""

    requester: str = ""
    reason: str = ""


class TaskFinished(Body, frozen=True, kw_only=True):
    """The end, as the source or the runtime states it."""

    status: Literal["completed", "failed", "cancelled"]
    result: Text = ""
    reason: str = ""
    exit_status: str = ""
    reward: float | None = None
    data: msgspec.Raw = msgspec.Raw()
    inferred: bool = False


class TrajectoryReopened(Body, frozen=True, kw_only=True):
    """Work goes on after the end."""

    reason: str = ""


class LateResult(Body, frozen=True, kw_only=True):
    """A result that arrived after the end."""

    tool_call_id: str
    status: str = "ok"
    intent: int | None = None
    output: Text = ""


class Annotation(Body, frozen=True, kw_only=True):
    """A score or a note, also after the end."""

    name: str
    value: msgspec.Raw = msgspec.Raw()
    score: float | None = None
    note: Text = ""
    author: str = ""


class TrajectoryForked(Body, frozen=True, kw_only=True):
    """This trajectory is a branch of another one from the given position."""

    parent: str
    parent_sequence: int
    change: msgspec.Raw = msgspec.Raw()
    reason: str = ""


class ChildStarted(Body, frozen=True, kw_only=True):
    """A sub-agent runs as a trajectory of its own."""

    child: str
    tool_call_id: str = ""
    task: Text = ""
    inferred: bool = False


class ChildFinished(Body, frozen=True, kw_only=True):
    """A sub-agent has ended."""

    child: str
    status: str = ""
    tool_call_id: str = ""
    inferred: bool = False


class Opaque(Body, frozen=True, kw_only=True):
    """A record of a foreign format that no kind fits, kept whole."""

    format: str
    native_type: str = ""
    raw_text: Text | None = None
    """The record as text, where its bytes are UTF-8."""
    raw_base64: Text | None = None
    """The record's bytes, where they are not."""


KINDS: dict[str, type[Body]] = {kind.__name__: kind for kind in Body.__subclasses__()}
"""Kind name to struct."""

ALLOWED_AFTER_END = frozenset({"TrajectoryReopened", "LateResult", "Annotation"})
"""All that may follow TaskFinished (apart from the bookkeeping of holders, which carries no work)."""

BOOKKEEPING = frozenset({"TrajectoryClaimed", "TrajectoryReleased", "ResultRejected"})
EventBody = Body | Unknown
