"""Following a log: over its owner's socket or from the ownerless log, with a proven cursor, while it is pruned."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from fix_hot import MB, crash_copy, cursor_of, fill, names, note, read_all

from stratalog.hot import frames, opening
from stratalog.hot.frames import Request
from stratalog.hot.home import Home
from stratalog.hot.keys import Head
from stratalog.hot.log import HotLog, Receipt
from stratalog.hot.source import (
    Cursor,
    LocalSource,
    LogEvent,
    SocketSource,
    has_more,
    open_source,
)
from stratalog.schemas.codec import decode_event
from stratalog.schemas.errors import CursorMismatch, Invalid, Locked, NotFound, Unavailable


@pytest.fixture(params=["socket", "local"])
def followed(request: pytest.FixtureRequest, home: Home) -> Iterator[tuple[Home, uuid.UUID, list[Receipt]]]:
    """A home with a filled log: owned by this process, or by nobody."""
    with HotLog.open(home) as log:
        log_id = log.log_id
        _, receipts = fill(log, 10, bulk=3 * MB)
        if request.param == "socket":
            yield home, log_id, receipts
    if request.param == "local":
        yield home, log_id, receipts


def test_a_source_gives_the_same_events_whoever_owns_the_log(home: Home) -> None:
    with HotLog.open(home) as log:
        trajectory_id, receipts = fill(log, 10, bulk=3 * MB)
        over_socket = open_source(home, log.log_id)
        assert isinstance(over_socket, SocketSource)
        first = read_all(over_socket)
        status, heads = over_socket.status(), over_socket.heads()
        envelopes = list(over_socket.envelopes(trajectory_id, 3))
        over_socket.close()
    local = open_source(home, receipts[0].log_id)
    assert isinstance(local, LocalSource)
    assert read_all(local) == first and len(first) == 12
    assert [event.envelope.hash for event in first[1:]] == [receipt.hash for receipt in receipts]
    assert [len(content) for _, content in first[-1].blobs] == [3 * MB]
    assert status | {"owned": False, "disk_bytes": 0, "lag_seconds": 0} == local.status() | {
        "disk_bytes": 0,
        "lag_seconds": 0,
    }
    assert heads == local.heads() and isinstance(heads[0], Head)
    assert envelopes == list(local.envelopes(trajectory_id, 3)) and len(envelopes) == 9
    ref = first[-1].blobs[0][0]
    assert len(local.blob(12, ref.sha256)) == 3 * MB
    with pytest.raises(NotFound):
        local.blob(11, ref.sha256)
    local.close()


def test_a_batch_is_bounded_but_never_empty(followed: tuple[Home, uuid.UUID, list[Receipt]]) -> None:
    home, log_id, _ = followed
    source = open_source(home, log_id)
    assert len(source.read(0, 5, 100 * MB)) == 5
    assert len(source.read(0, 500, 1)) == 1
    assert [event.envelope.lsn for event in source.read(9, 500, 1 * MB)] == [10, 11]
    assert [event.envelope.lsn for event in source.read(11, 500, 1)] == [12]
    assert source.read(12, 500, MB) == [] and source.durable_lsn() == 12
    source.close()


def test_a_cursor_is_proven_by_its_hash(followed: tuple[Home, uuid.UUID, list[Receipt]]) -> None:
    home, log_id, receipts = followed
    for receipt in receipts:
        source = open_source(home, log_id, Cursor(receipt.lsn, receipt.hash))
        assert [event.envelope.lsn for event in source.read(receipt.lsn, 1, MB)] == [receipt.lsn + 1][
            : 12 - receipt.lsn
        ]
        source.close()
    wrong = [
        Cursor(5, receipts[4].hash),
        Cursor(5, b""),
        Cursor(13, receipts[-1].hash),
        Cursor(1 << 62, receipts[-1].hash),
        Cursor(-1, b""),
    ]
    for cursor in wrong:
        with pytest.raises(CursorMismatch):
            open_source(home, log_id, cursor)
    open_source(home, log_id).close()  # a refused handshake leaves nothing locked


def test_the_owner_answers_for_its_own_log_only(home: Home) -> None:
    with HotLog.open(home) as log:
        fill(log)
        other = uuid.uuid4()
        home.socket_path(log.log_id).rename(home.socket_path(other))
        with pytest.raises(Invalid, match="this is the log"):
            open_source(home, other)
        home.socket_path(other).rename(home.socket_path(log.log_id))


def test_a_log_that_is_not_there_has_no_source(home: Home) -> None:
    with pytest.raises(NotFound):
        open_source(home, uuid.uuid4())


def test_waiting_ends_when_something_is_durable_and_in_time(home: Home) -> None:
    with HotLog.open(home) as log:
        trajectory_id, receipts = fill(log)
        source = open_source(home, log.log_id)
        last = receipts[-1].lsn
        assert source.wait(last - 1, 10)
        assert not source.wait(last, 0.01)
        woken: list[bool] = []
        thread = threading.Thread(target=lambda: woken.append(source.wait(last, 60)))
        thread.start()
        log.append_blocking(trajectory_id, note("wake up"))
        thread.join()
        assert woken == [True]
        assert names_of(source.read(last, 10, MB)) == ["wake up"]
        source.close()


def names_of(events: list[LogEvent]) -> list[str]:
    return names([decode_event(event.envelope) for event in events])


def test_an_owner_that_closes_ends_the_connection_and_the_log_can_be_drained(home: Home) -> None:
    with HotLog.open(home) as log:
        trajectory_id, receipts = fill(log)
        source = open_source(home, log.log_id)
        ended: list[str] = []

        def wait() -> None:
            try:
                source.wait(receipts[-1].lsn, 60)
            except Unavailable:
                ended.append("gone")

        waiting = threading.Thread(target=wait)
        waiting.start()
        log.append_many_blocking(trajectory_id, [])
    waiting.join()
    assert ended == ["gone"]
    for call in (lambda: source.read(0, 1, 1), lambda: source.acknowledge(1, b""), lambda: source.status()):
        with pytest.raises(Unavailable):
            call()
    local = open_source(home, receipts[0].log_id)
    assert len(read_all(local)) == 11
    local.close()


OWNER = """
import sys
from stratalog.hot.log import HotLog, NewEvent
from stratalog.schemas.events import Annotation
log = HotLog.open(sys.argv[1]).__enter__()
trajectory_id = log.start_blocking(tenant="t")
for number in range(int(sys.argv[2])):
    log.append_blocking(trajectory_id, Annotation(name=str(number)))
