"""Erasing from a hot log: afterwards no file of it has a byte of the trajectory, and everything else is as it was."""

from __future__ import annotations

import asyncio
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fix_canary import Canary
from fix_hot import MB, GatedStore, check_chains, crash_copy, fill, home, names, note, read_all
from fix_step_crash import Crash, crashing

from stratalog.hot import contents, erasure, frames, keys, purge, serving
from stratalog.hot.check import HotReport, Replicated, verify_log
from stratalog.hot.committer import ThreadWaiter
from stratalog.hot.erasure import ErasedHere
from stratalog.hot.frames import Reply, Request
from stratalog.hot.home import Home
from stratalog.hot.intake import Addition
from stratalog.hot.log import HotLog, NewEvent
from stratalog.hot.renewal import renew_log
from stratalog.hot.rocks import RocksStore
from stratalog.hot.source import LocalSource, SocketSource, open_reader, open_source
from stratalog.schemas.chain import Link
from stratalog.schemas.errors import DiskBudgetExceeded, Erased, Locked, NotFound, Unavailable
from stratalog.schemas.events import TaskStarted, ToolResult, Unknown
from stratalog.schemas.protocols import Put, Range

__all__ = ["home"]


def others(log: HotLog, count: int = 12) -> list[uuid.UUID]:
    """Trajectories around it, some with content."""
    return [fill(log, 20, bulk=MB // 8 if index % 3 == 0 else 0)[0] for index in range(count)]


def surrounded(log: HotLog) -> Canary:
    """A canary of which a part is in tables and blob files, and a part only in the write-ahead log."""
    others(log)
    canary = Canary(log)
    canary.sing()
    others(log, 30)
    canary.sing_again()
    others(log, 2)
    return canary


def verified(home: Home, log_id: uuid.UUID) -> HotReport:
    """What verifying a log finds."""
    reader = open_reader(home, log_id)
    secrets = {head.trajectory_id: head.secret for head in reader.heads()}
    reader.close()
    source = open_source(home, log_id)
    try:
        return verify_log(source, HotReport(), secrets=secrets, replicated=Replicated())
    finally:
        source.close()


def content_of(log: HotLog, trajectory_id: uuid.UUID) -> list[tuple[int, bytes, bytes]]:
    """The events of a trajectory as they lie in the log."""
    return [(envelope.lsn, envelope.hash, envelope.body) for envelope in log.envelopes(trajectory_id)]


# --- bytes ---------------------------------------------------------------------------------------------------------------


def test_after_erasing_no_file_has_a_byte_of_it_and_the_others_are_untouched(home: Home) -> None:
    with HotLog.open(home) as log:
        canary = surrounded(log)
        kept = {head.trajectory_id: content_of(log, head.trajectory_id) for head in log.heads()}
        del kept[canary.id]
        positions = [(envelope.lsn, envelope.hash) for envelope in log.envelopes(canary.id)]
        assert canary.heard(home.path) == canary.everything
        done = log.erase_blocking([canary.id])
        assert (done.events, done.contents) == (11, 5) and done.bytes > 3 * MB
        assert canary.heard(home.path) == set()
        assert {trajectory_id: content_of(log, trajectory_id) for trajectory_id in kept} == kept
        assert [(envelope.lsn, envelope.hash) for envelope in log.envelopes(canary.id)] == positions
        assert all(
            envelope.erased and not envelope.body and envelope.secret is None for envelope in log.envelopes(canary.id)
        )
        check_chains(log)
        assert log.erase_blocking([canary.id]) == ErasedHere()
        log_id = log.log_id
    assert verified(home, log_id).problems == []
    assert canary.heard(home.path) == set()


@pytest.mark.parametrize("missing", ["flush", "compact", "garbage collection", "event", "content", "head"])
def test_each_step_is_needed(home: Home, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """The control: without one of the steps something is found."""
    if missing == "flush":
        monkeypatch.setattr(RocksStore, "purge", lambda *arguments: None)
    elif missing == "compact":
        monkeypatch.setattr(purge.Purge, "_compact", lambda *arguments: None)
        monkeypatch.setattr(purge.Purge, "_are_gone", lambda *arguments: True)
    elif missing == "garbage collection":
        monkeypatch.setattr(purge.Purge, "_set", lambda *arguments: None)
        monkeypatch.setattr(purge.Purge, "_are_gone", lambda *arguments: True)
    elif missing == "event":
        monkeypatch.setattr(erasure.Erasure, "_erase_batch", lambda *arguments: None)
    elif missing == "content":
        monkeypatch.setattr(contents.Contents, "erase", lambda *arguments: [1])
    else:
        monkeypatch.setattr(erasure, "Range", without_heads)
    with HotLog.open(home) as log:
        canary = surrounded(log)
        if missing == "head":
            log.close()
            log = HotLog.open(home).__enter__()
        log.erase_blocking([canary.id])
        heard = canary.heard(home.path)
        log.close()
    assert heard, missing


def without_heads(space: str, *rest: Any) -> Range:
    """A range of another key space in place of that of the heads."""
    return Range("events" if space == "meta" else space, *rest)


def test_a_log_whose_owner_lives_is_erased_through_it(home: Home) -> None:
    with HotLog.open(home) as log:
        canary = surrounded(log)
        source = open_source(home, log.log_id)
        assert isinstance(source, SocketSource)
        assert source.erased() == {}
        done = source.erase([canary.id])
        assert done.events == 11
        assert canary.heard(home.path) == set()
        assert source.erased() == {canary.id: True}
        erased = [event for event in read_all(source) if event.envelope.header.trajectory_id == canary.id]
        assert len(erased) == 11 and all(event.envelope.erased and not event.blobs for event in erased)
        source.close()


def test_a_log_whose_owner_was_killed_is_erased_by_whoever_opens_it(home: Home, tmp_path: Any) -> None:
    with HotLog.open(home) as log:
        canary = surrounded(log)
        log_id = log.log_id
        dead = crash_copy(home, tmp_path / "dead")
    assert canary.heard(dead.path) == canary.everything
    source = open_source(dead, log_id)
    assert isinstance(source, LocalSource)
    assert source.erase([canary.id]).events == 11
    assert source.erased() == {canary.id: True}
    assert canary.heard(dead.path) == set()
    source.close()
    assert canary.heard(dead.path) == set()
    with HotLog.open(dead, log_id=log_id) as log:
        check_chains(log)


@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
def test_what_was_pruned_before_goes_too(home: Home, share: float) -> None:
    with HotLog.open(home) as log:
        canary = surrounded(log)
        lsn = int(log.durable_lsn * share)
        for head in log.heads():
            log.append_blocking(head.trajectory_id, note("end"))
        engine_ = log.engine
        engine_._heads._live.clear()  # nothing is needed by a live trajectory
        envelope = engine_.envelope(lsn)
        assert envelope is not None
        log.acknowledge(lsn, envelope.hash)
        assert log.prune() == lsn
        assert canary.heard(home.path)
        log.erase_blocking([canary.id])
        assert canary.heard(home.path) == set()
        fill(log)
        log_id = log.log_id
    assert verified(home, log_id).problems == []


def test_what_a_torn_log_has_left_goes_too(home: Home) -> None:
    with HotLog.open(home) as log:
        canary = Canary(log)
        torn = home.log_folder(log.log_id) / "TORN-000004-100"
        torn.write_bytes(canary.words[0].encode())
        log.erase_blocking([canary.id])
        assert not torn.exists()
        assert canary.heard(home.path) == set()


def test_a_segment_from_before_it_went_away_and_came_back_is_erased_too(home: Home) -> None:
    with HotLog.open(home) as log:
        canary = surrounded(log)
        head = log.head(canary.id)
        assert head is not None
        elsewhere = Link(head.sequence_number + 5, bytes(32))
        body = ToolResult(tool_call_id="back", output=canary.words[0])
        asyncio.run(log.resume("t", canary.id, elsewhere, epoch=2, secret=canary.secret, body=body))
        log.append_blocking(canary.id, note(canary.words[1]))
        assert log.erase_blocking([canary.id]).events == 13
        assert canary.heard(home.path) == set()
        with pytest.raises(Erased):
            asyncio.run(log.resume("t", canary.id, elsewhere, epoch=3, secret=canary.secret, body=body))


def test_content_of_an_append_that_was_refused_goes_too(home: Home) -> None:
    """It was placed, and its event then refused; no event leads to it."""
    with HotLog.open(home) as log:
        canary = Canary(log)
        others(log)
        refusing = threading.Event()
        placed = log.engine.contents.place

        def place(wanted: Any) -> Any:
            done = placed(wanted)
            refusing.set()
            return done

        log.engine.contents.place = place  # type: ignore[method-assign]
        content = canary.contents[2] * (MB // 20)
        unknown = uuid.uuid4()
        head = log.head(canary.id)
        assert head is not None

        def after() -> Any:
            if refusing.is_set():
                raise NotFound("not here")
            return head

        addition = Addition(after, (NewEvent(ToolResult(tool_call_id="1", output=content)),))
        with pytest.raises(NotFound):
            log.engine.intake.stage(addition, ThreadWaiter(), 0)
        others(log, 3)
        assert 8 in canary.heard(home.path)
        log.erase_blocking([unknown])
        assert 8 not in canary.heard(home.path)


def test_erasing_what_is_not_here_rewrites_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with HotLog.open(home) as log:
        others(log)
        monkeypatch.setattr(RocksStore, "purge", lambda *arguments: pytest.fail("nothing is to be purged"))
        assert log.erase_blocking([uuid.uuid4() for _ in range(1000)]) == ErasedHere()
        assert len(log.erased()) == 1000 and all(log.erased().values())


def test_notes_about_it_go_and_those_about_others_stay(home: Home) -> None:
    with HotLog.open(home) as log:
        canary = Canary(log)
        other = fill(log)[0]
        for trajectory_id in (canary.id, other):
            log.append_many_blocking(
                trajectory_id,
                [NewEvent(note("x"))],
                notes={b"import/" + trajectory_id.bytes: b"1", b"import/" + trajectory_id.bytes + b"/0": b"2"},
            )
        log.erase_blocking([canary.id])
        assert log.note(b"import/" + canary.id.bytes) is None
        assert log.note(b"import/" + canary.id.bytes + b"/0") is None
        assert (log.note(b"import/" + other.bytes), log.note(b"import/" + other.bytes + b"/0")) == (b"1", b"2")


def test_where_there_is_no_room_for_the_new_files_it_says_so_and_goes_on_later(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HotLog.open(home) as log:
        canary = surrounded(log)
        log.engine.store._free_min = 1.0  # type: ignore[attr-defined]
        with pytest.raises(DiskBudgetExceeded):
            log.erase_blocking([canary.id])
        assert log.erased() == {canary.id: False}
        log.engine.store._free_min = 0.0  # type: ignore[attr-defined]
        log.erase_blocking([canary.id])
        assert canary.heard(home.path) == set()


# --- refusing -----------------------------------------------------------------------------------------------------------


def test_nothing_can_be_added_to_it_any_more_not_even_after_reopening(home: Home) -> None:
    absent = uuid.uuid4()
    with HotLog.open(home) as log:
        canary = Canary(log)
        log.erase_blocking([canary.id, absent])
        log_id = log.log_id
        _check_refusals(log, canary, absent)
    with HotLog.open(home, log_id=log_id) as log:
        _check_refusals(log, canary, absent)
        assert log.erased() == {canary.id: True, absent: True}


def _check_refusals(log: HotLog, canary: Canary, absent: uuid.UUID) -> None:
    large = "x" * (2 * MB)
    calls: list[Callable[[], Any]] = [
        lambda: log.append_blocking(canary.id, note("x")),
        lambda: log.append_blocking(canary.id, ToolResult(tool_call_id="1", output=large)),
        lambda: asyncio.run(log.append(canary.id, note("x"))),
        lambda: asyncio.run(log.append(canary.id, ToolResult(tool_call_id="1", output=large))),
        lambda: log.start_blocking(tenant="t", trajectory_id=canary.id),
        lambda: log.start_blocking(tenant="t", trajectory_id=absent),
        lambda: asyncio.run(log.start(tenant="t", trajectory_id=absent, body=TaskStarted(task=large))),
        lambda: log.append_blocking(absent, note("x")),
    ]
    before, pieces = log.durable_lsn, list(log.engine.store.scan("chunks", b""))
    for call in calls:
        with pytest.raises(Erased, match="was erased"):
            call()
    assert log.durable_lsn == before
    assert list(log.engine.store.scan("chunks", b"")) == pieces


def test_what_was_staged_before_is_waited_for_and_erased(gated: GatedStore, gated_log: HotLog) -> None:
    trajectory_id, _ = fill(gated_log)
    gated.gate.clear()
    staged = threading.Thread(target=lambda: gated_log.append_blocking(trajectory_id, note("staged")))
    staged.start()
    gated.waiting.acquire()
    erased: list[ErasedHere] = []
    erasing = threading.Thread(target=lambda: erased.append(gated_log.erase_blocking([trajectory_id])))
    erasing.start()
    while not (head := gated_log.head(trajectory_id)) or head.secret:
        pass
    with pytest.raises(Erased):
        gated_log.append_blocking(trajectory_id, note("late"))
    gated.gate.set()
    staged.join()
    erasing.join()
    assert erased[0].events == 12
    assert names(gated_log.read(trajectory_id)) == []
    check_chains(gated_log)


# --- reading -------------------------------------------------------------------------------------------------------------


def test_an_erased_trajectory_is_read_as_erased_events(home: Home) -> None:
    with HotLog.open(home) as log:
        canary = surrounded(log)
        at = next(e for e in log.envelopes(canary.id) if b'"$blob"' in e.body)
        sha256 = at.body.partition(b'"sha256":"')[2][:64].decode()
        assert log.blob(at.lsn, sha256)
        log.erase_blocking([canary.id])
        events = list(log.read(canary.id))
        assert all(event.erased and isinstance(event.body, Unknown) for event in events)
        assert [event.kind for event in events][:2] == ["TaskStarted", "LabelsSet"]
        event = log.get(at.lsn)
        assert event is not None and event.erased
        assert sum(event.erased for _, event in log.scan()) == len(events)
        for blob in (log.blob, open_reader(home, log.log_id).blob):
            with pytest.raises(NotFound, match="was erased"):
                blob(at.lsn, sha256)
        with pytest.raises(NotFound) as caught:
            log.blob(at.lsn, sha256)
        assert "stratalog erase list" in caught.value.hint
        with pytest.raises(NotFound, match="not in this log"):
            log.blob(log.durable_lsn, sha256)
        head = log.head(canary.id)
        assert head is not None and head.secret == b"" and head.hash == events[-1].hash


def test_a_reader_who_has_read_the_event_and_not_yet_its_content_sees_it_erased(
    gated: GatedStore, gated_log: HotLog
) -> None:
    trajectory_id, receipts = fill(gated_log, bulk=MB // 4)
    envelope = gated_log.engine.envelope(receipts[-1].lsn)
    assert envelope is not None
    gated_log.erase_blocking([trajectory_id])
    packed = serving._packed_now(gated_log.engine, envelope)
    assert packed is not None and packed[2] == []


def test_an_owner_that_does_not_know_the_request_says_so(home: Home) -> None:
    with HotLog.open(home) as log:
        assert serving.answer(log.engine, Request("no such thing")).error == "invalid"
    ours, theirs = socket.socketpair()
    source = SocketSource(uuid.uuid4(), ours)

    def old_owner() -> None:
        while frames.receive_request(theirs) is not None:
            frames.send(theirs, Reply(None, "invalid", "unknown operation 'erase'"))

    threading.Thread(target=old_owner, daemon=True).start()
    for ask in (lambda: source.erase([uuid.uuid4()]), source.erased):
        with pytest.raises(Unavailable, match="cannot erase") as caught:
            ask()
        assert "start that process again" in caught.value.hint
    source.close()


def test_an_erasure_that_takes_longer_than_a_reply_is_asked_for_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "WAIT_S_MAX", 0.02)
    going_on = threading.Event()
    with HotLog.open(home) as log:
        canary = surrounded(log)
        really = log.engine.store.purge

        def slow(*arguments: Any) -> None:
            assert going_on.wait(60)
            really(*arguments)

        log.engine.store.purge = slow  # type: ignore[method-assign]
        source, other = open_source(home, log.log_id), open_source(home, log.log_id)
        asked: list[Any] = []
        erasing = threading.Thread(target=lambda: asked.append(source.erase([canary.id])))
        erasing.start()
        while not log.erased():
            pass
        assert read_all(other)  # others are served meanwhile
        assert other.erased() == {canary.id: False}
        log.append_blocking(fill(log)[0], note("meanwhile"))
        going_on.set()
        erasing.join()
        assert asked[0].events == 11
        source.close()
        other.close()


def test_whoever_only_drains_a_log_gives_up_erasing_it_when_somebody_wants_it(home: Home) -> None:
    with HotLog.open(home) as log:
        canary = surrounded(log)
        log_id = log.log_id
    source = open_source(home, log_id)
    (home.log_folder(log_id) / "WANTED").touch()
    with pytest.raises(Locked):
        source.erase([canary.id])
    source.close()
    with HotLog.open(home, log_id=log_id) as log:
        assert log.erased() == {canary.id: False}
        log.erase_blocking([canary.id])
        assert canary.heard(home.path) == set()


# --- crashes -------------------------------------------------------------------------------------------------------------

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


# --- other lives of a log -----------------------------------------------------------------------------------------------


def test_a_log_with_a_new_id_is_erased_as_before(home: Home) -> None:
    with HotLog.open(home) as log:
        canary, absent = Canary(log), uuid.uuid4()
        log.erase_blocking([canary.id, absent])
        log_id = log.log_id
    new_id = renew_log(home, log_id)
    with HotLog.open(home, log_id=new_id) as log:
        assert log.erased() == {canary.id: True, absent: True}
        _check_refusals(log, canary, absent)


@pytest.mark.parametrize("finished", [True, False])
def test_a_salvaged_log_keeps_what_was_erased(home: Home, monkeypatch: pytest.MonkeyPatch, finished: bool) -> None:
    with HotLog.open(home) as log:
        canary, absent = surrounded(log), uuid.uuid4()
        if finished:
            log.erase_blocking([canary.id, absent])
        else:
            with monkeypatch.context() as patch:
                patch.setattr(erasure.Erasure, "_erase_batch", crashing(erasure.Erasure._erase_batch, after=False))
                with pytest.raises(Crash):
                    log.erase_blocking([canary.id, absent])
        late = Canary(log)
        late.sing_again()
        log_id = log.log_id
    folder = home.log_folder(log_id)
    head = folder / "HEAD"
    mark = head.read_bytes()
    head.write_bytes(mark.replace(b'"lsn":', b'"lsn":9'))  # as if the log had been longer
    with HotLog.open(home, log_id=log_id, accept_loss=True) as log:
        assert log.log_id != log_id
        assert log.erased() == {canary.id: finished, absent: finished}
        _check_refusals(log, canary, absent)
        log.erase_blocking([canary.id, absent, late.id])
        made = home.log_folder(log.log_id)
        assert canary.heard(made) == set() and late.heard(made) == set()
        check_chains(log)


def test_a_marker_that_an_older_version_has_passed_over_is_not_trusted(home: Home) -> None:
    """It does not know markers, and may let an erased trajectory come after all."""
    trajectory_id = uuid.uuid4()
    with HotLog.open(home) as log:
        log.erase_blocking([trajectory_id])
        store = log.engine.store
        marker = keys.ERASED_PREFIX + trajectory_id.bytes
        store.delete_range("meta", marker, marker + b"\0")
        canary = Canary(log)
        store.commit([Put("meta", keys.ERASED_PREFIX + canary.id.bytes, keys.GONE)])
        log_id = log.log_id
    with HotLog.open(home, log_id=log_id) as log:
        assert log.erased() == {canary.id: False}
        assert log.erase_blocking([canary.id]).events == 1
        assert log.erased() == {canary.id: True}
        assert canary.heard(home.path) == set()


# --- at the same time ---------------------------------------------------------------------------------------------------


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
        erasing = threading.Thread(target=lambda: pytest.raises(Exception, source.erase, [canary.id]))
        erasing.start()
        while not log.erased():
            pass
    erasing.join()
    source.close()
    with HotLog.open(home, log_id=log_id) as log:
        log.erase_blocking([canary.id])
        assert canary.heard(home.path) == set()
        check_chains(log)
