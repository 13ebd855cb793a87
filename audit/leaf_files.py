"""Copies of the leaves outside the database, from which a tree that an older Postgres has lost is put together again.

    <cold.url>/audit/leaves/<tenant>/<first>-<end>.jsonl     the leaves from number `first` on, `end` excluded

They are written before the head that covers them, each on the condition that it is new. Nothing rests on them being
right: leaves that are taken from them must give the root of a signed head. After a crash two files may overlap.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence

import msgspec

from stratalog.cold.storage import Storage
from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.schemas.ids import check_tenant

from .leaf import Leaf

LEAVES_FOLDER = "audit/leaves"
LEAVES_PER_FILE = 50_000
_NAME = re.compile(r"(0|[1-9][0-9]{0,18})-([1-9][0-9]{0,18})\.jsonl")


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    trajectory_id: uuid.UUID
    sequence_number: int
    event_hash: str


class LeafFiles:
    """The leaves of one tenant in the storage of the cold tier."""

    def __init__(self, storage: Storage, tenant: str) -> None:
        self._storage = storage
        self._folder = f"{LEAVES_FOLDER}/{check_tenant(tenant)}"
        self._tenant = tenant

    def keep(self, first: int, leaves: Sequence[Leaf]) -> None:
        """Write a copy of leaves (at least one, numbered from `first` on); durable when it returns."""
        lines = [
            msgspec.json.encode(_Line(leaf.trajectory_id, leaf.sequence_number, leaf.event_hash.hex()))
            for leaf in leaves
        ]
        self._storage.put_new(f"{self._folder}/{first}-{first + len(lines)}.jsonl", b"\n".join(lines) + b"\n")

    def read(self, first: int, end: int) -> Iterator[Leaf]:
        """The leaves from `first` on, `end` excluded; raises `NotFound` where none has a copy, `Corrupt`."""
        at = first
        while at < end:
            path, start, stop = self._covering(at)
            leaves = self._decode(path, stop - start)
            yield from leaves[at - start : end - start]
            at = min(stop, end)

    def _covering(self, number: int) -> tuple[str, int, int]:
        """The file that reaches furthest from this leaf on."""
        best: tuple[str, int, int] | None = None
        for entry in self._storage.files(self._folder):
            name = _NAME.fullmatch(entry.path.rpartition("/")[2])
            if name is not None and int(name[1]) <= number < int(name[2]) and (best is None or int(name[2]) > best[2]):
                best = entry.path, int(name[1]), int(name[2])
        if best is None:
            raise NotFound(f"there is no copy of leaf {number} of {self._tenant} in {self._storage.url}/{self._folder}")
        return best

    def _decode(self, path: str, count: int) -> list[Leaf]:
        try:
            lines = [msgspec.json.decode(line, type=_Line) for line in self._storage.read(path).splitlines()]
            leaves = [
                Leaf(self._tenant, line.trajectory_id, line.sequence_number, bytes.fromhex(line.event_hash))
                for line in lines
            ]
        except (msgspec.MsgspecError, ValueError) as error:
            raise Corrupt(f"{self._storage.url}/{path} is damaged: {error}", hint="restore it from a backup") from error
        if len(leaves) != count:
            raise Corrupt(f"{self._storage.url}/{path} holds {len(leaves)} leaves", hint="restore it from a backup")
        return leaves
