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
from pathlib import Path
from typing import Any

import pytest
from fix_hot import crash_copy, make_home, names, note
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stratalog.hot import frames, opening
from stratalog.hot.check import HotReport, verify_log
from stratalog.hot.frames import Request
from stratalog.hot.home import Home
from stratalog.hot.keys import Head
from stratalog.hot.log import HotLog, NewEvent, Receipt
from stratalog.hot.marks import MarkFile
from stratalog.hot.source import (
    Cursor,
    LocalSource,
    LogEvent,
    LogSource,
    SocketSource,
    has_more,
    open_source,
)
from stratalog.schemas.codec import decode_event
from stratalog.schemas.errors import Conflict, CursorMismatch, Invalid, Locked, NotFound, Unavailable
from stratalog.schemas.events import Checkpoint, Source, TaskFinished, TaskStarted, ToolResult, TrajectoryReleased

MB = 1 << 20


def fill(log: HotLog, count: int = 10, bulk: int = 0) -> tuple[uuid.UUID, list[Receipt]]:
    """A trajectory with some events; `bulk` bytes of output in the last one."""
    trajectory_id = log.start_blocking(tenant="t")
    events = [NewEvent(note(str(number))) for number in range(count)]
    if bulk:
        events.append(NewEvent(ToolResult(tool_call_id="1", output="x" * bulk)))
    return trajectory_id, log.append_many_blocking(trajectory_id, events)


def read_all(source: LogSource, events_max: int = 3, bytes_max: int = 4 * MB) -> list[LogEvent]:
    events: list[LogEvent] = []
    while batch := source.read(events[-1].envelope.lsn if events else 0, events_max, bytes_max):
        assert len(batch) <= events_max
        events += batch
    return events


def cursor_of(event: LogEvent) -> Cursor:
    return Cursor(event.envelope.lsn, event.envelope.hash)


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


# --- acknowledging and pruning ------------------------------------------------------------------------------------


def acknowledge_all(log: HotLog) -> int:
    position = log.engine.durable_position
    log.acknowledge(position.lsn, position.hash)
    return position.lsn


def test_an_acknowledgement_is_proven_and_kept(home: Home) -> None:
    with HotLog.open(home) as log:
        _, receipts = fill(log)
        source = open_source(home, log.log_id)
        for lsn, digest in [(5, receipts[0].hash), (99, receipts[0].hash), (-1, b"")]:
            with pytest.raises(CursorMismatch):
                source.acknowledge(lsn, digest)
        assert log.replicated_lsn == 0
        source.acknowledge(0, b"")
        source.acknowledge(receipts[5].lsn, receipts[5].hash)
        source.acknowledge(receipts[2].lsn, receipts[2].hash)  # late, and true
        assert log.replicated_lsn == receipts[5].lsn
        assert source.status()["lag_events"] == 4
        source.close()
        folder = home.log_folder(log.log_id)
    mark = MarkFile(folder / "REPLICATED", folder.name).read()
    assert mark is not None and mark.lsn == receipts[5].lsn
    with HotLog.open(home) as log:
        assert log.replicated_lsn == receipts[5].lsn


def test_nothing_is_pruned_that_is_not_replicated(home: Home) -> None:
    with HotLog.open(home) as log:
        trajectory_id, receipts = fill(log)
        finished = log.append_blocking(trajectory_id, TaskFinished(status="completed"))
        assert log.prune() == 0
        log.acknowledge(receipts[3].lsn, receipts[3].hash)
        assert log.prune() == receipts[3].lsn == log.engine.pruned_lsn
        assert [lsn for lsn, _ in log.scan()] == list(range(receipts[3].lsn + 1, finished.lsn + 1))
        assert log.get(receipts[3].lsn) is None and log.get(receipts[4].lsn) is not None


def test_prune_keeps_what_live_trajectories_need(home: Home) -> None:
    with HotLog.open(home) as log:
        imported = log.start_blocking(tenant="t", body=TaskStarted(source=Source(format="f")))
        live = log.start_blocking(tenant="t")
        first_of_live = log.durable_lsn
        done, _ = fill(log)
        log.append_blocking(done, TaskFinished(status="completed"))
        acknowledge_all(log)
        assert log.prune() == first_of_live - 1  # the import pins nothing
        checkpoint = log.append_blocking(live, Checkpoint(covers=0))
        acknowledge_all(log)
        assert log.prune() == checkpoint.lsn - 1
        assert names(log.read(done)) == []
        log.append_blocking(live, TrajectoryReleased(holder="h", token=0))
        assert log.prune() == checkpoint.lsn  # as far as it is replicated
        assert acknowledge_all(log) == log.prune() == checkpoint.lsn + 1
        # Pruned trajectories are known still, and go on.
        with pytest.raises(Conflict):
            log.start_blocking(tenant="t", trajectory_id=imported)
        receipt = log.append_blocking(live, note("goes on"))
        assert receipt.sequence_number == 3 and names(log.read(live)) == ["goes on"]


