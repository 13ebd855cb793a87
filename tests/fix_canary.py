"""A trajectory with something to be found in everything that a hot log keeps of it."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fix_hot import MB, fill, note

from stratalog.hot.check import HotReport, Replicated, verify_log
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog, NewEvent
from stratalog.hot.residue import search_files
from stratalog.hot.source import open_reader, open_source
from stratalog.hot.staging import contents_of
from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.errors import Erased
from stratalog.schemas.events import Annotation, EventBody, LabelsSet, TaskStarted, ToolResult


class Canary:
    """Words in bodies and labels, a secret, small content, content in a blob file, and content in pieces."""

    def __init__(self, log: HotLog) -> None:
        self.log = log
        self.secret = secrets.token_bytes(32)
        self.words = [secrets.token_hex(20) for _ in range(5)]
        self.contents = [secrets.token_hex(20) for _ in range(3)]
        self.id = log.start_blocking(tenant="t", task=self.words[0], secret=self.secret)

    def sing(self) -> None:
        """Append the rest."""
        small, blob, large = self.contents
        self._append(LabelsSet(labels={"who": self.words[1]}))
        self._give(small * 10)
        self._give(blob * 2000)
        self._give("".join(large + secrets.token_hex(1 << 15) for _ in range(50)))
        self.sing_again()

    def sing_again(self) -> None:
        """Append what lies in the records alone, and one long string."""
        self._append(ToolResult(tool_call_id=self.words[2]))
        self._append(ToolResult(tool_call_id="2", output=self.words[3] * 3000))
        self._append(Annotation(name="x", note=self.words[4]))

    def _append(self, body: EventBody) -> None:
        self.log.append_blocking(self.id, body)

    def _give(self, content: str) -> None:
        raw = content.encode()
        event = NewEvent(ToolResult(tool_call_id="1", output=Blob(BlobRef.of(raw))), None, contents_of([raw]))
        self.log.append_many_blocking(self.id, [event])

    @property
    def needles(self) -> list[bytes]:
        """What must not be found once it is erased."""
        return [self.secret, *(text.encode() for text in (*self.words, *self.contents))]

    def heard(self, folder: Path) -> set[int]:
        """Which of the needles are in the files of a folder."""
        return {found.needle_index for found in search_files(folder, self.needles)}

    @property
    def everything(self) -> set[int]:
        """All needles."""
        return set(range(len(self.needles)))


def others(log: HotLog, count: int = 12) -> list[uuid.UUID]:
    """Trajectories around it, some with content."""
    return [fill(log, 20, bulk=MB // 8 if index % 3 == 0 else 0)[0] for index in range(count)]


def surrounded(log: HotLog) -> Canary:
    """A canary of which a part is in tables and blob files, and a part only in the write-ahead log."""
    others(log)
    canary = Canary(log)
    canary.sing()
    others(log, 30)
    canary.sing_again()
    others(log, 2)
    return canary


def verified(home: Home, log_id: uuid.UUID) -> HotReport:
    """What verifying a log finds."""
    reader = open_reader(home, log_id)
    secrets = {head.trajectory_id: head.secret for head in reader.heads()}
    reader.close()
    source = open_source(home, log_id)
    try:
        return verify_log(source, HotReport(), secrets=secrets, replicated=Replicated())
    finally:
        source.close()


def content_of(log: HotLog, trajectory_id: uuid.UUID) -> list[tuple[int, bytes, bytes]]:
    """The events of a trajectory as they lie in the log."""
    return [(envelope.lsn, envelope.hash, envelope.body) for envelope in log.envelopes(trajectory_id)]


def check_refusals(log: HotLog, canary: Canary, absent: uuid.UUID) -> None:
    large = "x" * (2 * MB)
    calls: list[Callable[[], Any]] = [
        lambda: log.append_blocking(canary.id, note("x")),
        lambda: log.append_blocking(canary.id, ToolResult(tool_call_id="1", output=large)),
        lambda: asyncio.run(log.append(canary.id, note("x"))),
        lambda: asyncio.run(log.append(canary.id, ToolResult(tool_call_id="1", output=large))),
        lambda: log.start_blocking(tenant="t", trajectory_id=canary.id),
        lambda: log.start_blocking(tenant="t", trajectory_id=absent),
        lambda: asyncio.run(log.start(tenant="t", trajectory_id=absent, body=TaskStarted(task=large))),
        lambda: log.append_blocking(absent, note("x")),
    ]
    before, pieces = log.durable_lsn, list(log.engine.store.scan("chunks", b""))
    for call in calls:
        with pytest.raises(Erased, match="was erased"):
            call()
    assert log.durable_lsn == before
    assert list(log.engine.store.scan("chunks", b"")) == pieces
