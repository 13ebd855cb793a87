"""One trajectory in the making: numbers its events, pairs results with calls, keeps the context as references.

The sequence numbers are known here because an imported trajectory holds nothing but its import. A call is answered by
the next result that names its id, the latest unanswered call first. Its intent is written when its fate is known: just
before its result, or when the source goes on without one; never for a call that was refused.
"""

from __future__ import annotations

import msgspec

from stratalog.schemas.events import (
    Authorized,
    Body,
    ContextBuilt,
    MessageReceived,
    ModelReplied,
    TaskStarted,
    ToolIntent,
    ToolResult,
)

from .blanks import without_blanks
from .source import Begin, Entry, Item

CONTEXT_FULL_EVERY = 64
"""A context is written in full this often; the others build on the one before."""
CONTEXT_FULL_MAX = 8192
"""A longer one is never written in full again."""

Reference = tuple[int, int]


class Call(msgspec.Struct):
    """A call that has no result yet; `intent` is the sequence number of its ToolIntent, once written."""

    tool_call_id: str
    tool: str
    arguments: msgspec.Raw = msgspec.Raw()
    created_at: int | None = None
    intent: int | None = None


class Lane:
    """Collects the items of one trajectory in `out`, until `drain` hands them on."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.out: list[Item] = []
        self.sequence_number = 0
        self.context: list[Reference] = []
        self.calls: list[Call] = []
        self.policy = ""
        """The permission mode in force, where the source names one."""
        self._built_at: int | None = None
        self._kept = 0
        """How many references at the beginning of `context` are those of the last ContextBuilt."""
        self._contexts = 0

    def drain(self) -> list[Item]:
        """The items since the last call."""
        out, self.out = self.out, []
        return out

    def begin(
        self,
        body: TaskStarted,
        *,
        started_at: int | None,
        run_id: str,
        agent_id: str,
        first_record: bytes,
        parent_key: str = "",
    ) -> None:
        """Event 0; a source without any time is labelled `undated`."""
        if started_at is None:
            body = msgspec.structs.replace(body, labels={**body.labels, "undated": "true"})
        self.sequence_number = 1
        self.out.append(
            Begin(
                key=self.key,
                started_at=started_at,
                run_id=run_id,
                agent_id=agent_id,
                first_record=first_record,
                body=without_blanks(body),
                parent_key=parent_key,
            )
        )

    def add(self, body: Body, created_at: int | None) -> int:
        """Append an event; returns its sequence number."""
        number = self.sequence_number
        self.sequence_number += 1
        self.out.append(Entry(self.key, without_blanks(body), created_at))
        return number

    def message(self, body: MessageReceived, created_at: int | None) -> int:
        """A message that the contexts from here on contain."""
        number = self.add(body, created_at)
        self.context += [(number, part) for part in range(len(body.parts))]
        return number

    def reply(self, body: ModelReplied, created_at: int | None, times: tuple[int | None, ...] = ()) -> int:
        """A reply and the context it answers; `times` are those of its calls, where they differ from its own."""
        self.dispatch_all()
        self._build_context(created_at)
        number = self.add(body, created_at)
        self.context.append((number, 0))
        for index, call in enumerate(body.tool_calls):
            at = times[index] if index < len(times) else created_at
            self.calls.append(Call(call.tool_call_id, call.tool, call.arguments, at))
        return number

    def set_context(self, references: list[Reference]) -> None:
        """The context is these messages and nothing else (a compaction, or what the source says was sent)."""
        same = 0
        for old, new in zip(self.context[: self._kept], references, strict=False):
            if old != new:
                break
            same += 1
        self.context = references
        self._kept = same

    def _build_context(self, created_at: int | None) -> None:
        whole = self._contexts % CONTEXT_FULL_EVERY == 0 and len(self.context) <= CONTEXT_FULL_MAX
        full = self._built_at is None or whole
        same = 0 if full else self._kept
        body = ContextBuilt(
            base=None if full else self._built_at,
            kept=((0, same),) if same else (),
            appended=tuple(self.context[same:]),
            message_count=len(self.context),
            inferred=True,
        )
        self._built_at = self.add(body, created_at)
        self._kept = len(self.context)
        self._contexts += 1

    def take(self, tool_call_id: str) -> Call | None:
        """The latest unanswered call of that id, which is answered from here on."""
        for index in range(len(self.calls) - 1, -1, -1):
            if self.calls[index].tool_call_id == tool_call_id:
                return self.calls.pop(index)
        return None

    def dispatch(self, call: Call) -> int:
        """Authorization and intent of a call; returns the intent's sequence number."""
        if call.intent is None:
            self.add(
                Authorized(
                    tool_call_id=call.tool_call_id,
                    decision="allow",
                    tool=call.tool,
                    policy_version=self.policy,
                    inferred=True,
                ),
                call.created_at,
            )
            call.intent = self.add(
                ToolIntent(tool_call_id=call.tool_call_id, tool=call.tool, arguments=call.arguments, inferred=True),
                call.created_at,
            )
        return call.intent

    def dispatch_all(self) -> None:
        """The source goes on: what has no result by now was dispatched all the same."""
        for call in self.calls:
            self.dispatch(call)

    def answer(self, call: Call | None, body: ToolResult, created_at: int | None, *, dispatched: bool = True) -> int:
        """A result; its call, if any, gets its intent first unless it never was dispatched."""
        if call is not None:
            intent = self.dispatch(call) if dispatched else call.intent
            body = msgspec.structs.replace(body, intent=intent, tool=body.tool or call.tool)
        number = self.add(body, created_at)
        self.context.append((number, 0))
        return number
