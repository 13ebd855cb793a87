"""The way into the log: what callers append is encoded, its content placed, and staged for the commit, in their order.

A thread stages its own events and waits. A coroutine only notes what it appends, and in its loop's next turn all that
was noted is staged as one entry: the coroutines that are ready have had their turn by then, so they share a commit, one
lock, and a loop over their events that keeps the interpreter's caches warm. This doubles what many coroutines get
through, and costs a lone one a turn of its loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from stratalog.schemas.errors import InDoubt, StratalogError
from stratalog.schemas.protocols import Put
from stratalog.schemas.settings import HotSettings

from . import keys
from .budget import DiskBudget
from .committer import Committer, LoopWaiter, Staged, Waiter, again
from .contents import Contents
from .keys import Head
from .staging import NewEvent, PreparedEvent, Receipt, Stager, place, prepare

NO_NOTES: Mapping[bytes, bytes] = {}


class Addition(NamedTuple):
    """Events of one trajectory to append after `head()`, all or none, with small values that are committed with them.

    `head` is called when they are staged, under the lock; what it raises refuses them.
    """

    head: Callable[[], Head]
    events: Sequence[PreparedEvent]
    notes: Mapping[bytes, bytes] = NO_NOTES


Noted = tuple[Addition, asyncio.Future[list[Receipt]]]
Refused = tuple[Addition, asyncio.Future[list[Receipt]], Exception]


class Intake:
    """Callable from any thread; `check_open` raises where nothing may be staged any more."""

    def __init__(
        self,
        stager: Stager,
        committer: Committer,
        contents: Contents,
        budget: DiskBudget,
        settings: HotSettings,
        check_open: Callable[[], None],
    ) -> None:
        self._stager = stager
        self._committer = committer
        self._contents = contents
        self._budget = budget
        self._settings = settings
        self._check_open = check_open
        self._noted: dict[asyncio.AbstractEventLoop, list[Noted]] = {}

    def prepare(self, event: NewEvent, now_us: int) -> PreparedEvent:
        """Encode an event; see `staging.prepare`."""
        self._check_open()
        return prepare(event, self._settings, now_us)

    def place(self, prepared: Sequence[PreparedEvent]) -> list[PreparedEvent]:
        """Make large content durable, which waits for the disk; then the events must be staged or abandoned."""
        self._check_open()
        self._budget.check()
        placed: list[PreparedEvent] = []
        try:
            for event in prepared:
                placed.append(place(event, self._contents))
        except InDoubt:
            raise
        except StratalogError:
            self._abandon(placed)
            raise
        return placed

    def _abandon(self, prepared: Sequence[PreparedEvent]) -> None:
        for event in prepared:
            self._contents.abandon(event.contents)

    def stage(self, addition: Addition, waiter: Waiter) -> None:
        """Queue what a thread appends; `waiter` is released with the receipts, see `Committer.wait`."""
        try:
            self._budget.check()
            with self._committer.lock:
                self._check_open()
                puts, receipts, size = self._puts(addition)
                self._committer.stage(Staged(puts, len(receipts), self._stager.last, size, waiter, receipts))
        except InDoubt:
            raise  # nothing can be written any more; the next open removes what is not needed
        except StratalogError:
            self._abandon(addition.events)
            raise

    def _puts(self, addition: Addition) -> tuple[list[Put], list[Receipt], int]:
        puts: list[Put] = []
        receipts: list[Receipt] = []
        size = 0
        if addition.events:
            puts, receipts, size = self._stager.stage(addition.head(), addition.events)
        if addition.notes:
            puts += [Put("meta", keys.NOTE_PREFIX + key, value) for key, value in addition.notes.items()]
        return puts, receipts, size

    def note(self, addition: Addition) -> asyncio.Future[list[Receipt]]:
        """Note what a coroutine appends; the future gets the receipts, or why there are none."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Receipt]] = loop.create_future()
        noted = self._noted.get(loop)
        if noted is None:
            noted = self._noted[loop] = []
            loop.call_soon(self.stage_noted, loop)
        noted.append((addition, future))
        return future

    def stage_noted(self, loop: asyncio.AbstractEventLoop) -> None:
        """Queue what was noted in a loop; called in that loop."""
        noted = self._noted.pop(loop, ())
        if not noted:
            return
        try:
            self._budget.check()
            with self._committer.lock:
                self._check_open()
                refused = self._stage_together(loop, noted)
                self._committer.notify()
        except StratalogError as error:
            refused = [(addition, future, again(error)) for addition, future in noted]
        for addition, future, why in refused:
            if not isinstance(why, InDoubt):
                self._abandon(addition.events)
            if not future.done():
                future.set_exception(why)

    def _stage_together(self, loop: asyncio.AbstractEventLoop, noted: Sequence[Noted]) -> list[Refused]:
        """As few entries as B_max allows; returns what was refused, which changes nothing for the others."""
        refused: list[Refused] = []
        events_max, bytes_max = self._settings.group_events_max, self._settings.group_bytes_max
        puts: list[Put] = []
        results: list[list[Receipt]] = []
        futures: list[asyncio.Future[list[Receipt]]] = []
        events = size = 0
        for addition, future in noted:
            before = self._stager.last
            try:
                more, receipts, added = self._puts(addition)
            except Exception as error:  # noqa: BLE001 - whatever it is, only this caller must hear of it
                refused.append((addition, future, error))
                continue
            if events and (events + len(receipts) > events_max or size + added > bytes_max):
                self._committer.stage(Staged(puts, events, before, size, LoopWaiter(loop, futures), results))
                puts, results, futures, events, size = [], [], [], 0, 0
            puts += more
            results.append(receipts)
            futures.append(future)
            events += len(receipts)
            size += added
        if futures:
            self._committer.stage(Staged(puts, events, self._stager.last, size, LoopWaiter(loop, futures), results))
        return refused
