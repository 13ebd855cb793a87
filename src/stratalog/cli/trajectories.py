"""`stratalog trajectory`: which trajectories there are, and one of them event by event."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
from cyclopts import App

from stratalog.cold.installation import Installation
from stratalog.schemas import events as ev
from stratalog.schemas.blobs import Blob, Text
from stratalog.schemas.codec import Event, decode_event
from stratalog.schemas.extras import require
from stratalog.schemas.ids import from_us
from stratalog.schemas.summary import Summary

from .options import DEFAULT, Common
from .output import Output, counted, human_us
from .sanitise import sanitise, shorten

if TYPE_CHECKING:
    from stratalog.cold.listing import Listed, Tiers

trajectory_app = App(name="trajectory", help="Trajectories in all tiers: list, show.")

TEXT_LEAST = 20
UNKNOWN_SHOWN = 400
"""Bytes of an unknown body that are shown."""


@trajectory_app.command(name="list")
def list_(
    *, tenant: str | None = None, status: str | None = None, limit: int | None = None, common: Common = DEFAULT
) -> int:
    """List trajectories, newest first, with the tiers they lie in.

    Example: `stratalog trajectory list --status running`

    Parameters
    ----------
    tenant
        Only those of this tenant.
    status
        Only those with this status: pending, running, waiting_approval, escalated, completed, failed, cancelled or
        imported.
    limit
        At most so many.
    """
    with open_tiers(common.installation()) as tiers:
        matching = (
            listed
            for listed in tiers.all()
            if (tenant is None or listed.tenant == tenant) and (status is None or listed.summary.status == status)
        )
        found = list(itertools.islice(matching, limit))
    if common.json:
        common.output.document([row(listed) for listed in found])
        return 0
    common.output.table(
        ["trajectory", "status", "events", "tier", "started", "model", "tenant", "source"],
        [
            [
                str(listed.trajectory_id),
                listed.summary.status,
                listed.summary.events,
                listed.tier,
                _started(listed.summary),
                listed.summary.model,
                listed.tenant,
                _source(listed.summary),
            ]
            for listed in found
        ],
    )
    common.output.note(counted(len(found), "trajectory"))
    return 0


@trajectory_app.command
def show(trajectory_id: uuid.UUID, /, *, full: bool = False, common: Common = DEFAULT) -> int:
    """Show a trajectory event by event.

    Example: `stratalog trajectory show 0198c1a2-0000-7000-8000-000000000000`

    Parameters
    ----------
    full
        Whole texts instead of one line per event.
    """
    output = common.output
    with open_tiers(common.installation()) as tiers, closing(tiers.events(trajectory_id)) as envelopes:
        listed = tiers.get(trajectory_id)
        events = (decode_event(envelope) for envelope in envelopes)
        if common.json:
            output.document({**row(listed), "event_list": [event_row(event) for event in events]})
            return 0
        _show_head(listed, output)
        _show_events(events, output, full)
    return 0


def open_tiers(installation: Installation) -> Tiers:
    """The tiers for reading; raises `MissingExtra`."""
    require("psycopg", "warm")
    from stratalog.cold.listing import Tiers

    return Tiers(installation)


def _show_head(listed: Listed, output: Output) -> None:
    summary = listed.summary
    cost = f", {summary.cost_usd:,.4f} USD" if summary.cost_usd else ""
    output.line(f"{listed.trajectory_id}  {sanitise(listed.tenant)}  {summary.status}", style="bold")
    output.line(f"model    {sanitise(summary.model or 'unknown')}")
    output.line(f"size     {counted(summary.turn, 'turn')}, {counted(summary.events, 'event')}")
    output.line(f"tokens   {summary.input_tokens:,} in, {summary.output_tokens:,} out{cost}")
    output.line(f"tiers    {_where(listed)}")
    if summary.source is not None:
        run = f", run {sanitise(summary.source.run_id)}" if summary.source.run_id else ""
        output.line(f"source   {sanitise(_source(summary))}{run}")
    output.line("")


def _where(listed: Listed) -> str:
    if not listed.tiers:
        return "deleted in every tier"
    others = ", ".join(name for name in listed.tiers if name != listed.tier)
    if listed.tier not in listed.tiers:
        return f"parts in {others}"
    return f"complete in {listed.tier}{f', also in {others}' if others else ''}"


def _show_events(events: Iterator[Event], output: Output, full: bool) -> None:
    output.line(f"{'event':>5}  {'time (UTC)':<19}  {'turn':>4}  {'kind':<18}  what", style="bold")
    summary = Summary()
    for event in events:
        turn = summary.advance(event)
        kind = sanitise(event.kind)
        line = f"{event.header.sequence_number:>5}  {human_us(event.header.created_at):<19}  {turn:>4}  {kind:<18}  "
        text = describe(event.body)
        crossing = isinstance(event.body, ev.DriftResolved)
        room = max(TEXT_LEAST, output.width - len(line))
        shown = sanitise(text, newlines=True) if full else shorten(text, room)
        output.line((line + shown).rstrip(), style="yellow" if crossing else "")


def row(listed: Listed) -> dict[str, Any]:
    """The JSON object of a list row."""
    summary = listed.summary
    return {
        "trajectory_id": str(listed.trajectory_id),
        "tenant": listed.tenant,
        "model": summary.model,
        "status": summary.status,
        "events": summary.events,
        "started_at": _iso(summary.started_at),
        "finished_at": _iso(summary.finished_at),
        "tier": listed.tier,
        "tiers": list(listed.tiers),
        "source": msgspec.to_builtins(summary.source),
    }


def event_row(event: Event) -> dict[str, Any]:
    """The JSON object of an event."""
    header = event.header
    body = event.body
    shown = body.raw.decode("utf-8", "replace") if isinstance(body, ev.Unknown) else _builtins(body)
    return {
        "sequence_number": header.sequence_number,
        "kind": header.kind,
        "created_at": _iso(header.created_at),
        "epoch": header.epoch,
        "hash": event.hash.hex(),
        "body": shown,
    }


def _builtins(body: ev.Body) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body))


def describe(body: ev.EventBody) -> str:
    """One line about an event, foreign text as it is."""
    if isinstance(body, ev.Unknown):
        return f"({body.reason}) {body.raw[:UNKNOWN_SHOWN].decode('utf-8', 'replace')}"
    if isinstance(body, ev.MessageReceived):
        return f"{body.role}: " + " ".join(_text(part.text) for part in body.parts)
    if isinstance(body, ev.ModelReplied):
        calls = ", ".join(call.tool for call in body.tool_calls)
        return _text(body.text) + (f" → {calls}" if calls else "")
    if isinstance(body, ev.ToolIntent):
        return f"{body.tool} {bytes(body.arguments).decode('utf-8', 'replace')}"
    if isinstance(body, ev.ToolResult):
        return f"{body.status} {_text(body.output)}"
    parts = []
    for name in body.__struct_fields__:
        value = getattr(body, name)
        if isinstance(value, str | int | float | Blob) and not isinstance(value, bool) and value != "":
            parts.append(f"{name}={_text(value) if isinstance(value, str | Blob) else value}")
    return " ".join(parts)


def _text(text: Text | None) -> str:
    if isinstance(text, Blob):
        return f"[{text.ref.size:,} bytes] {text.ref.preview}"
    return text or ""


def _source(summary: Summary) -> str:
    return "" if summary.source is None else f"{summary.source.format} {summary.source.name}".strip()


def _started(summary: Summary) -> str:
    return "undated" if summary.undated else human_us(summary.started_at)[: len("2026-01-31 12:00")]


def _iso(microseconds: int | None) -> str | None:
    return None if microseconds is None else from_us(microseconds).isoformat()
