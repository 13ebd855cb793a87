"""Records of one trajectory to events, one by one in file order; replies come in whole (see `session.py`)."""

from __future__ import annotations

import msgspec

from stratalog.formats.lane import Call, Lane
from stratalog.formats.native import Record, elements, integer, members, opaque, packed, remainder, string
from stratalog.schemas.events import (
    Annotation,
    ApprovalResolved,
    Authorized,
    ChildFinished,
    ChildStarted,
    Compacted,
    LabelsSet,
)

from .messages import attachment, blocks_of, messages_of, prompt, synthetic, text_of, tool_result
from .records import FORMAT, Native
from .results import Result, result_of

_TITLES = {"custom-title": "customTitle", "ai-title": "aiTitle", "agent-name": "agentName", "mode": "mode"}
_SUB_AGENT_TOOLS = ("Task", "Agent")


class Started(msgspec.Struct, frozen=True):
    """An inline sub-agent begins here, by its native id and its task."""

    child: str
    task: str


class Damage(msgspec.Struct, frozen=True):
    """A line that could not be read, in its place."""

    native_type: str
    raw: bytes


Held = Native | Started | Damage


class Conversation(Lane):
    """What a trajectory's records say, apart from the grouping of replies."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.labels: dict[str, str] = {}
        self.turn = 0
        self._boundary: Native | None = None
        self._compacted_turn = 0
        self._compacted_at = 0
        self._children: dict[str, str] = {}
        """Call id to the inline sub-agent that runs for it."""

    def map(self, held: Held) -> None:
        """Append the events of a record."""
        if isinstance(held, Started):
            self._child_started(held)
        elif isinstance(held, Damage):
            self.add(opaque(FORMAT, held.native_type, held.raw), None)
        else:
            if not held.flag("isCompactSummary"):
                self.close_boundary()
            self.set_labels(held)
            if not self._mapped(held):
                self.add(opaque(FORMAT, _native_type(held), held.raw), held.created_at)

    def set_labels(self, native: Native) -> None:
        """Note what the record says of the session and no record before it did."""
        stated = native.type == "permission-mode"
        changed = {label: value for label, value in native.labels.items() if stated or self.labels.get(label) != value}
        self.labels.update(changed)
        self.policy = self.labels.get("permission_mode", "")
        if changed:
            self.add(LabelsSet(labels=changed), native.created_at)

    def _mapped(self, native: Native) -> bool:
        """Map by type; false for what no kind fits."""
        match native.type:
            case "user":
                return self._user(native)
            case "assistant":
                return self._synthetic(native)
            case "attachment" if members(native.record.get("attachment")) is not None:
                self.message(attachment(native), native.created_at)
                return True
            case "system" if native.text("subtype") == "compact_boundary":
                self._boundary = native
                return True
            case "permission-mode":
                return "permission_mode" in native.labels and not native.rest()
            case "summary" if native.text("summary"):
                rest = packed(native.rest("summary"))
                self.add(Annotation(name="summary", note=native.text("summary"), value=rest), native.created_at)
                return True
            case kind if kind in _TITLES and native.text(_TITLES[kind]) and not native.rest(_TITLES[kind]):
                label = kind.replace("-", "_")
                self.add(LabelsSet(labels={label: native.text(_TITLES[kind])}), native.created_at)
                return True
        return False

    def _synthetic(self, native: Native) -> bool:
        content = native.message.get("content") if native.message else None
        if native.message is None or (string(content) is None and elements(content) is None):
            return False
        self.message(synthetic(native, content), native.created_at)
        return True

    def _user(self, native: Native) -> bool:
        blocks = blocks_of(native)
        if blocks is None:
            return False
        if native.flag("isCompactSummary"):
            self._compacted(native, blocks)
            return True
        results = [block for raw in blocks if (block := tool_result(raw)) is not None]
        others = [raw for raw in blocks if tool_result(raw) is None]
        for index, block in enumerate(results):
            self._result(result_of(native, block, first=index == 0), native.created_at)
        if prompt(native):
            self.dispatch_all()
        if others or not results:
            for message in messages_of(native, others, {} if results else native.rest()):
                self.message(message, native.created_at)
        return True

    # --- calls and sub-agents ----------------------------------------------------------------------------------

    def _result(self, result: Result, at: int | None) -> None:
        call_id = result.body.tool_call_id
        call = self.take(call_id)
        if result.refusal:
            self._refused(result, call, at)
            return
        child = self._children.pop(call_id, "")
        if result.child and not child:
            child = f"{FORMAT}:{result.child}"
            if call is not None:
                self.dispatch(call)
            started_at = call.created_at if call else at
            self.add(ChildStarted(child=child, tool_call_id=call_id, inferred=True), started_at)
        self.answer(call, result.body, at)
        if child and result.child_status != "async_launched":
            status = "failed" if result.body.status == "error" else result.child_status
            self.add(ChildFinished(child=child, status=status, tool_call_id=call_id, inferred=True), at)

    def _refused(self, result: Result, call: Call | None, at: int | None) -> None:
        call_id, tool = result.body.tool_call_id, call.tool if call else ""
        if result.refusal == "person":
            approval = ApprovalResolved(
                tool_call_id=call_id,
                decision="denied",
                tool=tool,
                approver="user",
                reason=result.reason,
                inferred=True,
            )
            self.add(approval, at)
        else:
            denied = Authorized(
                tool_call_id=call_id, decision="deny", tool=tool, policy_version=self.policy, inferred=True
            )
            self.add(denied, at)
        self.answer(call, result.body, at, dispatched=False)

    def _child_started(self, started: Started) -> None:
        waiting = [
            call for call in self.calls if call.tool in _SUB_AGENT_TOOLS and call.tool_call_id not in self._children
        ]
        exact = [call for call in waiting if started.task and _prompt_argument(call) == started.task]
        call = next(iter(exact or waiting), None)
        child = f"{FORMAT}:{started.child}"
        if call is not None:
            self.dispatch(call)
            self._children[call.tool_call_id] = child
        call_id, at = (call.tool_call_id, call.created_at) if call else ("", None)
        self.add(ChildStarted(child=child, tool_call_id=call_id, inferred=True), at)

    # --- compaction --------------------------------------------------------------------------------------------

    @property
    def awaits_summary(self) -> bool:
        """Whether a compaction boundary was the last record."""
        return self._boundary is not None

    def close_boundary(self) -> None:
        """A compaction boundary whose summary does not follow."""
        if self._boundary is not None:
            self._compacted(None, [])

    def _compacted(self, native: Native | None, blocks: list[msgspec.Raw]) -> None:
        """A boundary, a summary, or both."""
        boundary, self._boundary = self._boundary, None
        metadata = (members(boundary.record.get("compactMetadata")) if boundary else None) or {}
        tokens = integer(metadata.get("preTokens"))
        at = next((record.created_at for record in (native, boundary) if record is not None), None)
        body = Compacted(
            summary="\n\n".join(text for raw in blocks if (text := text_of(raw)) is not None),
            first_turn=min(self._compacted_turn + 1, self.turn),
            last_turn=self.turn,
            first_sequence=self._compacted_at,
            last_sequence=self.sequence_number - 1,
            trigger=string(metadata.get("trigger")) or "",
            tokens_before=tokens,
        )
        number = self.add(body, at)
        self._compacted_turn, self._compacted_at = self.turn, number
        self.set_context([(number, 0)])
        rests: dict[str, Record] = {}
        if boundary is not None:
            rests["boundary"] = boundary.rest()
        if native is not None:
            other = [raw for raw in blocks if text_of(raw) is None]
            left = {"content": msgspec.Raw(msgspec.json.encode(other))} if other else {}
            rests["summary"] = native.rest("isCompactSummary") | left | remainder(native.message or {}, _SAID)
        self.add(Annotation(name="compaction", value=packed(rests), author=FORMAT), at)


_SAID = frozenset({"role", "content", "type"})


def _prompt_argument(call: Call) -> str:
    arguments = members(call.arguments) or {}
    return string(arguments.get("prompt")) or ""


def _native_type(native: Native) -> str:
    subtype = native.text("subtype")
    return f"{native.type}/{subtype}" if subtype else native.type
