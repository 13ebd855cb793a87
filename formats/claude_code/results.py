"""Results of calls as user records carry them, and what their sentences say about approval.

The program does not record approvals. A refusal is an error with a known sentence: one by a person becomes an
ApprovalResolved, one by the permission rules an Authorized(deny); both inferred, and such a call was never dispatched.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from stratalog.formats.native import (
    Record,
    elements,
    is_null,
    is_true,
    members,
    number,
    packed,
    remainder,
    string,
)
from stratalog.schemas.events import ToolResult

from .records import Native

Status = Literal["ok", "error", "denied", "cancelled"]
Refusal = Literal["", "person", "rules"]

_BY_PERSON = (
    "The user doesn't want to proceed with this tool use",
    "The user doesn't want to take this action right now",
)
_BY_RULES = (
    "Claude requested permissions to ",
    "This command requires approval",
    "This Bash command contains multiple operations. The following part",
    "Permission to use ",
)
_BLOCKED = " was blocked. For security, "
_REASON = re.compile(r"(?:The user provided the following reason for the rejection:|the user said:)\s*(.*)", re.DOTALL)
_EXIT_CODE = re.compile(r"(?:Error: )?Exit code (\d{1,3})\b")
_DURATIONS = ("totalDurationMs", "durationMs")


class Result(msgspec.Struct, frozen=True):
    """A tool_result block, ready to be paired with its call."""

    body: ToolResult
    refusal: Refusal
    reason: str
    child: str
    """Native id of the sub-agent that the call was, if it was one."""
    child_status: str


def result_of(native: Native, block: Record, *, first: bool) -> Result:
    """Map a block; what belongs to the whole record goes with the first block of it."""
    call_id = string(block.get("tool_use_id")) or native.text("sourceToolUseID")
    output, other = _content(block.get("content"))
    structured = native.record.get("toolUseResult") if first else None
    outcome = members(structured) or {}
    failed = is_true(block.get("is_error"))
    refusal = _refusal(native, output) if failed else ""
    data: dict[str, Any] = dict(native.rest("toolUseResult")) if first else {}
    if structured is not None and not _repeats(structured, output):
        data["toolUseResult"] = structured
    rest = remainder(block, {"type", "tool_use_id", "content", "is_error"})
    if rest:
        data["block"] = rest
    if other:
        data["content"] = other
    code = _EXIT_CODE.match(output) if failed else None
    body = ToolResult(
        tool_call_id=call_id,
        status=_status(output, outcome, failed=failed, refusal=refusal),
        output=output,
        data=packed(data),
        duration_ms=next((ms for name in _DURATIONS if (ms := number(outcome.get(name))) is not None), None),
        exit_code=int(code.group(1)) if code else None,
        inferred=bool(refusal),
    )
    said = _REASON.search(output) if refusal == "person" else None
    return Result(
        body,
        refusal,
        said.group(1).strip() if said else "",
        string(outcome.get("agentId")) or "",
        string(outcome.get("status")) or "completed",
    )


def _content(raw: msgspec.Raw | None) -> tuple[str, list[Any]]:
    """The text that the model got, and the parts of the content that are not text."""
    text = string(raw)
    if text is not None:
        return text, []
    blocks = elements(raw)
    if blocks is None:
        return "", [] if is_null(raw) else [raw]
    texts: list[str] = []
    other: list[Any] = []
    for item in blocks:
        block = members(item)
        text = string(block.get("text")) if block and string(block.get("type")) == "text" else string(item)
        if text is None:
            other.append(item)
        else:
            texts.append(text)
    return "\n".join(texts), other


def _repeats(structured: msgspec.Raw, output: str) -> bool:
    text = string(structured)
    return text is not None and text in (output, f"Error: {output}")


def _refusal(native: Native, output: str) -> Refusal:
    if output.startswith(_BY_PERSON) or native.text("toolDenialKind") == "user-rejected":
        return "person"
    if output.startswith(_BY_RULES) or _BLOCKED in output[:300] or native.text("toolDenialKind"):
        return "rules"
    return ""


def _status(output: str, outcome: Record, *, failed: bool, refusal: Refusal) -> Status:
    if refusal:
        return "denied"
    if is_true(outcome.get("interrupted")) or output.startswith("[Request interrupted by user"):
        return "cancelled"
    return "error" if failed else "ok"
