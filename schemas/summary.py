"""One line about a trajectory, kept up to date event by event: what lists, heads and the cold tier show.

A small sibling of the record: it holds no history, so the warm tier can store it in a row and go on from there. What
both have (status, turn, tokens, labels, times) is the same in both after any events.
"""

from __future__ import annotations

from typing import Any

import msgspec

from . import events as ev
from .codec import Event
from .counts import add_cost, add_count
from .status import ENDED, open_status


class Summary(msgspec.Struct, omit_defaults=True):
    """The state of a list row. Times are µs since 1970; `status` is one of those of `status.py`."""

    status: str = "pending"
    model: str = ""
    agent: str = ""
    task_started: bool = False
    started_at: int | None = None
    last_event_at: int | None = None
    finished_at: int | None = None
    turn: int = 0
    turn_open: bool = False
    events: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    pending_approvals: list[str] = []
    escalations: list[str] = []
    labels: dict[str, str] = {}
    source: ev.Source | None = None
    parent: str = ""

    @property
    def ended(self) -> bool:
        """Whether a TaskFinished that was not reopened has been seen."""
        return self.status in ENDED

    @property
    def undated(self) -> bool:
        """Whether the source knew no time at all."""
        return self.labels.get("undated") == "true"

    def advance(self, event: Event) -> int:
        """Take in the next event, in place; returns the turn that the event belongs to. Never raises."""
        self.events += 1
        header = event.header
        if self.started_at is None:
            self.started_at = header.created_at
        self.last_event_at = header.created_at
        body = event.body
        if isinstance(body, ev.TaskStarted):
            self._started(body)
        elif isinstance(body, ev.ContextBuilt):
            if not self.turn_open:
                self.turn += 1
                self.turn_open = True
        elif isinstance(body, ev.ModelReplied):
            self._replied(body)
        elif isinstance(body, ev.LabelsSet):
            self._labelled(body)
        else:
            self._moved(body, header.created_at)
        return self.turn

    def _started(self, body: ev.TaskStarted) -> None:
        if self.task_started:
            return
        self.task_started = True
        self.model = body.model.name
        self.agent = body.agent
        self.labels = {**self.labels, **body.labels}
        self.source = body.source
        self.parent = body.parent
        self._refresh()

    def _replied(self, body: ev.ModelReplied) -> None:
        if self.turn_open:
            self.turn_open = False
        else:
            self.turn += 1
        self.input_tokens = add_count(self.input_tokens, body.input_tokens)
        self.output_tokens = add_count(self.output_tokens, body.output_tokens)
        self.cost_usd = add_cost(self.cost_usd, body.cost_usd)
        self._refresh()

    def _labelled(self, body: ev.LabelsSet) -> None:
        merged = {**self.labels, **body.labels}
        self.labels = {name: value for name, value in merged.items() if value or name not in body.labels}

    def _moved(self, body: Any, at_us: int) -> None:
        if isinstance(body, ev.ApprovalRequested):
            self.pending_approvals = _with(self.pending_approvals, body.tool_call_id)
        elif isinstance(body, ev.ApprovalResolved):
            self.pending_approvals = _without(self.pending_approvals, body.tool_call_id)
        elif isinstance(body, ev.EscalationRaised):
            self.escalations = _with(self.escalations, body.escalation_id)
        elif isinstance(body, ev.EscalationResolved):
            self.escalations = _without(self.escalations, body.escalation_id)
        elif isinstance(body, ev.TaskFinished):
            if not self.ended:
                self.status, self.finished_at, self.turn_open = body.status, at_us, False
            return
        elif isinstance(body, ev.TrajectoryReopened):
            self.status, self.finished_at = "running", None
        elif isinstance(body, ev.TrajectoryForked):
            self.parent = body.parent
            return
        else:
            return
        self._refresh()

    def _refresh(self) -> None:
        if not self.ended:
            self.status = open_status(
                escalations=self.escalations, approvals=self.pending_approvals, imported=self.source is not None
            )


def _with(items: list[str], item: str) -> list[str]:
    return items if item in items else [*items, item]


def _without(items: list[str], item: str) -> list[str]:
    return [kept for kept in items if kept != item]
