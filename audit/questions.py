"""What auditors ask, answered from the events of the warm and of the cold tier: approvals, policies, effects,
settlements.

Answers come from the exact bodies, not from projections, in the order of the trajectories' ids. An event that
cannot be read (erased, or not of its kind) has its place in the answer and says so. What has left the warm tier comes
from the cold one, if that is given; what retention has deleted in both is in no answer. Memory is bounded by the events
of these kinds in one trajectory, and of what has left the warm tier in one day.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

import msgspec

from stratalog.cold.history import ColdFiles
from stratalog.schemas import events as ev
from stratalog.warm.database import Connection

from .reading import Asked, Found, Place, by_trajectory, unreadable

NO_RESULT = "no result"
IN_DOUBT = {"timeout", "unknown"}
"""Statuses of results that leave open whether the effect happened."""


class Approval(msgspec.Struct, frozen=True):
    """A question to a person and its answer; `decision` is `pending` without one, `place` then that of the question."""

    place: Place
    tool: str
    tool_call_id: str
    approval_id: str
    decision: str
    approver: str
    reason: str
    requested_at: int | None
    expires_at: str


class Authorization(msgspec.Struct, frozen=True):
    """One decision of a policy about a call."""

    place: Place
    policy_version: str
    tool: str
    decision: str
    reason: str


class PolicyUse(msgspec.Struct, frozen=True):
    """How often a policy version decided so about a tool, in how many trajectories; times are µs since 1970."""

    policy_version: str
    tool: str
    decision: str
    calls: int
    trajectories: int
    first_at: int
    last_at: int


class Effect(msgspec.Struct, frozen=True):
    """One intent and what became of it: the status of its result, or how it was settled."""

    place: Place
    tool: str
    effect: str
    outcome: str
    settled_by: str
    policy_version: str
    approver: str
    idempotency_key: str
    arguments: str


class Settlement(msgspec.Struct, frozen=True):
    """An intent in doubt: why, and how it was settled; `outcome` is `open` where it was not."""

    place: Place
    tool: str
    doubt: str
    settled_at: int | None
    method: str
    outcome: str
    resolver: str
    evidence: str


def approvals(conn: Connection, asked: Asked, *, cold: ColdFiles | None = None) -> Generator[Approval, None, None]:
    """Who approved what, and what still waits for an answer."""
    with by_trajectory(conn, asked, ("ApprovalRequested", "ApprovalResolved"), cold) as trajectories:
        for events in trajectories:
            waiting: dict[str, tuple[Place, ev.ApprovalRequested]] = {}
            for found in events:
                if isinstance(found.body, ev.ApprovalRequested):
                    waiting[found.body.approval_id or found.body.tool_call_id] = found.place, found.body
                elif isinstance(found.body, ev.ApprovalResolved):
                    question = waiting.pop(found.body.approval_id or found.body.tool_call_id, None)
                    yield _answered(found.place, found.body, question)
                else:
                    yield Approval(found.place, "", "", "", unreadable(found), "", "", None, "")
            for place, body in waiting.values():
                yield Approval(
                    place, body.tool, body.tool_call_id, body.approval_id, "pending", "", body.reason, place.at,
                    body.expires_at,
                )  # fmt: skip


def _answered(
    place: Place, answer: ev.ApprovalResolved, question: tuple[Place, ev.ApprovalRequested] | None
) -> Approval:
    requested_at, asked_for = question or (None, None)
    return Approval(
        place,
        answer.tool or (asked_for.tool if asked_for else ""),
        answer.tool_call_id,
        answer.approval_id,
        answer.decision,
        answer.approver,
        answer.reason,
        requested_at.at if requested_at else None,
        answer.expires_at or (asked_for.expires_at if asked_for else ""),
    )


def authorizations(
    conn: Connection, asked: Asked, policy_version: str | None = None, *, cold: ColdFiles | None = None
) -> Generator[Authorization, None, None]:
    """What was decided about each call, under any policy or one."""
    with by_trajectory(conn, asked, ("Authorized",), cold) as trajectories:
        for events in trajectories:
            for found in events:
                body = found.body
                if isinstance(body, ev.Authorized):
                    one = Authorization(found.place, body.policy_version, body.tool, body.decision, body.reason)
                else:
                    one = Authorization(found.place, "", "", unreadable(found), "")
                if policy_version is None or one.policy_version == policy_version:
                    yield one


def tally(found: Iterable[Authorization]) -> list[PolicyUse]:
    """Decisions by policy version, tool and decision."""
    groups: dict[tuple[str, str, str], list[Place]] = {}
    for one in found:
        groups.setdefault((one.policy_version, one.tool, one.decision), []).append(one.place)
    return [
        PolicyUse(
            *key,
            len(places),
            len({place.trajectory_id for place in places}),
            min(place.at for place in places),
            max(place.at for place in places),
        )
        for key, places in sorted(groups.items())
    ]


def effects(
    conn: Connection, asked: Asked, tool: str | None = None, *, reads: bool = False, cold: ColdFiles | None = None
) -> Generator[Effect, None, None]:
    """Every effect that was intended, on any tool or one; `reads` also those that change nothing."""
    kinds = ("Authorized", "ApprovalResolved", "ToolIntent", "ToolResult", "LateResult", "IntentSettled")
    with by_trajectory(conn, asked, kinds, cold) as trajectories:
        for events in trajectories:
            calls = _Calls()
            for found in events:
                calls.add(found)
            for intent in calls.intents.values():
                if (tool is None or intent.tool == tool) and (reads or intent.effect != "read"):
                    yield intent


def settlements(conn: Connection, asked: Asked, *, cold: ColdFiles | None = None) -> Generator[Settlement, None, None]:
    """Every intent that was in doubt: settled by whom and how, or still open.

    In doubt is an intent whose result says so, that was escalated or settled, or that has no result although its
    trajectory has ended.
    """
    kinds = ("ToolIntent", "ToolResult", "LateResult", "IntentSettled", "EscalationRaised", "EscalationResolved",
             "TaskFinished")  # fmt: skip
    with by_trajectory(conn, asked, kinds, cold) as trajectories:
        for events in trajectories:
            doubts = _Doubts()
            for found in events:
                doubts.add(found)
            yield from doubts.rows()


class _Calls:
    """The intents of one trajectory by sequence number, each with what became of it."""

    def __init__(self) -> None:
        self.intents: dict[int, Effect] = {}
        self._policies: dict[str, str] = {}
        self._approvers: dict[str, str] = {}
        self._latest: dict[str, int] = {}

    def add(self, found: Found) -> int | None:
        """Take the next event; returns the intent that it is about, if it is one of these."""
        body, intent = found.body, None
        if isinstance(body, ev.Authorized):
            self._policies[body.tool_call_id] = body.policy_version
        elif isinstance(body, ev.ApprovalResolved):
            self._approvers[body.tool_call_id] = body.approver if body.decision == "approved" else ""
        elif isinstance(body, ev.ToolIntent):
            intent = self._latest[body.tool_call_id] = found.place.sequence_number
            self.intents[intent] = Effect(
                found.place,
                body.tool,
                body.effect or "not stated",
                NO_RESULT,
                "",
                self._policies.get(body.tool_call_id, ""),
                self._approvers.get(body.tool_call_id, ""),
                body.idempotency_key,
                bytes(body.arguments).decode("utf-8", "replace"),
            )
        elif isinstance(body, ev.ToolResult | ev.LateResult):
            # Real agents repeat the ids of calls: without a number it is the latest intent of this id.
            intent = self._latest.get(body.tool_call_id) if body.intent is None else body.intent
            self._close(intent, body.status, "")
        elif isinstance(body, ev.IntentSettled):
            intent = body.intent
            self._close(intent, body.outcome, body.method)
        elif found.kind == "ToolIntent":
            lost = Effect(found.place, "", "not stated", unreadable(found), "", "", "", "", "")
            self.intents[found.place.sequence_number] = lost
        return intent

    def _close(self, intent: int | None, outcome: str, settled_by: str) -> None:
        if intent is not None and intent in self.intents:
            closed = msgspec.structs.replace(self.intents[intent], outcome=outcome, settled_by=settled_by)
            self.intents[intent] = closed


class _Doubts:
    """The intents of one trajectory that were in doubt, and how each was settled."""

    def __init__(self) -> None:
        self._calls = _Calls()
        self._why: dict[int, str] = {}
        self._settled: dict[int, tuple[Found, ev.IntentSettled]] = {}
        self._raised: dict[str, int] = {}
        self._resolved: dict[int, ev.EscalationResolved] = {}
        self._ended = False

    def add(self, found: Found) -> None:
        """Take the next event."""
        body = found.body
        intent = self._calls.add(found)
        if isinstance(body, ev.IntentSettled):
            self._settled[body.intent] = found, body
        elif isinstance(body, ev.ToolResult | ev.LateResult) and intent is not None and body.status in IN_DOUBT:
            self._why[intent] = body.status
        elif isinstance(body, ev.EscalationRaised) and body.intent is not None:
            self._raised[body.escalation_id] = body.intent
            self._why.setdefault(body.intent, f"escalated: {body.reason}".rstrip(": "))
        elif isinstance(body, ev.EscalationResolved) and body.escalation_id in self._raised:
            self._resolved[self._raised[body.escalation_id]] = body
        elif found.kind == "TaskFinished":
            self._ended = True

    def rows(self) -> Iterator[Settlement]:
        """What was in doubt, by intent."""
        intents = self._calls.intents
        if self._ended:
            lost = {at: NO_RESULT for at, call in intents.items() if call.outcome == NO_RESULT}
            self._why = lost | self._why
        for intent in sorted({*self._why, *self._settled}):
            # An intent that is not there (a damaged source) leaves a settlement without a tool.
            call = intents.get(intent)
            place = call.place if call else self._settled[intent][0].place if intent in self._settled else None
            if place is not None:
                yield self._row(intent, place, call)

    def _row(self, intent: int, place: Place, call: Effect | None) -> Settlement:
        answer, resolved = self._settled.get(intent), self._resolved.get(intent)
        method, outcome, evidence = "", "open", msgspec.Raw()
        if answer is not None:
            method, outcome, evidence = answer[1].method, answer[1].outcome, answer[1].evidence
        elif resolved is not None:
            method, outcome, evidence = "escalation", resolved.decision, resolved.evidence
        elif call is not None and call.outcome not in (*IN_DOUBT, NO_RESULT):
            method, outcome = "result", call.outcome
        return Settlement(
            place,
            call.tool if call else "",
            self._why.get(intent, NO_RESULT),
            answer[0].place.at if answer else None,
            method,
            outcome,
            resolved.resolver if resolved else "",
            bytes(evidence).decode("utf-8", "replace"),
        )
