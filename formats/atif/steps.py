"""Steps of an ATIF trajectory to events.

A result belongs to the call of the same step that it names, or, where no result names one and there are as many calls
as results, to the call at its place; anything else is a result without a call. Steps copied from another trajectory
are context, not work: they become messages and count no tokens.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stratalog.formats.lane import Call, Lane
from stratalog.formats.native import (
    Damaged,
    Record,
    decode_record,
    elements,
    foreign,
    integer,
    is_null,
    is_true,
    members,
    opaque,
    packed,
    remainder,
    string,
    time_us,
)
from stratalog.schemas.events import (
    Annotation,
    ChildFinished,
    ChildStarted,
    Compacted,
    MessageReceived,
    ModelReplied,
    ToolCall,
    ToolResult,
)

from .content import FORMAT, Metrics, parts_of, record_part, text_and_rest

_AGENT_ONLY = {"model_name", "reasoning_content", "tool_calls", "metrics"}


class Steps(Lane):
    """The lane of one ATIF document."""

    def __init__(self, key: str, model: str) -> None:
        super().__init__(key)
        self._model = model
        self._turn = 0
        self._compacted_turn = 0
        self._compacted_at = 0

    def step(self, raw: bytes) -> None:
        """Append the events of a step."""
        try:
            step = decode_record(raw)
        except Damaged:
            self.add(opaque(FORMAT, "step", raw), None)
            return
        at = time_us(step.get("timestamp"))
        source = string(step.get("source"))
        rest = remainder(step, {"source", "message", "observation"} | ({"timestamp"} if at is not None else set()))
        if is_true(step.get("is_copied_context")) and source in ("system", "user", "agent"):
            self._copied(step, source, rest, at)
        elif source == "agent":
            self._agent(step, rest, at)
        elif source == "system" and _compacts(step):
            self._compacted(step, rest, at)
        elif source in ("system", "user"):
            parts = parts_of(step.get("message")) + record_part(rest)
            if parts:
                self.message(MessageReceived(role=source, parts=tuple(parts)), at)
            self._results(step, [], at)
        else:
            self.add(opaque(FORMAT, f"step/{source or ''}", raw), at)

    def _copied(self, step: Record, source: str, rest: Record, at: int | None) -> None:
        if "observation" in step:
            rest = rest | {"observation": step["observation"]}
        role = "assistant" if source == "agent" else source
        parts = parts_of(step.get("message")) + record_part(rest)
        self.message(MessageReceived(role=role, parts=tuple(parts), author="copied", injected=True), at)

    def _agent(self, step: Record, rest: Record, at: int | None) -> None:
        rest = remainder(rest, _AGENT_ONLY)
        calls, unread = _calls(step.get("tool_calls"))
        text, other = text_and_rest(step.get("message"))
        metrics = Metrics.of(step.get("metrics"))
        kept: dict[str, Any] = rest | metrics.rest
        if unread:
            kept["tool_calls"] = unread
        if other:
            kept["message"] = other
        reasoning = string(step.get("reasoning_content"))
        if reasoning is None and not is_null(step.get("reasoning_content")):
            kept["reasoning_content"] = step["reasoning_content"]
        if integer(step.get("llm_call_count")) == 0:
            self._dispatched(step, kept, calls, at)
        else:
            body = ModelReplied(
                text=text,
                reasoning=reasoning or "",
                tool_calls=calls,
                input_tokens=metrics.input_tokens,
                output_tokens=metrics.output_tokens,
                cache_read_tokens=metrics.cached_tokens,
                cost_usd=metrics.cost_usd,
                served_model=string(step.get("model_name")) or self._model,
                verbatim=packed(kept),
            )
            self._turn += 1
            self.reply(body, at)
        self._results(step, self.calls[-len(calls) :] if calls else [], at)

    def _dispatched(self, step: Record, kept: dict[str, Any], calls: tuple[ToolCall, ...], at: int | None) -> None:
        """A step without a model call: the program acted by its own rules."""
        self.dispatch_all()
        parts = parts_of(step.get("message")) + record_part(kept)
        if parts:
            self.message(
                MessageReceived(role="assistant", parts=tuple(parts), author="deterministic", injected=True), at
            )
        for call in calls:
            self.calls.append(Call(call.tool_call_id, call.tool, call.arguments, at))

    # --- results -----------------------------------------------------------------------------------------------

    def _results(self, step: Record, calls: list[Call], at: int | None) -> None:
        observation = members(step.get("observation"))
        if observation is None:
            if not is_null(step.get("observation")):
                self.add(Annotation(name="observation", value=foreign(step["observation"]), author=FORMAT), at)
            return
        results = elements(observation.get("results")) or []
        rest = remainder(observation, {"results"} if elements(observation.get("results")) is not None else ())
        if rest:
            self.add(Annotation(name="observation", value=packed(rest), author=FORMAT), at)
        records = [members(raw) for raw in results]
        named = any(record and string(record.get("source_call_id")) for record in records)
        places = list(calls) if not named and len(calls) == len(results) else []
        open_calls = list(calls)
        for index, (raw, record) in enumerate(zip(results, records, strict=True)):
            if record is None:
                self.add(opaque(FORMAT, "result", bytes(raw)), at)
                continue
            call = places[index] if places else _named(open_calls, string(record.get("source_call_id")))
            if call is not None:
                open_calls.remove(call)
            self._result(record, call, at)

    def _result(self, record: Record, call: Call | None, at: int | None) -> None:
        output, other = text_and_rest(record.get("content"))
        data: dict[str, Any] = dict(remainder(record, {"source_call_id", "content"}))
        if other:
            data["content"] = other
        call_id = call.tool_call_id if call else string(record.get("source_call_id")) or ""
        if call is not None:
            self.calls = [waiting for waiting in self.calls if waiting is not call]
            self.dispatch(call)
        children = _children(record)
        for child in children:
            self.add(ChildStarted(child=child, tool_call_id=call_id), at)
        self.answer(call, ToolResult(tool_call_id=call_id, output=output, data=packed(data)), at)
        for child in children:
            self.add(ChildFinished(child=child, tool_call_id=call_id, inferred=True), at)

    # --- compaction --------------------------------------------------------------------------------------------

    def _compacted(self, step: Record, rest: Record, at: int | None) -> None:
        observation = members(step.get("observation")) or {}
        records = [members(raw) or {} for raw in elements(observation.get("results")) or []]
        message, _ = text_and_rest(step.get("message"))
        found = [text for record in records if (text := text_and_rest(record.get("content"))[0])]
        children = [child for record in records for child in _children(record)]
        for child in children:
            self.add(ChildStarted(child=child), at)
        number = self.add(
            Compacted(
                summary="\n\n".join(found) or message,
                first_turn=min(self._compacted_turn + 1, self._turn),
                last_turn=self._turn,
                first_sequence=self._compacted_at,
                last_sequence=self.sequence_number - 1 - len(children),
            ),
            at,
        )
        for child in children:
            self.add(ChildFinished(child=child, inferred=True), at)
        kept: dict[str, Any] = dict(rest)
        if found:
            kept["message"] = message
        kept["results"] = [_without_text(record) for record in records]
        self.add(Annotation(name="compaction", value=packed(kept), author=FORMAT), at)
        self._compacted_turn, self._compacted_at = self._turn, number
        self.set_context([(number, 0)])


def _without_text(record: Record) -> Record:
    return remainder(record, {"content"} if string(record.get("content")) is not None else ())


def _compacts(step: Record) -> bool:
    """Whether a system step is a compaction: it says so, or all it observes are the sub-agents that did one."""
    extra = members(step.get("extra")) or {}
    management = members(extra.get("context_management")) or {}
    if string(management.get("type")) == "compaction":
        return True
    observation = members(step.get("observation")) or {}
    results = [members(raw) or {} for raw in elements(observation.get("results")) or []]
    return bool(results) and all(_children(record) and is_null(record.get("content")) for record in results)


def _children(record: Record) -> list[str]:
    """The sub-agents that a result refers to, by the best id that each has."""
    raw = record.get("subagent_trajectory_ref")
    references = elements(raw) or ([raw] if raw is not None and members(raw) is not None else [])
    found: list[str] = []
    for item in references:
        reference = members(item) or {}
        for name in ("trajectory_id", "session_id", "trajectory_path"):
            native_id = string(reference.get(name))
            if native_id:
                found.append(f"{FORMAT}:{native_id}")
                break
    return found


def _named(calls: list[Call], call_id: str | None) -> Call | None:
    if not call_id:
        return None
    return next((call for call in reversed(calls) if call.tool_call_id == call_id), None)


def _calls(raw: msgspec.Raw | None) -> tuple[tuple[ToolCall, ...], list[Any]]:
    """The calls of a step, and what they leave unsaid (extra keys, calls that are none)."""
    items = elements(raw)
    if items is None:
        return (), [] if raw is None or is_null(raw) else [raw]
    calls: list[ToolCall] = []
    rests: list[Any] = []
    for item in items:
        call = members(item)
        tool = string(call.get("function_name")) if call else None
        if call is None or tool is None:
            rests.append(item)
            continue
        arguments = call.get("arguments")
        calls.append(
            ToolCall(
                tool_call_id=string(call.get("tool_call_id")) or "",
                tool=tool,
                arguments=msgspec.Raw() if arguments is None else foreign(arguments),
            )
        )
        rest = remainder(call, {"tool_call_id", "function_name", "arguments"})
        if rest:
            rests.append(rest)
    return tuple(calls), rests
