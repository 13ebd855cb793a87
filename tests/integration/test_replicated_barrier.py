"""The barrier `replicated`: an append that also waits for Postgres."""

from __future__ import annotations

import asyncio

import pytest
from fix_hot import names, note

from stratalog.hot.home import Home
from stratalog.hot.log import HotLog, NewEvent
from stratalog.schemas.errors import (
    Fenced,
    Unavailable,
)


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("quarantined", [False, True])
async def test_a_replicated_append_waits_for_postgres(home: Home, blocking: bool, quarantined: bool) -> None:
    async with HotLog.open(home) as log:
        trajectory_id = await log.start(tenant="t")
        if blocking:
            task = asyncio.create_task(
                asyncio.to_thread(log.append_blocking, trajectory_id, note("x"), barrier="replicated")
            )
        else:
            task = asyncio.create_task(log.append(trajectory_id, note("x"), barrier="replicated"))
        while not await log.engine.durable.reached(2, 0.01):
            assert not task.done()
        event = log.get(2)
        assert event is not None and not task.done()
        log.acknowledge(2, event.hash, [2] if quarantined else [])
        if quarantined:
            with pytest.raises(Fenced):
                await task
        else:
            assert (await task).lsn == 2
        assert log.replicated_lsn == 2


async def test_a_replicated_append_gives_up_in_time_and_is_durable(home: Home) -> None:
    async with HotLog.open(home) as log:
        trajectory_id = await log.start(tenant="t")
        with pytest.raises(Unavailable, match="durable here"):
            await log.append(trajectory_id, note("x"), barrier="replicated", timeout_s=0.01)
        with pytest.raises(Unavailable):
            await asyncio.to_thread(log.append_blocking, trajectory_id, note("y"), barrier="replicated", timeout_s=0.01)
        assert names(log.read(trajectory_id)) == ["x", "y"]


def test_a_quarantine_is_never_answered_as_durable_however_many_there_are(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.hot.replication.QUARANTINED_MAX", 4)
    with HotLog.open(home) as log:
        trajectory_id = log.start_blocking(tenant="t")
        receipts = log.append_many_blocking(trajectory_id, [NewEvent(note(str(number))) for number in range(20)])
        for receipt in receipts:
            log.acknowledge(receipt.lsn, receipt.hash, [receipt.lsn])
        assert all(log.engine.is_quarantined(receipt.lsn) for receipt in receipts)
        assert not log.engine.is_quarantined(receipts[-1].lsn + 1)
