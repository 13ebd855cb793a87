"""Lines of a session file to lanes: the main agent, and each sub-agent that is written into the same file.

A damaged line stays where it was, as an opaque event, and is reported; whole records that can be told apart on such a
line (two objects without a line feed, a half-written record followed by its second attempt) are read all the same. A
record that repeats one before it, uuid and content, is a copy (resumed sessions contain them): it is kept opaque and
counts nothing twice.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from stratalog.formats import scan
from stratalog.formats.head import Head
from stratalog.formats.lines import Line, lines
from stratalog.formats.native import Damaged, Record, decode_record, members, string
from stratalog.formats.source import Cut, Item, Problem

from .conversation import Damage, Held, Started
from .messages import prompt
from .records import FORMAT, Native
from .session import Session

COPIES_REMEMBERED_MAX = 1 << 18
UNPLACED_MAX = 256
_MAIN = "main"
_RESTART = re.compile(rb'\{"(?:type|parentUuid|uuid|timestamp|sessionId|isSidechain)"\s*:')
_RESTARTS_TRIED_MAX = 16

_SESSION_TYPES = frozenset(
    {
        "agent-name",
        "ai-title",
        "custom-title",
        "last-prompt",
        "mode",
        "permission-mode",
        "pr-link",
        "progress",
        "queue-operation",
        "worktree-state",
    }
)


def is_record(record: Record) -> bool:
    """Whether only Claude Code writes such a record."""
    kind = string(record.get("type"))
    if kind in ("user", "assistant", "system", "attachment"):
        if "systemPayload" in record or "sessionId" not in record or "uuid" not in record:
            return False
        message = members(record.get("message")) or {}
        return "parts" not in message and (kind in ("system", "attachment") or bool(message))
    if kind == "summary":
        return "leafUuid" in record
    if kind == "file-history-snapshot":
        return "snapshot" in record
    return kind in _SESSION_TYPES and "sessionId" in record


class ClaudeCode:
    """The reader of Claude Code sessions."""

    name = FORMAT

    def sniff(self, head: Head) -> bool:
        """One record of this program in the first lines is enough: the others may be damaged or unknown."""
        if any(is_record(record) for record in head.records):
            return True
        first = head.first_record() if not head.records and "type" in head.keys else None
        return first is not None and is_record(first)

    def read(self, path: Path, cuts: Sequence[int] = ()) -> Iterator[Item]:
        """The items of a session file."""
        file = _File(path.name, cuts)
        offset = 0
        for line in lines(path):
            yield from file.line(line)
            yield from file.drain()
            offset = line.end
        if not file.settled:
            yield Cut(offset)
        file.finish()
        yield from file.drain()


class _File:
    """The lanes of one file while it is read."""

    def __init__(self, name: str, cuts: Sequence[int]) -> None:
        self._name = name
        self._cuts = deque(cuts)
        self._lanes: dict[str, Session] = {}
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._lane_of: OrderedDict[str, str] = OrderedDict()
        """uuid of a sidechain record without an agent id to its lane."""
        self._last_sidechain = ""
        self._last = ""
        self._unplaced: list[Held] = []
        self._half_line = False

    def drain(self) -> Iterator[Item]:
        """The items that are ready."""
        for lane in self._lanes.values():
            yield from lane.drain()

    @property
    def settled(self) -> bool:
        """Whether more of the file would leave everything so far as it is."""
        return not self._unplaced and not self._half_line and all(lane.settled for lane in self._lanes.values())

    def finish(self) -> None:
        """The file ends, or did once."""
        if self._unplaced:
            self._place(_MAIN)
        for lane in list(self._lanes.values()):
            lane.finish()
        self._half_line = False

    def line(self, line: Line) -> Iterator[Problem]:
        """Take a line in; yields what is wrong with it."""
        done = 0
        while self._cuts and self._cuts[0] < line.end:
            cut = self._cuts.popleft() - line.start
            if cut > done:
                part = line.content(done, cut)
                # A half line was kept as it was then, and reported; now the whole one follows.
                if not list(self._take(line, part)):
                    done = cut
            self.finish()
        yield from self._take(line, line.content(done))

    def _take(self, line: Line, raw: bytes) -> Iterator[Problem]:
        if not raw:
            return
        try:
            self._record(line.number, raw, decode_record(raw))
            return
        except Damaged:
            pass  # perhaps not all of it
        for piece in _pieces(raw):
            try:
                self._record(line.number, piece, decode_record(piece))
            except Damaged as error:
                reason = str(error)
                self._half_line = not line.ended
                yield Problem(line.number, f"the last line is cut off: {reason}" if self._half_line else reason)
                self._feed(self._last, Damage("damaged", piece))

    def _record(self, number: int, raw: bytes, record: Record) -> None:
        native = Native.of(number, raw, record)
        key = self._key(native)
        identity = native.identity()
        if identity is not None:
            if identity in self._seen:
                self._feed(key, Damage(f"copy:{native.type}", raw))
                return
            self._seen[identity] = None
            if len(self._seen) > COPIES_REMEMBERED_MAX:
                self._seen.popitem(last=False)
        self._feed(key, native)

    # --- lanes -------------------------------------------------------------------------------------------------

    def _key(self, native: Native) -> str:
        """The lane of a record; empty when it does not say and none has been before it."""
        if "isSidechain" not in native.record and "uuid" not in native.record:
            return self._last
        if not native.sidechain:
            return _MAIN
        agent = native.text("agentId")
        if agent:
            return f"agent:{agent}"
        uuid, parent = native.text("uuid") or f"line {native.line}", native.text("parentUuid")
        key = self._lane_of.get(parent, "") if parent else f"sidechain:{uuid}"
        key = key or self._last_sidechain or f"sidechain:{uuid}"
        self._lane_of[uuid] = self._last_sidechain = key
        if len(self._lane_of) > COPIES_REMEMBERED_MAX:
            self._lane_of.popitem(last=False)
        return key

    def _feed(self, key: str, held: Held) -> None:
        if not key:
            self._unplaced.append(held)
            if len(self._unplaced) >= UNPLACED_MAX:
                self._place(_MAIN)
            return
        self._place(key)
        if key not in self._lanes:
            self._open(key, held)
        self._last = key
        self._lanes[key].feed(held)

    def _place(self, key: str) -> None:
        """Records that did not say whose they are belong to the first trajectory of the file."""
        unplaced, self._unplaced = self._unplaced, []
        for held in unplaced:
            self._feed(key, held)

    def _open(self, key: str, held: Held) -> None:
        if key == _MAIN:
            self._lanes[key] = Session(key, self._name)
            return
        agent_id = key.partition(":")[2]
        parent = _MAIN if _MAIN in self._lanes else ""
        self._lanes[key] = Session(key, self._name, agent_id, parent)
        if parent:
            task = prompt(held) if isinstance(held, Native) else ""
            self._lanes[parent].feed(Started(agent_id, task))


def _pieces(raw: bytes) -> list[bytes]:
    """A damaged line as the objects that stand on it and what lies between them."""
    pieces = scan.values(raw)
    if len(pieces) > 1 and any(map(_decodes, pieces)):
        return pieces
    for tried, restart in enumerate(_RESTART.finditer(raw, 1)):
        if tried >= _RESTARTS_TRIED_MAX:
            break
        if _decodes(raw[restart.start() :]):
            return [raw[: restart.start()], raw[restart.start() :]]
    return [raw]


def _decodes(piece: bytes) -> bool:
    try:
        decode_record(piece)
    except Damaged:
        return False
    return True
