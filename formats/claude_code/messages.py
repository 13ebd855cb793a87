"""User messages, attachments and the other records that are neither a reply nor a result."""

from __future__ import annotations

from typing import Any

import msgspec

from stratalog.formats.native import Record, elements, is_true, members, packed, remainder, string
from stratalog.schemas.events import MessageReceived, Part

from .records import Native, is_command, is_injected

_HUMAN_QUEUE = ("prompt", "")


def blocks_of(native: Native) -> list[msgspec.Raw] | None:
    """The content blocks of a user record; a plain string is one block; `None` for anything else."""
    content = native.message.get("content") if native.message else None
    if content is None:
        return None
    return [content] if string(content) is not None else elements(content)


def tool_result(raw: msgspec.Raw) -> Record | None:
    """The block if it is a tool_result."""
    block = members(raw)
    return block if block is not None and string(block.get("type")) == "tool_result" else None


def text_of(raw: msgspec.Raw) -> str | None:
    """The text of a block that is text, or a plain string."""
    block = members(raw)
    if block is None:
        return string(raw)
    return string(block.get("text")) if string(block.get("type")) == "text" else None


def prompt(native: Native) -> str:
    """What a person asked the model in this record, or nothing."""
    if native.type != "user" or native.flag("isMeta") or native.flag("isCompactSummary"):
        return ""
    texts = [text for raw in blocks_of(native) or [] if (text := text_of(raw)) is not None]
    asked = [text for text in texts if text.strip() and not is_injected(text) and not is_command(text)]
    return "\n\n".join(asked)


def messages_of(native: Native, blocks: list[msgspec.Raw], rest: Record) -> list[MessageReceived]:
    """The blocks of a user record as messages, what the program wrote apart from what the person wrote.

    `rest` is what else the record says; it becomes a last part of the type `record`.
    """
    always = native.flag("isMeta") or native.flag("isVisibleInTranscriptOnly")
    groups: list[tuple[bool, list[Part]]] = []
    for raw in blocks:
        text = text_of(raw)
        injected = always or (text is not None and is_injected(text))
        if not groups or groups[-1][0] != injected:
            groups.append((injected, []))
        groups[-1][1].append(part_of(raw))
    left = rest | {f"message.{name}": value for name, value in _unsaid(native).items()} if rest else rest
    if not groups:
        groups.append((always, []))
    if left:
        groups[-1][1].append(Part(type="record", data=packed(left)))
    role = (string(native.message.get("role")) if native.message else None) or "user"
    return [MessageReceived(role=role, parts=tuple(parts), injected=injected) for injected, parts in groups]


def _unsaid(native: Native) -> Record:
    return remainder(native.message or {}, {"role", "content"})


def part_of(raw: msgspec.Raw) -> Part:
    """A content block as a part: its text, or its JSON."""
    block = members(raw)
    if block is None:
        text = string(raw)
        return Part(text=text) if text is not None else Part(type="unknown", data=packed({"block": raw}))
    kind = string(block.get("type")) or "unknown"
    text = string(block.get("text")) if kind == "text" else None
    if text is not None:
        return Part(text=text, data=packed(remainder(block, {"type", "text"})))
    source = members(block.get("source")) or {}
    return Part(type=kind, media_type=string(source.get("media_type")) or "", data=packed(block))


def attachment(native: Native) -> MessageReceived:
    """What the program put beside the conversation: hook output, reminders, listings, queued prompts."""
    content = members(native.record.get("attachment")) or {}
    kind = string(content.get("type")) or "attachment"
    queued = kind == "queued_command" and (string(content.get("commandMode")) or "") in _HUMAN_QUEUE
    data: dict[str, Any] = {}
    parts: list[Part] = []
    text = string(content.get("prompt")) if queued else None
    if text is not None:
        parts.append(Part(text=text))
        content = remainder(content, {"prompt"})
    data["attachment"] = content
    data.update(native.rest("attachment"))
    parts.append(Part(type="attachment", data=packed(data)))
    return MessageReceived(
        role="user", author=kind, parts=tuple(parts), injected=not queued or is_true(content.get("isMeta"))
    )


def synthetic(native: Native, content: msgspec.Raw | None) -> MessageReceived:
    """An assistant record that no model wrote: the program's own words, e.g. an API error."""
    text = string(content)
    blocks = [] if text is not None else elements(content) or []
    parts = [Part(text=text)] if text is not None else [part_of(raw) for raw in blocks]
    rest: dict[str, Any] = dict(native.rest())
    left = remainder(native.message or {}, {"content", "role", "type"})
    if left:
        rest["message"] = left
    if rest:
        parts.append(Part(type="record", data=packed(rest)))
    return MessageReceived(role="assistant", author="claude-code", parts=tuple(parts), injected=True)
