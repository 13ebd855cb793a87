"""Holds and deletions on many connections at once: what a hold does not report as gone is there, to the last row."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial

import pytest
from fix_cold import ColdBench
from fix_retention import events_here, load, run_apply

from stratalog.schemas.ids import from_us
from stratalog.warm import deletion, hold
from stratalog.warm.database import Connection, connect
from stratalog.warm.deletion import Judged, Tally, execute, plan_deletions
from stratalog.warm.hold import Placed, Scope

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
NOW = from_us(1_790_000_000_000_000)
TRAJECTORIES = 60


def fill(bench: ColdBench, *, whole: bool) -> None:
    for number in range(TRAJECTORIES):
        bench.task(number, turns=1, day=number % 25)
    bench.run()
    if not whole:
        for number in range(100, 150):
            bench.task(number, turns=1, finished=False)
    load(bench)


def lost(bench: ColdBench, placed: dict[int, Placed], before: dict[object, int]) -> list[int]:
    """The trajectories whose hold says that they are there, and that are not, or not whole."""
    left = events_here(bench)
    ids = {number: bench.author(number, day=number % 25).trajectory_id for number in placed}
    return [
        number for number, found in placed.items() if not found.done and left.get(ids[number], 0) != before[ids[number]]
    ]


def race(bench: ColdBench, deleters: list[Callable[[], None]], seed: int) -> dict[int, Placed]:
    """Run the deleters while four connections place a hold on every other trajectory, in random order."""
    numbers = list(range(0, TRAJECTORIES, 2))
    random.Random(seed).shuffle(numbers)
    placed: dict[int, Placed] = {}
    errors: list[BaseException] = []
    start = threading.Barrier(4 + len(deleters))

    def holder(mine: list[int]) -> None:
        with closing(connect(bench.dsn)) as conn:
            conn.rollback()
            start.wait()
            for number in mine:
                scope = Scope(trajectories=(bench.author(number, day=number % 25).trajectory_id,))
                placed[number] = hold.place(conn, f"matter-{number % 3}", scope, by="tester", reason="race")

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    def begun(work: Callable[[], None]) -> None:
        start.wait()
        work()

    works = [partial(holder, numbers[at::4]) for at in range(4)] + [partial(begun, work) for work in deleters]
    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return placed


def delete_all(bench: ColdBench) -> None:
    """Plan and execute one by one, without the lock that keeps others from applying."""
    with closing(connect(bench.dsn)) as conn:
        conn.rollback()
        for _ in range(3):
            plan_deletions(conn, NOW)
            planned = conn.execute(
                b"SELECT deletion_id, trajectory_id FROM deletions WHERE state = 'planned' ORDER BY random()"
            ).fetchall()
            conn.rollback()
            for one in planned:
                execute(conn, [one], NOW, Tally())


@pytest.mark.parametrize("seed", range(3))
def test_no_hold_is_beaten_by_single_deletions(cold_bench: ColdBench, seed: int) -> None:
    fill(cold_bench, whole=False)
    before: dict[object, int] = dict(events_here(cold_bench))
    placed = race(cold_bench, [partial(delete_all, cold_bench)] * 4, seed)
    assert lost(cold_bench, placed, before) == []
    assert len(placed) == TRAJECTORIES // 2


@pytest.mark.parametrize("seed", range(3))
def test_no_hold_is_beaten_by_the_drop_of_a_partition(cold_bench: ColdBench, seed: int) -> None:
    fill(cold_bench, whole=True)
    before: dict[object, int] = dict(events_here(cold_bench))
    placed = race(cold_bench, [lambda: run_apply(cold_bench) and None], seed)
    assert lost(cold_bench, placed, before) == []


def test_control_a_check_in_a_transaction_of_its_own_is_beaten(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged first, held in between, deleted then: the hold is seen by nobody."""
    fill(cold_bench, whole=False)
    placed: dict[uuid.UUID, Placed] = {}
    original = deletion.judge

    def judged_before(conn: Connection, planned: object, now: object) -> list[Judged]:
        with closing(connect(cold_bench.dsn)) as other, other.transaction():
            judged = original(other, planned, now)  # type: ignore[arg-type]
        if not placed:
            id_ = judged[0].trajectory_id
            with closing(connect(cold_bench.dsn)) as other:
                other.rollback()
                placed[id_] = hold.place(other, "case", Scope(trajectories=(id_,)), by="tester", reason="race")
        return judged

    monkeypatch.setattr(deletion, "lock_out_holds", lambda conn: None)
    monkeypatch.setattr(deletion, "judge", judged_before)
    # What the hold has cancelled cannot be finished either; whoever checks elsewhere would not look at that.
    cold_bench.execute("ALTER TABLE deletions DISABLE TRIGGER ended")
    delete_all(cold_bench)
    ((id_, found),) = placed.items()
    assert found.done == 0 and found.cancelled == 1, "the hold believes that everything is there"
    assert id_ not in events_here(cold_bench), "and it is gone"
