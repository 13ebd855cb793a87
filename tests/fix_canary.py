"""A trajectory with something to be found in everything that a hot log keeps of it."""

from __future__ import annotations

import secrets
from pathlib import Path

from stratalog.hot.log import HotLog, NewEvent
from stratalog.hot.residue import search_files
from stratalog.hot.staging import contents_of
from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.events import Annotation, EventBody, LabelsSet, ToolResult


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
