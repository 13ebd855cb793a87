"""Consolidation against a real Postgres, catalog and lake: what is taken, what is left, and what a second run does."""

from __future__ import annotations

import datetime as dt
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fix_cold import START_US, ColdBench

from stratalog.cold.check import ColdVerified, verify_cold
from stratalog.cold.columns import body_of
from stratalog.cold.readback import read_rows
from stratalog.schemas import events as ev
from stratalog.schemas.arrow import INDEX
from stratalog.schemas.codec import encode_body
from stratalog.schemas.errors import Conflict, Invalid, Locked
from stratalog.schemas.ids import from_us, model_slug

pytestmark = pytest.mark.postgres
WEEK = dt.timedelta(days=7)


def verified(bench: ColdBench) -> tuple[ColdVerified, dict[uuid.UUID, tuple[int, bytes]]]:
    ends: dict[uuid.UUID, tuple[int, bytes]] = {}
    found = verify_cold(
        bench.lake, bench.catalog, bench.store, lambda id_, last, hash_: ends.update({id_: (last, hash_)})
    )
    return found, ends


def assert_tiers_agree(bench: ColdBench) -> None:
    """The cold tier is whole, has each event once, and what warm marks is exactly what cold has."""
    found, ends = verified(bench)
    assert found.problems == () and found.unknown == ()
    rows = sum(pq.read_metadata(url.removeprefix("file://")).num_rows for url in bench.catalog.snapshot_files())
    assert rows == found.events
    marked = {id_: mark for id_, mark in bench.marks().items() if mark[0] >= 0}
    assert marked == ends


def test_finished_trajectories_move_by_tenant_day_and_model(cold_bench: ColdBench) -> None:
    cold_bench.task(1, model="atlas-4")
    cold_bench.task(2, model="vendor/Model 5", day=1)
    cold_bench.task(3, tenant="globex", blob=b"bulky" * 1_000)
    running = cold_bench.task(4, finished=False)
    done = cold_bench.run()
    assert (done.trajectories, done.events, done.files, done.problems) == (3, 55, 3, ())
    folders = {url.rpartition("/")[0].partition("/events/")[2] for url in cold_bench.catalog.snapshot_files()}
    assert folders == {
        "tenant=acme/date=2025-01-01/model=atlas-4",
        f"tenant=acme/date=2025-01-02/model={model_slug('vendor/Model 5')}",
        "tenant=globex/date=2025-01-01/model=atlas-4",
    }
    assert cold_bench.marks()[running.trajectory_id] == (-1, None)
    assert_tiers_agree(cold_bench)


def test_running_twice_changes_nothing(cold_bench: ColdBench) -> None:
    cold_bench.task(1)
    cold_bench.run()
    files, marks = cold_bench.catalog.snapshot_files(), cold_bench.marks()
    again = cold_bench.run()
    assert (again.trajectories, again.events, again.files, again.runs) == (0, 0, 0, ())
    assert (cold_bench.catalog.snapshot_files(), cold_bench.marks()) == (files, marks)


def test_nothing_to_do_leaves_no_trace(cold_bench: ColdBench) -> None:
    assert cold_bench.run().runs == ()
    with cold_bench.connect() as conn:
        assert conn.execute("SELECT count(*) FROM consolidation_runs").fetchone() == (0,)


def test_events_come_back_as_they_were_appended(cold_bench: ColdBench) -> None:
    author = cold_bench.task(1, finished=False)
    odd = b'{"tool_call_id":"c", "output":"\\u00e9","output":"again"}'
    cold_bench.append(author, [("ToolResult", odd), ("FromTheFuture", b"\xff\x00"), ev.TaskFinished(status="failed")])
    cold_bench.run()
    (url,) = cold_bench.catalog.snapshot_files()
    rows = {row[INDEX["sequence_number"]]: row for row in read_rows(cold_bench.lake, url)}
    assert body_of(rows[17]) == odd and body_of(rows[18]) == b"\xff\x00"
    assert body_of(rows[19]) == encode_body(ev.TaskFinished(status="failed"))
    assert [rows[number][INDEX["turn"]] for number in (0, 2, 7)] == [0, 1, 2]


