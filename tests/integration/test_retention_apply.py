"""Applying policies: what goes, what must stay and why, what is left behind, and that the tiers still agree."""

from __future__ import annotations

import datetime as dt
from contextlib import closing

import pytest
from fix_cold import ColdBench
from fix_retention import JANUARY, WEEK, deletions, events_here, load, make_plan, partitions, place, rows, run_apply

from stratalog.cold.installation import Installation
from stratalog.cold.verification import verify_all
from stratalog.hot.home import Home
from stratalog.hot.source import LogEvent
from stratalog.schemas import events as ev
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.errors import Locked
from stratalog.warm.database import connect
from stratalog.warm.ingest import ingest
from stratalog.warm.retention_apply import apply
from stratalog.warm.retention_plan import growth

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]

# With this many that stay, a partition is not dropped whole.
MANY = range(100, 110)


def stay(bench: ColdBench) -> None:
    """Trajectories that have not ended, so many that the others are deleted by themselves."""
    for number in MANY:
        bench.task(number, finished=False)


def sound(home: Home) -> None:
    report = verify_all(Installation(home))
    assert report["ok"], report


def test_without_a_policy_nothing_is_ever_deleted(cold_bench: ColdBench) -> None:
    cold_bench.task(1)
    cold_bench.run()
    before = events_here(cold_bench)
    assert run_apply(cold_bench).trajectories == 0
    load(cold_bench, "")
    load(cold_bench, '[[policy]]\nname = "keep"\ncold = "52w"\n')
    load(cold_bench, '[[policy]]\nname = "others"\ntenant = "globex"\nwarm = "0d"\n')
    assert run_apply(cold_bench).trajectories == 0
    assert events_here(cold_bench) == before
    assert deletions(cold_bench) == {}


@pytest.mark.parametrize("whole", [False, True], ids=["by rows", "by partition"])
def test_rows_go_heads_stay_and_the_tiers_agree(cold_bench: ColdBench, cold_home: Home, whole: bool) -> None:
    if not whole:
        stay(cold_bench)
    gone = [cold_bench.task(number) for number in range(3)]
    cold_bench.run()
    here = events_here(cold_bench)
    version = load(cold_bench)
    done = run_apply(cold_bench)
    assert done.version == version and done.trajectories == done.planned == 3
    assert done.events == sum(here[author.trajectory_id] for author in gone)
    assert done.bytes > 0
    assert done.partitions == ((JANUARY,) if whole else ())
    assert (JANUARY in partitions(cold_bench)) is not whole
    left = events_here(cold_bench)
    assert all(author.trajectory_id not in left for author in gone)
    assert len(left) == (0 if whole else len(MANY))
    heads = rows(cold_bench, "SELECT count(*) FROM trajectories WHERE dropped_through = head_sequence")
    assert heads == [(3,)]
    assert deletions(cold_bench) == {"done": 3}
    assert rows(cold_bench, "SELECT sum(events), sum(bytes) FROM deletions") == [(done.events, done.bytes)]
    sound(cold_home)
    assert run_apply(cold_bench).planned == 0, "what has gone is not planned again"


@pytest.mark.parametrize("whole", [False, True], ids=["by rows", "by partition"])
def test_what_is_sent_again_is_known_and_what_is_new_is_stored(
    cold_bench: ColdBench, cold_home: Home, whole: bool
) -> None:
    if not whole:
        stay(cold_bench)
    author = cold_bench.task(1)
    cold_bench.run()
    with closing(cold_bench.connect()) as conn:
        query = b"SELECT count(*) FROM all_events WHERE trajectory_id = %s"
        (count,) = conn.execute(query, [author.trajectory_id]).fetchone() or (0,)
    load(cold_bench)
    run_apply(cold_bench)
    again = ColdBench(cold_bench.dsn, cold_bench.lake, cold_bench.catalog, cold_bench.store)
    cold_bench.authors.clear()
    resent = again.author(1)
    bodies = _bodies_of_task(1)
    events = []
    for lsn, body in enumerate(bodies, 1):
        header, data = resent.write(body)
        events.append(LogEvent(Envelope(lsn, lsn - 1, header, data, resent.at.hash, False, resent.secret)))
    assert len(events) == count
    with closing(cold_bench.connect()) as conn:
        done = ingest(conn, again.log_id, events)
    assert (done.admitted, done.duplicates, done.quarantined) == (0, count, ())
    assert author.trajectory_id not in events_here(cold_bench)
    cold_bench.append(author, [ev.Annotation(name="late", score=1.0)])
    assert events_here(cold_bench)[author.trajectory_id] == 1
    sound(cold_home)
    assert run_apply(cold_bench).trajectories == 0, "it is not in the cold tier yet"
    cold_bench.run()
    assert run_apply(cold_bench).events == 1
    sound(cold_home)


