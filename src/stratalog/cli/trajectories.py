"""`stratalog trajectory`: which trajectories there are, and one of them event by event."""

from __future__ import annotations

import itertools
import uuid
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
from .output import human_us
from .sanitise import sanitise, shorten

if TYPE_CHECKING:
    from stratalog.cold.listing import Listed, Tiers

trajectory_app = App(name="trajectory", help="Trajectories in all tiers: list, show.")

TEXT_WIDTH = 100


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
        Only those with this status: pending, running, waiting_approval, escalated, completed, failed, cancelled.
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
        ["trajectory", "tenant", "model", "status", "events", "started", "tier", "source"],
        [
            [
                str(listed.trajectory_id),
                listed.tenant,
                listed.summary.model,
                listed.summary.status,
                listed.summary.events,
                "undated" if listed.summary.undated else human_us(listed.summary.started_at),
                listed.tier,
                _source(listed.summary),
            ]
            for listed in found
        ],
    )
    common.output.note(f"{len(found):,} trajectories")
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
        _show_head(listed, common)
        summary = Summary()
        for event in events:
            turn = summary.advance(event)
            line = f"{event.header.sequence_number:>5} {human_us(event.header.created_at)} {turn:>4} {event.kind:<18} "
            text = describe(event.body)
            crossing = isinstance(event.body, ev.DriftResolved)
            shown = sanitise(text, newlines=True) if full else shorten(text, TEXT_WIDTH)
            output.line(line + shown, style="yellow" if crossing else "")
    return 0


def open_tiers(installation: Installation) -> Tiers:
    """The tiers for reading; raises `MissingExtra`."""
    require("psycopg", "warm")
    from stratalog.cold.listing import Tiers

    return Tiers(installation)


def _show_head(listed: Listed, common: Common) -> None:
    summary = listed.summary
    output = common.output
    output.line(f"{listed.trajectory_id}  {listed.tenant}  {summary.status}", style="bold")
    output.line(f"model {sanitise(summary.model or 'unknown')}, {summary.turn} turns, {summary.events} events")
    output.line(f"tokens {summary.input_tokens:,} in, {summary.output_tokens:,} out, cost {summary.cost_usd:.4f} USD")
    output.line(f"tiers {', '.join(listed.tiers)}; complete in {listed.tier}")
    if summary.source is not None:
        output.line(f"source {sanitise(_source(summary))} {sanitise(summary.source.run_id)}")
    output.line("")


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
        return f"({body.reason}) {body.raw[:TEXT_WIDTH].decode('utf-8', 'replace')}"
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


def _iso(microseconds: int | None) -> str | None:
    return None if microseconds is None else from_us(microseconds).isoformat()
