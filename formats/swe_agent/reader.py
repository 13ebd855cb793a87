"""A `.traj` file to one trajectory. It has no times and no ids of its own: the run is named after the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from stratalog.formats import scan
from stratalog.formats.document import Document, read_document
from stratalog.formats.head import Head
from stratalog.formats.native import Record, digest, members, opaque, packed, string
from stratalog.formats.source import Item, Problem
from stratalog.schemas.events import Model, Source, TaskStarted

from .run import FORMAT, Run
from .turns import Piece, Turn, told

_KEY = "main"
_STEP_KEYS = {"action", "observation"}
_MESSAGE_KEYS = {"role", "content"}
_MESSAGE_MARKS = {"agent", "message_type", "is_demo", "thought", "action"}


class SweAgent:
    """The reader of SWE-agent trajectories."""

    name = FORMAT

    def sniff(self, head: Head) -> bool:
        """A list of steps with action and observation, or a history of messages as only SWE-agent marks them."""
        keys = head.keys
        if keys.get("trajectory", b"").startswith(b"["):
            step = _first(keys["trajectory"])
            if step >= _STEP_KEYS or (not step and "history" in keys):
                return True
        message = _first(keys.get("history", b""))
        return message >= _MESSAGE_KEYS and bool(message & _MESSAGE_MARKS)

    def read(self, path: Path, cuts: Sequence[int] = ()) -> Iterator[Item]:
        """The items of a run; a document has no cuts, it is rewritten whole."""
        raw = read_document(path)
        if raw is None:
            yield Problem(None, "larger than 1 GiB, and it has to be read whole")
            return
        document = Document.of(raw)
        if document.damage:
            yield Problem(None, document.damage)
        run = Run(_KEY)
        _fill(run, document, path)
        yield from run.drain()


def _first(array: bytes) -> set[str]:
    if not array.startswith(b"["):
        return set()
    items = scan.elements(array[: 1 << 18])
    return set(scan.members(items[0])) if items else set()


def _fill(run: Run, document: Document, path: Path) -> None:
    steps = [Piece.of(raw) for raw in document.items("trajectory")]
    history = [Piece.of(raw) for raw in document.items("history")]
    arrays = {name for name in ("trajectory", "history") if document.members.get(name, b"").startswith(b"[")}
    skipped = frozenset(arrays | {"info"})
    rest = document.readable(skipped)
    # Runs of one task share the file name and the first message; the first step tells them apart.
    first = b"".join(piece.raw for piece in (*history[:1], *steps[:1])) or document.raw
    environment = string(rest.get("environment")) or ""
    labels = {"instance_id": path.stem}
    if environment:
        labels["environment"] = environment
        rest.pop("environment")
    body = TaskStarted(
        task=_task(history),
        specification=packed(rest),
        agent=FORMAT,
        model=Model(name=_model(rest)),
        labels=labels,
        source=Source(format=FORMAT, run_id=path.stem, name=path.name),
    )
    run.begin(body, started_at=None, run_id=path.stem, agent_id="", first_record=digest(first))
    for name, raw in document.unreadable(skipped).items():
        run.add(opaque(FORMAT, f"member:{name}", raw), None)
    if not document.members:
        run.add(opaque(FORMAT, "document", document.raw), None)
    for item in told(steps, history):
        run.turn(item) if isinstance(item, Turn) else run.piece(item)
    run.dispatch_all()
    info = document.members.get("info")
    if info is None:
        return
    if members(msgspec.Raw(info)) is None:
        run.add(opaque(FORMAT, "member:info", info), None)
    else:
        run.info(info)


def _task(history: list[Piece]) -> str:
    for piece in history:
        if piece.text("role") == "user" and not piece.demonstration:
            return piece.text("content") or ""
    return ""


def _model(rest: Record) -> str:
    """The model that the replay configuration names, which is an object or a string of JSON."""
    raw = rest.get("replay_config")
    text = string(raw)
    config = members(raw) if text is None else members(msgspec.Raw(text.encode("utf-8", "replace")))
    agent = members((config or {}).get("agent")) or config or {}
    model = members(agent.get("model")) or {}
    return next((name for key in ("name", "model_name") if (name := string(model.get(key)))), "")
