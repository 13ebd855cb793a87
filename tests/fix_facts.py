"""What can be said of trajectories by looking at their events one by one, without any SQL."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from fix_questions import Tale, Told

from stratalog.schemas.blobs import Blob, references
from stratalog.schemas.ids import from_us

Rows = list[list[Any]]


class Rounded:
    """Equal to every number that may come out when `value` is rounded to so many places."""

    def __init__(self, value: float, places: int) -> None:
        self.value, self.places = value, places

    def __eq__(self, other: object) -> bool:
        close = 0.5 * 10**-self.places + 1e-9 * abs(self.value)
        return isinstance(other, int | float) and math.isclose(self.value, other, rel_tol=0, abs_tol=close * 1.001)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"about {round(self.value, self.places)}"


class Call(NamedTuple):
    """An action, or a denial without one."""

    tale: Tale
    number: int
    tool: str | None
    arguments: str | None
    status: str
    duration_ms: float | None


def said(tale: Tale, *kinds: str) -> Iterator[Told]:
    """The events of these kinds that can still be read."""
    return (event for event in tale.events if event.kind in kinds and not event.erased)


def told(tales: Sequence[Tale], *kinds: str) -> Iterator[tuple[Tale, Told]]:
    """The same of all trajectories."""
    return ((tale, event) for tale in tales for event in said(tale, *kinds))


def plain(text: Any) -> str | None:
    """A text as its column has it."""
    return None if isinstance(text, Blob) or not text else text


def message(event: Told) -> str | None:
    """The text of a message."""
    texts = [part.text for part in event.body.parts if isinstance(part.text, str)]
    return "\n\n".join(texts) if texts else None


def outside(event: Told) -> str | None:
    """The digest of the first content that lies outside."""
    return next((reference.sha256 for reference in references(event.raw)), None)


def in_order(rows: Iterable[Sequence[Any]], *keys: int) -> Rows:
    """Sorted by columns; a negative number, less one, means downwards. NULL comes last either way."""
    found = [list(row) for row in rows]
    for key in reversed(keys):
        column, down = (key, False) if key >= 0 else (-key - 1, True)
        known = sorted((row for row in found if row[column] is not None), key=lambda row: row[column], reverse=down)
        found = known + [row for row in found if row[column] is None]
    return found


def quantile(values: Iterable[float], share: float, places: int) -> Rounded:
    """Interpolated between the two nearest."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * share
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return Rounded(low + (high - low) * (at - math.floor(at)), places)


def ratio(part: float, whole: float, places: int = 4) -> Rounded | None:
    """A share, NULL of nothing."""
    return Rounded(part / whole, places) if whole else None


def ends(tale: Tale) -> list[Told]:
    """Its ends, also erased ones."""
    return [event for event in tale.events if event.kind == "TaskFinished"]


def status(tale: Tale) -> str:
    """How it ended: by the first end that was not reopened."""
    now = "imported" if tale.events[0].body.source else "running"
    for event in tale.events:
        if event.kind == "TrajectoryReopened":
            now = "running"
        elif event.kind == "TaskFinished" and now in ("running", "imported"):
            now = event.body.status
    return now


def finished_us(tale: Tale) -> int | None:
    """When."""
    return ends(tale)[-1].at_us if status(tale) in ("completed", "failed", "cancelled") else None


def replies(tale: Tale) -> list[Told]:
    """All replies, also those that were erased after they were counted."""
    return [event for event in tale.events if event.kind == "ModelReplied"]


def total(tale: Tale, name: str) -> float:
    """The sum of a field over the replies."""
    return sum(getattr(event.body, name) or 0 for event in replies(tale))


def calls(tale: Tale) -> Iterator[Call]:
    """What the view tool_calls must show."""
    results: dict[int, Told] = {}
    for event in said(tale, "ToolResult", "LateResult"):
        if event.body.intent is not None:
            results.setdefault(event.body.intent, event)
    steps: dict[str, list[Told]] = defaultdict(list)
    for event in said(tale, "ToolIntent", "Authorized", "ApprovalResolved"):
        steps[event.body.tool_call_id].append(event)
    for event in tale.events:
        if event.kind == "ToolIntent":
            result = results.get(event.number)
            if event.erased:
                yield Call(tale, event.number, None, None, "erased", None if result is None else _duration(result))
                continue
            arguments = bytes(event.body.arguments).decode() or None
            found = "in_doubt" if result is None else result.body.status
            yield Call(tale, event.number, event.body.tool, arguments, found, result and _duration(result))
    for line in steps.values():
        for event, after in zip(line, [*line[1:], None], strict=True):
            # A denial that an intent follows belongs to that call: ids repeat.
            alone = after is None or after.kind != "ToolIntent"
            if alone and event.kind != "ToolIntent" and event.body.decision in ("deny", "denied"):
                yield Call(tale, event.number, event.body.tool or None, None, "denied", None)


def _duration(result: Told) -> float | None:
    value: float | None = getattr(result.body, "duration_ms", None)
    return value


def all_calls(tales: Sequence[Tale]) -> list[Call]:
    """The calls of all trajectories, in order."""
    return sorted((call for tale in tales for call in calls(tale)), key=lambda call: (call.tale.id, call.number))


def prompts(tale: Tale) -> list[Told]:
    """What people wrote."""
    return [e for e in said(tale, "MessageReceived") if e.body.role == "user" and not e.body.injected]


def grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """Values by key."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return found


def moment(at_us: int) -> str:
    """A time as JSON has it."""
    return from_us(at_us).isoformat()


_NUMBER = re.compile("[0-9]+")


def error_of(event: Told) -> str | None:
    """What went wrong, with numbers as N."""
    text = event.body.error or (plain(event.body.output) or "").split("\n")[0] or None
    if text is None:
        return "" if plain(event.body.output) else None
    return _NUMBER.sub("N", text[:120])


def reward(event: Told) -> float | None:
    """The reward of an end that can still be read."""
    return None if event.erased else event.body.reward
