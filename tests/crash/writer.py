"""The program that is crashed: it appends numbered events to a real log and writes down what was acknowledged to it.

It works in sessions (open, append from many coroutines, now and then prune, close), so that a crash at any moment meets
each of them. It runs in a forked child; its settings come from the environment, as those of any program.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Callable, Iterator

from stratalog.hot import HotLog, NewEvent
from stratalog.schemas.errors import StratalogError

from .content import INLINE_BYTES_MAX, body_of, start_of
from .ledger import CLOSING, OPEN, OPENING, PRUNING, Ledger
from .sabotage import apply

SMALL = {
    "STRATALOG_HOT__MEMTABLE_BYTES": "65536",
    "STRATALOG_HOT__WAL_BYTES_MAX": "262144",
    "STRATALOG_HOT__HOT_BYTES_MAX": "0",
    "STRATALOG_HOT__INLINE_BYTES_MAX": str(INLINE_BYTES_MAX),
    "STRATALOG_HOT__DISK_FREE_MIN": "0",
}
"""Tables and compactions after a few events, and nothing that keeps a prune from what is replicated."""
WAL_ONLY = {**SMALL, "STRATALOG_HOT__MEMTABLE_BYTES": str(16 << 20), "STRATALOG_HOT__WAL_BYTES_MAX": str(64 << 20)}
"""Everything stays in the write-ahead log until the next open."""
FOR_EVER = 1 << 40


def write(
    home: str,
    ledger: str,
    *,
    seed: int = 0,
    number: int = 0,
    sessions: int = FOR_EVER,
    events: int = 120,
    appenders: int = 6,
    prunes: bool = True,
    sabotage: str = "",
) -> int:
    """Write `sessions` sessions of up to `events` events each; returns the next number. Stops at the first error."""
    apply(sabotage)
    writer = Writer(home, Ledger(ledger), random.Random(seed), number)
    for _ in range(sessions):
        asyncio.run(writer.session(range(1, events + 1), appenders, prunes=prunes and writer.random.random() < 0.5))
        if writer.failure is not None:
            break
    return next(writer.numbers)


class Writer:
    """One writing process."""

    def __init__(self, home: str, ledger: Ledger, source: random.Random, number: int) -> None:
        self.home = home
        self.ledger = ledger
        self.numbers: Iterator[int] = itertools.count(number)
        self.failure: StratalogError | None = None
        self.random = source

    async def session(
        self,
        events: range,
        appenders: int,
        *,
        prunes: bool = False,
        erases: bool = False,
        before_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Open, append a number of events out of a range, prune, close. Stops at the first error, which it keeps."""
        count = self.random.choice(events)
        self.ledger.phase(OPENING)
        try:
            async with HotLog.open(self.home, serve=False) as log:
                self.ledger.phase(OPEN)
                known = [head.trajectory_id for head in log.heads() if head.secret]
                shares = [count // appenders + (place < count % appenders) for place in range(appenders)]
                work = [self._append(log, place, share, known[erases:]) for place, share in enumerate(shares)]
                await asyncio.gather(*work, *([self._erase(log, known[0])] if erases else []))
                if prunes and self.failure is None:
                    await self._prune(log)
                before_close()
                self.ledger.phase(CLOSING)
        except StratalogError as error:
            self.failure = self.failure or error

    async def _append(self, log: HotLog, place: int, count: int, known: list[uuid.UUID]) -> None:
        """One appender with a trajectory of its own, an old one or a new one."""
        continues = place < len(known) and self.random.random() < 0.8
        trajectory_id = known[place] if continues else None
        for _ in range(count):
            if self.failure is not None:
                return
            number = next(self.numbers)
            self.ledger.begins(number)
            try:
                if trajectory_id is None:
                    trajectory_id = await self._start(log, number)
                else:
                    await self._continue(log, trajectory_id, number, notes=place == 0)
            except StratalogError as error:
                self.ledger.fails(number, error.code)
                self.failure = error

    async def _erase(self, log: HotLog, trajectory_id: uuid.UUID) -> None:
        """Erase a trajectory while others append."""
        head = log.head(trajectory_id)
        assert head is not None
        self.ledger.erases(trajectory_id, head.secret)
        try:
            await log.erase([trajectory_id])
            self.ledger.erased(trajectory_id)
        except StratalogError as error:
            self.failure = self.failure or error

    async def _start(self, log: HotLog, number: int) -> uuid.UUID:
        trajectory_id = await log.start(tenant="default", body=start_of(number))
        envelope = next(log.envelopes(trajectory_id))
        self.ledger.acknowledges(
            number, _Place(envelope.lsn, trajectory_id, envelope.header.sequence_number, envelope.hash)
        )
        return trajectory_id

    async def _continue(self, log: HotLog, trajectory_id: uuid.UUID, number: int, *, notes: bool) -> None:
        note: dict[bytes, bytes] = {b"cursor": str(number).encode()} if notes else {}
        receipt = (await log.append_many(trajectory_id, [NewEvent(body_of(number))], notes=note))[0]
        self.ledger.acknowledges(number, receipt)
        if notes:
            self.ledger.notes(number)

    async def _prune(self, log: HotLog) -> None:
        """Take a part of the log for replicated, and prune it."""
        first, last = log.engine.pruned_lsn, log.durable_lsn
        lsn = self.random.randint(first, last)
        envelope = log.engine.envelope(lsn)
        if envelope is None:
            return
        self.ledger.replicates(lsn)
        self.ledger.phase(PRUNING)
        log.acknowledge(lsn, envelope.hash)
        await asyncio.to_thread(log.prune)


class _Place:
    """Where an event lies, for those that come without a receipt."""

    def __init__(self, lsn: int, trajectory_id: uuid.UUID, sequence_number: int, digest: bytes) -> None:
        self.lsn = lsn
        self.trajectory_id = trajectory_id
        self.sequence_number = sequence_number
        self.hash = digest
