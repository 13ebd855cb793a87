"""What coroutines append in one turn of their loop is staged together, in the order of the calls, each on its own."""

from __future__ import annotations

import asyncio
import threading
import uuid

import pytest
import uuid_utils
from fix_hot import GatedStore, check_chains, log_on, names, note

from stratalog.hot import budget
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog, NewEvent
from stratalog.schemas.errors import Conflict, DiskBudgetExceeded, InDoubt, Invalid, NotFound
from stratalog.schemas.events import ToolResult
from stratalog.schemas.settings import HotSettings

LARGE = 3 << 20


async def test_coroutines_that_are_ready_together_share_a_commit(gated: GatedStore, gated_log: HotLog) -> None:
    started = await asyncio.gather(*(gated_log.start(tenant="t") for _ in range(30)))
    assert len(gated.commits) == 1
    receipts = await asyncio.gather(*(gated_log.append(id_, note("next")) for id_ in started))
    assert len(gated.commits) == 2
    assert [receipt.trajectory_id for receipt in receipts] == started
    assert [receipt.lsn for receipt in receipts] == list(range(31, 61))
    assert {receipt.sequence_number for receipt in receipts} == {1}


async def test_different_calls_of_one_turn_are_staged_in_their_order(gated_log: HotLog) -> None:
    trajectory_id = uuid.uuid4()
    calls = [
        gated_log.start(tenant="t", trajectory_id=trajectory_id),
        gated_log.append(trajectory_id, note("a")),
        gated_log.append_many(trajectory_id, [NewEvent(note("b")), NewEvent(note("c"))], notes={b"k": b"v"}),
        gated_log.append(trajectory_id, note("d")),
    ]
    await asyncio.gather(*calls)
    assert names(gated_log.read(trajectory_id, 1)) == ["a", "b", "c", "d"]
    assert gated_log.note(b"k") == b"v"
    assert check_chains(gated_log) == 5


async def test_what_is_refused_changes_nothing_for_the_others(gated: GatedStore, gated_log: HotLog) -> None:
    trajectory_id, stranger = uuid.uuid4(), uuid.uuid4()
    large = ToolResult(tool_call_id="1", output="x" * LARGE)
    results = await asyncio.gather(
        gated_log.start(tenant="t", trajectory_id=trajectory_id),
        gated_log.append(stranger, note("to nobody")),
        gated_log.append(trajectory_id, note("one")),
        gated_log.start(tenant="t", trajectory_id=trajectory_id),
        gated_log.append(trajectory_id, note("two")),
        return_exceptions=True,
    )
    assert [type(result) for result in results[1::2]] == [NotFound, Conflict]
    assert names(gated_log.read(trajectory_id, 1)) == ["one", "two"]
    with pytest.raises(NotFound):
        await gated_log.append(stranger, large)
    assert not list(gated.scan("chunks", b""))  # its content was placed before it was refused
    assert check_chains(gated_log) == 3


@pytest.mark.parametrize("events_max", [1, 4, 5, 100])
async def test_b_max_bounds_what_one_turn_stages(gated: GatedStore, events_max: int) -> None:
    async with log_on(gated, HotSettings(group_events_max=events_max)) as log:
        trajectory_id = await log.start(tenant="t")
        receipts = await asyncio.gather(
            *(
                log.append_many(trajectory_id, [NewEvent(note(f"{number}.{part}")) for part in (0, 1)])
                for number in range(9)
            )
        )
        sizes = [sum(put.space == "events" for put in puts) for puts in gated.commits[1:]]
        assert sum(sizes) == 18 and max(sizes) <= max(events_max, 2)  # what belongs together is never parted
        assert [receipt.lsn for pair in receipts for receipt in pair] == list(range(2, 20))
        assert check_chains(log) == 19


async def test_each_coroutine_hears_of_a_failure_with_an_error_of_its_own(gated: GatedStore, gated_log: HotLog) -> None:
    started = await asyncio.gather(*(gated_log.start(tenant="t") for _ in range(3)))
    gated.error = OSError(5, "Input/output error")
    first = await asyncio.gather(*(gated_log.append(id_, note("lost")) for id_ in started), return_exceptions=True)
    later = await asyncio.gather(*(gated_log.append(id_, note("later")) for id_ in started), return_exceptions=True)
    for errors in (first, later):
        assert [type(error) for error in errors] == [InDoubt] * 3
        assert len({id(error) for error in errors}) == 3
    assert gated_log.durable_lsn == 3


async def test_a_full_disk_refuses_all_that_was_noted(
    gated: GatedStore, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with HotLog.open(home) as log:
        started = await asyncio.gather(*(log.start(tenant="t") for _ in range(3)))
        monkeypatch.setattr(budget, "CHECK_INTERVAL_S", 0.0)
        with monkeypatch.context() as patch:
            patch.setattr(log.engine.intake._budget, "_free_min", 1.1)
            errors = await asyncio.gather(*(log.append(id_, note("no")) for id_ in started), return_exceptions=True)
        assert [type(error) for error in errors] == [DiskBudgetExceeded] * 3
        await asyncio.gather(*(log.append(id_, note("yes")) for id_ in started))
        assert check_chains(log) == 6


async def test_an_unexpected_error_leaves_nobody_waiting(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: object) -> None:
        raise OSError(5, "Input/output error")

    async with HotLog.open(home) as log:
        trajectory_id = await log.start(tenant="t")
        monkeypatch.setattr(budget, "CHECK_INTERVAL_S", 0.0)
        with monkeypatch.context() as patch:
            patch.setattr(budget.os, "statvfs", fail)
            errors = await asyncio.gather(
                *(log.append(trajectory_id, note("no")) for _ in range(3)), return_exceptions=True
            )
        assert [type(error) for error in errors] == [OSError] * 3
        await log.append(trajectory_id, note("yes"))
        assert check_chains(log) == 2


async def test_an_id_of_another_uuid_library_is_as_good(gated_log: HotLog) -> None:
    trajectory_id = await gated_log.start(tenant="t")
    receipt = await gated_log.append(uuid_utils.UUID(str(trajectory_id)), note("one"))  # type: ignore[arg-type]
    assert receipt.sequence_number == 1
    assert gated_log.append_blocking(trajectory_id, note("two")).sequence_number == 2


async def test_what_was_appended_before_the_log_is_closed_is_committed(gated: GatedStore) -> None:
    async with log_on(gated) as log:
        trajectory_id = await log.start(tenant="t")
        waiting = asyncio.create_task(log.append(trajectory_id, note("last")))
        await asyncio.sleep(0)
    assert (await waiting).lsn == 2
    with pytest.raises(Invalid, match="not open"):
        await log.append(trajectory_id, note("after"))


async def test_a_log_that_is_closed_by_another_thread_meanwhile_refuses_what_was_noted(gated: GatedStore) -> None:
    log = log_on(gated)
    with log:
        trajectory_id = await log.start(tenant="t")
        waiting = asyncio.create_task(log.append(trajectory_id, note("late")))
        await asyncio.sleep(0)
    with pytest.raises(Invalid, match="closed"):
        await waiting


def test_loops_of_several_threads_append_to_one_log(gated_log: HotLog) -> None:
    async def appends() -> None:
        trajectory_id = await gated_log.start(tenant="t")
        for number in range(20):
            await asyncio.gather(*(gated_log.append(trajectory_id, note(f"{number}.{part}")) for part in range(5)))

    threads = [threading.Thread(target=asyncio.run, args=(appends(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert check_chains(gated_log) == 4 * 101
