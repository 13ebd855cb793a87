"""One model reply out of the records of its content blocks.

The program writes a record per block; all have the same `message.id`, and `usage` is repeated or partial on the early
ones, so the last record's counts. What the reply's fields do not say (uuids, signatures, the breakdown of the usage)
stays in `verbatim`, one object per record.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stratalog.formats.native import Record, elements, foreign, integer, members, packed, remainder, string
from stratalog.schemas.events import ModelReplied, ToolCall, raw_json

from .records import Native

Usage = tuple[int | None, int | None, int | None, int | None]
"""Input tokens (all), output tokens, read from the cache, written to the cache."""

NO_USAGE: Usage = (None, None, None, None)
_MAPPED = {"id", "type", "role", "model", "content", "usage", "stop_reason"}
_TEXT_OF = {"text": "text", "thinking": "thinking"}


class Reply:
    """A reply that is still growing."""

    def __init__(self, reply_id: str) -> None:
        self.reply_id = reply_id
        self.created_at: int | None = None
        self.usage: Usage = NO_USAGE
        self.times: list[int | None] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._records: list[dict[str, Any]] = []
        self._usage_raw: msgspec.Raw | None = None
        self._model = ""
        self._stop_reason = ""

    def add(self, native: Native, message: Record) -> None:
        """One more record of this reply."""
        if not self._records:
            self.created_at = native.created_at
        self._model = string(message.get("model")) or self._model
        self._stop_reason = string(message.get("stop_reason")) or self._stop_reason
        usage = members(message.get("usage"))
        if usage is not None:
            self.usage, self._usage_raw = usage_of(usage), message["usage"]
        kept: dict[str, Any] = dict(native.rest())
        other = remainder(message, _MAPPED)
        if other:
            kept["message"] = other
        blocks = self._add_content(native, message.get("content"))
        if blocks:
            kept["blocks"] = blocks
        self._records.append(kept)

    def _add_content(self, native: Native, content: msgspec.Raw | None) -> list[Any]:
        """Take the blocks in; returns what is left of them, in order, unless nothing is."""
        text = string(content)
        if text is not None:
            self._text.append(text)
            return []
        blocks = elements(content)
        if blocks is None:
            return [] if content is None else [content]
        rests = [self._add_block(native, block) for block in blocks]
        plain = len(rests) < 2 and all(isinstance(rest, dict) and list(rest) == ["type"] for rest in rests)
        return [] if plain else rests

    def _add_block(self, native: Native, raw: msgspec.Raw) -> Any:
        block = members(raw)
        kind = string(block.get("type")) if block else None
        if block is None or kind is None:
            return raw
        if kind == "tool_use" and string(block.get("name")) is not None:
            arguments = block.get("input")
            self._calls.append(
                ToolCall(
                    tool_call_id=string(block.get("id")) or "",
                    tool=string(block.get("name")) or "",
                    arguments=msgspec.Raw() if arguments is None else foreign(arguments),
                )
            )
            self.times.append(native.created_at)
            return remainder(block, {"id", "name", "input"})
        text = string(block.get(_TEXT_OF.get(kind, "")))
        if text is None:
            return raw
        (self._text if kind == "text" else self._reasoning).append(text)
        return remainder(block, {kind}) if kind == "thinking" else {"type": raw_json("text"), **_rest_of_text(block)}

    def body(self, counted: Usage) -> ModelReplied:
        """The event; `counted` is what an earlier event of the same reply has already counted."""
        usage = tuple(_less(now, before) for now, before in zip(self.usage, counted, strict=True))
        verbatim: dict[str, Any] = {"records": self._records}
        if self._usage_raw is not None:
            verbatim["usage"] = self._usage_raw
        return ModelReplied(
            text="\n\n".join(self._text),
            reasoning="\n\n".join(self._reasoning),
            tool_calls=tuple(self._calls),
            stop_reason=self._stop_reason,
            input_tokens=usage[0],
            output_tokens=usage[1],
            cache_read_tokens=usage[2],
            cache_write_tokens=usage[3],
            served_model=self._model,
            reply_id=self.reply_id,
            verbatim=packed(verbatim),
        )


def _rest_of_text(block: Record) -> Record:
    return remainder(block, {"type", "text"})


def _less(now: int | None, before: int | None) -> int | None:
    return None if now is None else max(now - (before or 0), 0)


def usage_of(usage: Record) -> Usage:
    """The counts of an Anthropic usage object; its input tokens leave the cached ones out, ours include them."""
    plain = integer(usage.get("input_tokens"))
    read = integer(usage.get("cache_read_input_tokens"))
    write = integer(usage.get("cache_creation_input_tokens"))
    given = [count for count in (plain, read, write) if count is not None]
    return (sum(given) if given else None), integer(usage.get("output_tokens")), read, write
