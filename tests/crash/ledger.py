"""The ledger: what a writer has begun and what was acknowledged to it, on a disk that does not crash.

One line for each step, written by one call, so a kill leaves whole lines. A line is `letter field field …`:

    o                          a log is about to be opened; c: to be closed; p: to be pruned; w: it is open
    b number                   the event with this number is about to be appended
    a number lsn trajectory sequence hash     it was acknowledged
    f number code              appending it raised the error with this code
    r lsn                      events up to here count as replicated, and may be pruned from here on
    n number                   the note `cursor` says number, and that was acknowledged
    e trajectory secret        this trajectory is about to be erased; g trajectory: it was
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from stratalog.hot import Receipt

OPENING, OPEN, PRUNING, CLOSING = "o", "w", "p", "c"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An event that was acknowledged, and under which hash."""

    number: int
    lsn: int
    trajectory_id: uuid.UUID
    sequence_number: int
    hash: bytes


@dataclass(slots=True)
class Entries:
    """A ledger as it was read."""

    begun: set[int] = field(default_factory=set)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    replicated_lsn: int = 0
    noted: int = -1
    phase: str = ""
    erasing: dict[uuid.UUID, bytes] = field(default_factory=dict)
    """Trajectories that may be erased, with what was their secret."""
    erased: set[uuid.UUID] = field(default_factory=set)

    @property
    def last_lsn(self) -> int:
        """The last LSN that was acknowledged."""
        return max((event.lsn for event in self.acknowledged), default=0)

    @property
    def next_number(self) -> int:
        """A number that no event has."""
        return max(self.begun, default=-1) + 1


class Ledger:
    """Writes the ledger; many may write one file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def phase(self, letter: str) -> None:
        """Say what is about to be done."""
        self._write(letter)

    def begins(self, number: int) -> None:
        """Say that an event is about to be appended."""
        self._write(f"b {number}")

    def acknowledges(self, number: int, receipt: Receipt) -> None:
        """Say that an event is durable."""
        place = f"{receipt.lsn} {receipt.trajectory_id} {receipt.sequence_number}"
        self._write(f"a {number} {place} {receipt.hash.hex()}")

    def fails(self, number: int, code: str) -> None:
        """Say that appending an event raised an error."""
        self._write(f"f {number} {code}")

    def replicates(self, lsn: int) -> None:
        """Say that events up to an LSN may be pruned."""
        self._write(f"r {lsn}")

    def notes(self, number: int) -> None:
        """Say that the note is durable."""
        self._write(f"n {number}")

    def erases(self, trajectory_id: uuid.UUID, secret: bytes) -> None:
        """Say that a trajectory is about to be erased."""
        self._write(f"e {trajectory_id} {secret.hex()}")

    def erased(self, trajectory_id: uuid.UUID) -> None:
        """Say that a trajectory was erased."""
        self._write(f"g {trajectory_id}")

    def _write(self, line: str) -> None:
        os.write(self._descriptor, line.encode() + b"\n")


def read_ledger(path: Path) -> Entries:
    """Read a ledger; a last line without its end does not count."""
    entries = Entries()
    if not path.exists():
        return entries
    for line in path.read_bytes().decode().split("\n")[:-1]:
        letter, *fields = line.split(" ")
        if letter == "b":
            entries.begun.add(int(fields[0]))
        elif letter == "a":
            number, lsn, trajectory_id, sequence_number, digest = fields
            place = (int(number), int(lsn), uuid.UUID(trajectory_id), int(sequence_number))
            entries.acknowledged.append(Acknowledged(*place, bytes.fromhex(digest)))
        elif letter == "f":
            entries.failed[int(fields[0])] = fields[1]
        elif letter == "r":
            entries.replicated_lsn = max(entries.replicated_lsn, int(fields[0]))
        elif letter == "n":
            entries.noted = max(entries.noted, int(fields[0]))
        elif letter == "e":
            entries.erasing[uuid.UUID(fields[0])] = bytes.fromhex(fields[1])
        elif letter == "g":
            entries.erased.add(uuid.UUID(fields[0]))
        else:
            entries.phase = letter
    return entries


def forget_late_acknowledgements(path: Path, seen: int) -> None:
    """Take back what was acknowledged after the first `seen` bytes: nobody saw it. What was begun stays begun."""
    content = path.read_bytes()
    late = content[seen:].split(b"\n")[:-1]
    kept = [line + b"\n" for line in late if not line.startswith((b"a ", b"n "))]
    path.write_bytes(content[:seen] + b"".join(kept))
