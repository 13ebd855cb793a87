"""The cold clock executed: whole trajectories leave the lake, holds win in time, crashes are finished, tiers agree."""

from __future__ import annotations

import datetime as dt
import threading
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fix_cold import Author, ColdBench
from fix_retention import hooked, load, make_plan, place, rows, run_apply
from fix_step_crash import Crash, crashing

from stratalog.cold import pins, retention, rewrite, rewrite_settle
from stratalog.cold.installation import Installation, Tiers
from stratalog.cold.readback import read_rows
from stratalog.cold.retention import ColdDeletions, delete_from_cold
from stratalog.cold.rewrite import Rewriting
from stratalog.cold.verification import verify_all
from stratalog.hot.home import Home
from stratalog.schemas import events as ev
from stratalog.schemas.arrow import INDEX
from stratalog.schemas.errors import Unavailable
from stratalog.schemas.statements import statements
from stratalog.warm import deletion_lower, hold
from stratalog.warm.database import connect

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
BOTH = '[[policy]]\nname = "short"\nmodel = "gone"\nwarm = "7d"\ncold = "30d"\n'
NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)


def fill(bench: ColdBench, count: int = 4) -> tuple[list[Author], list[Author]]:
    """Trajectories that are due and have left Postgres, and others beside them that stay."""
    gone = [bench.task(number, turns=2, model="gone") for number in range(count)]
    stays = [bench.task(number, turns=2, model="gone", day=1) for number in range(10, 12)]
    stays += [bench.task(number, turns=2) for number in range(20, 22)]
    bench.run()
    for author in stays[:2]:
        bench.execute(
            'UPDATE trajectories SET labels = \'{"keep": "yes"}\' WHERE trajectory_id = %s', author.trajectory_id
        )
    load(bench, '[[policy]]\nname = "exempt"\nlabels = { keep = "yes" }\n' + BOTH)
    run_apply(bench, NOW)
    return gone, stays


def tiers_of(bench: ColdBench) -> Tiers:
    return Tiers(bench.dsn, bench.lake, bench.catalog, bench.store, bench.settings)


def delete(bench: ColdBench, wait_s: float = 0.0) -> ColdDeletions:
    return delete_from_cold(tiers_of(bench), NOW, wait_s=wait_s)


def in_cold(bench: ColdBench) -> set[uuid.UUID]:
    found = {
        row[INDEX["trajectory_id"]] for url in bench.catalog.snapshot_files() for row in read_rows(bench.lake, url)
    }
    return {uuid.UUID(bytes=id_) for id_ in found}


def ids(authors: list[Author]) -> set[uuid.UUID]:
    return {author.trajectory_id for author in authors}


def states(bench: ColdBench) -> dict[str, int]:
    return dict(rows(bench, "SELECT state, count(*) FROM deletions WHERE tier = 'cold' GROUP BY 1"))  # type: ignore[arg-type]


def canary(bench: ColdBench, author: Author) -> bool:
    """Whether the id of a trajectory is anywhere among the files of the lake."""
    needle = author.trajectory_id.bytes
    root = Path(bench.lake.url.removeprefix("file://"))
    return any(needle in path.read_bytes() for path in root.rglob("*") if path.is_file())


def sound(home: Home) -> None:
    report = verify_all(Installation(home))
    assert report["ok"], report


def link(bench: ColdBench, child: Author, parent: Author) -> None:
    bench.execute(
        "INSERT INTO trajectory_links (child_id, parent_id, kind) VALUES (%s, %s, 'fork')",
        child.trajectory_id,
        parent.trajectory_id,
    )


