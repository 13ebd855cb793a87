"""Whole trajectories as Parquet files of the cold table, made from envelopes; and a small set with known contents.

A `Tale` is what a file was made from: the answers of `fix_answers.py` are worked out from it, without any SQL.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from stratalog.cold.columns import Place, row_of
from stratalog.cold.lake import Lake
from stratalog.cold.rows import batch_of
from stratalog.cold.segments import mark_start
from stratalog.schemas import events as ev
from stratalog.schemas.arrow import SEGMENT
from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.codec import decode_event
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.ids import from_us, model_slug, uuid7_at
from stratalog.schemas.summary import Summary
from stratalog.testing.trajectory import GeneratedEvent, GeneratedTrajectory
from stratalog.testing.writing import envelopes

START_US = 1_767_225_600_000_000
"""2026-01-01, UTC."""
DAY_US, SECOND_US = 86_400_000_000, 1_000_000
SECRET = b"s" * 32


@dataclass(frozen=True)
class Told:
    """One event: where it stands, when, what it said, and whether that was erased afterwards."""

    number: int
    at_us: int
    kind: str
    body: Any
    raw: bytes
    erased: bool


@dataclass
class Tale:
    """One trajectory, as it was told."""

    id: uuid.UUID
    tenant: str
    events: list[Told]
    model: str = ""
    date: dt.date = dt.date(1970, 1, 1)
    undated: bool = False


@dataclass(frozen=True)
class Written:
    """The URLs of the files, and what is in them."""

    files: list[str]
    tales: list[Tale]


def write_tales(
    lake: Lake, trajectories: Iterable[GeneratedTrajectory], erased: Sequence[tuple[uuid.UUID, int]] = ()
) -> Written:
    """Publish one file per trajectory; the events in `erased` (trajectory id, number) lose their bodies."""
    files, tales = [], []
    for trajectory in trajectories:
        hidden = {number for id_, number in erased if id_ == trajectory.trajectory_id}
        tale, rows = _rows(trajectory, hidden)
        local: Path = lake.scratch() / "rows"
        batch = batch_of(rows)
        with pq.ParquetWriter(local, batch.schema, compression="zstd", store_schema=False) as writer:
            writer.write_batch(batch)
        folder = lake.folder_of(tale.tenant, tale.date, tale.model)
        files.append(lake.publish(local, f"{folder}/{tale.id}.parquet"))
        tales.append(tale)
    return Written(sorted(files), tales)


def _rows(trajectory: GeneratedTrajectory, hidden: set[int]) -> tuple[Tale, list[list[Any]]]:
    made = envelopes(trajectory)
    start = from_us(made[0].header.created_at).date()
    first = decode_event(made[0]).body
    model = first.model.name if isinstance(first, ev.TaskStarted) else ""
    place = Place((start - dt.date(1970, 1, 1)).days, model_slug(model), model)
    tale, rows, summary = Tale(trajectory.trajectory_id, trajectory.tenant, [], model, start), [], Summary()
    for envelope in made:
        event = decode_event(envelope)
        turn = summary.advance(event)
        header, gone = envelope.header, envelope.header.sequence_number in hidden
        body = envelope.body
        tale.events.append(Told(header.sequence_number, header.created_at, header.kind, event.body, body, gone))
        rows.append(row_of(_erase(envelope) if gone else envelope, turn, place))
    tale.undated = summary.undated
    mark_start(rows[0], _segment(summary, made, trajectory.secret))
    return tale, rows


def _erase(envelope: Envelope) -> Envelope:
    return Envelope(envelope.lsn, envelope.previous_lsn, envelope.header, b"", envelope.hash, True, envelope.secret)


def _segment(summary: Summary, made: Sequence[Envelope], secret: bytes) -> dict[str, Any]:
    values: dict[str, Any] = {column.name: None for column in SEGMENT}
    return values | {
        "segment_last_sequence": made[-1].header.sequence_number,
        "segment_previous_hash": bytes(32),
        "segment_last_hash": made[-1].hash,
        "segment_secret": secret,
        "trajectory_status": summary.status,
        "trajectory_started_at": summary.started_at,
        "trajectory_finished_at": summary.finished_at,
        "trajectory_last_event_at": summary.last_event_at,
        "trajectory_turns": summary.turn,
        "trajectory_events": summary.events,
        "trajectory_input_tokens": summary.input_tokens,
        "trajectory_output_tokens": summary.output_tokens,
        "trajectory_cost_usd": summary.cost_usd,
        "trajectory_labels": msgspec.json.encode(summary.labels).decode(),
        "trajectory_source": None if summary.source is None else msgspec.json.encode(summary.source).decode(),
        "trajectory_undated": summary.undated,
        "trajectory_agent": summary.agent,
    }


@dataclass
class Story:
    """Writes a trajectory by hand: each call adds an event, `after_s` seconds later, and returns its number."""

    number: int
    tenant: str = "acme"
    day: int = 0
    events: list[GeneratedEvent] = field(default_factory=list)

    @property
    def id(self) -> uuid.UUID:
        """The id, which sorts by day and number."""
        return uuid7_at(START_US + self.day * DAY_US, self.number.to_bytes(10, "big"))

    def add(self, body: ev.Body, after_s: float = 1.0) -> int:
        """Append an event."""
        last = self.events[-1].created_at if self.events else START_US + self.day * DAY_US
        self.events.append(GeneratedEvent(body, last + int(after_s * SECOND_US)))
        return len(self.events) - 1

    def start(self, prompt: str, model: str = "atlas-4", **options: Any) -> Story:
        """The task, and the message that asks for it."""
        self.add(ev.TaskStarted(task=prompt, model=ev.Model(name=model), **options), 0)
        self.add(ev.MessageReceived(role="system", parts=(ev.Part(text="be careful"),), injected=True))
        self.add(ev.MessageReceived(role="user", parts=(ev.Part(text=prompt),), author="ada"))
        return self

    def turn(self, text: ev.Text = "I look", **options: Any) -> int:
        """A context and a reply of 40 tokens in 2 s."""
        self.add(ev.ContextBuilt(message_count=2))
        return self.add(ev.ModelReplied(text=text, **({"output_tokens": 40, "duration_ms": 2000.0} | options)))

    def call(self, id_: str, tool: str, result: str = "ok", effect: Any = "", **options: Any) -> int:
        """An intent and its result (none for `in_doubt`); returns the number of the intent."""
        arguments = ev.raw_json(options.pop("arguments", {"of": tool}))
        intent = self.add(ev.ToolIntent(tool_call_id=id_, tool=tool, effect=effect, arguments=arguments))
        if result != "in_doubt":
            self.add(ev.ToolResult(tool_call_id=id_, tool=tool, intent=intent, status=result, **options))  # type: ignore[arg-type]
        return intent

    def end(self, status: Any = "completed", after_s: float = 1.0, **options: Any) -> GeneratedTrajectory:
        """The end; returns what was written."""
        self.add(ev.TaskFinished(status=status, **options), after_s)
        return self.told()

    def told(self) -> GeneratedTrajectory:
        """What was written so far."""
        return GeneratedTrajectory(self.id, self.tenant, SECRET, self.events)


def known_trajectories() -> tuple[list[GeneratedTrajectory], list[tuple[uuid.UUID, int]]]:
    """A small set in which every question has an answer, and the events of it that are to be erased."""
    return [
        _a_good_one(),
        _a_copy_that_failed(),
        _one_with_approvals(),
        _one_in_doubt(),
        _a_parent(),
        _a_child(),
        _an_import_without_time(),
        _one_that_was_erased().told(),
    ], [(_one_that_was_erased().id, number) for number in (2, 4, 6, 7)]


def _a_good_one() -> GeneratedTrajectory:
    story = Story(1).start("fix the parser")
    story.turn(input_tokens=100, cache_read_tokens=25, cost_usd=0.5, served_model="atlas-4", served_version="1")
    story.call("c1", "read", duration_ms=12.5, output="line\nline")
    story.turn(input_tokens=300, cache_read_tokens=275, cost_usd=0.25, served_model="atlas-4", served_version="2")
    story.add(ev.Authorized(tool_call_id="c2", decision="allow", tool="shell", policy_version="2026-01"))
    story.call("c2", "shell", "error", duration_ms=700.0, error="exit 12 in line 7", effect="local")
    story.call("c3", "shell", duration_ms=650.0, effect="local")
    outside = Blob(BlobRef.of(b"x" * 40_000, "text/plain", "xx"))
    story.turn(outside, input_tokens=50, duration_ms=4000.0)
    story.add(ev.LabelsSet(labels={"team": "blue"}))
    trajectory = story.end(reward=1.0, result="fixed")
    story.add(ev.Annotation(name="review", score=0.75, author="bo"), 60)
    story.add(ev.Annotation(name="review", score=0.5, author="cy", note="late"), 60)
    return trajectory


def _a_copy_that_failed() -> GeneratedTrajectory:
    story = Story(2, day=1).start("fix the parser", model="basalt-2")
    story.turn(input_tokens=10, cost_usd=0.125)
    story.call("c1", "shell", "error", error="exit 13 in line 80", duration_ms=5.0)
    story.call("c2", "shell", "error", output="no such file\nmore", duration_ms=5.0)
    story.add(ev.MessageReceived(role="user", parts=(ev.Part(text="try again"), ev.Part(text="with care"))))
    story.add(ev.MessageReceived(role="user", parts=(ev.Part(text="reminder"),), injected=True))
    story.turn(duration_ms=None, output_tokens=3)
    return story.end("failed", reason="gave up", reward=0.0)


def _one_with_approvals() -> GeneratedTrajectory:
    story = Story(3, tenant="globex").start("clean the bucket")
    story.turn(input_tokens=20)
    for id_, decision, person in (("a", "approved", "ada"), ("b", "denied", "bo"), ("c", "expired", "")):
        story.add(ev.Authorized(tool_call_id=id_, decision="hold", tool="delete", policy_version="2026-02"))
        story.add(ev.ApprovalRequested(tool_call_id=id_, tool="delete", approval_id=f"ask-{id_}"))
        said: Any = decision
        reason = "" if decision == "approved" else "not now"
        story.add(
            ev.ApprovalResolved(tool_call_id=id_, decision=said, tool="delete", approver=person, reason=reason), 90
        )
        if decision == "approved":
            story.call(id_, "delete", "ok", "irreversible", duration_ms=90.0)
    story.add(ev.Authorized(tool_call_id="d", decision="deny", tool="delete", policy_version="2026-02", reason="other"))
    story.turn(input_tokens=20)
    sent = story.call("e", "send", "timeout", "irreversible", duration_ms=120_000.0, error="timeout")
    story.add(ev.IntentSettled(intent=sent, method="probe", outcome="did_not_happen"))
    return story.end(reward=0.5)


def _one_in_doubt() -> GeneratedTrajectory:
    story = Story(4, day=1).start("send the report", model="basalt-2")
    story.turn(input_tokens=5)
    story.call("x", "send", "in_doubt", "irreversible")
    story.call("y", "send", "ok", "irreversible")
    story.add(ev.CancelRequested(requester="ada", reason="too late"))
    return story.end("cancelled", reason="by a person", after_s=7200)


def _a_parent() -> GeneratedTrajectory:
    story = Story(5, day=2).start("port the module")
    story.turn(input_tokens=5)
    intent = story.add(ev.ToolIntent(tool_call_id="p", tool="delegate"))
    story.add(ev.ChildStarted(child=str(Story(6, day=2).id), tool_call_id="p", task="port the tests"))
    story.add(ev.ChildStarted(child=str(uuid.UUID(int=7)), tool_call_id="p", task="a child that is elsewhere"))
    story.add(ev.ToolResult(tool_call_id="p", tool="delegate", intent=intent, output="done"))
    story.turn(input_tokens=5)
    return story.end()


def _a_child() -> GeneratedTrajectory:
    story = Story(6, day=2).start("port the tests", parent=str(Story(5, day=2).id))
    story.turn(input_tokens=5, cost_usd=0.0625)
    return story.end(after_s=30)


def _an_import_without_time() -> GeneratedTrajectory:
    story = Story(7, day=3)
    source = ev.Source(format="swe-agent", run_id="7")
    story.start("imported task", model="", source=source, labels={"undated": "true"})
    story.turn(duration_ms=None, output_tokens=None)
    story.call("i", "bash", output="a\nb")
    return story.told()


def _one_that_was_erased() -> Story:
    story = Story(8, tenant="globex").start("my name is private")
    story.turn("so it is", input_tokens=9)
    story.call("z", "read", "error", error="also private")
    story.call("q", "read", duration_ms=1.0)
    story.end(reward=0.25)
    return story