def _bodies_of_task(number: int) -> list[ev.EventBody]:
    """What `ColdBench.task` writes."""
    written: list[ev.EventBody] = []

    class Recorder(ColdBench):
        def append(self, author: object, bodies: object) -> None:  # type: ignore[override]
            written.extend(bodies)  # type: ignore[arg-type]

    Recorder("", None, None, None).task(number)  # type: ignore[arg-type]
    return written


def test_what_is_not_safe_below_stays_and_says_why(
    cold_bench: ColdBench, cold_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(cold_bench)
    late, planned, quarantined, never = (cold_bench.task(number) for number in range(4))
    cold_bench.execute("UPDATE trajectories SET finished_at = NULL WHERE trajectory_id = %s", never.trajectory_id)
    cold_bench.run()
    cold_bench.execute("UPDATE trajectories SET finished_at = last_event_at")
    cold_bench.append(late, [ev.Annotation(name="late", score=1.0)])
    cold_bench.execute(
        "INSERT INTO quarantine (log_id, lsn, trajectory_id, sequence_number, tenant, reason, detail, header, body) "
        "VALUES (gen_random_uuid(), 1, %s, 99, 'acme', 'gap', '', '', '')",
        quarantined.trajectory_id,
    )
    cold_bench.execute(
        "WITH r AS (UPDATE consolidation_runs SET state = 'planned' RETURNING run_id) "
        "DELETE FROM consolidation_items WHERE trajectory_id <> %s",
        planned.trajectory_id,
    )
    before = events_here(cold_bench)
    found = make_plan(cold_bench)
    assert {(line.keeps, line.trajectories) for line in found.due} == {
        ("not in the cold tier yet", 2),
        ("being consolidated", 1),
        ("has events in quarantine", 1),
    }
    done = run_apply(cold_bench)
    assert done.trajectories == 0 and sum(line.trajectories for line in done.kept) == 4
    assert events_here(cold_bench) == before


def test_a_guard_that_falls_between_plan_and_deletion_is_seen(cold_bench: ColdBench) -> None:
    stay(cold_bench)
    author = cold_bench.task(1)
    cold_bench.run()
    load(cold_bench)
    from stratalog.warm.deletion import Tally, execute_planned, plan_deletions

    now = dt.datetime.now(dt.UTC)
    with closing(cold_bench.connect()) as conn:
        assert plan_deletions(conn, now) == 1
        cold_bench.append(author, [ev.Annotation(name="late", score=1.0)])
        tally = Tally()
        execute_planned(conn, now, tally)
    assert [(share.outcome, share.trajectories) for share in tally.shares()] == [("not in the cold tier yet", 1)]
    assert author.trajectory_id in events_here(cold_bench)
    assert deletions(cold_bench) == {"cancelled": 1}


def test_the_clock_runs_from_the_end(cold_bench: ColdBench) -> None:
    stay(cold_bench)
    author = cold_bench.task(1)
    imported = cold_bench.task(2, imported=True, finished=False)
    undated = cold_bench.task(3)
    cold_bench.execute(
        'UPDATE trajectories SET labels = \'{"undated": "true"}\' WHERE trajectory_id = %s', undated.trajectory_id
    )
    cold_bench.run()
    load(cold_bench)
    ends = dict(rows(cold_bench, "SELECT trajectory_id, coalesce(finished_at, last_event_at) FROM trajectories"))
    week = dt.timedelta(days=7)
    second = dt.timedelta(seconds=1)
    first = min(ends[author.trajectory_id], ends[imported.trajectory_id])
    assert make_plan(cold_bench, first + week - second).due == ()
    (next_,) = make_plan(cold_bench, first + week - second).upcoming
    assert (next_.tier, next_.next_at, next_.within_7_days) == ("warm", first + week, 2)
    assert run_apply(cold_bench, first + week - second).trajectories == 0
    last = max(ends[author.trajectory_id], ends[imported.trajectory_id])
    assert run_apply(cold_bench, last + week).trajectories == 2
    assert undated.trajectory_id in events_here(cold_bench), "nobody knows when it ended"


def test_an_undated_import_has_a_clock_only_if_the_policy_says_so(cold_bench: ColdBench) -> None:
    stay(cold_bench)
    undated = cold_bench.task(1, imported=True)
    own = cold_bench.task(2)
    cold_bench.execute(
        'UPDATE trajectories SET labels = \'{"undated": "true"}\' WHERE trajectory_id IN (%s, %s)',
        undated.trajectory_id,
        own.trajectory_id,
    )
    cold_bench.run()
    load(cold_bench)
    never = {(one.why, one.trajectories) for one in make_plan(cold_bench).never}
    assert never == {("undated: its source knew no time", 2), ("has not ended", len(MANY))}
    load(cold_bench, WEEK + 'undated = "import"\n')
    ((made_at,),) = rows(cold_bench, "SELECT made_at FROM trajectories WHERE trajectory_id = %s", undated.trajectory_id)
    week, second = dt.timedelta(days=7), dt.timedelta(seconds=1)
    assert make_plan(cold_bench, made_at + week - second).due == ()
    cold_bench.append(undated, [ev.Annotation(name="late", score=1.0)])
    cold_bench.run()
    assert run_apply(cold_bench, made_at + week).trajectories == 1, "what comes later does not move the clock"
    left = events_here(cold_bench)
    assert undated.trajectory_id not in left and own.trajectory_id in left
    assert {(one.why, one.trajectories) for one in make_plan(cold_bench).never} == {
        ("undated: its source knew no time", 1),
        ("has not ended", len(MANY)),
    }


def test_what_no_policy_reaches_is_counted(cold_bench: ColdBench) -> None:
    cold_bench.task(1)
    cold_bench.task(2, tenant="globex")
    load(cold_bench, '[[policy]]\nname = "exempt"\ntenant = "globex"\n')
    assert {(one.tenant, one.why, one.trajectories) for one in make_plan(cold_bench).never} == {
        ("acme", "no policy fits", 1),
        ("globex", "its policy has no clock", 1),
    }


def test_the_first_policy_that_fits_decides_alone(cold_bench: ColdBench) -> None:
    stay(cold_bench)
    kept, dropped, failed = cold_bench.task(1), cold_bench.task(2, model="beta/2"), cold_bench.task(3, tenant="globex")
    cold_bench.execute(
        'UPDATE trajectories SET labels = \'{"keep": "yes", "a": "b"}\' WHERE trajectory_id = %s', kept.trajectory_id
    )
    cold_bench.execute("UPDATE trajectories SET status = 'failed' WHERE trajectory_id = %s", failed.trajectory_id)
    cold_bench.run()
    load(
        cold_bench,
        '[[policy]]\nname = "exempt"\nlabels = { keep = "yes" }\n'
        '[[policy]]\nname = "beta"\nmodel = ["beta/2"]\nwarm = "1d"\n'
        '[[policy]]\nname = "failed"\ntenant = ["globex"]\nstatus = "failed"\nwarm = "2d"\n'
        '[[policy]]\nname = "rest"\nstatus = "completed"\nwarm = "0d"\n',
    )
    lines = {(line.policy, line.tenant, line.after_us // 86_400_000_000) for line in make_plan(cold_bench).due}
    assert lines == {("beta", "acme", 1), ("failed", "globex", 2)}
    shares = {(share.policy, share.tenant, share.trajectories) for share in run_apply(cold_bench).shares}
    assert shares == {("beta", "acme", 1), ("failed", "globex", 1)}
    left = events_here(cold_bench)
    assert kept.trajectory_id in left and dropped.trajectory_id not in left and failed.trajectory_id not in left


def test_what_was_planned_under_another_version_is_judged_again(cold_bench: ColdBench) -> None:
    stay(cold_bench)
    cold_bench.task(1)
    cold_bench.run()
    load(cold_bench)
    from stratalog.warm.deletion import plan_deletions

    with closing(cold_bench.connect()) as conn:
        plan_deletions(conn, dt.datetime.now(dt.UTC))
    load(cold_bench, '[[policy]]\nname = "long"\nwarm = "5000w"\n')
    done = run_apply(cold_bench)
    assert [(share.outcome, share.trajectories) for share in done.shares] == [("another policy is in force", 1)]
    assert deletions(cold_bench) == {"cancelled": 1}


def test_only_one_process_applies(cold_bench: ColdBench) -> None:
    with closing(cold_bench.connect()) as first, closing(cold_bench.connect()) as second:
        first.execute(b"SELECT pg_advisory_lock(hashtextextended('stratalog.retention', 0))")
        first.commit()
        second.rollback()
        with pytest.raises(Locked):
            apply(second)
        assert second.autocommit is False


def test_a_plan_changes_nothing_and_says_everything(cold_bench: ColdBench) -> None:
    cold_bench.task(1, blob=b"x" * 50_000)
    cold_bench.task(2, tenant="globex")
    cold_bench.run()
    load(cold_bench, WEEK + 'cold = "52w"\nbulky = "30d"\n')
    place(cold_bench, "case", tenant="globex")
    before = events_here(cold_bench)
    found = make_plan(cold_bench)
    lines = {(line.tier, line.tenant, line.keeps, line.matters, line.goes) for line in found.due}
    assert lines == {
        ("warm", "acme", "", (), True),
        ("warm", "globex", "held", ("case",), False),
        ("bulky", "acme", "", (), True),
        ("bulky", "globex", "held", ("case",), False),
        ("cold", "acme", "", (), True),
        ("cold", "globex", "held", ("case",), False),
    }
    assert found.executed_tiers == ("warm", "cold", "bulky")
    assert found.never == () and "compared by hash" in found.hot
    assert all(line.trajectories == 1 and line.events > 0 for line in found.due)
    assert events_here(cold_bench) == before and deletions(cold_bench) == {}


def test_growth_is_counted(cold_bench: ColdBench) -> None:
    cold_bench.task(1)
    cold_bench.run()
    with closing(connect(cold_bench.dsn)) as conn:
        conn.rollback()
        found = growth(conn)
    assert found.database_bytes > 0 and found.cold_bytes_per_day > 0 and found.policies == 0
