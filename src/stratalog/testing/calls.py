"""What becomes of a proposed tool call: authorization, approval, intent, result; timeouts and how they are settled."""

from __future__ import annotations

import hashlib
import math
from typing import Literal

import msgspec

from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.events import (
    ApprovalRequested,
    ApprovalResolved,
    Authorized,
    Checkpoint,
    EscalationRaised,
    EscalationResolved,
    IntentSettled,
    ResultRejected,
    ToolCall,
    ToolIntent,
    ToolResult,
    raw_json,
)
from stratalog.schemas.ids import from_us

from . import words
from .script import SECOND_US, Script
from .tool import Tool

POLICY = "2026-01-02"
DENIED_SHARE = 0.02
HELD_SHARE = 0.6
TIMEOUT_SHARE = 0.03
ERROR_SHARE = 0.1
Decision = Literal["approved", "denied", "expired"]
APPROVED: Decision = "approved"
DENIED: Decision = "denied"
EXPIRED: Decision = "expired"
DECISIONS = (APPROVED,) * 15 + (DENIED,) * 4 + (EXPIRED,)
METHODS: dict[str, Literal["idempotency_key", "probe", "escalation"]] = {
    "idempotency_key": "idempotency_key",
    "probe": "probe",
    "escalate": "escalation",
}
"""How a tool settles, to how an intent of it was settled."""
BULKY_LINES = 900
HUGE_LINES = 13_000
DELIVERED_CHARS_MAX = 30_000


class PlannedCall(msgspec.Struct):
    """A call on its way; `intent` is the sequence number of its ToolIntent."""

    call: ToolCall
    tool: Tool
    intent: int = -1

    @property
    def id(self) -> str:
        """Its tool-call id."""
        return self.call.tool_call_id


def checkpoint(script: Script, reason: str) -> None:
    """A checkpoint of everything so far."""
    covers = script.next_number - 1
    name = hashlib.sha256(f"{script.trajectory_id}/{covers}".encode()).hexdigest()
    script.add(
        Checkpoint(
            covers=covers,
            record_snapshot=f"record-{name[:24]}",
            workspace_snapshot=f"workspace-{name[24:48]}",
            turn=script.turn,
            reason=reason,
        ),
        0.4,
    )


def answer(script: Script, body: ToolResult, after_s: float, blobs: tuple[tuple[BlobRef, bytes], ...] = ()) -> None:
    """A result, which the next context contains."""
    number = script.add(body, after_s, blobs)
    script.context.say(number, 0, "tool", str(body.output))


def authorize(script: Script, planned: PlannedCall) -> bool:
    """Policy, and a person where it asks for one; whether the call may go out. Otherwise it is answered."""
    phrases, tool = script.phrases, planned.tool
    held = tool.effect == "irreversible" and phrases.chance(HELD_SHARE)
    denied = not held and phrases.chance(DENIED_SHARE)
    script.add(
        Authorized(
            tool_call_id=planned.id,
            decision="hold" if held else "deny" if denied else "allow",
            tool=tool.name,
            policy_version=POLICY,
            budget_remaining=script.budget(),
            reason="the policy asks for a person" if held else "outside the workspace" if denied else "",
        )
    )
    if denied:
        answer(script, _refused(planned, "Denied by policy: outside the workspace."), 0.001)
    return _approved(script, planned) if held else not denied


def allowed(script: Script, planned: PlannedCall, reason: str = "") -> Authorized:
    """The call may go out."""
    return Authorized(
        tool_call_id=planned.id,
        decision="allow",
        tool=planned.tool.name,
        policy_version=POLICY,
        budget_remaining=script.budget(),
        reason=reason,
    )


def _refused(planned: PlannedCall, why: str) -> ToolResult:
    return ToolResult(tool_call_id=planned.id, status="denied", tool=planned.tool.name, output=why)


def request_approval(script: Script, planned: PlannedCall) -> str:
    """Ask a person; returns the approval's id."""
    checkpoint(script, "approval")
    approval_id = f"approval-{script.phrases.random.getrandbits(48):012x}"
    script.add(
        ApprovalRequested(
            tool_call_id=planned.id,
            approval_id=approval_id,
            tool=planned.tool.name,
            intent_hash=hashlib.sha256(bytes(planned.call.arguments)).hexdigest(),
            reason="irreversible outside the sandbox",
            expires_at=from_us(script.now + 4 * 3600 * SECOND_US).isoformat(),
        )
    )
    return approval_id


def _approved(script: Script, planned: PlannedCall) -> bool:
    phrases = script.phrases
    approval_id = request_approval(script, planned)
    decision = phrases.one(DECISIONS)
    script.add(
        ApprovalResolved(
            tool_call_id=planned.id,
            decision=decision,
            approval_id=approval_id,
            tool=planned.tool.name,
            approver="" if decision == "expired" else phrases.one(words.PEOPLE),
            reason="" if decision == "approved" else "not during the deploy window",
        ),
        4 * 3600 if decision == "expired" else 900,
    )
    if decision != "approved":
        answer(script, _refused(planned, f"The approval was {decision}."), 0.001)
        return False
    script.add(allowed(script, planned, f"approval {approval_id}"))
    return True