def test_the_first_row_of_a_segment_describes_the_trajectory(cold_bench: ColdBench) -> None:
    author = cold_bench.task(1, imported=True)
    cold_bench.run()
    (url,) = cold_bench.catalog.snapshot_files()
    first, *others = list(read_rows(cold_bench.lake, url))
    assert first[INDEX["trajectory_status"]] == "completed" and first[INDEX["trajectory_turns"]] == 3
    assert first[INDEX["trajectory_input_tokens"]] == 303 and first[INDEX["trajectory_cost_usd"]] == 0.75
    assert first[INDEX["segment_last_hash"]] == author.at.hash and '"claude-code"' in first[INDEX["trajectory_source"]]
    assert all(row[INDEX["segment_last_sequence"]] is None and row[INDEX["trajectory_turns"]] is None for row in others)


def test_late_events_form_another_segment(cold_bench: ColdBench) -> None:
    author = cold_bench.task(1)
    cold_bench.run()
    cold_bench.append(author, [ev.Annotation(name="score", score=0.5), ev.Annotation(name="note", note="fine")])
    late = cold_bench.run()
    assert (late.trajectories, late.events, late.files) == (1, 2, 1)
    assert cold_bench.marks()[author.trajectory_id] == (author.at.sequence_number, author.at.hash)
    assert_tiers_agree(cold_bench)


def test_only_what_ended_long_enough_ago_is_taken(cold_bench: ColdBench) -> None:
    cold_bench.task(1)
    end = from_us(cold_bench.author(1).clock_us)
    with cold_bench.steps() as steps:
        assert steps.plan("7d", now=end + WEEK)[0] is None
        run, _ = steps.plan("7d", now=end + WEEK + dt.timedelta(seconds=1))
        assert run is not None
        assert steps.plan("7d", now=end + 2 * WEEK)[0] is None, "an open run has it already"


def test_an_import_without_an_end_counts_as_ended_when_idle(cold_bench: ColdBench) -> None:
    cold_bench.task(1, finished=False, imported=True)
    last = from_us(cold_bench.author(1).clock_us)
    with cold_bench.steps() as steps:
        assert steps.plan("1h", now=last + dt.timedelta(hours=23))[0] is None
        assert steps.plan("1h", now=last + dt.timedelta(hours=25))[0] is not None


def test_with_no_age_every_import_is_taken_at_once(cold_bench: ColdBench) -> None:
    cold_bench.task(1, finished=False, imported=True)
    cold_bench.task(2, finished=False)
    with cold_bench.steps() as steps:
        run, _ = steps.plan("0d", now=from_us(START_US))
        assert run is not None
        assert steps.complete(run).trajectories == 1


def test_a_bad_duration_is_refused(cold_bench: ColdBench) -> None:
    with pytest.raises(Invalid, match="not a duration"):
        cold_bench.run("soon")


def test_large_trajectories_span_files_of_bounded_size(cold_bench: ColdBench) -> None:
    cold_bench.settings = type(cold_bench.settings)(row_group_rows=500, file_bytes_max=280_000)
    cold_bench.task(1, turns=1_700)
    cold_bench.task(2, turns=2)
    done = cold_bench.run()
    assert done.files > 1
    for url in cold_bench.catalog.snapshot_files():
        metadata = pq.read_metadata(url.removeprefix("file://"))
        assert max(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)) <= 500
        assert Path(url.removeprefix("file://")).stat().st_size <= 280_000
    assert_tiers_agree(cold_bench)


