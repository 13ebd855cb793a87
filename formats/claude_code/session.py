"""One trajectory of a session file: what has to be held back before its events can be written.

A reply is held until something shows that it is complete, together with the records that came between its blocks
(results of its parallel calls, attachments). Everything before the first reply is held too, so that the trajectory can
begin with its task and its model. What is held is bounded; a reply that had to be cut goes on in a second event, which
counts only the tokens that the first did not.
"""

from __future__ import annotations

from collections import OrderedDict

from stratalog.formats.native import digest, string
from stratalog.schemas.events import Model, Source, TaskStarted

from .conversation import Conversation, Held, Started
from .messages import prompt
from .records import FORMAT, Native
from .replies import NO_USAGE, Reply, Usage

HELD_RECORDS_MAX = 1024
HELD_BYTES_MAX = 16 << 20
REPLIES_REMEMBERED_MAX = 4096
_SYNTHETIC = "<synthetic>"


class Session(Conversation):
    """The lane of the main agent, or of one sub-agent."""

    def __init__(self, key: str, name: str, agent_id: str = "", parent_key: str = "") -> None:
        super().__init__(key)
        self._name = name
        self._agent_id = agent_id
        self._parent_key = parent_key
        self._begun = False
        self._early: list[Held] = []
        self._reply: Reply | None = None
        self._held: list[Held] = []
        self._held_bytes = 0
        self._counted: OrderedDict[str, Usage] = OrderedDict()

    def feed(self, held: Held) -> None:
        """The next record of this trajectory."""
        if self._begun:
            self._process(held)
            return
        self._early.append(held)
        self._held_bytes += _size(held)
        full = len(self._early) >= HELD_RECORDS_MAX or self._held_bytes >= HELD_BYTES_MAX
        if full or is_reply(held):
            self._start()

    @property
    def settled(self) -> bool:
        """Whether nothing is held back."""
        return self._begun and self._reply is None and not self.awaits_summary

    def finish(self) -> None:
        """The file ends here, or did once; what comes after goes on from what was written."""
        if not self._begun:
            self._start()
        self._close_reply()
        self.close_boundary()

    def _start(self) -> None:
        self._begun = True
        early, self._early, self._held_bytes = self._early, [], 0
        records = [held for held in early if isinstance(held, Native)]
        for native in records:
            for label, value in native.labels.items():
                self.labels.setdefault(label, value)
        self.policy = self.labels.get("permission_mode", "")
        labels = dict(self.labels)
        run_id, version = labels.pop("session_id", ""), labels.pop("version", "")
        if self._agent_id:
            labels["agent_id"] = self._agent_id
        model = next((string((held.message or {}).get("model")) for held in records if is_reply(held)), None) or ""
        body = TaskStarted(
            task=next((text for native in records if (text := prompt(native))), ""),
            agent=FORMAT,
            agent_version=version,
            model=Model(name=model, provider="anthropic" if model else ""),
            labels=labels,
            source=Source(format=FORMAT, run_id=run_id, agent_id=self._agent_id, name=self._name),
        )
        self.begin(
            body,
            started_at=next((native.created_at for native in records if native.created_at is not None), None),
            run_id=run_id,
            agent_id=self._agent_id,
            first_record=digest(next((held.raw for held in early if not isinstance(held, Started)), b"")),
            parent_key=self._parent_key,
        )
        for held in early:
            self._process(held)

    def _process(self, held: Held) -> None:
        if isinstance(held, Native) and is_reply(held):
            self._grow_reply(held)
        elif self._reply is None or _ends_reply(held):
            self._close_reply()
            self.map(held)
        else:
            self._held.append(held)
            self._held_bytes += _size(held)
            if len(self._held) >= HELD_RECORDS_MAX or self._held_bytes >= HELD_BYTES_MAX:
                self._close_reply()

    def _grow_reply(self, native: Native) -> None:
        message = native.message or {}
        reply_id = string(message.get("id")) or native.text("requestId") or native.text("uuid")
        if self._reply is None or self._reply.reply_id != reply_id or not reply_id:
            self._close_reply()
            self.close_boundary()
            self._reply = Reply(reply_id)
        self.set_labels(native)
        self._reply.add(native, message)
        self._held_bytes += _size(native)
        if self._held_bytes >= HELD_BYTES_MAX:
            self._close_reply()

    def _close_reply(self) -> None:
        reply, self._reply = self._reply, None
        held, self._held, self._held_bytes = self._held, [], 0
        if reply is not None:
            counted = self._counted.pop(reply.reply_id, NO_USAGE)
            self.turn += 1
            self.reply(reply.body(counted), reply.created_at, tuple(reply.times))
            self._remember(reply, counted)
        for item in held:
            self.map(item)

    def _remember(self, reply: Reply, counted: Usage) -> None:
        if not reply.reply_id:
            return
        now, before, read, write = (
            max(pair, key=lambda count: count or 0) for pair in zip(reply.usage, counted, strict=True)
        )
        self._counted[reply.reply_id] = (now, before, read, write)
        if len(self._counted) > REPLIES_REMEMBERED_MAX:
            self._counted.popitem(last=False)


def is_reply(held: Held) -> bool:
    """Whether this is a record of a model's reply, not one that the program wrote in the model's name."""
    if not isinstance(held, Native) or held.type != "assistant" or held.message is None:
        return False
    if held.flag("isApiErrorMessage") or "content" not in held.message:
        return False
    return string(held.message.get("model")) != _SYNTHETIC


def _ends_reply(held: Held) -> bool:
    """Whether this record shows that the reply before it is complete."""
    if not isinstance(held, Native):
        return False
    if held.type == "assistant" or held.flag("isCompactSummary"):
        return True
    return bool(prompt(held)) or (held.type == "system" and held.text("subtype") == "compact_boundary")


def _size(held: Held) -> int:
    return 0 if isinstance(held, Started) else len(held.raw)
