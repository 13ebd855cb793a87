"""Data files are replaced as if at once: readers see the table before or after, and the next job ends what crashed."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest
from fix_cold import ColdBench
from fix_step_crash import Crash, crashing
from pyiceberg.table import Table

from stratalog.cold import pins, rewrite_settle
from stratalog.cold import rewrite as module
from stratalog.cold.catalog import Catalog
from stratalog.cold.check import verify_cold
from stratalog.cold.columns import Row
from stratalog.cold.expiry import expire
from stratalog.cold.installation import Tiers
from stratalog.cold.lake import Lake
from stratalog.cold.metadata_files import named_by
from stratalog.cold.readback import read_rows
from stratalog.cold.rewrite import Rewriting, Rewritten, rewrite, settle_rewrites
from stratalog.cold.rewrite_files import files_holding
from stratalog.cold.rewrite_plan import Kind, replaced
from stratalog.schemas import events as ev
from stratalog.schemas.arrow import INDEX
from stratalog.schemas.errors import Conflict, Corrupt, Invalid, Locked, Unavailable
from stratalog.schemas.settings import ColdSettings

pytestmark = pytest.mark.postgres

ID = INDEX["trajectory_id"]


def tiers_of(bench: ColdBench) -> Tiers:
    return Tiers(bench.dsn, bench.lake, bench.catalog, bench.store, bench.settings)


def fill(bench: ColdBench, count: int = 6, runs: int = 2) -> list[uuid.UUID]:
    """Trajectories on two days, in several runs."""
    ids = []
    for number in range(count):
        ids.append(bench.task(number, turns=8, day=number % 2).trajectory_id)
        if (number + 1) % (count // runs) == 0:
            bench.run()
    return ids


def without(*ids: uuid.UUID) -> Any:
    going = {id_.bytes for id_ in ids}
    return lambda row: None if row[ID] in going else row


def rows_of(bench: ColdBench) -> list[Row]:
    rows = [row for url in bench.catalog.snapshot_files() for row in read_rows(bench.lake, url)]
    return sorted(rows, key=lambda row: (row[ID], row[INDEX["sequence_number"]]))


def violations(bench: ColdBench, expected: list[Row]) -> list[str]:
    found = verify_cold(bench.lake, bench.catalog, bench.store)
    wrong = list(found.problems)
    if rows_of(bench) != expected:
        wrong.append("the rows are others")
    return wrong


def left_over(bench: ColdBench) -> set[str]:
    """Files that the table does not need."""
    table = bench.catalog.table()
    assert table is not None
    named = named_by(bench.catalog, table, table.metadata.snapshots)
    data = {entry.path for entry in bench.lake.files()} - named.data
    avro = {entry.path for entry in bench.lake.files("iceberg") if entry.path.endswith(".avro")} - named.metadata
    return data | avro


def states(bench: ColdBench) -> list[str]:
    with bench.connect() as conn:
        return [state for (state,) in conn.execute("SELECT state FROM rewrites ORDER BY started_at, rewrite_id")]


def replace(bench: ColdBench, change: Any, kind: Kind = "retention", **options: Any) -> Rewritten:
    return rewrite(tiers_of(bench), bench.catalog.snapshot_files(), change, kind, **options)


def test_trajectories_leave_and_the_others_stay_as_they_were(cold_bench: ColdBench) -> None:
    ids = fill(cold_bench)
    before = rows_of(cold_bench)
    with Rewriting(tiers_of(cold_bench)) as work:
        holding = files_holding(cold_bench.lake, cold_bench.catalog.snapshot_files(), [ids[2]])
        done = work.rewrite(holding, without(ids[2]), "retention")
    expected = [row for row in before if row[ID] != ids[2].bytes]
    assert violations(cold_bench, expected) == [] and left_over(cold_bench) == set()
    assert done.over and done.rows_dropped == sum(holding.values()) == len(before) - len(expected) > 0
    assert set(done.files) == set(holding) and not any(cold_bench.lake.exists(url) for url in done.files)
    assert done.new_bytes < done.bytes and done.settled is not None and done.settled.snapshots
    assert states(cold_bench) == ["done"]
    with cold_bench.connect() as conn:
        conn.rollback()
        paths = [cold_bench.lake.path_of(url) for url in done.files]
        assert replaced(conn, paths, "retention") == set(paths) and not replaced(conn, paths, "erasure")


def test_no_row_at_all_may_stay(cold_bench: ColdBench) -> None:
    ids = fill(cold_bench, 4)
    done = replace(cold_bench, without(*ids))
    assert done.new_files == () and done.rows == 0
    assert cold_bench.catalog.snapshot_files() == [] and violations(cold_bench, []) == []
    cold_bench.task(9)
    assert (
        cold_bench.run().trajectories == 1
        and verify_cold(cold_bench.lake, cold_bench.catalog, cold_bench.store).problems == ()
    )


def test_nothing_to_rewrite(cold_bench: ColdBench) -> None:
    fill(cold_bench, 2)
    assert rewrite(tiers_of(cold_bench), [], without(), "retention") == Rewritten() and states(cold_bench) == []


def test_files_that_share_a_segment_go_together(cold_bench: ColdBench) -> None:
    cold_bench.settings = ColdSettings(row_group_rows=16, file_bytes_max=60_000)
    ids = [cold_bench.task(number, turns=100 if number == 9 else 8).trajectory_id for number in range(20)]
    cold_bench.run()
    before, files = rows_of(cold_bench), cold_bench.catalog.snapshot_files()
    spanning = sorted(files_holding(cold_bench.lake, files, [ids[9]]))
    assert len(spanning) == 3 < len(files) - 1
    # One of them is enough to name.
    done = rewrite(tiers_of(cold_bench), [spanning[1]], without(ids[9]), "retention")
    assert set(done.files) == set(spanning)
    assert violations(cold_bench, [row for row in before if row[ID] != ids[9].bytes]) == []
    # And again, of what the first one has left.
    holding = files_holding(cold_bench.lake, cold_bench.catalog.snapshot_files(), [ids[8]])
    again = rewrite(tiers_of(cold_bench), holding, without(ids[8]), "retention")
    assert len(again.files) == 1
    gone = {ids[8].bytes, ids[9].bytes}
    assert violations(cold_bench, [row for row in before if row[ID] not in gone]) == []


def test_merging_keeps_every_row(cold_bench: ColdBench) -> None:
    fill(cold_bench, 12, runs=6)
    cold_bench.append(cold_bench.author(2), [ev.Annotation(name="late", score=1.0)])
    cold_bench.run()
    before = rows_of(cold_bench)
    files = len(cold_bench.catalog.snapshot_files())
    done = replace(cold_bench, lambda row: row, "compaction")
    assert files == len(done.files) > len(done.new_files) == 2
    assert violations(cold_bench, before) == [] and left_over(cold_bench) == set()


def test_what_would_break_a_chain_is_refused_and_undone(cold_bench: ColdBench) -> None:
    ids = fill(cold_bench, 4)
    before, files = rows_of(cold_bench), cold_bench.catalog.snapshot_files()

    def cut(row: Row) -> Row | None:
        return None if row[ID] == ids[0].bytes and row[INDEX["sequence_number"]] == 3 else row

    def swap(row: Row) -> Row:
        if row[ID] == ids[0].bytes and row[INDEX["text"]] is not None:
            row[INDEX["text"]] = "something else"
        return row

    with pytest.raises(Invalid, match="a part of trajectory"):
        replace(cold_bench, cut)
    with pytest.raises(Corrupt, match="do not read back"):
        replace(cold_bench, swap)
    assert states(cold_bench) == ["undone", "undone"]
    assert cold_bench.catalog.snapshot_files() == files and violations(cold_bench, before) == []
    assert left_over(cold_bench) == set()


def test_a_damaged_trajectory_is_carried_over_and_named(cold_bench: ColdBench) -> None:
    ids = fill(cold_bench, 4)

    def damage(row: Row) -> Row:
        if row[ID] == ids[1].bytes and row[INDEX["kind"]] == "ToolIntent":
            row[INDEX["arguments"]] = "{}"
        return row

    # Rows that never were right: written past the check.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rewriting, "_read_back", lambda self, written: None)
        replace(cold_bench, damage)
    assert len(verify_cold(cold_bench.lake, cold_bench.catalog, cold_bench.store).problems) == 1
    done = replace(cold_bench, without(ids[0]))
    assert done.damaged == {ids[1]}
    found = verify_cold(cold_bench.lake, cold_bench.catalog, cold_bench.store)
    assert found.damaged == {ids[1]} and found.trajectories == 2


def test_files_that_are_not_in_the_table(cold_bench: ColdBench) -> None:
    ids = fill(cold_bench, 2)
    files = cold_bench.catalog.snapshot_files()
    replace(cold_bench, without(ids[0]))
    with pytest.raises(Conflict, match="does not have"):
        rewrite(tiers_of(cold_bench), files, without(ids[1]), "retention")


def test_one_at_a_time(cold_bench: ColdBench) -> None:
    fill(cold_bench, 2)
    with Rewriting(tiers_of(cold_bench)), pytest.raises(Locked):
        replace(cold_bench, without())


def test_readers_are_waited_for_but_not_by_an_erasure(cold_bench: ColdBench) -> None:
    ids = fill(cold_bench, 4)
    table = cold_bench.catalog.table()
    current = None if table is None else table.current_snapshot()
    assert current is not None
    with cold_bench.connect() as conn:
        conn.rollback()
        pin = pins.take(conn, "slow reader")
        pins.set_snapshot(conn, pin, current.snapshot_id)
        before = rows_of(cold_bench)
        done = replace(cold_bench, without(ids[0]))
        assert not done.over and done.settled is not None and done.settled.readers == ("slow reader",)
        assert all(map(cold_bench.lake.exists, done.files)), "the reader needs them"
        assert violations(cold_bench, [row for row in before if row[ID] != ids[0].bytes]) == []
        # A consolidation is not held up by it, nor a second rewrite, whose old files this reader has not pinned.
        cold_bench.task(7)
        assert cold_bench.run().trajectories == 1
        assert not settle_rewrites(tiers_of(cold_bench))[0].over
        pins.release(conn, pin)
        assert settle_rewrites(tiers_of(cold_bench))[0].over
        assert not any(map(cold_bench.lake.exists, done.files)) and left_over(cold_bench) == set()
        pins.take(conn, "in the way")
        done = replace(cold_bench, without(ids[1]), "erasure")
        assert done.over and not any(map(cold_bench.lake.exists, done.files))


def test_the_snapshot_does_not_say_what_was_in_the_files(cold_bench: ColdBench) -> None:
    ids = fill(cold_bench, 4)
    replace(cold_bench, without(ids[0]))
    table = cold_bench.catalog.table()
    snapshot = None if table is None else table.current_snapshot()
    assert table is not None and snapshot is not None
    left = [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        if entry.status == 2
    ]
    assert left and all(file.lower_bounds is None and file.upper_bounds is None for file in left)


STEPS: list[tuple[Any, str]] = [
    (module, "make_plan"),
    (Lake, "publish"),
    (Rewriting, "_write"),
    (module, "read_rows"),
    (Rewriting, "_read_back"),
    (module, "note_new_files"),
    (module, "replace_files"),
    (module, "note"),
    (module, "settle"),
    (rewrite_settle, "snapshots_naming"),
    (Catalog, "expire"),
    (rewrite_settle, "stale_metadata"),
    (Lake, "purge"),
    (rewrite_settle, "note"),
]

ONCE = ("make_plan", "_write", "_read_back", "note_new_files", "replace_files", "snapshots_naming", "read_rows")
"""Steps that come once, or of which each is like the first."""

NEXT: tuple[Any, ...] = (
    lambda bench: rewrite(tiers_of(bench), [], without(), "retention"),
    lambda bench: bench.run(),
    lambda bench: expire(tiers_of(bench)),
)


def crashes(bench: ColdBench, going: uuid.UUID, owner: Any, name: str, after: bool, on: int, then: Any) -> bool:
    """Whether a rewrite dies there. In any case readers see the table before or after, and the next job ends it."""
    before = rows_of(bench)
    later = [row for row in before if row[ID] != going.bytes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, crashing(getattr(owner, name), after=after, on=on))
        try:
            replace(bench, without(going))
        except Crash:
            crashed = True
        else:
            crashed = False
    rows = rows_of(bench)
    assert rows in (before, later), (name, after, on)
    assert violations(bench, rows) == [], (name, after, on)
    then(bench)
    assert violations(bench, rows) == [] and left_over(bench) == set(), (name, after, on)
    assert set(states(bench)) <= {"done", "undone"}, (name, after, on)
    replace(bench, without(going))
    assert violations(bench, later) == [] and left_over(bench) == set(), (name, after, on)
    return crashed


@pytest.mark.slow
def test_the_next_job_ends_it_whatever_step_it_was(cold_bench: ColdBench) -> None:
    numbers, jobs = itertools.count(), itertools.cycle(NEXT)
    points = 0
    for (owner, name), after in itertools.product(STEPS, (False, True)):
        for on in itertools.count(1):
            while len({row[ID] for row in rows_of(cold_bench)}) < 3:
                number = next(numbers)
                cold_bench.task(number, turns=1, day=number % 2)
                cold_bench.run()
            going = uuid.UUID(bytes=rows_of(cold_bench)[0][ID])
            crashed = crashes(cold_bench, going, owner, name, after, on, next(jobs))
            assert crashed or on > 1, f"{name} was never called"
            points += crashed
            if not crashed or name in ONCE:
                break
    assert points > 2 * len(STEPS)


def test_deleting_before_the_commit_would_be_noticed(cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch) -> None:
    # The negative control: in the wrong order a crash leaves a table that lacks files.
    ids = fill(cold_bench, 4)
    before = rows_of(cold_bench)

    def too_early(catalog: Catalog, old: list[str], *_: Any) -> None:
        for url in old:
            cold_bench.lake.delete(url)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(module, "replace_files", too_early)
        with pytest.raises(Crash):
            replace(cold_bench, without(ids[0]))
    with pytest.raises(Corrupt):
        violations(cold_bench, before)


def while_committing(bench: ColdBench, patch: pytest.MonkeyPatch) -> list[str]:
    """Let the next commit come after its process lost the lock, and somebody else has undone what it is to commit."""
    seen: list[str] = []
    commit, guard = Table._do_commit, Rewriting.require_lock

    def lose_the_lock(work: Rewriting) -> None:
        guard(work)
        assert work._lock is not None
        work._lock._conn.close()

    def late(table: Table, **given: Any) -> None:
        if not seen:
            seen.append("begun")
            seen.extend(rewrite_settle_by_another(bench))
        commit(table, **given)

    patch.setattr(Rewriting, "require_lock", lose_the_lock)
    patch.setattr(Table, "_do_commit", late)
    return seen


def test_a_commit_that_comes_too_late_finds_the_table_changed(cold_bench: ColdBench) -> None:
    """A process that has lost its lock, and does not know, must not name files that somebody else has undone."""
    ids = fill(cold_bench, 4)
    before = rows_of(cold_bench)
    with pytest.MonkeyPatch.context() as patch:
        seen = while_committing(cold_bench, patch)
        with pytest.raises((Unavailable, Invalid)):
            replace(cold_bench, without(ids[0]))
    assert seen == ["begun", "undone"] == ["begun", *states(cold_bench)] and violations(cold_bench, before) == []


def test_without_the_fence_it_would_name_files_that_are_gone(cold_bench: ColdBench) -> None:
    # The negative control.
    ids = fill(cold_bench, 4)
    with pytest.MonkeyPatch.context() as patch:
        seen = while_committing(cold_bench, patch)
        patch.setattr(rewrite_settle, "fence", lambda catalog, rewrite_id: None)
        patch.setattr(module, "settle", lambda *given, **named: None)
        replace(cold_bench, without(ids[0]))
    assert seen == ["begun", "undone"]
    assert verify_cold(cold_bench.lake, cold_bench.catalog, cold_bench.store).problems


def rewrite_settle_by_another(bench: ColdBench) -> list[str]:
    with Catalog(bench.dsn, bench.lake) as catalog:
        other = Tiers(bench.dsn, bench.lake, catalog, bench.store, bench.settings)
        return [settled.plan.state for settled in settle_rewrites(other)]