def test_a_second_consolidation_is_locked_out(cold_bench: ColdBench) -> None:
    cold_bench.task(1)
    with cold_bench.steps(), pytest.raises(Locked):
        cold_bench.run()
    assert cold_bench.run().trajectories == 1


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("DELETE FROM trajectory_events WHERE trajectory_id = %s AND sequence_number = 5", "event 5 is missing"),
        ("DELETE FROM trajectory_events WHERE trajectory_id = %s AND sequence_number = 17", "up to 16"),
        ("DELETE FROM trajectory_events WHERE trajectory_id = %s", "up to -1"),
        ("UPDATE trajectory_events SET body = '{}' WHERE trajectory_id = %s AND sequence_number = 4", "its digest"),
        ("UPDATE trajectory_events SET epoch = 9 WHERE trajectory_id = %s AND sequence_number = 4", "another hash"),
        ("UPDATE trajectories SET summary = '\\xc1' WHERE trajectory_id = %s", "summary is damaged"),
        (
            "UPDATE trajectories SET head_hash = decode(repeat('ab', 32), 'hex') WHERE trajectory_id = %s",
            "another hash",
        ),
    ],
)
def test_damage_in_the_warm_tier_stops_only_its_trajectory(cold_bench: ColdBench, damage: str, reason: str) -> None:
    for number in (1, 2, 3):
        cold_bench.task(number)
    damaged = cold_bench.author(2).trajectory_id
    cold_bench.execute(damage, damaged)
    done = cold_bench.run()
    assert done.trajectories == 2 and len(done.problems) == 1
    assert str(damaged) in done.problems[0] and reason in done.problems[0]
    assert cold_bench.marks()[damaged] == (-1, None)
    assert_tiers_agree(cold_bench)
    assert cold_bench.run().problems == done.problems, "it is looked at, and reported, again"


def test_a_trajectory_with_quarantined_events_waits(cold_bench: ColdBench) -> None:
    for number in (1, 2):
        cold_bench.task(number)
    waiting = cold_bench.author(1).trajectory_id
    cold_bench.execute(
        "INSERT INTO quarantine (log_id, lsn, trajectory_id, sequence_number, tenant, reason, detail, header, body) "
        "VALUES (%s, 1, %s, 99, 'acme', 'divergent', '', '', '')",
        uuid.uuid4(), waiting,
    )  # fmt: skip
    done = cold_bench.run()
    assert done.trajectories == 1 and "1 of its events are in quarantine" in done.problems[0]
    cold_bench.execute("UPDATE quarantine SET admitted_at = now()")
    assert cold_bench.run().trajectories == 1


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_content_that_is_not_right_stops_only_its_trajectory(cold_bench: ColdBench, tmp_path: Path, harm: str) -> None:
    cold_bench.task(1)
    cold_bench.task(2, blob=b"bulky" * 10_000)
    (content,) = [path for path in (tmp_path / "cas").rglob("*") if path.is_file()]
    if harm == "missing":
        content.unlink()
    else:
        content.write_bytes(content.read_bytes()[:-1] + b"!")
    done = cold_bench.run()
    assert done.trajectories == 1 and len(done.problems) == 1
    assert str(cold_bench.author(2).trajectory_id) in done.problems[0]
    assert_tiers_agree(cold_bench)


def test_nothing_is_marked_without_its_commit(cold_bench: ColdBench) -> None:
    cold_bench.task(1)
    with cold_bench.steps() as steps:
        run, _ = steps.plan("0d")
        assert run is not None
        steps.write_files(run)
        with pytest.raises(Conflict, match="not committed"):
            steps.mark(run)


def test_a_committed_run_is_never_written_again(cold_bench: ColdBench) -> None:
    cold_bench.task(1)
    with cold_bench.steps() as steps:
        run, _ = steps.plan("0d")
        assert run is not None
        files = steps.write_files(run).files
        steps.commit(run, files)
        with pytest.raises(Conflict, match="is committed"):
            steps.write_files(run)
        assert steps.commit(run, files) == steps.commit(run, files)
    assert len(cold_bench.catalog.snapshot_files()) == 1