def dispatch(script: Script, planned: PlannedCall) -> None:
    """The intent: from here on the effect may have happened."""
    tool, number = planned.tool, script.next_number
    if tool.effect == "irreversible":
        checkpoint(script, "irreversible")
        number = script.next_number
    key = hashlib.sha256(f"{script.trajectory_id}/0/{number}".encode()).hexdigest()[:32]
    planned.intent = script.add(
        ToolIntent(
            tool_call_id=planned.id,
            tool=tool.name,
            arguments=planned.call.arguments,
            idempotency_key="" if tool.effect == "read" else key,
            effect=tool.effect,
            settlement=tool.settlement,
            tool_version=tool.version,
            barrier="local",
        )
    )


def finish(script: Script, planned: PlannedCall) -> None:
    """The result, or a timeout and its settlement."""
    phrases, tool = script.phrases, planned.tool
    if tool.settlement and phrases.chance(TIMEOUT_SHARE):
        _time_out(script, planned)
        return
    if phrases.chance(0.004):
        script.add(
            ResultRejected(tool_call_id=planned.id, reason="not the result of this call", output=phrases.pods(2))
        )
    output, blobs, full = _output(script, tool)
    failed = phrases.chance(ERROR_SHARE)
    seconds = math.exp(phrases.random.gauss(-1.0, 1.6))
    answer(
        script,
        ToolResult(
            tool_call_id=planned.id,
            status="error" if failed else "ok",
            intent=planned.intent,
            tool=tool.name,
            output=output,
            full=full,
            duration_ms=round(seconds * 1000, 3),
            exit_code=int(failed) if tool.name == "run_command" else None,
            error="the tool reported a failure" if failed else "",
        ),
        seconds,
        blobs,
    )


def _output(script: Script, tool: Tool) -> tuple[str, tuple[tuple[BlobRef, bytes], ...], Blob | None]:
    phrases, profile = script.phrases, script.profile
    if phrases.chance(profile.bulky_share):
        text = tool.output(phrases, BULKY_LINES + phrases.below(BULKY_LINES))
        if phrases.chance(0.5):
            return text, (), None
        content = text.encode()
        ref = BlobRef.of(content, "text/plain", text[:160])
        return text[:DELIVERED_CHARS_MAX] + "\n[truncated]", ((ref, content),), Blob(ref)
    lines = int(profile.output_lines_median * math.exp(phrases.random.gauss(0.0, 1.0)))
    return tool.output(phrases, min(max(lines, 1), profile.output_lines_max)), (), None


def finish_hugely(script: Script, planned: PlannedCall) -> None:
    """A result of more than 1 MiB."""
    output = script.phrases.service_log(HUGE_LINES)
    body = ToolResult(
        tool_call_id=planned.id, intent=planned.intent, tool=planned.tool.name, output=output, duration_ms=8123.5
    )
    answer(script, body, 8)


def _time_out(script: Script, planned: PlannedCall) -> None:
    """A timeout leaves the action in doubt; it is settled before anything else happens."""
    phrases, intent = script.phrases, planned.intent
    text = "No answer within 120 s. Whether it happened is being checked."
    timeout = ToolResult(
        tool_call_id=planned.id, status="timeout", intent=intent, tool=planned.tool.name, output=text,
        duration_ms=120_000.0, error="timeout",
    )  # fmt: skip
    answer(script, timeout, 120)
    happened = phrases.chance(0.7)
    if planned.tool.settlement == "escalate":
        _escalate(script, intent, happened)
    script.add(
        IntentSettled(
            intent=intent,
            method=METHODS[planned.tool.settlement],
            outcome="happened" if happened else "did_not_happen",
            tool_call_id=planned.id,
            evidence=raw_json({"checked": planned.tool.name, "found": happened}),
        ),
        2,
    )
    final = ToolResult(
        tool_call_id=planned.id,
        status="ok" if happened else "not_dispatched",
        intent=intent,
        tool=planned.tool.name,
        output=phrases.pods(1) if happened else "It did not happen; it is safe to try again.",
    )
    answer(script, final, 0.01)


def _escalate(script: Script, intent: int, happened: bool) -> None:
    """Neither key nor probe: a person looks."""
    phrases = script.phrases
    escalation = f"escalation-{phrases.random.getrandbits(40):010x}"
    script.add(
        EscalationRaised(
            escalation_id=escalation, reason="no key and no probe", intent=intent, question="Did it arrive?"
        )
    )
    script.add(
        EscalationResolved(
            escalation_id=escalation,
            decision="happened" if happened else "did_not_happen",
            resolver=phrases.one(words.PEOPLE),
            evidence=raw_json({"seen": happened}),
        ),
        1200,
    )
