"""The values that bodies of events are made of: a model, a part of a message, a budget, a call; and what is no body."""

from __future__ import annotations

from typing import Any

import msgspec

from .blobs import Text


class Model(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model as configured: the name asked for and the version pinned."""

    name: str = ""
    version: str = ""
    provider: str = ""


class PromptTemplate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prompt template by name and version."""

    name: str = ""
    version: str = ""


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What may still be spent, or what was granted; `None` is unlimited."""

    tokens: int | None = None
    cost_usd: float | None = None
    turns: int | None = None
    seconds: float | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a message: text, or something else by media type."""

    type: str = "text"
    text: Text | None = None
    media_type: str = ""
    data: msgspec.Raw = msgspec.Raw()
    """Any JSON, for parts that are not text; may hold blob references."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call as the model proposed it; `arguments` is any JSON, also a string that is not JSON itself."""

    tool_call_id: str = ""
    tool: str = ""
    arguments: msgspec.Raw = msgspec.Raw()


class HarnessReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value that the harness read from its surroundings: a clock, a seed, an id, a listing."""

    source: str
    value: msgspec.Raw = msgspec.Raw()


class RetrievedItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that retrieval put into the context."""

    source: str = ""
    item_id: str = ""
    sha256: str = ""
    text: Text | None = None


MessageReference = tuple[int, int]
"""(sequence number, part) of a message in this trajectory, or in its declared parent as (sequence number, part) with
the sequence number below the fork."""


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where an imported trajectory comes from."""

    format: str
    run_id: str = ""
    agent_id: str = ""
    """The sub-agent within the run; empty for the main agent."""
    name: str = ""
    """File name without its folders."""
    replaces: str = ""
    """The trajectory that an earlier state of the same source became, when its beginning has changed since."""


class PlanStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a plan."""

    title: str
    status: str = ""


class Unknown(msgspec.Struct, frozen=True):
    """A body that this version cannot read: an unknown kind, or bytes that do not fit the kind."""

    kind: str
    raw: bytes
    reason: str = ""


def raw_json(value: Any) -> msgspec.Raw:
    """JSON bytes of any value, for the `Raw` fields; raises what `msgspec.json.encode` raises."""
    return msgspec.Raw(msgspec.json.encode(value))