def test_a_lag_and_a_limit_of_bytes_bound_what_is_kept(home: Home) -> None:
    (home.path / "stratalog.toml").write_text("[hot]\nprune_lag_events = 5\nhot_bytes_max = 0\n")
    with HotLog.open(home.path) as log:
        fill(log, 20)  # live, but there is no room for it
        assert acknowledge_all(log) == 21
        assert log.prune() == 16


def test_a_pruned_log_goes_on_after_reopening(home: Home) -> None:
    with HotLog.open(home) as log:
        log_id = log.log_id
        first, receipts = fill(log, 10, bulk=3 * MB)
        second, _ = fill(log, 5, bulk=100_000)
        for trajectory_id in (first, second):
            log.append_blocking(trajectory_id, TaskFinished(status="completed"))
        last = acknowledge_all(log)
        pruned = log.engine.durable_position
        assert log.prune() == last
        assert list(log.scan()) == []
        for space in ("events", "blobs", "chunks"):
            assert list(log.engine.store.scan(space, b"")) == []
    for _ in range(3):
        with HotLog.open(home, log_id=log_id) as log:
            assert (log.durable_lsn, log.engine.pruned_lsn) == (last, last)
            head = log.head(first)
            assert head is not None and head.ended and log.prune() == last
    open_source(home, log_id, Cursor(pruned.lsn, pruned.hash)).close()
    for cursor in (Cursor(pruned.lsn, receipts[0].hash), Cursor(receipts[3].lsn, receipts[3].hash)):
        with pytest.raises(CursorMismatch):
            open_source(home, log_id, cursor)
    with HotLog.open(home, log_id=log_id) as log:
        after = log.append_blocking(first, note("after"))
        assert (after.lsn, after.sequence_number) == (last + 1, head.sequence_number + 1)
        assert [event.header.previous_hash for event in log.read(first)] == [head.hash]
        source = open_source(home, log_id)
        assert source.start() == Cursor(pruned.lsn, pruned.hash)
        assert [event.envelope.lsn for event in source.read(0, 2, MB)] == [last + 1]
        source.close()


@pytest.mark.parametrize("owned", [True, False])
def test_a_source_says_when_it_was_overtaken_by_a_prune(home: Home, owned: bool) -> None:
    with HotLog.open(home) as log:
        trajectory_id, _ = fill(log, 10, bulk=100_000)
        last = log.append_blocking(trajectory_id, TaskFinished(status="completed"))
        if not owned:
            log.close()
        source = open_source(home, last.log_id)
        engine = source._engine if isinstance(source, LocalSource) else log.engine
        batch = source.read(0, 3, MB)
        source.acknowledge(last.lsn, last.hash)
        assert engine.prune() == last.lsn
        with pytest.raises(CursorMismatch, match="pruned"):
            source.read(batch[-1].envelope.lsn, 3, MB)
        assert source.read(0, 3, MB) == [] == source.read(last.lsn, 3, MB)
        source.close()


def test_pruning_again_and_again_while_everybody_reads_and_appends(home: Home) -> None:
    with HotLog.open(home) as log:
        stop = threading.Event()
        errors: list[BaseException] = []

        def guarded(action: Any) -> None:
            try:
                while not stop.is_set():
                    action()
            except Exception as error:  # noqa: BLE001 - reported by the test
                errors.append(error)
                stop.set()

        def append() -> None:
            trajectory_id = log.start_blocking(tenant="t", body=TaskStarted(source=Source(format="f")))
            log.append_many_blocking(trajectory_id, [NewEvent(note(str(number))) for number in range(20)])
            found = names(log.read(trajectory_id))
            assert found == [str(number) for number in range(20)][20 - len(found) :]

        def prune() -> None:
            acknowledge_all(log)
            log.prune()

        def scan() -> None:
            lsns = [lsn for lsn, _ in log.scan()]
            assert lsns == sorted(set(lsns))

        def verify() -> None:
            source = open_source(home, log.log_id)
            heads = {head.trajectory_id: head.secret for head in source.heads()}  # type: ignore[attr-defined]
            report = verify_log(source, HotReport(), secrets=heads, anchors={})
            source.close()
            assert [problem for problem in report.problems if "secret is gone" not in problem] == []

        threads = [threading.Thread(target=guarded, args=(action,)) for action in (append, append, prune, scan, verify)]
        for thread in threads:
            thread.start()
        stop.wait(2.0)
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
        assert log.durable_lsn > 100


class Model:
    """What a log must know: every event ever appended, per trajectory and by LSN."""

    def __init__(self) -> None:
        self.events: list[tuple[uuid.UUID, str, Receipt]] = []
        self.trajectories: dict[uuid.UUID, list[tuple[str, Receipt]]] = {}
        self.live: dict[uuid.UUID, int] = {}
        self.replicated = self.pruned = 0

    def add(self, trajectory_id: uuid.UUID, name: str, receipt: Receipt) -> None:
        self.events.append((trajectory_id, name, receipt))
        assert receipt.lsn == len(self.events)
        self.trajectories.setdefault(trajectory_id, []).append((name, receipt))
        assert receipt.sequence_number == len(self.trajectories[trajectory_id]) - 1

    def bound(self) -> int:
        return max(self.pruned, min([self.replicated, *(lsn - 1 for lsn in self.live.values())]))


