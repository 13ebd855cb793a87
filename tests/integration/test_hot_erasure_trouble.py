"""Erasing that is interrupted at any step, and while others append, read, prune and close."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from fix_canary import Canary, content_of, surrounded, verified
from fix_hot import check_chains, crash_copy, home, note, read_all
from fix_step_crash import Crash, crashing

from stratalog.hot import contents, erasure, purge
from stratalog.hot.check import HotReport, Replicated, verify_log
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog
from stratalog.hot.rocks import RocksStore
from stratalog.hot.source import open_source
from stratalog.schemas.errors import StratalogError
from stratalog.schemas.events import ToolResult

__all__ = ["home"]

STEPS = {
    "the marker": (erasure.Erasure, "_mark"),
    "a batch of events": (erasure.Erasure, "_erase_batch"),
    "the content of an event": (contents.Contents, "erase"),
    "the content of an event, half way": (contents.Contents, "_forget_chunks"),
    "the notes": (erasure.Erasure, "_erase_events"),
    "the purge": (RocksStore, "purge"),
    "a compaction": (purge.Purge, "_compact"),
    "a change of options": (purge.Purge, "_set"),
    "the wait for files": (purge.Purge, "_are_gone"),
    "what was torn": (erasure.Erasure, "_remove_torn"),
    "the end": (erasure.Erasure, "_finish"),
}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_a_log_in_which_the_next_call_finishes(
    home: Home, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    owner, name = STEPS[step]
    monkeypatch.setattr(erasure, "EVENTS_TOGETHER_MAX", 3)
    with HotLog.open(home) as log:
        canary = surrounded(log)
        kept = {head.trajectory_id: content_of(log, head.trajectory_id) for head in log.heads()}
        del kept[canary.id]
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, crashing(getattr(owner, name), after=after))
            with pytest.raises(Crash):
                log.erase_blocking([canary.id])
        log_id = log.log_id
        killed = crash_copy(home, tmp_path / "killed")
    assert verified(killed, log_id).problems == []
    with HotLog.open(killed, log_id=log_id) as log:
        assert {trajectory_id: content_of(log, trajectory_id) for trajectory_id in kept} == kept
        check_chains(log)
        log.erase_blocking([canary.id])
        assert log.erased() == {canary.id: True}
        assert canary.heard(killed.path) == set()
        assert {trajectory_id: content_of(log, trajectory_id) for trajectory_id in kept} == kept
        assert all(envelope.erased for envelope in log.envelopes(canary.id))
        check_chains(log)


def test_a_second_call_that_trusts_what_it_finds_would_leave_bytes(
    home: Home, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the crashes: what the first call had removed already must be purged by the second one, too."""
    really = erasure._Work.ranges
    with HotLog.open(home) as log:
        canary = surrounded(log)
        with monkeypatch.context() as patch:
            patch.setattr(RocksStore, "purge", crashing(RocksStore.purge, after=False))
            with pytest.raises(Crash):
                log.erase_blocking([canary.id])

        def ranges(work: Any, pruned_lsn: int) -> Any:
            work.everything = False
            return really(work, pruned_lsn)

        monkeypatch.setattr(erasure._Work, "ranges", ranges)
        log.erase_blocking([canary.id])
        assert canary.heard(home.path)


def test_others_append_and_read_meanwhile_and_lose_nothing(home: Home) -> None:
    canaries: list[Canary] = []
    with HotLog.open(home) as log:
        for _ in range(4):
            canaries.append(surrounded(log))
        stop = threading.Event()
        receipts: dict[uuid.UUID, list[Any]] = {}
        failures: list[BaseException] = []

        def append(number: int) -> None:
            try:
                trajectory_id = log.start_blocking(tenant="t")
                done = receipts.setdefault(trajectory_id, [])
                while not stop.is_set():
                    text = f"{number} {len(done)}"
                    body = note(text) if len(done) % 20 else ToolResult(tool_call_id=text, output=text * 10_000)
                    done.append((text, log.append_blocking(trajectory_id, body)))
            except BaseException as error:  # noqa: BLE001 - the test fails with it
                failures.append(error)

        def read() -> None:
            try:
                source = open_source(home, log.log_id)
                while not stop.is_set():
                    read_all(source, events_max=200)
                    verify_log(source, report := HotReport(), secrets={}, replicated=Replicated())
                    assert report.problems == [] and report.blob_problems == []
                source.close()
            except BaseException as error:  # noqa: BLE001 - the test fails with it
                failures.append(error)

        threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
        threads += [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for canary in canaries:
            log.erase_blocking([canary.id])
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert all(canary.heard(home.path) == set() for canary in canaries)
        check_chains(log)
        log_id = log.log_id
    with HotLog.open(home, log_id=log_id) as log:
        for trajectory_id, done in receipts.items():
            assert len(done) > 1
            stored = [(envelope.lsn, envelope.hash) for envelope in log.envelopes(trajectory_id)][1:]
            assert stored == [(receipt.lsn, receipt.hash) for _, receipt in done]
        check_chains(log)


def test_the_event_loop_goes_on_meanwhile(home: Home) -> None:
    async def run() -> int:
        async with HotLog.open(home) as log:
            canary = await asyncio.to_thread(surrounded, log)
            erasing = asyncio.ensure_future(log.erase([canary.id]))
            trajectory_id = await log.start(tenant="t")
            appended = 0
            while not erasing.done():
                await log.append(trajectory_id, note("x"))
                appended += 1
            assert (await erasing).events == 11
            return appended

    assert asyncio.run(run()) > 1


def test_two_erasures_at_once_and_a_prune_do_not_disturb_each_other(home: Home) -> None:
    with HotLog.open(home) as log:
        canaries = [surrounded(log) for _ in range(3)]
        log.engine._heads._live.clear()
        envelope = log.engine.envelope(log.durable_lsn // 2)
        assert envelope is not None
        log.acknowledge(envelope.lsn, envelope.hash)

        def erase(wanted: Sequence[Canary]) -> None:
            log.erase_blocking([canary.id for canary in wanted])

        threads = [
            threading.Thread(target=erase, args=(canaries[:2],)),
            threading.Thread(target=erase, args=(canaries[1:],)),
            threading.Thread(target=log.prune),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(canary.heard(home.path) == set() for canary in canaries)
        assert log.erased() == {canary.id: True for canary in canaries}
        log_id = log.log_id
    assert verified(home, log_id).problems == []


def test_closing_while_erasing_leaves_the_rest_to_the_next_call(home: Home) -> None:
    with HotLog.open(home) as log:
        canary = surrounded(log)
        log_id = log.log_id
        source = open_source(home, log_id)

        def erase() -> None:
            with contextlib.suppress(StratalogError):  # it may be done before the log is closed
                source.erase([canary.id])

        erasing = threading.Thread(target=erase)
        erasing.start()
        while not log.erased():
            pass
    erasing.join()
    source.close()
    with HotLog.open(home, log_id=log_id) as log:
        log.erase_blocking([canary.id])
        assert canary.heard(home.path) == set()
        check_chains(log)
