"""Dropping whole partitions: what stays moves out first, a crash at every step is finished, others go on meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Literal

import psycopg
import pytest
from fix_cold import START_US, ColdBench
from fix_history import MemoryLog, Story, copy, message
from fix_retention import (
    JANUARY,
    Crash,
    deletions,
    events_here,
    hooked,
    load,
    make_plan,
    partitions,
    place,
    rows,
    run_apply,
)

from stratalog.cold.installation import Installation
from stratalog.cold.verification import verify_all
from stratalog.hot.home import Home
from stratalog.schemas import events as ev
from stratalog.schemas.errors import StratalogError, Unavailable
from stratalog.schemas.statements import statements
from stratalog.warm import deletion_partitions
from stratalog.warm.check import verify_warm
from stratalog.warm.database import connect
from stratalog.warm.queries import head, read_events
from stratalog.warm.retention_apply import apply

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]

STEPS = (
    "plan",
    "lock_partitions",
    "mark_partition",
    "lock_heads_in",
    "start_in",
    "move_stragglers",
    "stray_heads_in",
    "moved",
    "attachment",
    "detach_command",
    "timeout",
    "started_in",
    "drop_partition",
    "mark_heads_in",
    "finish_in",
)


def fill(bench: ColdBench) -> tuple[set[object], set[object]]:
    """Six trajectories of January that may go, and three that must stay: held, unfinished, and one that came later."""
    gone = [bench.task(number, day=number) for number in range(6)]
    held, late = bench.task(10, turns=1), bench.task(11, turns=1)
    bench.run()
    bench.append(late, [ev.Annotation(name="late", score=1.0)])
    unfinished = bench.task(12, turns=1, finished=False)
    load(bench)
    place(bench, "case", trajectories=(held.trajectory_id,))
    stays: list[object] = [author.trajectory_id for author in (held, late, unfinished)]
    return {author.trajectory_id for author in gone}, set(stays)


def check(bench: ColdBench, home: Home, gone: set[object], stays: set[object], before: dict[object, int]) -> None:
    left = events_here(bench)
    assert not gone & set(left)
    assert {id_: left[id_] for id_ in stays} == {id_: before[id_] for id_ in stays}  # type: ignore[index]
    assert JANUARY not in partitions(bench)
    assert rows(bench, "SELECT to_regclass(%s) IS NULL", JANUARY) == [(True,)]
    assert rows(bench, "SELECT count(*) FROM event_partitions WHERE name = %s", JANUARY) == [(0,)]
    assert deletions(bench) == {"done": len(gone)}
    report = verify_all(Installation(home))
    assert report["ok"], report


def test_stragglers_move_out_and_the_rest_goes_at_once(cold_bench: ColdBench, cold_home: Home) -> None:
    gone, stays = fill(cold_bench)
    before: dict[object, int] = dict(events_here(cold_bench))
    (found,) = make_plan(cold_bench).partitions
    assert (found.name, found.trajectories, found.staying_trajectories) == (JANUARY, 6, 3)
    done = run_apply(cold_bench)
    assert done.partitions == (JANUARY,) and done.trajectories == 6
    assert {line.matters for line in done.kept} == {("case",), ()}
    check(cold_bench, cold_home, gone, stays, before)
    with closing(cold_bench.connect()) as conn:
        conn.rollback()
        for id_ in stays:
            assert head(conn, id_).stray  # type: ignore[arg-type]
            assert len(list(read_events(conn, id_))) == before[id_]  # type: ignore[arg-type]


def test_a_new_trajectory_of_a_dropped_month_gets_a_partition_again(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    run_apply(cold_bench)
    cold_bench.task(50, day=20)
    assert JANUARY in partitions(cold_bench)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_is_finished_by_the_next_call(
    cold_bench: ColdBench, cold_home: Home, step: str, when: Literal["before", "after"]
) -> None:
    gone, stays = fill(cold_bench)
    before: dict[object, int] = dict(events_here(cold_bench))
    fatal = statements("deletions")[step]
    hits = []

    def crash(query: bytes, moment: str) -> None:
        if query == fatal and moment == when:
            hits.append(step)
            raise Crash

    with closing(connect(cold_bench.dsn)) as conn:
        conn.rollback()
        with pytest.raises(Crash):
            apply(hooked(conn, crash))
    assert hits, "the step was never reached"
    report = verify_all(Installation(cold_home))
    assert report["ok"], report
    left = events_here(cold_bench)
    assert all(left[id_] == before[id_] for id_ in stays)  # type: ignore[index]
    run_apply(cold_bench)
    check(cold_bench, cold_home, gone, stays, before)


def test_a_partition_between_its_steps_takes_in_what_arrives(cold_bench: ColdBench, cold_home: Home) -> None:
    gone, stays = fill(cold_bench)
    before: dict[object, int] = dict(events_here(cold_bench))
    arrivals = iter(range(200, 300))

    def arrive(query: bytes, moment: str) -> None:
        if moment == "before" and query in {statements("deletions")[name] for name in ("attachment", "timeout")}:
            number = next(arrivals)
            cold_bench.task(number, turns=1, day=3)
            cold_bench.append(cold_bench.author(12), [ev.Annotation(name="more", score=1.0)])

    with closing(connect(cold_bench.dsn)) as conn:
        conn.rollback()
        apply(hooked(conn, arrive))
    assert next(arrivals) > 201
    stray = rows(cold_bench, "SELECT count(*) FROM trajectories WHERE stray AND dropped_through < 0")
    assert stray[0][0] > 3, "what arrived while the partition was going is stray"
    id_ = cold_bench.author(12).trajectory_id
    assert events_here(cold_bench)[id_] > before[id_]
    before[id_] = events_here(cold_bench)[id_]
    check(cold_bench, cold_home, gone, stays, before)


def test_a_hold_that_is_placed_before_the_drop_still_wins(cold_bench: ColdBench, cold_home: Home) -> None:
    gone, _ = fill(cold_bench)
    before: dict[object, int] = dict(events_here(cold_bench))
    rescued = cold_bench.author(2, day=2).trajectory_id
    placed = []

    def hold_it(query: bytes, moment: str) -> None:
        if query == statements("deletions")["timeout"] and moment == "after" and len(placed) < 1:
            placed.append(place(cold_bench, "late", trajectories=(rescued,)))

    with closing(connect(cold_bench.dsn)) as conn:
        conn.rollback()
        done = apply(hooked(conn, hold_it))
    assert (placed[0].cancelled, placed[0].started, placed[0].done) == (0, 1, 0)
    assert ("held by late", 1) in {(share.outcome, share.trajectories) for share in done.shares}
    assert events_here(cold_bench)[rescued] == before[rescued]
    assert rows(cold_bench, "SELECT reason FROM deletions WHERE state = 'cancelled'") == [("held by late",)]
    assert rows(cold_bench, "SELECT dropped_through FROM trajectories WHERE trajectory_id = %s", rescued) == [(-1,)]
    report = verify_all(Installation(cold_home))
    assert report["ok"], report
    assert JANUARY not in partitions(cold_bench) and not (gone - {rescued}) & set(events_here(cold_bench))


def test_control_a_drop_that_does_not_look_for_holds_again_beats_them(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cold_bench)
    held = cold_bench.author(2, day=2).trajectory_id
    blind = statements("deletions")["held"] + b" AND false"
    monkeypatch.setitem(statements("deletions"), "held", blind)

    placed = []

    def hold_before_the_drop(query: bytes, moment: str) -> None:
        if query == statements("deletions")["timeout"] and moment == "after" and not placed:
            placed.append(place(cold_bench, "late", trajectories=(held,)))

    with closing(connect(cold_bench.dsn)) as conn:
        conn.rollback()
        apply(hooked(conn, hold_before_the_drop))
    assert placed[0].done == 0 and held not in events_here(cold_bench)


def test_control_without_the_trigger_what_arrives_has_no_place(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    cold_bench.execute("DROP TRIGGER stray_while_dropping ON trajectories")
    failed = []

    def arrive(query: bytes, moment: str) -> None:
        if query == statements("deletions")["started_in"] and moment == "before" and not failed:
            with pytest.raises(StratalogError, match="no partition of relation"):
                cold_bench.task(200, day=3)
            failed.append(True)

    with closing(connect(cold_bench.dsn)) as conn:
        conn.rollback()
        apply(hooked(conn, arrive))
    assert failed


def test_a_reader_of_before_keeps_the_partition_and_the_next_call_finishes(
    cold_bench: ColdBench, cold_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, stays = fill(cold_bench)
    before: dict[object, int] = dict(events_here(cold_bench))
    monkeypatch.setattr(deletion_partitions, "DETACH_TIMEOUT_MS", 300)
    with closing(connect(cold_bench.dsn)) as reader:
        reader.execute(b"SELECT count(*) FROM all_events")
        with pytest.raises(Unavailable, match="still being read"):
            run_apply(cold_bench)
        pending = "SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = to_regclass(%s)"
        assert rows(cold_bench, pending, JANUARY) == [(True,)]
        cold_bench.task(60, day=9)
        with pytest.raises(Unavailable):
            run_apply(cold_bench)
        reader.rollback()
    run_apply(cold_bench)
    check(cold_bench, cold_home, gone, stays, before)


def snapshot_before_the_move(bench: ColdBench) -> tuple[int, int]:
    """What a transaction counts that began before a drop, and reads the events only after it was tried."""
    expected = sum(events_here(bench).values())
    with closing(connect(bench.dsn)) as reader:
        reader.rollback()
        reader.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute(b"SELECT 1")
        with contextlib.suppress(Unavailable):
            run_apply(bench)
        (found,) = reader.execute(b"SELECT count(*) FROM all_events").fetchone() or (0,)
    return expected, found


def test_whoever_looks_at_an_earlier_moment_never_sees_a_hole(
    cold_bench: ColdBench, cold_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, stays = fill(cold_bench)
    before: dict[object, int] = dict(events_here(cold_bench))
    monkeypatch.setattr(deletion_partitions, "DETACH_TIMEOUT_MS", 300)
    expected, found = snapshot_before_the_move(cold_bench)
    assert found == expected
    run_apply(cold_bench)
    check(cold_bench, cold_home, gone, stays, before)


def test_control_without_waiting_for_older_snapshots_there_is_a_hole(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cold_bench)
    monkeypatch.setattr(deletion_partitions, "wait_for_older_snapshots", lambda conn, name: None)
    expected, found = snapshot_before_the_move(cold_bench)
    assert found < expected


def test_a_backend_that_is_killed_while_it_detaches(cold_bench: ColdBench, cold_home: Home) -> None:
    gone, stays = fill(cold_bench)
    before: dict[object, int] = dict(events_here(cold_bench))
    with closing(connect(cold_bench.dsn)) as reader:
        reader.execute(b"SELECT count(*) FROM all_events")
        failed: list[BaseException] = []

        def work() -> None:
            try:
                run_apply(cold_bench)
            except Unavailable as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        victim = (
            "SELECT pid FROM pg_stat_activity WHERE query LIKE 'ALTER TABLE%%DETACH%%' AND wait_event_type = 'Lock'"
        )
        for _ in _until(lambda: bool(rows(cold_bench, victim + " AND %s", True))):
            pass
        rows(cold_bench, victim.replace("SELECT pid", "SELECT pg_terminate_backend(pid)") + " AND %s", True)
        thread.join()
        assert failed
        reader.rollback()
    run_apply(cold_bench)
    check(cold_bench, cold_home, gone, stays, before)


def _until(reached: object, seconds: float = 30) -> Iterator[None]:
    end = time.monotonic() + seconds
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
        yield


def test_others_write_and_read_while_partitions_go(
    cold_bench: ColdBench, cold_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers into the same days, a reader that verifies again and again, and five drops of the same month."""
    monkeypatch.setattr(deletion_partitions, "STRAGGLERS_MAX", 1.0)
    stop = threading.Event()
    errors: list[BaseException] = []
    written: dict[object, int] = {}

    def writer(number: int) -> None:
        log = MemoryLog()
        with closing(connect(cold_bench.dsn)) as conn:
            conn.rollback()
            turn = 0
            while not stop.is_set():
                turn += 1
                story = Story(at_us=START_US + (number * 3 + turn % 3) * 86_400_000_000 + turn * 1000).tell(3)
                log.append(story, story.events)
                copy(conn, log)
                story.write(message("more"))
                log.append(story, story.events[3:])
                copy(conn, log)
                written[story.trajectory_id] = 4

    def reader() -> None:
        with closing(connect(cold_bench.dsn)) as conn:
            conn.rollback()
            while not stop.is_set():
                found = verify_warm(conn)
                if found.problems:
                    raise AssertionError(found.problems)

    def guarded(work: object, *arguments: object) -> None:
        try:
            work(*arguments)  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001
            errors.append(error)
            stop.set()

    load(cold_bench)
    threads = [threading.Thread(target=guarded, args=(writer, number)) for number in range(2)]
    threads.append(threading.Thread(target=guarded, args=(reader,)))
    dropped = 0
    for thread in threads:
        thread.start()
    try:
        for round_ in range(5):
            for number in range(8):
                cold_bench.task(round_ * 10 + number, turns=30, day=number)
            cold_bench.run()
            dropped += len(run_apply(cold_bench).partitions)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert dropped == 5
    left = events_here(cold_bench)
    assert {id_: left.get(id_, 0) for id_ in written} == written  # type: ignore[call-overload]
    report = verify_all(Installation(cold_home))
    assert report["ok"], report


def test_a_partition_that_does_not_belong_to_us_is_not_dropped(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    with closing(connect(cold_bench.dsn)) as conn, pytest.raises(psycopg.errors.ObjectInUse):
        conn.execute(b"SELECT drop_detached_partition(%s)", [JANUARY])