def test_whole_trajectories_leave_and_the_tiers_agree(cold_bench: ColdBench, cold_home: Home) -> None:
    gone, stays = fill(cold_bench)
    before = in_cold(cold_bench)
    assert before == ids(gone) | ids(stays) and canary(cold_bench, gone[0])
    done = delete(cold_bench)
    assert (done.planned, done.trajectories, done.readers) == (4, 4, ()) and done.events > 0 and done.bytes > 0
    assert in_cold(cold_bench) == ids(stays)
    assert not any(canary(cold_bench, author) for author in gone) and canary(cold_bench, stays[0])
    assert states(cold_bench) == {"done": 4}
    heads = (
        "SELECT count(*) FROM trajectories WHERE cold_dropped_through = head_sequence AND cold_dropped_at IS NOT NULL"
    )
    assert rows(cold_bench, heads) == [(4,)]
    sound(cold_home)
    assert delete(cold_bench) == ColdDeletions()
    with closing(cold_bench.connect()) as conn:
        found = list(deletion_lower.deleted_from_cold(conn))
    assert {one.trajectory_id for one in found} == ids(gone)
    assert {(one.version, one.policy, one.done) for one in found} == {(1, "short", True)}


def test_nothing_leaves_before_it_has_left_postgres(cold_bench: ColdBench) -> None:
    author = cold_bench.task(1, model="gone")
    cold_bench.run()
    load(cold_bench, '[[policy]]\nname = "lake"\ncold = "1d"\n')
    assert delete(cold_bench).planned == 0 and author.trajectory_id in in_cold(cold_bench)
    (line,) = make_plan(cold_bench, NOW).due
    assert line.tier == "cold" and line.keeps == "still in Postgres"


def test_what_comes_later_is_stored_verified_and_leaves_again(cold_bench: ColdBench, cold_home: Home) -> None:
    gone, _ = fill(cold_bench)
    delete(cold_bench)
    cold_bench.append(gone[0], [ev.Annotation(name="late", score=1.0)])
    sound(cold_home)
    cold_bench.run()
    assert gone[0].trajectory_id in in_cold(cold_bench)
    sound(cold_home)
    run_apply(cold_bench, NOW)
    assert delete(cold_bench).events == 1
    assert gone[0].trajectory_id not in in_cold(cold_bench)
    sound(cold_home)


def test_families_leave_together(cold_bench: ColdBench) -> None:
    gone, stays = fill(cold_bench)
    link(cold_bench, stays[0], gone[0])
    link(cold_bench, gone[2], gone[1])
    done = delete(cold_bench)
    assert done.trajectories == 3 and in_cold(cold_bench) == ids([gone[0], *stays])
    cold_bench.execute("UPDATE trajectories SET labels = '{}'")
    run_apply(cold_bench, NOW)
    assert delete(cold_bench).trajectories == 3
    assert in_cold(cold_bench) == ids(stays[2:])


def test_a_link_to_another_tenant_keeps_nothing(cold_bench: ColdBench) -> None:
    gone, _ = fill(cold_bench)
    other = cold_bench.task(50, tenant="globex")
    link(cold_bench, other, gone[0])
    assert delete(cold_bench).trajectories == 4


def test_holds_win_and_a_held_branch_keeps_its_parent(cold_bench: ColdBench) -> None:
    gone, _ = fill(cold_bench)
    link(cold_bench, gone[1], gone[0])
    place(cold_bench, "case", trajectories=(gone[1].trajectory_id,))
    assert delete(cold_bench).trajectories == 2
    assert {gone[0].trajectory_id, gone[1].trajectory_id} <= in_cold(cold_bench)


