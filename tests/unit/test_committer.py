"""Group commit: the order is kept, groups are bounded, everybody hears how it ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from fix_hot import GatedStore

from stratalog.hot.committer import OVERLAPPING_EVENTS_MIN, Committer, LoopWaiter, Staged, ThreadWaiter, Waiter
from stratalog.hot.keys import Position
from stratalog.schemas.errors import InDoubt, StratalogError
from stratalog.schemas.protocols import Put
from stratalog.schemas.settings import HotSettings


class Bench:
    """A committer on a gated store, and what it told its owner."""

    def __init__(self, store: GatedStore, settings: HotSettings, *, drain: bool = False) -> None:
        self.store = store
        self.drain = drain
        self.ended: list[int] = []
        self.drained: list[bool] = []
        self.after: Callable[[], float | None] = lambda: None
        self.committer = Committer(
            store,
            settings,
            drain_due=lambda: self.drain,
            begin_group=self._begin,
            end_group=lambda last: self.ended.append(last.last.lsn),
            after_group=lambda: self.after(),
        )
        self.lsn = 0

    def _begin(self, group: Sequence[Staged], drained: bool) -> list[Put]:
        self.drained.append(drained)
        return []

    def stage(self, waiter: Waiter, events: int = 1, size: int = 10) -> int:
        with self.committer.lock:
            if self.committer.failure is not None:
                raise self.committer.failure
            self.lsn += events
            puts = [Put("events", self.lsn.to_bytes(8, "big"), b"")]
            result = [self.lsn] if isinstance(waiter, LoopWaiter) else self.lsn
            self.committer.stage(Staged(puts, events, Position(self.lsn), size, waiter, result))
            self.committer.notify()
            return self.lsn

    def blocked(self) -> ThreadWaiter:
        """Close the gate and let one commit arrive there."""
        self.store.gate.clear()
        waiter = ThreadWaiter()
        self.stage(waiter)
        self.store.waiting.acquire()
        return waiter

    def groups(self) -> list[int]:
        """The number of entries in each group."""
        return [len(puts) for puts in self.store.commits]

    def close(self) -> None:
        self.store.gate.set()
        self.committer.close()


@pytest.fixture
def make(gated: GatedStore, request: pytest.FixtureRequest) -> Callable[..., Bench]:
    def made(settings: HotSettings | None = None, **options: Any) -> Bench:
        bench = Bench(gated, settings or HotSettings(), **options)
        request.addfinalizer(bench.close)
        return bench

    return made


def test_a_waiter_gets_its_result_once_its_entry_is_committed(make: Callable[..., Bench]) -> None:
    bench = make()
    waiter = ThreadWaiter()
    lsn = bench.stage(waiter)
    assert waiter.wait() == lsn
    assert bench.groups() == [1] and bench.ended == [1]


def test_what_queues_during_a_commit_is_the_next_group_in_its_order(make: Callable[..., Bench]) -> None:
    bench = make()
    first = bench.blocked()
    waiters = [ThreadWaiter() for _ in range(OVERLAPPING_EVENTS_MIN)]
    lsns = [bench.stage(waiter) for waiter in waiters]
    bench.store.gate.set()
    assert [waiter.wait() for waiter in waiters] == lsns
    assert first.wait() == 1
    assert bench.groups() == [1, OVERLAPPING_EVENTS_MIN]
    committed = [int.from_bytes(put.key, "big") for puts in bench.store.commits for put in puts]
    assert committed == list(range(1, OVERLAPPING_EVENTS_MIN + 2))


@pytest.mark.parametrize(("commit_s", "parts"), [(0.0, [2, 1, 1]), (1.0, [4])])
def test_of_many_events_half_go_into_a_group_unless_commits_are_slow(
    make: Callable[..., Bench], commit_s: float, parts: list[int]
) -> None:
    bench = make()
    bench.committer._commit_s = commit_s
    waiters = [ThreadWaiter() for _ in range(4)]
    with bench.committer.lock:
        for number, waiter in enumerate(waiters, 1):
            last = Position(number * OVERLAPPING_EVENTS_MIN)
            bench.committer.stage(Staged([], OVERLAPPING_EVENTS_MIN, last, 10, waiter, number))
        bench.committer.notify()
    assert [waiter.wait() for waiter in waiters] == [1, 2, 3, 4]
    assert len(bench.groups()) == len(parts)
    assert bench.ended == [OVERLAPPING_EVENTS_MIN * sum(parts[: number + 1]) for number in range(len(parts))]


def test_a_group_has_at_most_b_max_events_and_bytes(make: Callable[..., Bench]) -> None:
    bench = make(HotSettings(group_events_max=8, group_bytes_max=1000))
    first = bench.blocked()
    waiters = [ThreadWaiter() for _ in range(20)]
    for waiter in waiters:
        bench.stage(waiter, events=3)
    large = [ThreadWaiter() for _ in range(3)]
    for waiter in large:
        bench.stage(waiter, events=6, size=700)
    huge = ThreadWaiter()
    bench.stage(huge, events=100, size=5000)
    bench.store.gate.set()
    for waiter in (first, *waiters, *large, huge):
        waiter.wait()
    # Two entries of three events; the entries of 700 bytes alone; what is too large alone, but whole.
    assert bench.groups() == [1, *[2] * 10, 1, 1, 1, 1]


def test_a_group_of_all_that_is_queued_when_the_owner_asks_for_it(make: Callable[..., Bench]) -> None:
    bench = make(HotSettings(group_events_max=4))
    first = bench.blocked()
    bench.drain = True
    waiters = [ThreadWaiter() for _ in range(20)]
    for waiter in waiters:
        bench.stage(waiter)
    bench.store.gate.set()
    for waiter in (first, *waiters):
        waiter.wait()
    assert bench.groups() == [1, 20]
    assert bench.drained == [True, True]


def test_the_owner_is_told_whether_something_is_left_in_the_queue(make: Callable[..., Bench]) -> None:
    bench = make(HotSettings(group_events_max=2))
    first = bench.blocked()
    waiters = [ThreadWaiter() for _ in range(3)]
    for waiter in waiters:
        bench.stage(waiter)
    bench.store.gate.set()
    for waiter in (first, *waiters):
        waiter.wait()
    assert bench.drained == [True, False, True]


def test_a_window_gathers_a_group_and_ends_early_when_it_is_full(make: Callable[..., Bench]) -> None:
    bench = make(HotSettings(group_window_us=60_000_000, group_events_max=10))
    waiters = [ThreadWaiter() for _ in range(10)]
    for waiter in waiters:
        bench.stage(waiter)
    for waiter in waiters:
        waiter.wait()  # far before the window of a minute ends
    assert bench.groups() == [10]


def test_a_window_that_ends_commits_what_came(make: Callable[..., Bench]) -> None:
    bench = make(HotSettings(group_window_us=1000))
    waiter = ThreadWaiter()
    bench.stage(waiter)
    assert waiter.wait() == 1


def test_closing_ends_the_window_and_commits_what_is_queued(make: Callable[..., Bench]) -> None:
    bench = make(HotSettings(group_window_us=60_000_000))
    waiters = [ThreadWaiter() for _ in range(3)]
    for waiter in waiters:
        bench.stage(waiter)
    bench.committer.close()
    assert [waiter.wait() for waiter in waiters] == [1, 2, 3]


def test_a_failure_is_heard_by_the_group_and_all_behind_it_and_by_later_callers(make: Callable[..., Bench]) -> None:
    bench = make(HotSettings(group_events_max=2))
    bench.store.error = InDoubt("the disk is broken", hint="look at it")
    first = bench.blocked()
    waiters = [ThreadWaiter() for _ in range(7)]
    for waiter in waiters:
        bench.stage(waiter)
    bench.store.gate.set()
    for waiter in (first, *waiters):
        with pytest.raises(InDoubt, match=r"may or may not.*the disk is broken") as caught:
            waiter.wait()
        assert caught.value.hint == "look at it"
    with pytest.raises(InDoubt, match="the disk is broken"):
        bench.stage(ThreadWaiter())
    assert bench.ended == []


@pytest.mark.parametrize("place", ["commit", "begin", "end", "after"])
def test_an_unexpected_error_anywhere_leaves_nobody_waiting(make: Callable[..., Bench], place: str) -> None:
    bench = make()

    def fail(*arguments: object) -> Any:
        raise OSError(28, "No space left on device")

    first = bench.blocked()
    match place:
        case "commit":
            bench.store.error = OSError("no")
        case "begin":
            bench.committer._begin_group = fail
        case "end":
            bench.committer._end_group = fail
        case "after":
            bench.after = fail
    second = ThreadWaiter()
    bench.stage(second)
    bench.store.gate.set()
    outcomes = []
    for waiter in (first, second):
        try:
            outcomes.append(waiter.wait())
        except StratalogError as error:
            outcomes.append(type(error))
    assert outcomes[1] is InDoubt
    assert outcomes[0] == (1 if place in ("begin", "after") else InDoubt)
    bench.committer._thread.join()
    assert isinstance(bench.committer.failure, InDoubt)


class CountingLoop:
    """A loop that counts the calls into it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.calls = 0

    def call_soon_threadsafe(self, *arguments: Any) -> Any:
        self.calls += 1
        return self._loop.call_soon_threadsafe(*arguments)


