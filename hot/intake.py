"""The way into the log: what callers append is encoded, its content placed, and staged for the commit, in their order.

A thread stages its own events and waits. A coroutine only notes what it appends, and in its loop's next turn all that
was noted is encoded and staged as one entry: the coroutines that are ready have had their turn by then, so they share a
commit, one lock, and a loop over their events that keeps the processor's caches warm. A lone one pays a turn of its
loop for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from stratalog.schemas.errors import InDoubt, StratalogError, Unavailable
from stratalog.schemas.protocols import Put
from stratalog.schemas.settings import HotSettings

from . import keys
from .budget import DiskBudget
from .committer import OVERLAPPING_EVENTS_MIN, Committer, LoopWaiter, Staged, Waiter, again
from .contents import Contents
from .keys import Head
from .staging import NewEvent, PreparedEvent, Receipt, Stager, place, prepare

NO_NOTES: Mapping[bytes, bytes] = {}
SETTLE_WAIT_S = 60.0


class Addition(NamedTuple):
    """Events of one trajectory to append, all or none, and small values that are committed with them.

    `after` is the id of a trajectory that is here, or gives the head to follow; that is called when the events are
    staged, under the lock, and what it raises refuses them.
    """

    after: uuid.UUID | Callable[[], Head]
    events: Sequence[NewEvent]
    notes: Mapping[bytes, bytes] = NO_NOTES


class _Noted(NamedTuple):
    """What a coroutine appends, when it did so (µs since 1970), and who waits for it."""

    addition: Addition
    now_us: int
    future: asyncio.Future[list[Receipt]]


class _Ready(NamedTuple):
    """What can be staged: everything is encoded, and large content is on the disk."""

    addition: Addition
    events: Sequence[PreparedEvent]
    future: asyncio.Future[list[Receipt]]


class Placements:
    """The appends that are making large content durable just now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._going_on: set[object] = set()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """From before the first byte is written until its event is staged or refused."""
        placement = object()
        with self._changed:
            self._going_on.add(placement)
        try:
            yield
        finally:
            with self._changed:
                self._going_on.discard(placement)
                self._changed.notify_all()

    def settle(self) -> None:
        """Wait for those that are going on now; raises `Unavailable` where they take too long."""
        with self._changed:
            before = set(self._going_on)
            if not self._changed.wait_for(lambda: not before & self._going_on, SETTLE_WAIT_S):
                raise Unavailable("appends of large content are still going on", hint="erase again")


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
        self._noted: dict[asyncio.AbstractEventLoop, list[_Noted]] = {}
        self._placing: set[asyncio.Task[None]] = set()
        self._placements = Placements()

    # --- threads -----------------------------------------------------------------------------------------------------

    def stage(self, addition: Addition, waiter: Waiter, now_us: int) -> None:
        """Queue what a thread appends; `waiter` is released with the receipts, see `Committer.wait`."""
        self._check_open()
        self._budget.check()
        events = self._prepare(addition, now_us)
        if not _is_large(events):
            self._stage(addition, events, waiter)
            return
        with self._placements.one():
            self._stage(addition, self._place(addition, events), waiter)

    def _stage(self, addition: Addition, events: Sequence[PreparedEvent], waiter: Waiter) -> None:
        try:
            with self._committer.lock:
                self._check_open()
                puts, receipts, size = self._puts(addition, events)
                self._committer.stage(Staged(puts, len(receipts), self._stager.last, size, waiter, receipts))
        except StratalogError as error:
            self._abandon(events, error)
            raise

    # --- coroutines --------------------------------------------------------------------------------------------------

    def note(self, addition: Addition, now_us: int) -> asyncio.Future[list[Receipt]]:
        """Note what a coroutine appends; the future gets the receipts, or why there are none."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Receipt]] = loop.create_future()
        noted = self._noted.get(loop)
        if noted is None:
            noted = self._noted[loop] = []
            loop.call_soon(self.stage_noted, loop)
        noted.append(_Noted(addition, now_us, future))
        return future

    def stage_noted(self, loop: asyncio.AbstractEventLoop) -> None:
        """Queue what was noted in a loop; called in that loop."""
        ready: list[_Ready] = []
        for addition, now_us, future in self._noted.pop(loop, ()):
            try:
                one = _Ready(addition, self._prepare(addition, now_us), future)
            except Exception as error:  # noqa: BLE001 - whatever it is, only this caller must hear of it
                _fail(future, error)
                continue
            if _is_large(one.events):
                task = loop.create_task(self._place_and_stage(one))
                self._placing.add(task)
                task.add_done_callback(self._placing.discard)
            else:
                ready.append(one)
        if ready:
            self._stage_ready(loop, ready)

    async def _place_and_stage(self, ready: _Ready) -> None:
        """The event loop never waits for the disk."""
        try:
            self._check_open()
            self._budget.check()
            with self._placements.one():
                events = await asyncio.to_thread(self._place, ready.addition, ready.events)
                self._stage_ready(asyncio.get_running_loop(), [ready._replace(events=events)])
        except Exception as error:  # noqa: BLE001 - as in `stage_noted`
            _fail(ready.future, error)

    def _stage_ready(self, loop: asyncio.AbstractEventLoop, ready: Sequence[_Ready]) -> None:
        try:
            self._budget.check()
            with self._committer.lock:
                self._check_open()
                refused = self._stage_together(loop, ready)
                self._committer.notify()
        except Exception as error:  # noqa: BLE001 - as in `stage_noted`
            refused = [(one, again(error) if isinstance(error, StratalogError) else error) for one in ready]
        for one, why in refused:
            self._abandon(one.events, why)
            _fail(one.future, why)

    def _stage_together(
        self, loop: asyncio.AbstractEventLoop, ready: Sequence[_Ready]
    ) -> list[tuple[_Ready, Exception]]:
        """As few entries as B_max allows; returns what was refused, which changes nothing for the others."""
        refused: list[tuple[_Ready, Exception]] = []
        events_max = min(self._settings.group_events_max, OVERLAPPING_EVENTS_MIN // 2)
        bytes_max = self._settings.group_bytes_max
        puts: list[Put] = []
        results: list[list[Receipt]] = []
        futures: list[asyncio.Future[list[Receipt]]] = []
        events = size = 0
        for one in ready:
            before = self._stager.last
            try:
                more, receipts, added = self._puts(one.addition, one.events)
            except Exception as error:  # noqa: BLE001 - as in `stage_noted`
                refused.append((one, error))
                continue
            if events and (events + len(receipts) > events_max or size + added > bytes_max):
                self._committer.stage(Staged(puts, events, before, size, LoopWaiter(loop, futures), results))
                puts, results, futures, events, size = [], [], [], 0, 0
            puts += more
            results.append(receipts)
            futures.append(one.future)
            events += len(receipts)
            size += added
        if futures:
            self._committer.stage(Staged(puts, events, self._stager.last, size, LoopWaiter(loop, futures), results))
        return refused

    # --- both --------------------------------------------------------------------------------------------------------

    def _prepare(self, addition: Addition, now_us: int) -> list[PreparedEvent]:
        return [prepare(event, self._settings, now_us) for event in addition.events]

    def settle(self) -> None:
        """Wait until all appends that have begun to make large content durable are staged or refused."""
        self._placements.settle()

    def _place(self, addition: Addition, prepared: Sequence[PreparedEvent]) -> list[PreparedEvent]:
        """Make large content durable, which waits for the disk; then the events must be staged or abandoned.

        What would be refused just now is refused here: nothing of an erased trajectory is written.
        """
        with self._committer.lock:
            self._head(addition)
        placed: list[PreparedEvent] = []
        try:
            for event in prepared:
                placed.append(place(event, self._contents))
        except StratalogError as error:
            self._abandon(placed, error)
            raise
        return placed

    def _puts(self, addition: Addition, events: Sequence[PreparedEvent]) -> tuple[list[Put], list[Receipt], int]:
        puts: list[Put] = []
        receipts: list[Receipt] = []
        size = 0
        if events:
            puts, receipts, size = self._stager.stage(self._head(addition), events)
        if addition.notes:
            puts += [Put("meta", keys.NOTE_PREFIX + key, value) for key, value in addition.notes.items()]
        return puts, receipts, size

    def _head(self, addition: Addition) -> Head:
        after = addition.after
        return after() if callable(after) else self._stager.known(after)

    def _abandon(self, events: Sequence[PreparedEvent], why: Exception) -> None:
        """Remove the content of events that are refused."""
        if isinstance(why, InDoubt):
            return  # nothing can be written any more; the next open removes what is not needed
        with contextlib.suppress(StratalogError):  # as above
            for event in events:
                self._contents.abandon(event.contents)


def _is_large(events: Sequence[PreparedEvent]) -> bool:
    """Whether any has content that must be placed before it is staged."""
    for event in events:  # noqa: SIM110 - a generator for each append takes 2 % of its time
        if event.contents and event.is_large:
            return True
    return False


def _fail(future: asyncio.Future[list[Receipt]], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
