"""What an erased trajectory looks like to whoever appends, reads or asks for it, also in the later lives of its log."""

from __future__ import annotations

import socket
import threading
import uuid
from typing import Any

import pytest
from fix_canary import Canary, check_refusals, surrounded
from fix_hot import MB, GatedStore, check_chains, fill, home, names, note, read_all
from fix_step_crash import Crash, crashing

from stratalog.hot import erasure, frames, keys, serving
from stratalog.hot.erasure import ErasedHere
from stratalog.hot.frames import Reply, Request
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog
from stratalog.hot.renewal import renew_log
from stratalog.hot.source import SocketSource, open_reader, open_source
from stratalog.schemas.errors import Erased, Locked, NotFound, Unavailable
from stratalog.schemas.events import Unknown
from stratalog.schemas.protocols import Put

__all__ = ["home"]


def test_nothing_can_be_added_to_it_any_more_not_even_after_reopening(home: Home) -> None:
    absent = uuid.uuid4()
    with HotLog.open(home) as log:
        canary = Canary(log)
        log.erase_blocking([canary.id, absent])
        log_id = log.log_id
        check_refusals(log, canary, absent)
    with HotLog.open(home, log_id=log_id) as log:
        check_refusals(log, canary, absent)
        assert log.erased() == {canary.id: True, absent: True}


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
    whole = serving.whole_now(gated_log.engine, envelope)
    assert whole is not None and whole[1] == []


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


def test_a_log_with_a_new_id_is_erased_as_before(home: Home) -> None:
    with HotLog.open(home) as log:
        canary, absent = Canary(log), uuid.uuid4()
        log.erase_blocking([canary.id, absent])
        log_id = log.log_id
    new_id = renew_log(home, log_id)
    with HotLog.open(home, log_id=new_id) as log:
        assert log.erased() == {canary.id: True, absent: True}
        check_refusals(log, canary, absent)


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
        check_refusals(log, canary, absent)
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