print(log.log_id, flush=True)
sys.stdin.read()
log.close()
"""


def owner(home: Home, events: int = 20) -> tuple[subprocess.Popen[str], uuid.UUID]:
    """A process that owns a log."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, os.fspath(home.path), str(events)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, uuid.UUID(process.stdout.readline().strip())


def test_a_log_whose_owner_was_killed_is_drained(home: Home) -> None:
    process, log_id = owner(home)
    source = open_source(home, log_id)
    assert isinstance(source, SocketSource) and len(read_all(source)) == 21
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.raises(Unavailable):
        source.read(0, 1, 1)
    assert home.socket_path(log_id).exists() and has_more(home, log_id, None)
    source.close()
    drained = open_source(home, log_id, Cursor())
    assert isinstance(drained, LocalSource) and len(read_all(drained)) == 21
    last = cursor_of(read_all(drained)[-1])
    drained.acknowledge(last.lsn, last.hash)
    drained.close()
    with HotLog.open(home, log_id=log_id) as log:
        assert log.replicated_lsn == 21


def test_a_reader_gives_the_log_up_when_an_appender_wants_it(home: Home) -> None:
    with HotLog.open(home) as log:
        fill(log, 100)
        log_id = log.log_id
    source = open_source(home, log_id)
    done: list[Any] = []

    def follow() -> None:
        after = 0
        try:
            while True:
                after = [event.envelope.lsn for event in source.read(after, 10, MB)][-1] if after < 100 else 0
        except Locked:
            source.close()
            try:
                open_source(home, log_id).close()  # must not snatch it away again from who wants it
            except Locked:
                done.append("locked")
            else:
                done.append("open")

    thread = threading.Thread(target=follow)
    thread.start()
    before = time.monotonic()
    with HotLog.open(home, log_id=log_id) as log:
        assert time.monotonic() - before < opening.YIELD_WAIT_S
        assert log.log_id == log_id
        thread.join()
        assert done == ["open"]  # over the socket, once the owner serves it
    assert len(home.log_ids()) == 1


