"""An ATIF document to its trajectory and those of the sub-agents embedded in it; `.jsonl` has a document per line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from stratalog.formats.document import Document, is_json, read_document
from stratalog.formats.head import Head
from stratalog.formats.lines import lines
from stratalog.formats.native import (
    Damaged,
    Record,
    decode_record,
    digest,
    elements,
    foreign,
    is_true,
    members,
    opaque,
    packed,
    string,
    time_us,
)
from stratalog.formats.source import Item, Problem
from stratalog.schemas.events import Annotation, Model, Source, TaskFinished, TaskStarted

from .content import FORMAT, text_and_rest
from .steps import Steps

DEPTH_MAX = 16
_VERSION = re.compile(rb'"ATIF-v\d')
_ENDS = ("final_metrics", "continued_trajectory_ref")
_ARRAYS = ("steps", "subagent_trajectories")


class Atif:
    """The reader of ATIF."""

    name = FORMAT

    def sniff(self, head: Head) -> bool:
        """A schema version that begins with ATIF-v."""
        keys = head.keys
        if _VERSION.match(keys.get("schema_version", b"")):
            return True
        if {"schema_version", "steps"} & keys.keys() and not head.whole:
            return _VERSION.match(head.complete_keys().get("schema_version", b"")) is not None
        return False

    def read(self, path: Path, cuts: Sequence[int] = ()) -> Iterator[Item]:
        """The items of a document, or of the documents of a `.jsonl`; a document has no cuts, it is rewritten whole."""
        raw = read_document(path)
        if raw is None:
            yield Problem(None, "larger than 1 GiB, and it has to be read whole")
        elif _is_lines(raw):
            yield from _read_lines(path)
        else:
            document = Document.of(raw)
            if document.damage:
                yield Problem(None, document.damage)
            yield from _document(document, path, "main", "", 0)


def _is_lines(raw: bytes) -> bool:
    """Whether there is a document on each line, rather than one over all of them."""
    first, _, rest = raw.partition(b"\n")
    if not rest.strip():
        return False
    try:
        return "steps" in decode_record(first)
    except Damaged:
        return False


def _read_lines(path: Path) -> Iterator[Item]:
    for line in lines(path):
        raw = line.content()
        if not raw:
            continue
        document = Document.of(raw)
        if document.damage:
            yield Problem(line.number, document.damage)
        yield from _document(document, path, f"line {line.number}", "", 0)


def _document(document: Document, path: Path, key: str, parent_key: str, depth: int) -> Iterator[Item]:
    arrays = {name for name in _ARRAYS if document.members.get(name, b"").startswith(b"[")}
    skipped = frozenset(arrays.union(_ENDS))
    rest = document.readable(skipped)
    steps = document.items("steps")
    agent = members(rest.get("agent")) or {}
    model = string(agent.get("model_name")) or ""
    lane = Steps(key, model)
    _begin(lane, document, rest, steps, path, parent_key, model)
    for name, raw in document.unreadable(skipped).items():
        lane.add(opaque(FORMAT, f"member:{name}", raw), None)
    if not document.members:
        lane.add(opaque(FORMAT, "document", document.raw), None)
    for raw in steps:
        lane.step(raw)
        yield from lane.drain()
    _end(lane, document)
    yield from lane.drain()
    for number, raw in enumerate(document.items("subagent_trajectories")):
        if depth >= DEPTH_MAX:
            lane.add(opaque(FORMAT, "subagent_trajectory", raw), None)
            continue
        yield from _document(Document.of(raw), path, f"{key}/{number}", key, depth + 1)
    yield from lane.drain()


def _begin(
    lane: Steps, document: Document, rest: Record, steps: list[bytes], path: Path, parent_key: str, model: str
) -> None:
    agent = members(rest.get("agent")) or {}
    session_id = string(rest.get("session_id")) or ""
    trajectory_id = string(rest.get("trajectory_id")) or ""
    agent_id = trajectory_id if parent_key else ""
    run_id = session_id or trajectory_id or path.stem
    labels = {"session_id": session_id, "trajectory_id": trajectory_id}
    records = [record for raw in steps if (record := members(msgspec.Raw(raw))) is not None]
    body = TaskStarted(
        task=_task(records),
        specification=packed(rest),
        agent=string(agent.get("name")) or "",
        agent_version=string(agent.get("version")) or "",
        model=Model(name=model or _first_model(records)),
        tool_schemas=_tool_schemas(agent),
        labels={name: value for name, value in labels.items() if value},
        source=Source(format=FORMAT, run_id=run_id, agent_id=agent_id, name=path.name),
    )
    times = (time_us(record.get("timestamp")) for record in records)
    lane.begin(
        body,
        started_at=next((at for at in times if at is not None), None),
        run_id=run_id,
        agent_id=agent_id,
        first_record=digest(_first_records(steps, records) or document.raw),
        parent_key=parent_key,
    )


def _first_records(steps: list[bytes], records: list[Record]) -> bytes:
    """The first step and the first of the agent: runs of one task share the prompt, and often the session id."""
    if len(records) < len(steps):
        return steps[0]
    agent = next((raw for raw, record in zip(steps, records, strict=True) if _works(record)), b"")
    return steps[0] + agent if steps else b""


def _works(record: Record) -> bool:
    return string(record.get("source")) == "agent" and not is_true(record.get("is_copied_context"))


def _task(records: list[Record]) -> str:
    """The first prompt that was not copied from elsewhere, else the first."""
    prompts = [record for record in records if string(record.get("source")) == "user"]
    own = [record for record in prompts if not is_true(record.get("is_copied_context"))]
    first = next(iter(own or prompts), None)
    return text_and_rest(first.get("message"))[0] if first else ""


def _first_model(records: list[Record]) -> str:
    return next((name for record in records if (name := string(record.get("model_name")))), "")


def _tool_schemas(agent: Record) -> dict[str, str]:
    """Tool name to the digest of its definition, the only version that there is."""
    found: dict[str, str] = {}
    for raw in elements(agent.get("tool_definitions")) or []:
        definition = members(raw) or {}
        function = members(definition.get("function")) or definition
        name = string(function.get("name"))
        if name:
            found[name] = digest(bytes(raw)).hex()[:16]
    return found


def _end(lane: Steps, document: Document) -> None:
    """The totals, written when the run is over, unless another file continues it.

    They say that it ended and not how, so the end is inferred.
    """
    ends = {name: document.members.get(name, b"null") for name in _ENDS}
    for name, raw in ends.items():
        if not is_json(raw):
            lane.add(opaque(FORMAT, f"member:{name}", raw), None)
            ends[name] = b"null"
    totals, continued = ends["final_metrics"], ends["continued_trajectory_ref"]
    if continued != b"null":
        lane.add(Annotation(name="continued_trajectory_ref", value=foreign(continued), author=FORMAT), None)
        if totals != b"null":
            lane.add(Annotation(name="final_metrics", value=foreign(totals), author=FORMAT), None)
        return
    if totals == b"null":
        return
    lane.dispatch_all()
    lane.add(TaskFinished(status="completed", data=foreign(totals), inferred=True), None)
