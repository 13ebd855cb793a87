"""Legal holds: what they cover, that they win over every deletion, and that their history stays."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import closing
from typing import Any

import psycopg
import pytest
from fix_cold import ColdBench
from fix_retention import deletions, events_here, hooked, load, place, rows, run_apply

from stratalog.schemas.errors import Invalid, NotFound
from stratalog.schemas.ids import from_us
from stratalog.schemas.statements import statements
from stratalog.warm import deletion, hold
from stratalog.warm.database import connect
from stratalog.warm.deletion import Tally, execute_planned, plan_deletions
from stratalog.warm.hold import Placed, Scope

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
NOW = from_us(1_790_000_000_000_000)


def stay(bench: ColdBench) -> None:
    """So much that has not ended that partitions are not dropped whole."""
    for number in range(100, 110):
        bench.task(number, finished=False)


def release(bench: ColdBench, matter: str, **options: Any) -> list[int]:
    with closing(bench.connect()) as conn:
        return hold.release(conn, matter, by="tester", reason="over", **options)


def test_holds_of_every_kind_win_and_the_conflict_is_reported(cold_bench: ColdBench) -> None:
    stay(cold_bench)
    free, by_set, by_tenant = cold_bench.task(1), cold_bench.task(2), cold_bench.task(3, tenant="globex")
    by_sql = cold_bench.task(4, model="100%")
    cold_bench.run()
    load(cold_bench)
    assert place(cold_bench, "one", trajectories=(by_set.trajectory_id,)).trajectories == 1
    assert place(cold_bench, "two", tenant="globex").trajectories == 1
    assert place(cold_bench, "three", where="model LIKE '100%' -- a comment").trajectories == 1
    done = run_apply(cold_bench)
    assert done.trajectories == 1
    assert {(line.keeps, line.matters, line.trajectories) for line in done.kept} == {
        ("held", (matter,), 1) for matter in ("one", "two", "three")
    }
    left = events_here(cold_bench)
    assert free.trajectory_id not in left
    assert all(author.trajectory_id in left for author in (by_set, by_tenant, by_sql))


def test_several_matters_hold_until_the_last_is_released(cold_bench: ColdBench) -> None:
    stay(cold_bench)
    author = cold_bench.task(1)
    cold_bench.run()
    load(cold_bench)
    first = place(cold_bench, "one", trajectories=(author.trajectory_id,))
    place(cold_bench, "one", tenant="acme")
    place(cold_bench, "two", tenant="acme")
    assert release(cold_bench, "one", hold_id=first.hold_id) == [first.hold_id]
    assert run_apply(cold_bench).kept[0].matters == ("one", "two")
    release(cold_bench, "one")
    assert run_apply(cold_bench).kept[0].matters == ("two",)
    with pytest.raises(NotFound):
        release(cold_bench, "one")
    release(cold_bench, "two")
    assert run_apply(cold_bench).trajectories == 1
    with closing(cold_bench.connect()) as conn:
        assert hold.entries(conn) == []
        history = hold.entries(conn, everything=True)
    assert [(one.matter, one.kind, one.released_by, one.release_reason) for one in history] == [
        ("one", "trajectories", "tester", "over"),
        ("one", "tenant", "tester", "over"),
        ("two", "tenant", "tester", "over"),
    ]


def test_a_tenant_is_held_with_what_it_will_write(cold_bench: ColdBench) -> None:
    stay(cold_bench)
    place(cold_bench, "early", tenant="acme")
    unknown = uuid.uuid4()
    assert place(cold_bench, "typo", trajectories=(unknown,)).unknown == 1
    cold_bench.task(1)
    cold_bench.run()
    load(cold_bench)
    assert run_apply(cold_bench).trajectories == 0


def test_a_hold_cancels_what_is_planned_and_tells_what_was_done(cold_bench: ColdBench) -> None:
    stay(cold_bench)
    gone = cold_bench.task(1)
    cold_bench.run()
    load(cold_bench)
    run_apply(cold_bench)
    cold_bench.task(2)
    cold_bench.run()
    with closing(cold_bench.connect()) as conn:
        assert plan_deletions(conn, NOW) == 1
    placed = place(cold_bench, "case", tenant="acme")
    assert (placed.cancelled, placed.started, placed.done) == (1, 0, 1)
    assert deletions(cold_bench) == {"done": 1, "cancelled": 1}
    assert rows(cold_bench, "SELECT reason FROM deletions WHERE state = 'cancelled'") == [("held by case",)]
    assert gone.trajectory_id not in events_here(cold_bench)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM {table}",
        "TRUNCATE {table} CASCADE",
        "UPDATE {table} SET hold_id = hold_id",
    ],
)
@pytest.mark.parametrize("table", ["holds", "hold_trajectories", "hold_releases"])
def test_the_history_refuses_to_be_changed(cold_bench: ColdBench, statement: str, table: str) -> None:
    place(cold_bench, "case", trajectories=(uuid.uuid4(),))
    release(cold_bench, "case")
    with pytest.raises(psycopg.Error, match=r"is a history|can only be updated to DEFAULT"):
        cold_bench.execute(statement.format(table=table))
    assert rows(cold_bench, f"SELECT count(*) FROM {table}") == [(1,)]


@pytest.mark.parametrize(
    "where",
    [
        "true); DELETE FROM trajectories; --",
        "true; COMMIT; DELETE FROM trajectories",
        "EXISTS (WITH d AS (DELETE FROM trajectories RETURNING 1) SELECT 1 FROM d)",
        "set_config('transaction_read_only', 'off', true) = 'off' AND nextval('deletions_deletion_id_seq') > 0",
        "nextval('deletions_deletion_id_seq') > 0",
        "no_such_column = 1",
        "1 / 0 = 1",
        "%s",
        "false",
        " ",
        "x\0y",
    ],
)
def test_a_selection_only_reads(cold_bench: ColdBench, where: str) -> None:
    cold_bench.task(1)
    with pytest.raises(Invalid):
        place(cold_bench, "case", where=where)
    assert rows(cold_bench, "SELECT count(*) FROM trajectories") == [(1,)]
    assert rows(cold_bench, "SELECT count(*) FROM holds") == [(0,)]


@pytest.mark.parametrize(
    "scope",
    [{}, {"tenant": "acme", "where": "true"}, {"tenant": "NOT A TENANT"}],
    ids=["nothing", "two", "no tenant"],
)
def test_a_bad_scope_changes_nothing(cold_bench: ColdBench, scope: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        place(cold_bench, "case", **scope)
    assert rows(cold_bench, "SELECT count(*) FROM holds") == [(0,)]


def _raced(bench: ColdBench) -> tuple[Placed, bool]:
    """A hold that has looked for deletions and not committed yet, and a deletion that is planned and executed now.

    Returns what the hold reports, and whether the deletion had to wait for it.
    """
    looked, go = threading.Event(), threading.Event()
    placed: list[Placed] = []

    def pause(query: bytes, moment: str) -> None:
        if query == statements("holds")["covered"] and moment == "before":
            looked.set()
            go.wait(30)

    def place_it() -> None:
        with closing(connect(bench.dsn)) as conn:
            conn.rollback()
            scope = Scope(trajectories=(bench.author(1).trajectory_id,))
            placed.append(hold.place(hooked(conn, pause), "case", scope, by="tester", reason="because"))

    def delete() -> None:
        with closing(connect(bench.dsn)) as conn:
            conn.rollback()
            plan_deletions(conn, NOW)
            execute_planned(conn, NOW, Tally())

    holder, deleter = threading.Thread(target=place_it), threading.Thread(target=delete)
    holder.start()
    assert looked.wait(30)
    deleter.start()
    waiting = "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    end = time.monotonic() + 30
    while deleter.is_alive() and rows(bench, waiting) == [(False,)] and time.monotonic() < end:
        time.sleep(0.02)
    waited = deleter.is_alive()
    go.set()
    holder.join()
    deleter.join()
    return placed[0], waited


def test_a_deletion_that_is_planned_while_a_hold_is_placed_waits_for_it(cold_bench: ColdBench) -> None:
    stay(cold_bench)
    author = cold_bench.task(1)
    cold_bench.run()
    load(cold_bench)
    placed, waited = _raced(cold_bench)
    assert waited and placed.done == 0
    assert author.trajectory_id in events_here(cold_bench)
    assert deletions(cold_bench) == {"cancelled": 1}


def test_control_without_the_lock_the_same_deletion_beats_the_hold(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check is still there, in the transaction of the deletion, and is not enough."""
    stay(cold_bench)
    author = cold_bench.task(1)
    cold_bench.run()
    load(cold_bench)
    monkeypatch.setattr(deletion, "lock_out_holds", lambda conn: None)
    placed, waited = _raced(cold_bench)
    assert not waited and placed.done == 0, "the hold believes that everything is there"
    assert author.trajectory_id not in events_here(cold_bench), "and it is gone"
