"""The hot log as its users meet it: appends from anywhere, receipts, reads up to the watermark, refusals, barriers."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from typing import Any

import msgspec
import pytest
from fix_hot import GatedStore, check_chains, log_on, names, note

from stratalog.hot.home import Home
from stratalog.hot.log import HotLog, NewEvent
from stratalog.hot.opening import open_engine
from stratalog.hot.sim import SimDisk, SimStore
from stratalog.schemas import ids
from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.errors import (
    Conflict,
    Corrupt,
    DiskBudgetExceeded,
    InDoubt,
    Invalid,
    NotFound,
)
from stratalog.schemas.events import Annotation, EventBody, TaskStarted, ToolIntent, ToolResult, Unknown
from stratalog.schemas.settings import HotSettings

LARGE = 3 << 20


async def test_the_lines_of_the_readme(home: Home) -> None:
    async with HotLog.open(home.path) as log:
        trajectory_id = await log.start(tenant="default", task="say hello")
        receipt = await log.append(trajectory_id, ToolIntent(tool_call_id="1", tool="greet"))
        assert (receipt.log_id, receipt.lsn, receipt.sequence_number) == (log.log_id, 2, 1)
        assert receipt.trajectory_id == trajectory_id
        events = list(log.read(trajectory_id))
        assert [event.kind for event in events] == ["TaskStarted", "ToolIntent"]
        assert isinstance(events[0].body, TaskStarted) and events[0].body.task == "say hello"
        assert events[1].hash == receipt.hash and log.durable_lsn == 2
        found = log.get(2)
        assert found == events[1]
        assert log.get(0) is None and log.get(3) is None
        assert [(lsn, event.kind) for lsn, event in log.scan(2)] == [(2, "ToolIntent")]
        head = log.head(trajectory_id)
        assert head is not None and (head.lsn, head.hash) == (2, receipt.hash)


def test_everything_is_there_after_closing_and_opening(home: Home) -> None:
    receipts = []
    for number in range(4):
        with HotLog.open(home.path) as log:
            if not receipts:
                trajectory_id = log.start_blocking(tenant="t")
            receipts.append(log.append_blocking(trajectory_id, note(str(number)), created_at=number))
    with HotLog.open(home) as log:
        assert check_chains(log) == 5
        assert names(log.read(trajectory_id)) == ["0", "1", "2", "3"]
        assert [event.header.created_at for event in log.read(trajectory_id, 1)] == [0, 1, 2, 3]
        assert [event.hash for event in log.read(trajectory_id, 3)] == [receipt.hash for receipt in receipts[2:]]
        assert list(log.read(trajectory_id, 99)) == []


async def test_threads_and_coroutines_append_at_once(home: Home) -> None:
    async with HotLog.open(home) as log:
        shared = await log.start(tenant="shared")

        def work(name: str) -> list[int]:
            own = log.start_blocking(tenant=name)
            lsns = []
            for number in range(40):
                lsns.append(log.append_blocking(own, note(f"{name} {number}")).lsn)
                lsns.append(log.append_blocking(shared, note(f"{name} {number}")).lsn)
            assert names(log.read(own)) == [f"{name} {number}" for number in range(40)]
            return lsns

        async def coroutine(name: str) -> list[int]:
            return [(await log.append(shared, note(f"{name} {number}"))).lsn for number in range(40)]

        results = await asyncio.gather(
            *(asyncio.to_thread(work, f"thread-{number}") for number in range(8)),
            *(coroutine(f"coroutine-{number}") for number in range(16)),
        )
        lsns = [lsn for result in results for lsn in result]
        assert len(set(lsns)) == len(lsns) == 8 * 80 + 16 * 40
        assert all(result == sorted(result) for result in results)
        assert check_chains(log) == 1 + 8 * 81 + 16 * 40
        written = names(log.read(shared))
        for name in [f"thread-{n}" for n in range(8)] + [f"coroutine-{n}" for n in range(16)]:
            assert [text for text in written if text.startswith(f"{name} ")] == [f"{name} {n}" for n in range(40)]


async def test_events_of_one_call_are_there_together_with_its_notes(home: Home) -> None:
    async with HotLog.open(home) as log:
        trajectory_id = await log.start(tenant="t", notes={b"cursor": b"0"})
        receipts = await log.append_many(
            trajectory_id, [NewEvent(note(str(number))) for number in range(1000)], notes={b"cursor": b"1000"}
        )
        assert [receipt.sequence_number for receipt in receipts] == list(range(1, 1001))
        assert log.note(b"cursor") == b"1000" and log.note(b"other") is None
        assert await log.append_many(trajectory_id, []) == []
        await log.append_many(trajectory_id, [], notes={b"other": b""})
        assert log.note(b"other") == b""
    with HotLog.open(home) as again:
        assert again.note(b"cursor") == b"1000" and check_chains(again) == 1001


# --- refusals -----------------------------------------------------------------------------------------------------


async def test_a_trajectory_starts_once_and_must_have_started(home: Home) -> None:
    async with HotLog.open(home) as log:
        trajectory_id = await log.start(tenant="t")
        with pytest.raises(Conflict):
            await log.start(tenant="t", trajectory_id=trajectory_id)
        assert log.head(uuid.uuid4()) is None
        with pytest.raises(NotFound):
            await log.append(uuid.uuid4(), note("x"))
        with pytest.raises(NotFound):
            list(log.read(uuid.uuid4()))
        assert log.durable_lsn == 1


def referring(content: bytes, **changes: Any) -> ToolResult:
    ref = msgspec.structs.replace(BlobRef.of(content), **changes)
    return ToolResult(tool_call_id="1", full=Blob(ref))


OTHER = BlobRef.of(b"other")
BAD: list[NewEvent] = [
    NewEvent(Annotation(name="n", value=msgspec.Raw(b"[" + b"1," * 600_000 + b"1]"))),
    NewEvent(referring(b"content")),
    NewEvent(referring(b"content", size=8), blobs=((BlobRef.of(b"content"), b"content"),)),
    NewEvent(note("x"), blobs=((OTHER, b"other"),)),
    NewEvent(referring(b"other"), blobs=((OTHER, b"another"),)),
    NewEvent(referring(b"other"), blobs=((msgspec.structs.replace(OTHER, size=4), b"other"),)),
    NewEvent(note("x"), created_at=-1),
    NewEvent(note("x"), created_at=253_402_300_800_000_000),
    NewEvent(note("x"), created_at=1.5),  # type: ignore[arg-type]
    NewEvent(note("\ud800")),
    NewEvent(Unknown("bad\nkind", b"{}")),
    NewEvent(Unknown("", b"{}")),
    NewEvent(Unknown("k" * 200, b"{}")),
]


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
async def test_what_is_invalid_is_refused_and_nothing_is_written(home: Home, bad: NewEvent) -> None:
    async with HotLog.open(home) as log:
        trajectory_id = await log.start(tenant="t")
        large = ToolResult(tool_call_id="1", output="x" * LARGE)
        with pytest.raises(Invalid):
            await log.append_many(trajectory_id, [NewEvent(note("good")), NewEvent(large), bad])
        receipt = await log.append(trajectory_id, note("after"))
        assert (receipt.lsn, receipt.sequence_number) == (2, 1)
        assert list(log.engine.store.scan("chunks", b"")) == []
    with HotLog.open(home) as again:
        assert check_chains(again) == 2


@pytest.mark.parametrize("tenant", ["../x", "", "A", "x" * 64, "a/b", "-a", "a\n", "ä"])
def test_a_foreign_tenant_name_is_refused(home: Home, tenant: str) -> None:
    with HotLog.open(home) as log:
        with pytest.raises(Invalid):
            log.start_blocking(tenant=tenant)
        with pytest.raises(Invalid):
            log.start_blocking(tenant="t", secret=b"short")
        assert log.heads() == [] and log.durable_lsn == 0


def test_content_of_a_refused_event_is_removed(home: Home) -> None:
    with HotLog.open(home) as log:
        for _ in range(2):
            with pytest.raises(NotFound):
                log.append_blocking(uuid.uuid4(), ToolResult(tool_call_id="1", output="x" * LARGE))
        assert list(log.engine.store.scan("chunks", b"")) == []


def test_a_full_disk_refuses_appends_before_anything_is_written(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.path / "stratalog.toml").write_text("[hot]\ndisk_free_min = 1.0\n")
    with HotLog.open(home.path) as log:
        for body in (TaskStarted(), TaskStarted(task="x" * LARGE)):
            with pytest.raises(DiskBudgetExceeded):
                log.start_blocking(tenant="t", body=body)
        assert log.durable_lsn == 0 and list(log.engine.store.scan("chunks", b"")) == []


# --- contents -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 33_000, 1 << 20, LARGE])
async def test_bulky_output_goes_out_of_line_and_comes_back(home: Home, size: int) -> None:
    text = "ä" * (size // 2)
    content = os.urandom(size)
    async with HotLog.open(home) as log:
        trajectory_id = await log.start(tenant="t")
        body = ToolResult(tool_call_id="1", output=text, full=Blob(BlobRef.of(content)))
        receipt = await log.append(trajectory_id, body, blobs=[content])
    with HotLog.open(home) as log:
        event = log.get(receipt.lsn)
        assert event is not None and isinstance(event.body, ToolResult) and event.body.full is not None
        assert log.blob(receipt.lsn, event.body.full.ref.sha256) == content
        if isinstance(event.body.output, Blob):
            assert log.blob(receipt.lsn, event.body.output.ref.sha256) == text.encode()
        else:
            assert event.body.output == text and size == 10
        with pytest.raises(NotFound):
            log.blob(receipt.lsn, "0" * 64)
        with pytest.raises(NotFound):
            log.blob(receipt.lsn, "nonsense")


async def test_the_event_loop_does_not_wait_for_the_disk_when_content_is_large(
    gated: GatedStore, gated_log: HotLog
) -> None:
    trajectory_id = await gated_log.start(tenant="t")
    gated.gate.clear()
    append = asyncio.create_task(gated_log.append(trajectory_id, ToolResult(tool_call_id="1", output="x" * LARGE)))
    await asyncio.to_thread(gated.waiting.acquire)  # the first piece waits at the gate, and we still run
    assert not append.done()
    gated.gate.set()
    assert (await append).sequence_number == 1


# --- the watermark ------------------------------------------------------------------------------------------------


async def test_nothing_is_read_before_it_is_durable(gated: GatedStore, gated_log: HotLog) -> None:
    trajectory_id = await gated_log.start(tenant="t")
    await gated_log.append(trajectory_id, note("durable"))
    gated.gate.clear()
    waiting = [asyncio.create_task(gated_log.append(trajectory_id, note("in the group")))]
    await asyncio.to_thread(gated.waiting.acquire)
    waiting.append(asyncio.create_task(gated_log.append(trajectory_id, note("in the queue"))))
    while gated_log.engine.stager.last.lsn < 4:
        await asyncio.sleep(0)
    head = gated_log.head(trajectory_id)
    assert head is not None and head.lsn == 4 and gated_log.durable_lsn == 2
    assert names(gated_log.read(trajectory_id)) == ["durable"]
    assert [lsn for lsn, _ in gated_log.scan()] == [1, 2]
    assert gated_log.get(3) is None
    gated.gate.set()
    await asyncio.gather(*waiting)
    assert names(gated_log.read(trajectory_id)) == ["durable", "in the group", "in the queue"]


def test_what_is_written_but_not_synced_is_not_read_and_may_be_gone() -> None:
    reached, go_on = threading.Event(), threading.Event()
    syncing = False

    def fault(step: str) -> None:
        if syncing and step == "sync":
            reached.set()
            go_on.wait()
            raise OSError(5, "Input/output error")

    disk = SimDisk(fault)
    with log_on(SimStore(disk)) as log:
        trajectory_id = log.start_blocking(tenant="t")
        log.append_blocking(trajectory_id, note("durable"))
        syncing = True
        errors: list[BaseException] = []

        def append() -> None:
            try:
                log.append_blocking(trajectory_id, note("doubtful"))
            except InDoubt as error:
                errors.append(error)

        thread = threading.Thread(target=append)
        thread.start()
        reached.wait()
        try:
            assert log.engine.store.get("events", (3).to_bytes(8, "big")) is not None
            assert names(log.read(trajectory_id)) == ["durable"] and log.get(3) is None
        finally:
            go_on.set()
            thread.join()
        assert len(errors) == 1
        assert names(log.read(trajectory_id)) == ["durable"]
        with pytest.raises(InDoubt, match="earlier commit failed"):
            log.append_blocking(trajectory_id, note("after"))
        with pytest.raises(InDoubt):
            log.start_blocking(tenant="t", task="x" * LARGE)
    # In doubt: it may be there, or not; both are whole logs.
    for keep, expected in ((1, ["durable", "doubtful"]), (0, ["durable"])):
        copy = SimDisk()
        copy.batches, copy.synced = list(disk.batches), disk.synced
        copy.crash(keep)
        with log_on(SimStore(copy)) as log:
            check_chains(log)
            assert names(log.read(trajectory_id)) == expected


async def test_an_append_that_is_cancelled_becomes_durable_all_the_same(gated: GatedStore, gated_log: HotLog) -> None:
    trajectory_id = await gated_log.start(tenant="t")
    gated.gate.clear()
    first = asyncio.create_task(gated_log.append(trajectory_id, note("first")))
    await asyncio.to_thread(gated.waiting.acquire)
    second = asyncio.create_task(gated_log.append(trajectory_id, note("second")))
    await asyncio.sleep(0)
    for task in (first, second):
        task.cancel()
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 2
    gated.gate.set()
    await gated_log.append(trajectory_id, note("third"))
    assert names(gated_log.read(trajectory_id)) == ["first", "second", "third"]


def test_a_loop_that_ends_while_its_append_is_committed_stops_nobody(gated: GatedStore, gated_log: HotLog) -> None:
    trajectory_id = gated_log.start_blocking(tenant="t")
    gated.gate.clear()

    async def leave() -> None:
        task = asyncio.create_task(gated_log.append(trajectory_id, note("left")))
        await asyncio.to_thread(gated.waiting.acquire)
        task.cancel()

    asyncio.run(leave())
    gated.gate.set()
    gated_log.append_blocking(trajectory_id, note("other"))
    assert names(gated_log.read(trajectory_id)) == ["left", "other"]


# --- damage that shows only when reading --------------------------------------------------------------------------


def test_a_hole_is_damage_for_every_reader() -> None:
    with log_on(SimStore(SimDisk())) as log:
        trajectory_id = log.start_blocking(tenant="t")
        log.append_many_blocking(trajectory_id, [NewEvent(note(str(number))) for number in range(5)])
        log.engine.store.delete_range("events", (3).to_bytes(8, "big"), (4).to_bytes(8, "big"))
        for read in (lambda: log.get(3), lambda: list(log.scan()), lambda: list(log.read(trajectory_id))):
            with pytest.raises(Corrupt, match="LSN 3"):
                read()
        log.engine.store.delete_range("events", (5).to_bytes(8, "big"), (9).to_bytes(8, "big"))
        with pytest.raises(Corrupt, match="LSN 5"):
            list(log.scan(4))


@pytest.mark.parametrize("events_max", [1, 7, 256])
async def test_groups_are_bounded_by_the_settings(gated: GatedStore, events_max: int) -> None:
    async with log_on(gated, HotSettings(group_events_max=events_max)) as log:
        trajectory_id = await log.start(tenant="t")
        await asyncio.gather(*(log.append(trajectory_id, note(str(number))) for number in range(50)))
        sizes = [sum(put.space == "events" for put in puts) for puts in gated.commits]
        assert sum(sizes) == 51 and max(sizes) <= events_max
        assert check_chains(log) == 51


async def test_bodies_of_any_kind_come_back_byte_for_byte(home: Home) -> None:
    bodies: list[EventBody] = [
        Unknown("FutureKind", b'{"b":1,"a":2.50,"b":3}'),
        Unknown("ToolIntent", b'{"tool_call_id":5}'),
        Unknown("NotJson", b"\xff\x00 not json"),
    ]
    async with HotLog.open(home) as log:
        trajectory_id = await log.start(tenant="t", trajectory_id=ids.new_trajectory_id())
        for body in bodies:
            await log.append(trajectory_id, body)
        found = list(log.envelopes(trajectory_id, 1))
        assert [(envelope.header.kind, envelope.body) for envelope in found] == [
            (body.kind, body.raw) for body in bodies if isinstance(body, Unknown)
        ]


def test_an_engine_that_cannot_write_head_refuses_to_go_on(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.path / "stratalog.toml").write_text("[hot]\nhead_interval_ms = 0\n")
    engine = open_engine(Home.open(home.path))
    with HotLog.on(engine) as log:
        trajectory_id = log.start_blocking(tenant="t")

        def fail(*arguments: Any, **options: Any) -> None:
            raise OSError(28, "No space left on device")

        assert engine._head is not None
        monkeypatch.setattr(engine._head, "write", fail)
        log.append_blocking(trajectory_id, note("durable"))  # it is, whatever happens to HEAD
        engine._committer._thread.join(10)
        with pytest.raises(InDoubt, match="No space left"):
            log.append_blocking(trajectory_id, note("refused"))