def test_a_reader_does_not_take_a_log_that_an_appender_asks_for(home: Home) -> None:
    with HotLog.open(home) as log:
        fill(log)
        log_id = log.log_id
    wanted = home.log_folder(log_id) / opening.WANTED
    wanted.touch()
    with pytest.raises(Locked, match="wants"):
        LocalSource(home, log_id)
    os.utime(wanted, (0, 0))  # nobody has asked again since 1970
    LocalSource(home, log_id).close()
    assert not wanted.exists()


def test_a_reader_that_does_not_give_the_log_up_is_waited_for_in_vain(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "YIELD_WAIT_S", 0.1)
    with HotLog.open(home) as log:
        fill(log)
        log_id = log.log_id
    source = open_source(home, log_id)
    with pytest.raises(Locked):
        HotLog.open(home, log_id=log_id).__enter__()
    with HotLog.open(home) as other:
        assert other.log_id != log_id
    with pytest.raises(Locked):
        source.read(0, 1, 1)
    with pytest.raises(Locked):
        source.wait(0, 1)
    source.close()
    # Who asked has gone without it; after a while the request is void.
    monkeypatch.setattr(opening, "WANTED_LATELY_S", 0.0)
    again = open_source(home, log_id)
    assert len(read_all(again)) == 11
    again.close()


def test_whether_there_is_more_is_told_without_opening(home: Home) -> None:
    with HotLog.open(home) as log:
        log_id = log.log_id
        assert has_more(home, log_id, None)
    assert not has_more(home, log_id, None)
    with HotLog.open(home, log_id=log_id) as log:
        _, receipts = fill(log)
        copy = crash_copy(home, home.path.with_name("copy"))
        assert has_more(home, log_id, Cursor(receipts[-1].lsn, receipts[-1].hash))
    assert has_more(home, log_id, None)
    assert has_more(home, log_id, Cursor(receipts[-2].lsn, receipts[-2].hash))
    assert not has_more(home, log_id, Cursor(receipts[-1].lsn, receipts[-1].hash))
    # Killed after it had been closed in order before: HEAD must not say "closed" any more.
    assert has_more(copy, log_id, Cursor(receipts[-1].lsn, receipts[-1].hash))
    with HotLog.open(home, log_id=log_id, serve=False):
        assert has_more(home, log_id, Cursor(receipts[-1].lsn, receipts[-1].hash))


# --- strange peers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        Request("nonsense"),
        Request("read"),
        Request("read", {"after": -5, "events_max": "x", "bytes_max": None}),
        Request("read", {"after": 1 << 63, "events_max": 1, "bytes_max": 1}),
        Request("hello", {"log_id": 5, "lsn": 0, "hash": b""}),
        Request("acknowledge", {"lsn": 1 << 63, "hash": "x", "quarantined": []}),
        Request("acknowledge", {"lsn": "x", "hash": b"", "quarantined": 5}),
        Request("blob", {"lsn": -1, "sha256": 5}),
        Request("blob", {"lsn": 1, "sha256": "zz"}),
        Request("envelopes", {"trajectory_id": "no", "from_sequence": 0, "events_max": 1}),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_by_an_error(home: Home, request_: Request) -> None:
    with HotLog.open(home) as log:
        fill(log)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(os.fspath(home.socket_path(log.log_id)))
            frames.send(connection, request_)
            reply = frames.receive_reply(connection)
            assert reply.error or reply.result["events"] == []
            frames.send(connection, Request("status"))
            assert frames.receive_reply(connection).result["durable_lsn"] == 11


@pytest.mark.parametrize("data", [b"\0\0\0\4nope", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\0\0", b""])
def test_a_peer_that_speaks_another_language_disturbs_nobody(home: Home, data: bytes) -> None:
    with HotLog.open(home) as log:
        fill(log)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.fspath(home.socket_path(log.log_id)))
            connection.sendall(data)
            source = open_source(home, log.log_id)
            assert len(read_all(source)) == 11
            source.close()
