"""Opens a log after a crash and compares it with the ledger.

Proved are: every acknowledged event is there, under the hash and with the very content that was acknowledged (or was
replicated, and is pruned); LSNs are dense; every chain and every body verifies from the stored bytes; the heads are the
ends of the chains; nothing is there that nobody has written; nothing was acknowledged twice under one LSN; an append
that is said not to have happened has not; the note is not older than the acknowledged one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stratalog.hot import Home, HotLog
from stratalog.hot.residue import search_files
from stratalog.schemas.chain import START, ChainCheck, Link
from stratalog.schemas.codec import decode_event
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.errors import HomeMissing, StratalogError

from .content import differs, number_of, text_of
from .ledger import Acknowledged, Entries, read_ledger
from .sabotage import apply

NEEDLE_BYTES = 20
MAYBE = ("in_doubt",)
"""Error codes after which an event may be there all the same."""


@dataclass(slots=True)
class Verdict:
    """What a check has found. Damage that is noticed is `refused` or `found`; only `problems` are silent."""

    events: int = 0
    acknowledged: int = 0
    pruned: int = 0
    in_doubt_there: int = 0
    """Appends that failed in doubt, and turned out to be there."""
    refused: str = ""
    """The error with which the log refused to open: class and message."""
    found: list[str] = field(default_factory=list)
    """Errors that reading raised."""
    problems: list[str] = field(default_factory=list)
    """What is wrong and was not noticed."""
    next_number: int = 0

    @property
    def ok(self) -> bool:
        """Whether everything is there."""
        return not (self.refused or self.found or self.problems)

    def __str__(self) -> str:
        wrong = [*([self.refused] if self.refused else []), *self.found, *self.problems]
        return "; ".join(wrong[:5]) or f"{self.acknowledged} acknowledged, {self.events} events"


def check(home: str, ledger: str, sabotage: str = "") -> dict[str, Any]:
    """Check the only log of a home against a ledger; returns the fields of a `Verdict`."""
    apply(sabotage)
    entries = read_ledger(Path(ledger))
    verdict = Verdict(acknowledged=len(entries.acknowledged), next_number=entries.next_number)
    verdict.problems += _acknowledged_twice(entries.acknowledged)
    try:
        logs = Home.open(home).logs()
        if len(logs) > 1:
            verdict.problems.append(f"there are {len(logs)} logs")
        if logs:
            with HotLog.open(home, log_id=uuid.UUID(logs[0][0].name), serve=False, create=False) as log:
                verdict.problems += _residue(Path(home), entries, entries.erased)
                Check(log, entries, verdict).run()
                if entries.erasing:
                    verdict.problems += _finish_erasing(log, Path(home), entries)
        elif entries.acknowledged:
            verdict.problems.append("there is no log, but events were acknowledged")
    except StratalogError as error:
        if entries.acknowledged or not isinstance(error, HomeMissing):
            verdict.refused = f"{type(error).__name__}: {error.message}"
    return asdict(verdict)


def _finish_erasing(log: HotLog, home: Path, entries: Entries) -> list[str]:
    """Whatever had happened: erasing again finishes, and takes nothing else away."""
    log.erase_blocking(list(entries.erasing))
    again = Verdict()
    Check(log, entries, again).run()
    return [*again.found, *again.problems, *_residue(home, entries, entries.erasing)]


def _residue(home: Path, entries: Entries, trajectories: Iterable[uuid.UUID]) -> list[str]:
    """Bytes of erased trajectories that the files still have."""
    erased = set(trajectories)
    if not erased:
        return []
    needles = [entries.erasing[trajectory_id] for trajectory_id in erased]
    texts = (text_of(event.number) for event in entries.acknowledged if event.trajectory_id in erased)
    needles += [text[:NEEDLE_BYTES].encode() for text in texts if len(text) >= NEEDLE_BYTES]
    return [f"{found.path} still has {needles[found.needle_index]!r}" for found in search_files(home / "hot", needles)]


def _acknowledged_twice(acknowledged: list[Acknowledged]) -> list[str]:
    problems = []
    by_lsn: dict[int, Acknowledged] = {}
    by_place: dict[tuple[uuid.UUID, int], Acknowledged] = {}
    for event in acknowledged:
        for first in (
            by_lsn.setdefault(event.lsn, event),
            by_place.setdefault((event.trajectory_id, event.sequence_number), event),
        ):
            if first.hash != event.hash or first.number != event.number:
                problems.append(f"events {first.number} and {event.number} were both acknowledged at LSN {event.lsn}")
    return problems


class Check:
    """One reading of one open log."""

    def __init__(self, log: HotLog, entries: Entries, verdict: Verdict) -> None:
        self._log = log
        self._entries = entries
        self._verdict = verdict
        self._acknowledged = {event.lsn: event for event in entries.acknowledged}
        self._chains: dict[uuid.UUID, ChainCheck] = {}
        self._places: dict[uuid.UUID, list[int]] = {}

    def run(self) -> None:
        """Read everything, by each of the ways there are to read."""
        pruned = self._verdict.pruned = self._log.engine.pruned_lsn
        if pruned > self._entries.replicated_lsn:
            self._problem(f"pruned up to LSN {pruned}, but only {self._entries.replicated_lsn} was replicated")
        try:
            last = self._scan(pruned)
            if last < self._entries.last_lsn:
                self._problem(f"the log ends at LSN {last}, but {self._entries.last_lsn} was acknowledged")
            self._compare_heads()
            self._read_trajectories()
        except StratalogError as error:
            self._verdict.found.append(f"{type(error).__name__}: {error.message}")
        self._compare_note()

    def _problem(self, text: str) -> None:
        self._verdict.problems.append(text)

    def _scan(self, pruned: int) -> int:
        last = pruned
        for envelope in self._log.engine.scan(1):
            if envelope.lsn != last + 1:
                self._problem(f"LSN {envelope.lsn} follows LSN {last}")
            last = envelope.lsn
            self._verdict.events += 1
            self._feed(envelope)
            self._compare(envelope)
        if last != self._log.durable_lsn:
            self._problem(f"a scan ends at LSN {last}, the watermark is {self._log.durable_lsn}")
        return last

    def _feed(self, envelope: Envelope) -> None:
        header = envelope.header
        chain = self._chains.get(header.trajectory_id)
        if chain is None:
            head = self._log.head(header.trajectory_id)
            secret = envelope.secret or (head.secret if head else None)
            first = header.sequence_number == 0
            after = START if first else Link(header.sequence_number - 1, header.previous_hash)
            chain = self._chains[header.trajectory_id] = ChainCheck(secret, after)
        chain.feed(envelope)
        self._places.setdefault(header.trajectory_id, []).append(envelope.lsn)

    def _compare(self, envelope: Envelope) -> None:
        """An event with what was acknowledged at its place, and with what was written under its number."""
        lsn, event = envelope.lsn, decode_event(envelope)
        if envelope.erased:
            self._compare_erased(envelope)
            return
        if envelope.header.trajectory_id in self._entries.erased:
            self._problem(f"LSN {lsn}: an event of an erased trajectory has its body")
        number = number_of(event)
        if number is None or number not in self._entries.begun:
            self._problem(f"LSN {lsn}: an event that nobody has written")
            return
        acknowledged = self._acknowledged.get(lsn)
        if acknowledged is not None and (acknowledged.hash, acknowledged.number) != (envelope.hash, number):
            self._problem(f"LSN {lsn}: event {number} instead of {acknowledged.number}, which was acknowledged")
        code = self._entries.failed.get(number)
        if code is not None and code not in MAYBE:
            self._problem(f"LSN {lsn}: event {number} is there, but was answered with {code}")
        self._verdict.in_doubt_there += code is not None
        if differs(self._log, lsn, event, number):
            self._problem(f"LSN {lsn}: event {number} has another content")

    def _compare_erased(self, envelope: Envelope) -> None:
        acknowledged = self._acknowledged.get(envelope.lsn)
        if envelope.header.trajectory_id not in self._entries.erasing:
            self._problem(f"LSN {envelope.lsn}: an event is erased that nobody wanted to be")
        elif acknowledged is not None and acknowledged.hash != envelope.hash:
            self._problem(f"LSN {envelope.lsn}: the erased event is not the one that was acknowledged")

    def _compare_heads(self) -> None:
        for trajectory_id, chain in self._chains.items():
            head, end = self._log.head(trajectory_id), chain.position
            if head is None or (head.sequence_number, head.hash) != (end.sequence_number, end.hash):
                self._problem(f"the head of {trajectory_id} is not its last event")

    def _read_trajectories(self) -> None:
        for trajectory_id, places in self._places.items():
            read = [envelope.lsn for envelope in self._log.envelopes(trajectory_id)]
            if read != places:
                self._problem(f"reading {trajectory_id} gives {len(read)} events, a scan {len(places)}")

    def _compare_note(self) -> None:
        note = self._log.note(b"cursor")
        noted = -1 if note is None else int(note)
        if noted < self._entries.noted:
            self._problem(f"the note says {noted}, but {self._entries.noted} was acknowledged")
        elif noted >= 0 and noted not in self._entries.begun:
            self._problem(f"the note says {noted}, which nobody has written")
