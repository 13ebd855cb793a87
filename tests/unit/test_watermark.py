"""The watermark: it only grows, wakes who waits for what it has reached, and everybody when it closes."""

from __future__ import annotations

import asyncio
import threading

import pytest

from stratalog.hot.watermark import Watermark


def test_it_only_grows() -> None:
    mark = Watermark(5)
    mark.advance(3)
    assert mark.value == 5
    mark.advance(7)
    assert mark.value == 7


def test_a_thread_is_woken_when_its_value_is_reached() -> None:
    mark = Watermark()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(mark.wait(3)))
    thread.start()
    for value in (1, 2, 3):
        mark.advance(value)
    thread.join()
    assert results == [True]


def test_waiting_gives_up_in_time() -> None:
    mark = Watermark(1)
    assert not mark.wait(2, timeout_s=0.01)
    assert mark.wait(1, timeout_s=0)


async def test_coroutines_are_woken_in_the_order_of_their_values() -> None:
    mark = Watermark()
    order: list[int] = []

    async def reach(value: int) -> None:
        assert await mark.reached(value)
        order.append(value)

    tasks = [asyncio.create_task(reach(value)) for value in (3, 1, 2)]
    await asyncio.sleep(0)
    for value in (1, 2, 3):
        await asyncio.to_thread(mark.advance, value)
        await asyncio.sleep(0.001)
    await asyncio.gather(*tasks)
    assert order == [1, 2, 3]
    assert await mark.reached(2)


async def test_a_coroutine_gives_up_in_time_and_leaves_nothing_behind() -> None:
    mark = Watermark()
    assert not await mark.reached(1, timeout_s=0.01)
    task = asyncio.create_task(mark.reached(1))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert mark._futures == []
    mark.advance(1)


async def test_closing_wakes_everybody_with_what_was_reached() -> None:
    mark = Watermark(1)
    task = asyncio.create_task(mark.reached(2))
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(mark.wait(2)))
    thread.start()
    await asyncio.sleep(0)
    await asyncio.to_thread(mark.close)
    assert not await task
    await asyncio.to_thread(thread.join)
    assert results == [False]
    assert await mark.reached(1) and not await mark.reached(2)


def test_a_loop_that_was_closed_meanwhile_does_no_harm() -> None:
    mark = Watermark()

    async def leave() -> asyncio.Task[bool]:
        task = asyncio.create_task(mark.reached(1))
        await asyncio.sleep(0)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(leave())
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    mark.advance(1)
    assert mark.value == 1