def test_a_hold_that_comes_when_the_files_are_ready_wins(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, _ = fill(cold_bench)
    placed = []
    original = deletion_lower.start

    def start(*given: Any) -> Any:
        if not placed:
            placed.append(place(cold_bench, "case", trajectories=(gone[0].trajectory_id,)))
        return original(*given)

    monkeypatch.setattr(deletion_lower, "start", start)
    done = delete(cold_bench)
    assert (placed[0].cancelled, placed[0].lost) == (1, 0)
    assert done.trajectories == 3 and ("held by case", 1) in {(one.outcome, one.trajectories) for one in done.shares}
    assert gone[0].trajectory_id in in_cold(cold_bench) and not in_cold(cold_bench) & ids(gone[1:])


def test_a_hold_after_the_point_of_no_return_is_told_so(cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, _ = fill(cold_bench)
    placed = []
    original = deletion_lower.start

    def start(*given: Any) -> Any:
        refused = original(*given)
        placed.append(place(cold_bench, "case", trajectories=(gone[0].trajectory_id,)))
        return refused

    monkeypatch.setattr(deletion_lower, "start", start)
    assert delete(cold_bench).trajectories == 4
    assert (placed[0].cancelled, placed[0].lost) == (0, 1)


def race(bench: ColdBench, author: Author) -> tuple[Any, bool]:
    """A hold that has looked for deletions and not committed yet, while the deletion comes to its point of no return.

    Returns what the hold reports, and whether the deletion had to wait for it.
    """
    looked, go, placed, errors = threading.Event(), threading.Event(), [], []

    def pause(query: bytes, moment: str) -> None:
        if query == statements("holds")["lock_deletions"] and moment == "after":
            looked.set()
            go.wait(30)

    def holder() -> None:
        with closing(connect(bench.dsn)) as conn:
            conn.rollback()
            scope = hold.Scope(trajectories=(author.trajectory_id,))
            placed.append(hold.place(hooked(conn, pause), "case", scope, by="tester", reason="race"))

    def deleter() -> None:
        try:
            delete(bench)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    first, second = threading.Thread(target=holder), threading.Thread(target=deleter)
    first.start()
    assert looked.wait(30)
    second.start()
    waiting = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"
    end = time.monotonic() + 30
    while second.is_alive() and rows(bench, waiting) == [(False,)] and time.monotonic() < end:
        time.sleep(0.02)
    waited = second.is_alive()
    go.set()
    first.join()
    second.join()
    assert errors == []
    return placed[0], waited


def test_the_hold_and_the_deletion_never_both_believe_to_have_won(cold_bench: ColdBench) -> None:
    gone, _ = fill(cold_bench)
    placed, waited = race(cold_bench, gone[0])
    assert waited and placed.lost == 0
    assert gone[0].trajectory_id in in_cold(cold_bench)


def test_control_without_the_lock_on_holds_the_same_deletion_wins(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, _ = fill(cold_bench)
    monkeypatch.setattr(deletion_lower, "lock_out_holds", lambda conn: None)
    placed, waited = race(cold_bench, gone[0])
    assert not waited and placed.lost == 0, "the hold believes that everything is there"
    assert gone[0].trajectory_id not in in_cold(cold_bench), "and it is gone"


STEPS: list[tuple[Any, str, bool]] = [
    (deletion_lower, "plan", True),
    (retention, "files_holding", True),
    (Rewriting, "_write", True),
    (Rewriting, "_read_back", True),
    (deletion_lower, "start", False),
    (deletion_lower, "start", True),
    (rewrite, "replace_files", False),
    (rewrite, "replace_files", True),
    (rewrite, "note", True),
    (rewrite, "settle", False),
    (rewrite_settle, "delete_all", False),
    (rewrite_settle, "delete_all", True),
    (rewrite, "settle", True),
    (deletion_lower, "mark_cold", False),
    (deletion_lower, "mark_cold", True),
    (deletion_lower, "finish_cold", False),
    (deletion_lower, "finish_cold", True),
]


def crash_at(bench: ColdBench, patch: pytest.MonkeyPatch, owner: Any, name: str, after: bool) -> None:
    with patch.context() as patched:
        patched.setattr(owner, name, crashing(getattr(owner, name), after=after))
        with pytest.raises(Crash):
            delete(bench)


@pytest.mark.parametrize(("owner", "name", "after"), STEPS)
def test_a_crash_at_any_step_is_finished_by_the_next_call(
    cold_bench: ColdBench, cold_home: Home, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool
) -> None:
    gone, stays = fill(cold_bench)
    crash_at(cold_bench, monkeypatch, owner, name, after)
    sound(cold_home)
    assert ids(stays) <= in_cold(cold_bench)
    delete(cold_bench)
    assert in_cold(cold_bench) == ids(stays) and states(cold_bench) == {"done": 4}
    assert not any(canary(cold_bench, author) for author in gone)
    sound(cold_home)


@pytest.mark.parametrize("started", [False, True])
def test_a_hold_between_a_crash_and_the_next_call_wins_unless_it_was_committed(
    cold_bench: ColdBench, cold_home: Home, monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    gone, _ = fill(cold_bench)
    crash_at(cold_bench, monkeypatch, rewrite, "replace_files", started)
    placed = place(cold_bench, "case", trajectories=(gone[0].trajectory_id,))
    assert placed.lost == 1, "nobody can tell before the next call"
    delete(cold_bench)
    assert (gone[0].trajectory_id in in_cold(cold_bench)) is not started
    assert states(cold_bench) == ({"done": 4} if started else {"done": 3, "cancelled": 1})
    sound(cold_home)


def test_control_verify_misses_what_no_deletion_tells_of(
    cold_bench: ColdBench, cold_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cold_bench)
    monkeypatch.setattr(deletion_lower, "mark_cold", lambda conn, rewrite_id: None)
    delete(cold_bench)
    report = verify_all(Installation(cold_home))
    assert any("cannot be read from the cold tier" in problem for problem in report["tiers"]["cold"]["problems"])


def test_readers_are_waited_for_and_the_next_call_takes_the_bytes(cold_bench: ColdBench, cold_home: Home) -> None:
    gone, stays = fill(cold_bench)
    with closing(connect(cold_bench.dsn)) as conn:
        conn.rollback()
        pin = pins.take(conn, "an analyst")
        table = cold_bench.catalog.table()
        assert table is not None
        pins.set_snapshot(conn, pin, table.metadata.current_snapshot_id)
        done = delete(cold_bench)
        assert done.readers == ("an analyst",) and done.trajectories == 0
        assert in_cold(cold_bench) == ids(stays) and canary(cold_bench, gone[0])
        assert states(cold_bench) == {"started": 4}
        sound(cold_home)
        pins.release(conn, pin)
    assert delete(cold_bench).trajectories == 4 and not canary(cold_bench, gone[0])
    assert states(cold_bench) == {"done": 4}


def test_what_is_not_there_as_it_should_be_is_not_called_deleted(cold_bench: ColdBench) -> None:
    gone, _ = fill(cold_bench)
    cold_bench.execute(
        "UPDATE trajectories SET head_sequence = head_sequence + 1, consolidated_through = consolidated_through + 1, "
        "dropped_through = dropped_through + 1 WHERE trajectory_id = %s",
        gone[0].trajectory_id,
    )
    done = delete(cold_bench)
    assert done.trajectories == 3
    assert (retention.NOT_FOUND, 1) in {(one.outcome, one.trajectories) for one in done.shares}
    assert gone[0].trajectory_id in in_cold(cold_bench)


@pytest.mark.parametrize("cut", [True, False], ids=["cut off", "one byte"])
def test_a_damaged_file_keeps_nothing_else_from_going(cold_bench: ColdBench, cut: bool) -> None:
    gone, _ = fill(cold_bench)
    hurt = cold_bench.task(40, turns=2, model="gone", day=3)
    cold_bench.run()
    run_apply(cold_bench, NOW)
    (url,) = [url for url in cold_bench.catalog.snapshot_files() if "2025-01-04" in url]
    path = Path(url.removeprefix("file://"))
    content = path.read_bytes()
    path.write_bytes(content[:-100] if cut else content[:60] + bytes([content[60] ^ 1]) + content[61:])
    done = delete(cold_bench)
    assert done.trajectories == 4
    assert (retention.DAMAGED, 1) in {(one.outcome, one.trajectories) for one in done.shares}
    path.write_bytes(content)
    assert not in_cold(cold_bench) & ids(gone) and hurt.trajectory_id in in_cold(cold_bench)
    assert delete(cold_bench).trajectories == 1 and hurt.trajectory_id not in in_cold(cold_bench)


def test_a_storage_that_does_not_answer_is_asked_again_by_the_next_call(
    cold_bench: ColdBench, cold_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, stays = fill(cold_bench)

    def refused(*given: Any, **named: Any) -> None:
        raise Unavailable("the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(rewrite_settle, "delete_all", refused)
        with pytest.raises(Unavailable):
            delete(cold_bench)
    sound(cold_home)
    assert delete(cold_bench).trajectories == 4 and in_cold(cold_bench) == ids(stays)
    assert not any(canary(cold_bench, author) for author in gone)