def one_coroutine(loop: asyncio.AbstractEventLoop) -> LoopWaiter:
    return LoopWaiter(loop, [loop.create_future()])


async def test_coroutines_are_released_with_one_call_into_their_loop_per_group(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.blocked()
    running = asyncio.get_running_loop()
    loop = CountingLoop(running)
    waiters = [LoopWaiter(loop, [running.create_future()]) for _ in range(30)]  # type: ignore[arg-type]
    lsns = [bench.stage(waiter) for waiter in waiters]
    bench.store.gate.set()
    assert await asyncio.gather(*(waiter.futures[0] for waiter in waiters)) == lsns
    assert loop.calls == 1


async def test_coroutines_of_one_entry_each_get_their_own_result(make: Callable[..., Bench]) -> None:
    bench = make()
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(3)]
    with bench.committer.lock:
        bench.committer.stage(Staged([], 3, Position(3), 30, LoopWaiter(loop, futures), ["a", "b", "c"]))
        bench.committer.notify()
    futures[1].cancel()
    assert await asyncio.gather(*futures, return_exceptions=True) == ["a", ANY, "c"]
    assert futures[1].cancelled()


async def test_coroutines_hear_of_a_failure(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.store.error = InDoubt("the disk is broken")
    waiters = [one_coroutine(asyncio.get_running_loop()) for _ in range(3)]
    bench.blocked()
    for waiter in waiters:
        bench.stage(waiter)
    waiters[0].futures[0].cancel()
    bench.store.gate.set()
    results = await asyncio.gather(*(waiter.futures[0] for waiter in waiters), return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, InDoubt, InDoubt]


@pytest.mark.parametrize("fails", [False, True])
def test_a_loop_that_is_closed_meanwhile_does_not_stop_the_others(make: Callable[..., Bench], fails: bool) -> None:
    bench = make()
    bench.blocked()
    loop = asyncio.new_event_loop()
    bench.stage(one_coroutine(loop))
    other = ThreadWaiter()
    bench.stage(other)
    loop.close()
    if fails:
        bench.store.error = InDoubt("the disk is broken")
    bench.store.gate.set()
    if fails:
        with pytest.raises(InDoubt):
            other.wait()
    else:
        assert other.wait() == 3
        again = ThreadWaiter()
        bench.stage(again)
        assert again.wait() == 4


def test_threads_and_coroutines_at_once_are_committed_in_the_order_of_staging(make: Callable[..., Bench]) -> None:
    bench = make(HotSettings(group_events_max=16))
    results: list[int] = []

    def append() -> None:
        for _ in range(200):
            waiter = ThreadWaiter()
            lsn = bench.stage(waiter)
            assert waiter.wait() == lsn
            results.append(lsn)

    async def append_many() -> None:
        async def one() -> None:
            for _ in range(20):
                waiter = one_coroutine(asyncio.get_running_loop())
                lsn = bench.stage(waiter)
                assert await waiter.futures[0] == lsn
                results.append(lsn)

        await asyncio.gather(*(one() for _ in range(20)))

    threads = [threading.Thread(target=append) for _ in range(8)]
    for thread in threads:
        thread.start()
    asyncio.run(append_many())
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(1, 2001))
    committed = [int.from_bytes(put.key, "big") for puts in bench.store.commits for put in puts]
    assert committed == list(range(1, 2001))
    assert max(bench.groups()) <= 16


def test_the_owner_is_called_again_while_nothing_is_to_do(make: Callable[..., Bench]) -> None:
    bench = make()
    called = threading.Semaphore(0)
    remaining = [0.001, 0.001, None]

    def after() -> float | None:
        called.release()
        return remaining.pop(0)

    bench.after = after
    waiter = ThreadWaiter()
    bench.stage(waiter)
    waiter.wait()
    for _ in range(3):
        assert called.acquire(timeout=10)
    assert remaining == []


def test_a_group_that_a_caller_commits_while_another_is_looked_after_is_looked_after_too(
    make: Callable[..., Bench],
) -> None:
    """Or HEAD would stay behind it until something else is appended."""
    bench = make()
    looking, go_on, seen = threading.Event(), threading.Event(), threading.Event()

    def after() -> float | None:
        if not looking.is_set():
            looking.set()
            go_on.wait(10)
        elif bench.ended[-1] == 2:
            seen.set()
        return None

    bench.after = after
    first, second = ThreadWaiter(), ThreadWaiter()
    bench.stage(first)
    assert first.wait() == 1 and looking.wait(10)
    bench.stage(second)
    assert bench.committer.wait(second) == 2, "the thread is busy, so the caller commits"
    go_on.set()
    assert seen.wait(10)
