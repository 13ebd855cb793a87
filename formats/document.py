"""A file that is one JSON document, taken apart so that damage stays where it is.

Read whole (up to 1 GiB). Where a strict parser refuses the document (NaN, a lone surrogate, nesting, a cut end), its
members and elements are found by their brackets and quotes, and each is decoded alone.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from . import scan
from .head import DOCUMENT_BYTES_MAX
from .lines import BYTE_ORDER_MARK
from .native import Damaged, Record, decode_record, elements


class Document(msgspec.Struct, frozen=True):
    """The members of the document as bytes; `damage` says why a strict parser refuses it, if it does."""

    raw: bytes
    members: dict[str, bytes]
    damage: str

    @classmethod
    def of(cls, raw: bytes) -> Document:
        """Take a document apart; never raises."""
        try:
            return cls(raw, {name: bytes(value) for name, value in decode_record(raw).items()}, "")
        except Damaged as error:
            return cls(raw, scan.members(raw), str(error))

    def items(self, name: str) -> list[bytes]:
        """The elements of an array member; none where it is something else."""
        value = self.members.get(name, b"")
        if not value.startswith(b"["):
            return []
        strict = elements(msgspec.Raw(value))
        return scan.elements(value) if strict is None else [bytes(item) for item in strict]

    def readable(self, skipped: frozenset[str] = frozenset()) -> Record:
        """The members that can be decoded, without the named ones."""
        found: Record = {}
        for name, value in self.members.items():
            if name not in skipped and is_json(value):
                found[name] = msgspec.Raw(value)
        return found

    def unreadable(self, skipped: frozenset[str]) -> dict[str, bytes]:
        """The members that cannot."""
        return {name: raw for name, raw in self.members.items() if name not in skipped and not is_json(raw)}


def is_json(value: bytes) -> bool:
    """Whether this is one JSON value in UTF-8."""
    try:
        decode_record(b'{"":' + value + b"}")
    except Damaged:
        return False
    return True


def read_document(path: Path) -> bytes | None:
    """The bytes of a document without a byte order mark; `None` if it is larger than 1 GiB."""
    if path.stat().st_size > DOCUMENT_BYTES_MAX:
        return None
    return path.read_bytes().removeprefix(BYTE_ORDER_MARK).strip(b" \t\r\n")
