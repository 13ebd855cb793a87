"""Group commit: the five stages of the specification's Table 4.

Callers stage their events under one lock (ingestion). A thread takes what has queued while the previous commit ran, up
to B_max events, or waits up to W for company where that is configured (aggregation), writes it as one batch (vectorised
write), syncs (barrier), and releases every waiter (release): coroutines with one call into their loop per group.

There is no timer by default: under load the previous sync is the window. Events leave in the order in which they were
staged, so each trajectory's order is kept. If a commit fails, its events and all staged after it are in doubt; the
committer refuses everything from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from stratalog.schemas.errors import InDoubt, StratalogError
from stratalog.schemas.protocols import Put, Store
from stratalog.schemas.settings import HotSettings

from .keys import Position

OVERLAPPING_EVENTS_MIN = 32
"""Of more events than that only half go into a group where commits are fast: its callers then stage their next ones
while the other half is synced. Where they are slow the largest group is the best one."""
STAGING_S = 20e-6
"""About what it takes to encode and stage an event: with it, what is fast."""


class Waiter(Protocol):
    """Somebody who waits for a staged entry; called from the commit thread."""

    def released(self, result: Any) -> None: ...
    def failed(self, error: StratalogError) -> None: ...


class Staged:
    """Events that are committed together: their puts, the last position, who waits, and what the waiter gets."""

    __slots__ = ("events", "last", "puts", "result", "size", "waiter")

    def __init__(self, puts: list[Put], events: int, last: Position, size: int, waiter: Waiter, result: Any) -> None:
        self.puts = puts
        self.events = events
        self.last = last
        self.size = size
        self.waiter = waiter
        self.result = result


class ThreadWaiter:
    """A thread parked on a lock."""

    __slots__ = ("_error", "_gate", "_result")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._result: Any = None
        self._error: StratalogError | None = None

    def released(self, result: Any) -> None:
        self._result = result
        self._gate.release()

    def failed(self, error: StratalogError) -> None:
        self._error = error
        self._gate.release()

    def wait(self) -> Any:
        """Park until released; returns the result or raises the error."""
        self._gate.acquire()
        if self._error is not None:
            raise self._error
        return self._result


class LoopWaiter:
    """Coroutines of one loop, each with its result in a list; the loop is called once per group for all of them."""

    __slots__ = ("futures", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, futures: Sequence[asyncio.Future[Any]]) -> None:
        self.loop = loop
        self.futures = futures

    def released(self, result: Sequence[Any]) -> None:
        for future, own in zip(self.futures, result, strict=True):
            if not future.done():
                future.set_result(own)

    def failed(self, error: StratalogError) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(again(error))


class Committer:
    """Owns the commit thread. `lock` guards staging; hold it when calling `stage`.

    One thread at a time commits: the commit thread, or a caller that would otherwise only wait for it, which saves two
    changes of threads where nobody else is appending.

    Without a thread (`threaded=False`, in the simulator) whoever owns it calls `step`.
    """

    def __init__(
        self,
        store: Store,
        settings: HotSettings,
        *,
        drain_due: Callable[[], bool],
        begin_group: Callable[[Sequence[Staged], bool], list[Put]],
        end_group: Callable[[Staged], None],
        after_group: Callable[[], float | None] = lambda: None,
        threaded: bool = True,
    ) -> None:
        """`drain_due` asks for a group of all that is queued; `begin_group` is called under the lock with the group
        and whether it is all that is staged, and may add puts; `end_group` gets the group's last entry once durable;
        `after_group` is called by the commit thread when waiters have been released, and again after the seconds that
        it returns.
        """
        self.lock = threading.Lock()
        self._leading = threading.Lock()
        self._store = store
        self._settings = settings
        self._drain_due = drain_due
        self._begin_group = begin_group
        self._end_group = end_group
        self._after_group = after_group
        self._again_s: float | None = None
        self._looked_after = True
        """Whether `after_group` was called since the last group, whoever committed that."""
        self._work = threading.Condition(self.lock)
        self._queue: deque[Staged] = deque()
        self._group: list[Staged] = []
        self._resting = False
        """The commit thread waits for work, and for nothing else."""
        self._stopping = False
        self.failure: StratalogError | None = None
        self.groups = 0
        self._commit_s = 0.0
        self._threaded = threaded
        self._thread = threading.Thread(target=self._run, name="stratalog-commit", daemon=True)
        if threaded:
            self._thread.start()

    def stage(self, entry: Staged) -> None:
        """Queue an entry; the caller holds `lock` and has checked `failure`, and then calls `notify` or `wait`."""
        self._queue.append(entry)

    def notify(self) -> None:
        """Let the commit thread look for work; the caller holds `lock`."""
        self._work.notify()

    def close(self) -> None:
        """Commit what is queued, then stop the thread."""
        with self.lock:
            self._stopping = True
            self._work.notify()
        if self._threaded:
            self._thread.join()
        else:
            self._finish()

    def wait(self, waiter: ThreadWaiter) -> Any:
        """Wait for an entry that was staged, or commit it here; returns its result or raises its error."""
        if not self._threaded:
            self._finish()
        elif self._leading.acquire(blocking=False):
            try:
                self._lead()
            finally:
                self._leading.release()
                if self._queue:
                    self.wake()
        else:
            self.wake()
        return waiter.wait()

    def wake(self) -> None:
        """Let the commit thread look for work."""
        with self.lock:
            self._work.notify()

    def step(self) -> bool:
        """Commit the next group here, where there is no thread; whether there was one and it is durable."""
        committed = self._lead()
        if committed:
            self._look_after()
        return committed

    def _lead(self) -> bool:
        """Commit the next group; the caller is the only one who does. Whether there was one and it is durable."""
        try:
            return self.failure is None and self._commit_next()
        except Exception as error:  # noqa: BLE001 - whatever it is, the waiters must hear of it
            self._fail(error)
            return False

    def _finish(self) -> None:
        while self.step():
            pass

    def pending(self) -> list[Staged]:
        """What is staged and may not be durable yet; the caller holds `lock`."""
        return [*self._group, *self._queue]

    def _run(self) -> None:
        while True:
            try:
                self._rest()
            except Exception as error:  # noqa: BLE001 - as in `_lead`
                self._fail_leading(error)
            with self._leading:
                committed = self._lead()
            if committed:
                self._look_after()
            elif self._stopping or self.failure is not None:
                return

    def _commit_next(self) -> bool:
        group, puts = self._next_group()
        if not group:
            return False
        for entry in group:
            puts += entry.puts
        started = time.perf_counter()
        self._store.commit(puts)
        self._commit_s = time.perf_counter() - started
        self.groups += 1
        self._end_group(group[-1])
        with self.lock:
            self._group = []
            self._looked_after = False
            if self._resting:  # a caller has committed here, and the thread has no time at which it looks after it
                self._work.notify()
        _release(group)
        return True

    def _look_after(self) -> None:
        """Call `after_group`; not while leading, so that callers who commit do not wait for it."""
        self._looked_after = True  # before the call: a group that ends meanwhile is to be looked after, too
        try:
            self._again_s = self._after_group()
        except Exception as error:  # noqa: BLE001 - as in `_lead`
            self._fail_leading(error)

    def _rest(self) -> None:
        """Wait for something to do; meanwhile call `after_group` when it wants to be."""
        while True:
            with self.lock:
                while not self._ready():
                    if not self._looked_after and self._again_s is None:
                        self._again_s = 0.0
                    self._resting = self._again_s is None
                    rested = not self._work.wait(self._again_s)
                    self._resting = False
                    if rested:
                        break
                if self._ready():
                    return
                self._looked_after = True
            self._again_s = self._after_group()

    def _ready(self) -> bool:
        return self._stopping or self.failure is not None or bool(self._queue)

    def _next_group(self) -> tuple[list[Staged], list[Put]]:
        if self._settings.group_window_us:
            self._gather()
        with self.lock:
            group = self._group = self._take(everything=self._drain_due())
            return group, self._begin_group(group, not self._queue) if group else []

    def _gather(self) -> None:
        """Wait up to W for the group to fill."""
        deadline = time.monotonic() + self._settings.group_window_us / 1e6
        with self.lock:
            while sum(entry.events for entry in self._queue) < self._settings.group_events_max and not self._stopping:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return
                self._work.wait(remaining)

    def _take(self, *, everything: bool) -> list[Staged]:
        queue, settings = self._queue, self._settings
        events_max = min(settings.group_events_max, self._overlapping(sum(entry.events for entry in queue)))
        group: list[Staged] = []
        events = size = 0
        while queue:
            entry = queue[0]
            full = events + entry.events > events_max or size + entry.size > settings.group_bytes_max
            if group and full and not everything:
                break
            group.append(queue.popleft())
            events += entry.events
            size += entry.size
        return group

    def _overlapping(self, queued: int) -> int:
        """How many of the queued events a group should have so that its commit and the staging of others overlap."""
        if not self._threaded or self._commit_s >= queued * STAGING_S:
            return queued
        return max(queued // 2, OVERLAPPING_EVENTS_MIN)

    def _fail_leading(self, error: Exception) -> None:
        with self._leading:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        failure = error if isinstance(error, StratalogError) else InDoubt(f"committing: {error}")
        with self.lock:
            self.failure = failure
            self._group = doubtful = self.pending()
            self._queue.clear()
        for entry in doubtful:
            doubt = InDoubt(f"this append may or may not have become durable: {failure.message}", hint=failure.hint)
            doubt.__cause__ = failure
            waiter = entry.waiter
            if isinstance(waiter, LoopWaiter):
                _call_soon(waiter.loop, waiter.failed, doubt)
            else:
                waiter.failed(doubt)


def again(error: StratalogError) -> StratalogError:
    """The same error for somebody else: one that is raised twice has two tracebacks."""
    copy = type(error)(error.message, hint=error.hint)
    copy.__cause__ = error.__cause__
    return copy


def _release(group: list[Staged]) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[Staged]] = {}
    for entry in group:
        waiter = entry.waiter
        if isinstance(waiter, LoopWaiter):
            loops.setdefault(waiter.loop, []).append(entry)
        else:
            waiter.released(entry.result)
    for loop, entries in loops.items():
        _call_soon(loop, _release_all, entries)


def _release_all(entries: list[Staged]) -> None:
    for entry in entries:
        entry.waiter.released(entry.result)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[Any], None], argument: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits there any more
        loop.call_soon_threadsafe(callback, argument)
