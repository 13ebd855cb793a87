"""Turns of a SWE-agent run to events."""

from __future__ import annotations

from typing import Any

import msgspec

from stratalog.formats.lane import Call, Lane, Reference
from stratalog.formats.native import (
    Record,
    digest,
    elements,
    foreign,
    is_null,
    members,
    number,
    opaque,
    packed,
    remainder,
    string,
)
from stratalog.schemas.events import (
    Annotation,
    MessageReceived,
    ModelReplied,
    Part,
    TaskFinished,
    ToolCall,
    ToolResult,
    raw_json,
)

from .turns import Piece, Turn

FORMAT = "swe-agent"
_SENT = ("query", "messages")
_STEP = frozenset({"action", "observation", "response", "thought", "execution_time", *_SENT})
_CANCELLED = ("abort", "cancel", "interrupt")


class Run(Lane):
    """The lane of a run."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self._known: dict[bytes, Reference] = {}
        """Digest of a message's text to the event that holds it."""
        self._turns = 0

    def piece(self, piece: Piece) -> None:
        """A message that belongs to no turn."""
        record = piece.record
        if record is None or string(record.get("role")) is None:
            self.add(opaque(FORMAT, "element" if record is None else "message", piece.raw), None)
            return
        self._message(record, injected=piece.demonstration, author="demonstration" if piece.demonstration else "")

    def _message(self, record: Record, *, injected: bool, author: str) -> Reference:
        text, parts = _content(record.get("content"))
        rest = remainder(record, {"role", "content"})
        if rest:
            parts.append(Part(type="record", data=packed(rest)))
        role = string(record.get("role")) or ""
        sequence_number = self.message(
            MessageReceived(role=role, parts=tuple(parts), author=author, injected=injected), None
        )
        self._know(text, (sequence_number, 0))
        return sequence_number, 0

    def turn(self, turn: Turn) -> None:
        """A reply, its call and its result."""
        self._turns += 1
        step, said = turn.step or {}, turn.said or {}
        sent = next((value for name in _SENT if (value := elements(step.get(name))) is not None), None)
        if sent is not None:
            self._set_sent(sent)
        calls = self._calls(step, said)
        reply = _reply(step, said, calls)
        sequence_number = self.reply(reply, None)
        for text in (string(said.get("content")), reply.text):
            self._know(text if isinstance(text, str) else None, (sequence_number, 0))
        action = _action(step, said)
        if calls and action:
            self.calls[-len(calls)].arguments = raw_json(action)
        self._result(turn, self.calls[-len(calls)] if calls else None)

    def _calls(self, step: Record, said: Record) -> tuple[ToolCall, ...]:
        native = [call for raw in elements(said.get("tool_calls")) or [] if (call := members(raw)) is not None]
        if native:
            return tuple(_native_call(call) for call in native)
        action = _action(step, said)
        if not action:
            return ()
        name = action.split(None, 1)[0]
        return (ToolCall(tool_call_id=f"step-{self._turns}", tool=name[:64], arguments=raw_json(action)),)

    def _result(self, turn: Turn, call: Call | None) -> None:
        if "observation" not in (turn.step or {}) and turn.heard is None:
            return
        step, heard = turn.step or {}, turn.heard or {}
        content = string(heard.get("content"))
        output = string(step.get("observation"))
        if output is None:
            output = content or ""
        data: dict[str, Any] = dict(remainder(step, _STEP if string(step.get("observation")) is not None else _GAP))
        if heard:
            rest = remainder(heard, {"content"} if content is not None else ())
            data["message"] = rest | _wrapping(content, output)
        seconds = number(step.get("execution_time"))
        body = ToolResult(
            tool_call_id=call.tool_call_id if call else "",
            output=output,
            data=packed(data),
            duration_ms=None if seconds is None else seconds * 1000,
        )
        taken = self.take(call.tool_call_id) if call else None
        sequence_number = self.answer(taken, body, None)
        self._know(content if content is not None else output, (sequence_number, 0))

    # --- contexts ----------------------------------------------------------------------------------------------

    def _know(self, text: str | None, reference: Reference) -> None:
        if text is not None:
            self._known[_digest(text)] = reference

    def _set_sent(self, sent: list[msgspec.Raw]) -> None:
        """The messages as they were sent: references where they are known, else messages of their own (elided ones)."""
        references: list[Reference] = []
        for raw in sent:
            record = members(raw)
            if record is None:
                self.add(opaque(FORMAT, "sent", bytes(raw)), None)
                continue
            text, _ = _content(record.get("content"))
            known = self._known.get(_digest(text)) if text is not None else None
            references.append(known or self._message(record, injected=True, author="sent"))
        self.set_context(references)

    # --- end ---------------------------------------------------------------------------------------------------

    def info(self, raw: bytes) -> None:
        """How the run ended, where it says so."""
        info = members(msgspec.Raw(raw))
        status = string(info.get("exit_status")) if info else None
        if info is None or not status:
            if info != {}:
                self.add(Annotation(name="info", value=foreign(raw), author=FORMAT), None)
            return
        submission = string(info.get("submission"))
        taken = {"exit_status"} if submission is None else {"exit_status", "submission"}
        self.add(
            TaskFinished(
                status=_status(status),
                result=submission or "",
                exit_status=status,
                data=packed(remainder(info, taken)),
            ),
            None,
        )


