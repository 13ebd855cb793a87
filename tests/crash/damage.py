"""Damage to every kind of file of a log, in every class of position: what is done, and what becomes of it.

The log is one that a kill has ended when HEAD was up to date, so nothing of it can be a torn tail: each damage must be
refused at open, be found on read, or have taken nothing away.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stratalog.hot.marks import peek
from stratalog.hot.walscan import BLOCK_BYTES

from .checker import Verdict
from .forks import Forks
from .ledger import Ledger
from .writer import SMALL, WAL_ONLY, Writer

SHAPES = {"wal": WAL_ONLY, "tables": SMALL}
"""Logs of which everything lies in the write-ahead log, and logs of which most lies in tables and blob files."""
PATTERNS = {
    "WAL": "db/*.log",
    "SST": "db/*.sst",
    "blob": "db/*.blob",
    "MANIFEST": "db/MANIFEST-*",
    "CURRENT": "db/CURRENT",
    "HEAD": "HEAD",
    "REPLICATED": "REPLICATED",
    "log.json": "log.json",
    "others": "db/[OIr]*",
}
"""`others`: OPTIONS, IDENTITY and the settings that rocksdict keeps, which hold nothing that a log needs."""
_HEADER_BYTES = 7


def make(home: str, ledger: str, shape: str) -> None:
    """In a child: make the log, then die when HEAD has followed."""
    writer = Writer(home, Ledger(ledger), random.Random(1), 0)
    if shape == "tables":
        for _ in range(3):
            asyncio.run(writer.session(range(60, 61), 3, prunes=True))

    def die() -> None:
        head = next(Path(home, "hot").glob("*/OWNER")).with_name("HEAD")
        last = max(int(line.split()[2]) for line in Path(ledger).read_text().splitlines() if line.startswith("a "))
        while (mark := peek(head)) is None or mark.lsn < last:
            time.sleep(0.005)
        os._exit(0)

    asyncio.run(writer.session(range(60, 61), 3, before_close=die))


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage: `action` is flip, truncate, zero, remove or empty; `where` names the class of position."""

    file: str
    action: str
    where: str
    offset: int = 0

    def do(self, folder: Path) -> None:
        """Damage a log."""
        path = folder / self.file
        if self.action == "remove":
            path.unlink()
            return
        content = bytearray(path.read_bytes())
        if self.action == "flip":
            content[self.offset] ^= 0x20
        elif self.action == "truncate":
            del content[self.offset :]
        elif self.action == "empty":
            content.clear()
        else:
            end = min(self.offset + 512, len(content))
            content[self.offset : end] = bytes(end - self.offset)
        path.write_bytes(content)


class Damaged:
    """Makes a log once, and damages copies of it."""

    def __init__(self, forks: Forks, folder: Path, shape: str) -> None:
        self._forks = forks
        self._folder = folder
        self._settings = SHAPES[shape]
        self._whole = folder / "whole"
        self._ledger = folder / "ledger"
        child = forks.run(
            "crash.damage:make", self._settings, home=str(self._whole), ledger=str(self._ledger), shape=shape
        )
        assert child.wait() == 0, child.traceback()

    def damages(self, kind: str) -> list[Damage]:
        """The damages to the files of a kind (a key of `PATTERNS`)."""
        log = self._log_of(self._whole)
        paths = sorted(log.glob(PATTERNS[kind]), key=lambda path: path.stat().st_size, reverse=True)
        found: list[Damage] = []
        for path in paths[:3]:
            name = os.fspath(path.relative_to(log))
            if path.stat().st_size:
                for where, offset in positions(kind, path.read_bytes()):
                    found += [Damage(name, action, where, offset) for action in ("flip", "truncate", "zero")]
                if kind == "MANIFEST":  # it has no end of its own: each record may be the last one
                    ends = _records(path.read_bytes())
                    found += [Damage(name, "truncate", f"at record {number}", end) for number, end in enumerate(ends)]
            found += [Damage(name, "remove", "whole"), Damage(name, "empty", "whole")]
        return found

    def outcome(self, damage: Damage | Callable[[Path], None], sabotage: str = "") -> Verdict:
        """What a check says of a damaged copy."""
        copy = self._folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._whole, copy)
        (damage.do if isinstance(damage, Damage) else damage)(self._log_of(copy))
        child = self._forks.run(
            "crash.checker:check", self._settings, home=str(copy), ledger=str(self._ledger), sabotage=sabotage
        )
        return Verdict(**child.result())

    @staticmethod
    def _log_of(home: Path) -> Path:
        return next((home / "hot").glob("*/OWNER")).parent


def positions(kind: str, content: bytes) -> Iterator[tuple[str, int]]:
    """A name and an offset for each class of position in a file."""
    if kind in ("WAL", "MANIFEST"):
        yield from _record_positions(content)
        return
    size = len(content)
    yield from (("start", 0), ("end", size - 1))
    yield from ((f"at {share}/8", size * share // 8) for share in range(1, 8))
    if kind in ("SST", "blob"):
        yield from (("footer", size - 20), ("before the footer", size - 70), ("first record", min(40, size - 1)))


def _record_positions(content: bytes) -> Iterator[tuple[str, int]]:
    offsets = list(_records(content))
    for name, offset in (("first", offsets[0]), ("middle", offsets[len(offsets) // 2]), ("last", offsets[-1])):
        length = int.from_bytes(content[offset + 4 : offset + 6], "little")
        yield f"{name} record, checksum", offset
        yield f"{name} record, length", offset + 4
        yield f"{name} record, type", offset + 6
        yield f"{name} record, body", min(offset + _HEADER_BYTES + length // 2, len(content) - 1)
    if len(content) > BLOCK_BYTES:
        yield "block trailer", BLOCK_BYTES - 1
        yield "block start", BLOCK_BYTES


def _records(content: bytes) -> Iterator[int]:
    offset = 0
    while offset + _HEADER_BYTES <= len(content):
        left = BLOCK_BYTES - offset % BLOCK_BYTES
        if left < _HEADER_BYTES:
            offset += left
            continue
        if content[offset + 6] == 0:
            return
        yield offset
        offset += _HEADER_BYTES + int.from_bytes(content[offset + 4 : offset + 6], "little")


class Matrix:
    """Outcomes by kind of damage, as a table."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.silent: list[str] = []

    def add(self, shape: str, kind: str, damage: Damage, verdict: Verdict) -> None:
        """Take in what became of a damage."""
        outcome = outcome_of(verdict)
        self.counts.setdefault(f"{shape}, {kind}, {damage.action}", Counter())[outcome] += 1
        if outcome == "silent":
            self.silent.append(f"{shape}, {damage.file}, {damage.action}, {damage.where}: {verdict}")

    def __str__(self) -> str:
        columns = ("refused", "found on read", "whole", "silent")
        lines = [f"{'damage':34}" + "".join(f"{column:>15}" for column in columns)]
        for name, counts in self.counts.items():
            lines.append(f"{name:34}" + "".join(f"{counts[column]:>15}" for column in columns))
        return "\n".join(lines)


def outcome_of(verdict: Verdict) -> str:
    """One word for a verdict; `whole` is that nothing acknowledged is missing."""
    if verdict.refused:
        return "refused"
    if verdict.found:
        return "found on read"
    return "silent" if verdict.problems else "whole"
