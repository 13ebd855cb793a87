"""Erasing from a hot log: afterwards no file of it has a byte of the trajectory, and everything else is as it was."""

from __future__ import annotations

import asyncio
import threading
import uuid
from typing import Any

import pytest
from fix_canary import Canary, content_of, others, surrounded, verified
from fix_hot import MB, check_chains, crash_copy, fill, home, note, read_all

from stratalog.hot import contents, erasure, purge
from stratalog.hot.committer import ThreadWaiter
from stratalog.hot.erasure import ErasedHere
from stratalog.hot.home import Home
from stratalog.hot.intake import Addition
from stratalog.hot.log import HotLog, NewEvent
from stratalog.hot.rocks import RocksStore
from stratalog.hot.source import LocalSource, SocketSource, open_source
from stratalog.schemas.chain import Link
from stratalog.schemas.errors import DiskBudgetExceeded, Erased, NotFound
from stratalog.schemas.events import ToolResult
from stratalog.schemas.protocols import Range

__all__ = ["home"]


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


def test_ids_at_the_ends_of_their_range_are_erased_like_others(home: Home) -> None:
    ids = [uuid.UUID(bytes=start + bytes([end]) * 10) for start in (bytes(6), b"\xff" * 6) for end in (0, 255)]
    with HotLog.open(home) as log:
        for trajectory_id in ids:
            log.start_blocking(tenant="t", task=f"{trajectory_id}", trajectory_id=trajectory_id)
        assert log.erase_blocking(ids).events == len(ids)
        assert log.erased() == dict.fromkeys(ids, True)
        check_chains(log)