_GAP = _STEP - {"observation"}


def _status(exit_status: str) -> Any:
    if exit_status.startswith("submitted"):
        return "completed"
    return "cancelled" if any(word in exit_status for word in _CANCELLED) else "failed"


def _action(step: Record, said: Record) -> str:
    action = string(step.get("action"))
    return ((string(said.get("action")) or "") if action is None else action).strip("\n")


def _native_call(call: Record) -> ToolCall:
    function = members(call.get("function")) or {}
    arguments = function.get("arguments")
    return ToolCall(
        tool_call_id=string(call.get("id")) or "",
        tool=string(function.get("name")) or "",
        arguments=msgspec.Raw() if arguments is None else foreign(arguments),
    )


def _reply(step: Record, said: Record, calls: tuple[ToolCall, ...]) -> ModelReplied:
    text = string(step.get("response"))
    content = string(said.get("content"))
    if text is None:
        text = content or ""
    thought = string(step.get("thought")) or string(said.get("thought")) or ""
    taken = {"role", "action"}
    if content == text:
        taken.add("content")
    if (string(said.get("thought")) or "") in (thought, text):
        taken.add("thought")
    rest: dict[str, Any] = dict(remainder(said, taken))
    natives = [members(raw) for raw in elements(said.get("tool_calls")) or []]
    if all(native is not None and set(native) <= {"id", "type", "function"} for native in natives):
        rest.pop("tool_calls", None)
    kept: dict[str, Any] = {"message": rest} if rest else {}
    response = step.get("response")
    if response is not None and string(response) is None and not is_null(response):
        kept["response"] = response
    return ModelReplied(
        text=text, reasoning="" if thought.strip() in text else thought, tool_calls=calls, verbatim=packed(kept)
    )


def _wrapping(content: str | None, output: str) -> dict[str, Any]:
    """What the template put around the output before the model got it."""
    if content is None or content == output:
        return {}
    before, found, after = content.partition(output) if output else (content, "", "")
    if not found:
        return {"content": content}
    return {name: text for name, text in (("content_before", before), ("content_after", after)) if text}


def _content(raw: msgspec.Raw | None) -> tuple[str | None, list[Part]]:
    """The text of a message, and its parts."""
    text = string(raw)
    if text is not None:
        return text, [Part(text=text)]
    parts: list[Part] = []
    texts: list[str] = []
    blocks = elements(raw)
    if blocks is None:
        return None, [] if is_null(raw) or raw is None else [Part(type="unknown", data=packed({"content": raw}))]
    for item in blocks:
        block = members(item)
        text = string(block.get("text")) if block else string(item)
        if text is None:
            parts.append(Part(type=(string(block.get("type")) if block else None) or "unknown", data=foreign(item)))
        else:
            parts.append(Part(text=text, data=packed(remainder(block or {}, {"type", "text"}))))
            texts.append(text)
    return "\n".join(texts), parts


def _digest(text: str) -> bytes:
    return digest(text.encode("utf-8"))
