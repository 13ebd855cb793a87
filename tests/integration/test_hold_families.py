"""Holds over families: forks and sub-agents are held with what they descend from, and what they need stays."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import closing

import pytest
from fix_cold import Author, ColdBench
from fix_retention import deletions, events_here, hooked, load, make_plan, place, rows, run_apply

from stratalog.schemas.ids import from_us
from stratalog.schemas.statements import statements
from stratalog.warm import deletion, deletion_partitions, hold
from stratalog.warm.database import connect
from stratalog.warm.deletion import Tally, execute_planned, plan_deletions
from stratalog.warm.hold import Placed, Scope

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
NOW = from_us(1_790_000_000_000_000)


def link(bench: ColdBench, child: Author, parent: Author, kind: str = "fork") -> None:
    bench.execute(
        "INSERT INTO trajectory_links (child_id, parent_id, kind) VALUES (%s, %s, %s)",
        child.trajectory_id,
        parent.trajectory_id,
        kind,
    )


def stay(bench: ColdBench) -> None:
    """So much that has not ended that partitions are not dropped whole."""
    for number in range(100, 110):
        bench.task(number, finished=False)


def family(bench: ColdBench, *, whole: bool = False) -> tuple[Author, Author, Author, Author]:
    """A grandparent, its two branches, and a branch of the first; all may go."""
    if not whole:
        stay(bench)
    grand, first, second, leaf = (bench.task(number, turns=1) for number in range(1, 5))
    bench.run()
    link(bench, first, grand)
    link(bench, second, grand, "child")
    link(bench, leaf, first)
    load(bench)
    return grand, first, second, leaf


@pytest.mark.parametrize("whole", [False, True], ids=["by rows", "by partition"])
def test_a_hold_covers_what_descends_and_keeps_what_that_needs(cold_bench: ColdBench, whole: bool) -> None:
    grand, first, second, leaf = family(cold_bench, whole=whole)
    placed = place(cold_bench, "case", trajectories=(first.trajectory_id,))
    assert (placed.trajectories, placed.descendants, placed.ancestors, placed.unknown) == (2, 1, 1, 0)
    found = make_plan(cold_bench)
    assert {(line.keeps, line.matters, line.trajectories) for line in found.due} == {
        ("", (), 1),
        ("held", ("case",), 2),
        ("needed by a held branch", ("case",), 1),
    }
    done = run_apply(cold_bench)
    left = events_here(cold_bench)
    assert done.trajectories == 1 and second.trajectory_id not in left
    assert {author.trajectory_id for author in (grand, first, leaf)} <= left.keys()
    with closing(cold_bench.connect()) as conn:
        (listed,) = hold.entries(conn)
        assert (listed.trajectories, listed.descendants) == (1, 1)
        hold.release(conn, "case", by="tester", reason="over")
    assert run_apply(cold_bench).trajectories == 3


def test_a_link_that_comes_later_counts(cold_bench: ColdBench) -> None:
    stay(cold_bench)
    parent, child = cold_bench.task(1, turns=1), cold_bench.task(2, turns=1)
    cold_bench.run()
    load(cold_bench)
    place(cold_bench, "case", trajectories=(parent.trajectory_id,))
    with closing(cold_bench.connect()) as conn:
        assert plan_deletions(conn, NOW) == 1
        link(cold_bench, child, parent)
        tally = Tally()
        execute_planned(conn, NOW, tally)
    assert [share.outcome for share in tally.shares()] == ["held by case"]
    assert child.trajectory_id in events_here(cold_bench)


def test_a_branch_that_has_not_arrived_keeps_what_it_needs(cold_bench: ColdBench) -> None:
    stay(cold_bench)
    parent = cold_bench.task(1, turns=1)
    cold_bench.run()
    load(cold_bench)
    absent = Author(uuid.uuid4())
    link(cold_bench, absent, parent)
    assert place(cold_bench, "case", trajectories=(absent.trajectory_id,)).unknown == 1
    assert run_apply(cold_bench).trajectories == 0
    assert make_plan(cold_bench).due[0].keeps == "needed by a held branch"


def test_a_hold_cancels_what_is_planned_in_the_whole_family(cold_bench: ColdBench) -> None:
    grand, first, _, leaf = family(cold_bench)
    with closing(cold_bench.connect()) as conn:
        assert plan_deletions(conn, NOW) == 4
    assert place(cold_bench, "case", trajectories=(first.trajectory_id,)).cancelled == 3
    query = "SELECT trajectory_id, reason FROM deletions WHERE state = 'cancelled'"
    assert dict(rows(cold_bench, query)) == {  # type: ignore[arg-type]
        grand.trajectory_id: "needed by a branch held by case",
        first.trajectory_id: "held by case",
        leaf.trajectory_id: "held by case",
    }
    assert deletions(cold_bench) == {"cancelled": 3, "planned": 1}


def test_a_branch_that_is_held_while_a_partition_is_dropped_keeps_its_parents(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    grand, first, second, leaf = family(cold_bench, whole=True)
    placed: list[Placed] = []

    def held_now(conn: object, name: str, tally: Tally) -> None:
        placed.append(place(cold_bench, "case", trajectories=(leaf.trajectory_id,)))
        original(conn, name, tally)  # type: ignore[arg-type]

    original = deletion_partitions.drop
    monkeypatch.setattr(deletion_partitions, "drop", held_now)
    done = run_apply(cold_bench)
    assert placed[0].started == 3 and done.trajectories == 1
    assert set(events_here(cold_bench)) == {author.trajectory_id for author in (grand, first, leaf)}
    assert second.trajectory_id not in events_here(cold_bench)


def _raced(bench: ColdBench, parent: Author) -> tuple[Placed, bool]:
    """A hold on a parent that has looked for deletions and not committed yet, while its child is planned and deleted.

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
            scope = Scope(trajectories=(parent.trajectory_id,))
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


def test_a_child_that_is_deleted_while_its_parent_is_being_held_waits(cold_bench: ColdBench) -> None:
    stay(cold_bench)
    parent, child = cold_bench.task(1, turns=1), cold_bench.task(2, turns=1)
    cold_bench.run()
    load(cold_bench)
    link(cold_bench, child, parent)
    placed, waited = _raced(cold_bench, parent)
    assert waited and placed.done == 0
    assert {parent.trajectory_id, child.trajectory_id} <= events_here(cold_bench).keys()


def test_control_without_the_lock_the_child_is_lost(cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch) -> None:
    stay(cold_bench)
    parent, child = cold_bench.task(1, turns=1), cold_bench.task(2, turns=1)
    cold_bench.run()
    load(cold_bench)
    link(cold_bench, child, parent)
    monkeypatch.setattr(deletion, "lock_out_holds", lambda conn: None)
    placed, waited = _raced(cold_bench, parent)
    assert not waited and placed.done == 0, "the hold believes that everything is there"
    assert child.trajectory_id not in events_here(cold_bench), "and the child is gone"


def test_control_a_hold_that_looks_at_names_alone_loses_the_branch(cold_bench: ColdBench) -> None:
    _, first, _, leaf = family(cold_bench)
    cold_bench.execute(
        "CREATE OR REPLACE FUNCTION holding_matters(id uuid, of_tenant text) RETURNS text[] LANGUAGE sql STABLE AS $$ "
        "SELECT array_agg(DISTINCT h.matter) FROM active_holds h JOIN hold_trajectories x USING (hold_id) "
        "WHERE x.trajectory_id = id $$"
    )
    place(cold_bench, "case", trajectories=(first.trajectory_id,))
    run_apply(cold_bench)
    assert leaf.trajectory_id not in events_here(cold_bench)
