"""Content and metrics of ATIF, which are strings or parts and may carry keys that no version of the schema has."""

from __future__ import annotations

from typing import Any

import msgspec

from stratalog.formats.native import (
    Record,
    elements,
    foreign,
    integer,
    is_null,
    members,
    number,
    packed,
    remainder,
    string,
)
from stratalog.schemas.events import Part

FORMAT = "atif"


def text_and_rest(raw: msgspec.Raw | None) -> tuple[str, list[msgspec.Raw]]:
    """The text of a content, and the parts of it that are not text."""
    text = string(raw)
    if text is not None:
        return text, []
    parts = elements(raw)
    if parts is None:
        return "", [] if raw is None or is_null(raw) else [raw]
    texts: list[str] = []
    other: list[msgspec.Raw] = []
    for item in parts:
        part = members(item)
        found = string(part.get("text")) if part else string(item)
        if found is None:
            other.append(item)
        else:
            texts.append(found)
    return "\n".join(texts), other


def parts_of(raw: msgspec.Raw | None) -> list[Part]:
    """A content as the parts of a message."""
    text, other = text_and_rest(raw)
    parts = [Part(text=text)] if text or (raw is not None and not is_null(raw) and not other) else []
    for item in other:
        part = members(item) or {}
        source = members(part.get("source")) or {}
        parts.append(
            Part(
                type=string(part.get("type")) or "unknown",
                media_type=string(source.get("media_type")) or "",
                data=foreign(item),
            )
        )
    return parts


def record_part(rest: Record) -> list[Part]:
    """What else a step says, as a last part."""
    return [Part(type="record", data=packed(rest))] if rest else []


class Metrics(msgspec.Struct, frozen=True):
    """The counts of one step; `rest` is what they leave (token ids, logprobs, extra)."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    rest: dict[str, Any] = {}

    @classmethod
    def of(cls, raw: msgspec.Raw | None) -> Metrics:
        """Read the metrics of a step."""
        metrics = members(raw)
        if metrics is None:
            return cls(rest={} if raw is None or is_null(raw) else {"metrics": raw})
        counts = {name: integer(metrics.get(name)) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")}
        cost = number(metrics.get("cost_usd"))
        taken = {name for name, count in counts.items() if count is not None}
        rest = remainder(metrics, taken | ({"cost_usd"} if cost is not None else set()))
        return cls(
            counts["prompt_tokens"],
            counts["completion_tokens"],
            counts["cached_tokens"],
            cost,
            {"metrics": rest} if rest else {},
        )
