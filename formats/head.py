"""The beginning of a file, as the readers look at it to tell whether it is theirs."""

from __future__ import annotations

import json
from pathlib import Path

from . import scan
from .lines import BYTE_ORDER_MARK
from .native import Damaged, Record, decode_record

HEAD_BYTES = 1 << 20
DOCUMENT_BYTES_MAX = 1 << 30
"""A larger JSON document is refused: it has to be read whole."""
_LINES_MAX = 200


class Head:
    """The first MiB of a file: its records if it has lines, the keys of its first object however long that is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        with path.open("rb") as stream:
            self.start = stream.read(HEAD_BYTES)
        self.text = self.start.removeprefix(BYTE_ORDER_MARK).lstrip()
        self.whole = len(self.start) == self.size
        self.records = self._records()
        self.keys = self._keys()

    def _records(self) -> list[Record]:
        found: list[Record] = []
        pieces = self.text.split(b"\n", _LINES_MAX)
        if not self.whole or len(pieces) > _LINES_MAX:
            pieces.pop()
        for piece in pieces:
            try:
                found.append(decode_record(piece.strip()))
            except Damaged:
                continue
        return found

    def _keys(self) -> dict[str, bytes]:
        """The members of the object that the file begins with: its keys, and values as far as they are here."""
        if not self.text.startswith(b"{"):
            return {}
        return scan.members(self.text)

    @property
    def by_lines(self) -> bool:
        """Whether the first line is a record, so that this is no document spread over lines."""
        first = self.text.partition(b"\n")[0].strip()
        return bool(self.records) and first.startswith(b"{") and first.endswith(b"}")

    @property
    def binary(self) -> bool:
        """Whether this is no text: NUL bytes from the start, or hardly any of it is UTF-8."""
        sample = self.start[:4096]
        return sample.startswith(b"\x00") or sample.decode("utf-8", "replace").count("\ufffd") > len(sample) // 20

    def first_record(self) -> Record | None:
        """The record on a first line that is longer than the head."""
        if self.whole or b"\n" in self.text or not self.text.startswith(b"{"):
            return None
        with self.path.open("rb") as stream:
            for raw in stream:
                if raw.removeprefix(BYTE_ORDER_MARK).strip():
                    break
        try:
            return decode_record(raw.removeprefix(BYTE_ORDER_MARK).strip())
        except Damaged:
            return None

    def complete_keys(self) -> dict[str, bytes]:
        """As `keys`, of a document longer than the head too."""
        if self.whole or not self.text.startswith(b"{") or self.size > DOCUMENT_BYTES_MAX:
            return self.keys
        raw = self.path.read_bytes().removeprefix(BYTE_ORDER_MARK)
        try:
            return {name: bytes(value) for name, value in decode_record(raw).items()}
        except Damaged:
            return scan.members(raw)


def describe_keys(names: list[str]) -> str:
    """A short list of keys for a message."""
    shown = ", ".join(json.dumps(name)[:40] for name in names[:6])
    return shown + (", …" if len(names) > 6 else "")
