"""The report of a bundle: one HTML file that opens offline. Every foreign text is escaped, nothing is loaded.

Characters that are invisible or turn the direction of text are shown as escapes, so that a report reads as it is.
"""

from __future__ import annotations

import html
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from stratalog.schemas import events as ev
from stratalog.schemas.codec import decode_event
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.ids import from_us

from .gone import Erasure
from .proof import InclusionProof

EVENTS_SHOWN = 2_000
TEXT_SHOWN = 300
_DAY_US = 86_400_000_000
"""Sources without any time begin at 1970-01-01."""
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 78rem; margin: 2rem auto;
  padding: 0 1.5rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; width: 100%; font-size: .87rem }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #ddd }
th { font-weight: 600; background: #f6f6f4 }
td, code { overflow-wrap: anywhere } code { font: .84rem ui-monospace, monospace }
summary { cursor: pointer; margin: .6rem 0 } .none { color: #666 }
"""


class Shown:
    """What the report shows of one trajectory."""

    def __init__(self, proof: InclusionProof) -> None:
        self.proof = proof
        self.events: list[list[str]] = []
        self.count = 0
        self.first_us: int | None = None
        self.last_us = 0
        self.effects: dict[int, list[str]] = {}
        self.erasure: Erasure | None = None

    def add(self, envelope: Envelope) -> None:
        """Note the next event."""
        header = envelope.header
        self.count += 1
        self.first_us = header.created_at if self.first_us is None else self.first_us
        self.last_us = header.created_at
        if self.count <= EVENTS_SHOWN:
            text = "erased" if envelope.erased else envelope.body[: 4 * TEXT_SHOWN].decode("utf-8", "replace")
            shown = text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…"
            self.events.append([str(header.sequence_number), moment(header.created_at), header.kind, shown])
        body = decode_event(envelope).body
        where = [self.proof.trajectory_id, str(header.sequence_number), moment(header.created_at)]
        if isinstance(body, ev.ToolIntent) and body.effect != "read":
            self.effects[header.sequence_number] = [*where, body.tool, body.effect or "not stated", "no result"]
        elif isinstance(body, ev.ToolResult) and body.intent in self.effects:
            self.effects[body.intent][-1] = body.status
        elif isinstance(body, ev.IntentSettled) and body.intent in self.effects:
            self.effects[body.intent][-1] = f"{body.outcome}, settled by {body.method}"


class Report:
    """The report while it is being made."""

    def __init__(self, created_at_us: int, first_key: str) -> None:
        self._created_at_us = created_at_us
        self._first_key = first_key
        self._shown: list[Shown] = []
        self._decisions: list[dict[str, Any]] = []

    def add(self, shown: Shown, decisions: Iterable[dict[str, Any]]) -> None:
        """Add a trajectory and what was decided in it."""
        self._shown.append(shown)
        self._decisions += decisions

    def html(self, missing_content: Sequence[str]) -> str:
        """The whole document."""
        parts = [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>Evidence</title>'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><style>{_STYLE}</style></head><body>',
            f"<h1>Evidence: {len(self._shown)} {'trajectory' if len(self._shown) == 1 else 'trajectories'}</h1>",
            f"<p>Made {moment(self._created_at_us)} UTC. Check it with <code>python3 checker.py BUNDLE.zip</code>; "
            f"this page proves nothing by itself. The first key is <code>{escaped(self._first_key)}</code>: compare it "
            "with the one that you were given on another way.</p>",
            *self._trajectories(),
            *self._erasures(),
            *self._approvals(),
            *self._policies(),
            "<h2>Effects</h2>",
            table(
                ["trajectory", "event", "time (UTC)", "tool", "effect", "outcome"],
                [row for shown in self._shown for row in shown.effects.values()],
            ),
            *self._events(),
        ]
        if missing_content:
            listed = " ".join(f"<code>{escaped(digest)}</code>" for digest in missing_content)
            parts.append(f"<h2>Content that is no longer kept</h2><p>{listed}</p>")
        return "\n".join([*parts, "</body></html>\n"])

    def _trajectories(self) -> list[str]:
        rows = [
            [
                shown.proof.trajectory_id,
                shown.proof.tenant,
                str(shown.count),
                "undated" if shown.last_us < _DAY_US else f"{moment(shown.first_us or 0)} to {moment(shown.last_us)}",
                shown.proof.event_hash,
                f"{shown.proof.leaf_index} of {shown.proof.head.tree_size}",
                moment(shown.proof.head.timestamp),
                shown.proof.head.key_id,
            ]
            for shown in self._shown
        ]
        columns = ["trajectory", "tenant", "events", "time (UTC)", "hash of the last event", "leaf", "sealed", "key"]
        return ["<h2>Trajectories</h2>", table(columns, rows)]

    def _erasures(self) -> list[str]:
        rows = [
            [one.trajectory_id, moment(one.at), one.requested_by, one.reason]
            for one in (shown.erasure for shown in self._shown)
            if one is not None
        ]
        return ["<h2>Erased</h2>", table(["trajectory", "time (UTC)", "asked for by", "reason"], rows)] if rows else []

    def _approvals(self) -> list[str]:
        rows = []
        for decision in self._decisions:
            if decision["kind"] == "Authorized":
                continue
            said = decision["said"] if isinstance(decision["said"], dict) else {}
            verdict = said.get("decision", "asked" if decision["kind"] == "ApprovalRequested" else "unreadable")
            texts = [said.get("tool", ""), verdict, said.get("approver", ""), said.get("reason", "")]
            rows.append([*_where(decision), *map(str, texts)])
        columns = ["trajectory", "event", "time (UTC)", "tool", "decision", "approver", "reason"]
        return ["<h2>Approvals</h2>", table(columns, rows)]

    def _policies(self) -> list[str]:
        counts: Counter[tuple[str, str, str]] = Counter()
        for decision in self._decisions:
            if decision["kind"] == "Authorized":
                said = decision["said"] if isinstance(decision["said"], dict) else {}
                policy, tool, verdict = (str(said.get(name, "")) for name in ("policy_version", "tool", "decision"))
                counts[policy or "not stated", tool, verdict] += 1
        rows = [[*key, str(count)] for key, count in sorted(counts.items())]
        return ["<h2>Policies</h2>", table(["policy version", "tool", "decision", "calls"], rows)]

    def _events(self) -> list[str]:
        parts = ["<h2>Events</h2>"]
        for shown in self._shown:
            left = shown.count - len(shown.events)
            more = f"<p>and {left} more, in events.jsonl</p>" if left else ""
            listed = table(["event", "time (UTC)", "kind", "body"], shown.events)
            title = f"{escaped(shown.proof.trajectory_id)}, {shown.count} events"
            parts.append(f"<details><summary>{title}</summary>{listed}{more}</details>")
        return parts


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; every cell is escaped."""
    if not rows:
        return '<p class="none">none</p>'
    head = "".join(f"<th>{escaped(name)}</th>" for name in columns)
    lines = ("".join(f"<td>{escaped(cell)}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def escaped(text: str) -> str:
    """Text for HTML; what is invisible or acts on its surroundings is shown as an escape."""
    visible = (
        f"\\u{ord(char):04x}" if char not in "\n\t" and unicodedata.category(char) in _HIDDEN else char for char in text
    )
    return html.escape("".join(visible))


def moment(microseconds: int) -> str:
    """A moment (µs since 1970) in UTC."""
    return from_us(microseconds).strftime("%Y-%m-%d %H:%M:%S")


def _where(decision: dict[str, Any]) -> list[str]:
    return [decision["trajectory_id"], str(decision["sequence_number"]), moment(decision["created_at"])]