def machine(base: Path) -> type[RuleBasedStateMachine]:
    class LogMachine(RuleBasedStateMachine):
        count = 0

        @initialize()
        def begin(self) -> None:
            LogMachine.count += 1
            self.home = make_home(base / str(LogMachine.count))
            self.model = Model()
            self.open()

        def open(self) -> None:
            self.log = HotLog.open(self.home, serve=False).__enter__()
            assert len(self.home.log_ids()) == 1

        @rule(imported=st.sampled_from([True, True, False]))
        def start(self, imported: bool) -> None:
            source = Source(format="f") if imported else None
            trajectory_id = self.log.start_blocking(tenant="t", body=TaskStarted(source=source))
            self.model.add(trajectory_id, "", self._last(trajectory_id))
            if not imported:
                self.model.live[trajectory_id] = len(self.model.events)

        def _last(self, trajectory_id: uuid.UUID) -> Receipt:
            head = self.log.head(trajectory_id)
            assert head is not None
            return Receipt(self.log.log_id, head.lsn, trajectory_id, head.sequence_number, head.hash)

        @precondition(lambda self: self.model.trajectories)
        @rule(data=st.data(), count=st.integers(1, 5), bulk=st.sampled_from([0, 0, 0, 40_000, 2 * MB]))
        def append(self, data: st.DataObject, count: int, bulk: int) -> None:
            trajectory_id = data.draw(st.sampled_from(sorted(self.model.trajectories)))
            start = len(self.model.events)
            events = [NewEvent(note(str(start + number) + "x" * bulk)) for number in range(count)]
            for event, receipt in zip(events, self.log.append_many_blocking(trajectory_id, events), strict=True):
                self.model.add(trajectory_id, event.body.name, receipt)  # type: ignore[union-attr]

        @precondition(lambda self: self.model.live)
        @rule(data=st.data())
        def finish(self, data: st.DataObject) -> None:
            trajectory_id = data.draw(st.sampled_from(sorted(self.model.live)))
            self.model.add(trajectory_id, "", self.log.append_blocking(trajectory_id, TaskFinished(status="completed")))
            del self.model.live[trajectory_id]

        @precondition(lambda self: self.model.live)
        @rule(data=st.data())
        def checkpoint(self, data: st.DataObject) -> None:
            trajectory_id = data.draw(st.sampled_from(sorted(self.model.live)))
            receipt = self.log.append_blocking(trajectory_id, Checkpoint(covers=0))
            self.model.add(trajectory_id, "", receipt)
            self.model.live[trajectory_id] = receipt.lsn

        @precondition(lambda self: self.model.events)
        @rule(data=st.data())
        def acknowledge(self, data: st.DataObject) -> None:
            receipt = data.draw(st.sampled_from(self.model.events))[2]
            self.log.acknowledge(receipt.lsn, receipt.hash)
            self.model.replicated = max(self.model.replicated, receipt.lsn)

        @precondition(lambda self: self.model.events)
        @rule(reopen=st.booleans())
        def replicate_and_prune(self, reopen: bool) -> None:
            receipt = self.model.events[-1][2]
            self.log.acknowledge(receipt.lsn, receipt.hash)
            self.model.replicated = receipt.lsn
            self.prune()
            if reopen:
                self.reopen()

        @rule()
        def prune(self) -> None:
            self.model.pruned = self.model.bound()
            assert self.log.prune() == self.model.pruned

        @rule()
        def reopen(self) -> None:
            self.log.close()
            self.open()
            assert self.log.replicated_lsn == self.model.replicated

        @rule()
        def crash(self) -> None:
            LogMachine.count += 1
            copy = crash_copy(self.home, base / str(LogMachine.count))
            self.log.close()
            self.home = copy
            self.open()
            # REPLICATED is written every second only; Postgres knows better and says so again.
            assert self.model.pruned <= self.log.replicated_lsn <= self.model.replicated
            self.model.replicated = self.log.replicated_lsn

        @invariant()
        def agrees(self) -> None:
            log, model = self.log, self.model
            assert log.durable_lsn == len(model.events) and log.engine.pruned_lsn == model.pruned
            assert [(lsn, event.hash) for lsn, event in log.scan()] == [
                (receipt.lsn, receipt.hash) for _, _, receipt in model.events[model.pruned :]
            ]
            for trajectory_id, events in model.trajectories.items():
                kept = [receipt.hash for _, receipt in events if receipt.lsn > model.pruned]
                assert [event.hash for event in log.read(trajectory_id)] == kept
                assert self._last(trajectory_id) == events[-1][1]

        def teardown(self) -> None:
            self.log.close()

    return LogMachine


def test_a_log_is_a_list_of_events_whatever_happens_to_it(home: Home) -> None:
    run_state_machine_as_test(
        machine(home.path.parent),
        settings=settings(
            max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
