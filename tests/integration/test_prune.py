"""Acknowledging and pruning a hot log, and a state machine over all that happens to one."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fix_hot import MB, crash_copy, fill, make_home, names, note
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

from stratalog.hot.check import HotReport, Replicated, verify_log
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog, NewEvent, Receipt
from stratalog.hot.marks import MarkFile
from stratalog.hot.source import (
    Cursor,
    LocalSource,
    open_source,
)
from stratalog.schemas.errors import Conflict, CursorMismatch
from stratalog.schemas.events import Checkpoint, Source, TaskFinished, TaskStarted, TrajectoryReleased


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
            report = verify_log(source, HotReport(), secrets=heads, replicated=Replicated())
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


class LogMachine(RuleBasedStateMachine):
    base: ClassVar[Path]
    count = 0

    @initialize()
    def begin(self) -> None:
        LogMachine.count += 1
        self.home = make_home(self.base / str(LogMachine.count))
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
        copy = crash_copy(self.home, self.base / str(LogMachine.count))
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


def test_a_log_is_a_list_of_events_whatever_happens_to_it(home: Home) -> None:
    LogMachine.base = home.path.parent
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
