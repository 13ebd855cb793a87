"""Erasing from a hot log: afterwards no file of its folder has a byte of the trajectory, everything else is as it was."""

from __future__ import annotations

import secrets
import uuid

from stratalog.hot.home import Home
from stratalog.hot.log import HotLog, NewEvent
from stratalog.hot.residue import search_files
from stratalog.hot.staging import contents_of
from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.events import Annotation, LabelsSet, ToolResult
from tests.fix_hot import MB, check_chains, fill, home, note

__all__ = ["home"]


class Canary:
    """A trajectory with something to be found in everything that a log keeps of it."""

    def __init__(self, log: HotLog) -> None:
        self.log = log
        self.secret = secrets.token_bytes(32)
        self.words = [secrets.token_hex(20) for _ in range(5)]
        self.small, self.blob, self.large = (secrets.token_hex(20).encode() for _ in range(3))
        self.id = log.start_blocking(tenant="t", task=self.words[0], secret=self.secret)

    def early(self) -> None:
        self.log.append_blocking(self.id, LabelsSet(labels={"who": self.words[1]}))
        self._result(self.small * 10)
        self._result(self.blob * 2000)
        self._result(b"".join(self.large + secrets.token_bytes(1 << 16) for _ in range(80)))

    def late(self) -> None:
        self.log.append_blocking(self.id, note(self.words[2]))
        self.log.append_blocking(self.id, ToolResult(tool_call_id="2", output=self.words[3] * 3000))
        self.log.append_blocking(self.id, Annotation(name="x", note=self.words[4]))

    def _result(self, content: bytes) -> None:
        event = NewEvent(ToolResult(tool_call_id="1", output=Blob(BlobRef.of(content))), None, contents_of([content]))
        self.log.append_many_blocking(self.id, [event])

    @property
    def needles(self) -> list[bytes]:
        return [self.secret, *(word.encode() for word in self.words), self.small, self.blob, self.large]


def found(home: Home, canary: Canary, log_id: uuid.UUID | None = None) -> set[tuple[str, int]]:
    return {
        (hit.path.suffix or hit.path.name, hit.needle_index) for hit in search_files(home.path / "hot", canary.needles)
    }


def others(log: HotLog, count: int = 20) -> list[uuid.UUID]:
    return [fill(log, 20, bulk=MB // 8 if index % 4 == 0 else 0)[0] for index in range(count)]


def test_after_erasing_no_file_has_a_byte_of_it(home: Home) -> None:
    with HotLog.open(home) as log:
        before = others(log)
        canary = Canary(log)
        canary.early()
        before += others(log)
        canary.late()
        before += others(log, 3)
        assert {index for _, index in found(home, canary)} == set(range(len(canary.needles)))
        done = log.erase_blocking([canary.id])
        assert (done.events, done.contents) == (8, 4)
        assert found(home, canary) == set()
        check_chains(log)
