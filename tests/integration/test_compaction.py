"""Small files become few, with the same rows; readers, crashes and a second run at the same time change nothing."""

from __future__ import annotations

import itertools
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from fix_cli import Cli
from fix_cold import ColdBench
from fix_s3 import S3Bucket
from fix_step_crash import Crash, crashing

from stratalog.cold import compaction as module
from stratalog.cold import pins, rewrite_settle
from stratalog.cold import rewrite as rewriting
from stratalog.cold.catalog import Catalog
from stratalog.cold.check import verify_cold
from stratalog.cold.columns import Row
from stratalog.cold.compaction import Compacted, compact
from stratalog.cold.expiry import expire
from stratalog.cold.installation import Tiers
from stratalog.cold.lake import Lake
from stratalog.cold.metadata_files import named_by
from stratalog.cold.query import connect, run_sql
from stratalog.cold.readback import read_rows
from stratalog.cold.rewrite import Rewriting
from stratalog.schemas import events as ev
from stratalog.schemas.arrow import INDEX
from stratalog.schemas.errors import Invalid, Locked, NotFound
from stratalog.schemas.settings import ColdSettings

pytestmark = pytest.mark.postgres


def tiers_of(bench: ColdBench) -> Tiers:
    return Tiers(bench.dsn, bench.lake, bench.catalog, bench.store, bench.settings)


def fill(bench: ColdBench, runs: int = 5, first: int = 0) -> None:
    """A file of each run on the first day, one on the second; a trajectory with segments in two runs."""
    for number in range(first, first + runs):
        bench.task(number, turns=2)
        if number == first + 1:
            bench.append(bench.author(first), [ev.Annotation(name="late", score=1.0)])
        if number == first:
            bench.task(number + 500, day=1)
        bench.run()


def rows_of(bench: ColdBench) -> list[Row]:
    rows = [row for url in bench.catalog.snapshot_files() for row in read_rows(bench.lake, url)]
    return sorted(rows, key=lambda row: (row[INDEX["trajectory_id"]], row[INDEX["sequence_number"]]))


def wrong(bench: ColdBench, rows: list[Row]) -> list[str]:
    """What is not as it must be, when nothing is left to do."""
    found = verify_cold(bench.lake, bench.catalog, bench.store)
    trouble = list(found.problems) + ([] if rows_of(bench) == rows else ["the rows are others"])
    table = bench.catalog.table()
    assert table is not None
    named = named_by(bench.catalog, table, table.metadata.snapshots)
    return trouble + sorted({entry.path for entry in bench.lake.files()} - named.data)


def test_small_files_of_a_folder_become_one(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    rows, files = rows_of(cold_bench), cold_bench.catalog.snapshot_files()
    said = compact(tiers_of(cold_bench), dry_run=True)
    assert cold_bench.catalog.snapshot_files() == files
    done = compact(tiers_of(cold_bench))
    assert (done.folders, done.files, done.new_files) == (said.folders, said.files, said.new_files) == (1, 5, 1)
    assert done.events == said.events and 0 < done.new_bytes < done.bytes == said.bytes
    assert len(cold_bench.catalog.snapshot_files()) == 2 and wrong(cold_bench, rows) == []
    assert done.waiting_files == 0 and done.problems == done.readers == ()
    assert compact(tiers_of(cold_bench)) == Compacted() == compact(tiers_of(cold_bench), dry_run=True)


def test_large_files_and_what_hangs_together_with_them_stay(cold_bench: ColdBench) -> None:
    cold_bench.settings = ColdSettings(row_group_rows=16, file_bytes_max=60_000)
    cold_bench.task(90, turns=100)
    cold_bench.run()
    large = cold_bench.catalog.snapshot_files()
    assert len(large) > 1, "its last file is a small one"
    fill(cold_bench, 4)
    rows = rows_of(cold_bench)
    done = compact(tiers_of(cold_bench), target_bytes=200_000)
    assert done.files == 4 and set(large) < set(cold_bench.catalog.snapshot_files()) and wrong(cold_bench, rows) == []


def test_as_many_files_as_asked_for(cold_bench: ColdBench) -> None:
    fill(cold_bench, 3)
    assert compact(tiers_of(cold_bench)) == Compacted()
    assert compact(tiers_of(cold_bench), min_files=3).files == 3
    for options in ({"min_files": 1}, {"target_bytes": 0}):
        with pytest.raises(Invalid):
            compact(tiers_of(cold_bench), **options)


def test_the_target_is_kept(cold_bench: ColdBench) -> None:
    for number in range(8):
        cold_bench.task(number, turns=40)
        cold_bench.run()
    rows = rows_of(cold_bench)
    small = max(file.bytes for file in cold_bench.catalog.files())
    done = compact(tiers_of(cold_bench), target_bytes=5 * small // 2)
    assert done.files == 8 and 1 < done.new_files < 8 and wrong(cold_bench, rows) == []


def test_a_reader_is_waited_for_and_keeps_its_files(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    rows = rows_of(cold_bench)
    table = cold_bench.catalog.table()
    current = None if table is None else table.current_snapshot()
    assert current is not None
    files = cold_bench.catalog.snapshot_files()
    with cold_bench.connect() as conn:
        conn.rollback()
        pin = pins.take(conn, "analyst")
        pins.set_snapshot(conn, pin, current.snapshot_id)
        reading = connect(files=files)
        done = compact(tiers_of(cold_bench), wait_s=0.3)
        assert done.waiting_files == 5 and done.readers == ("analyst",)
        assert run_sql(reading, "SELECT count(text) > 0 AS there FROM events") == [{"there": True}]
        assert len(cold_bench.catalog.snapshot_files()) == 2
        # Others go on meanwhile.
        cold_bench.task(70)
        assert cold_bench.run().trajectories == 1
        pins.release(conn, pin)
    expire(tiers_of(cold_bench))
    assert not any(map(cold_bench.lake.exists, done_files(cold_bench)))
    assert wrong(cold_bench, rows_of(cold_bench)) == [] and len(rows_of(cold_bench)) > len(rows)


def done_files(bench: ColdBench) -> list[str]:
    with bench.connect() as conn:
        return [path for (path,) in conn.execute("SELECT path FROM rewrite_files WHERE role = 'old'")]


def test_a_reader_that_goes_in_time_is_enough(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    conn = cold_bench.connect()
    conn.rollback()
    pin = pins.take(conn, "short")
    leaving = threading.Timer(0.5, lambda: (pins.release(conn, pin), conn.close()))
    leaving.start()
    done = compact(tiers_of(cold_bench), wait_s=60)
    leaving.join()
    assert done.waiting_files == 0 and not any(map(cold_bench.lake.exists, done_files(cold_bench)))


def test_without_waiting_a_reader_would_lose_its_files(cold_bench: ColdBench) -> None:
    # The negative control.
    fill(cold_bench)
    reading = connect(files=cold_bench.catalog.snapshot_files())
    with cold_bench.connect() as conn, pytest.MonkeyPatch.context() as patch:
        conn.rollback()
        pins.take(conn, "analyst")
        patch.setattr(rewrite_settle.pins, "wait_for", lambda *given, **named: ())
        assert compact(tiers_of(cold_bench)).waiting_files == 0
    with pytest.raises(NotFound):
        run_sql(reading, "SELECT count(text) FROM events")


def test_two_at_once(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    with Rewriting(tiers_of(cold_bench)), pytest.raises(Locked):
        compact(tiers_of(cold_bench))
    with cold_bench.steps(), pytest.raises(Locked):
        compact(tiers_of(cold_bench))
    assert compact(tiers_of(cold_bench)).files == 5


def test_a_damaged_file_is_named_and_nothing_of_its_folder_changes(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    for number in range(20, 25):
        cold_bench.task(number, tenant="other")
        cold_bench.run()
    url = next(url for url in cold_bench.catalog.snapshot_files() if "tenant=acme/date=2025-01-01" in url)
    path = Path(url.removeprefix("file://"))
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    done = compact(tiers_of(cold_bench))
    assert len(done.problems) == 1 and done.files == 5 and done.folders == 1
    assert url in cold_bench.catalog.snapshot_files()


STEPS: list[tuple[Any, str]] = [
    (rewriting, "make_plan"),
    (Lake, "publish"),
    (Rewriting, "_read_back"),
    (rewriting, "replace_files"),
    (rewriting, "note"),
    (Catalog, "expire"),
    (Lake, "delete"),
    (rewrite_settle, "note"),
    (module, "_wait"),
]


@pytest.mark.slow
def test_whatever_step_it_was_the_next_job_ends_it(cold_bench: ColdBench) -> None:
    jobs = itertools.cycle(
        (lambda: compact(tiers_of(cold_bench)), cold_bench.run, lambda: expire(tiers_of(cold_bench)))
    )
    points = first = 0
    for (owner, name), after in itertools.product(STEPS, (False, True)):
        for on in itertools.count(1):
            first += 1000
            for number in range(first, first + 4):
                cold_bench.task(number, turns=1)
                cold_bench.run()
            rows = rows_of(cold_bench)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, name, crashing(getattr(owner, name), after=after, on=on))
                try:
                    compact(tiers_of(cold_bench))
                except Crash:
                    points += 1
                    crashed = True
                else:
                    crashed = False
            assert crashed or on > 1, f"{name} was never called"
            assert verify_cold(cold_bench.lake, cold_bench.catalog, cold_bench.store).problems == ()
            assert rows_of(cold_bench) == rows
            next(jobs)()
            assert wrong(cold_bench, rows) == [], (name, after, on)
            compact(tiers_of(cold_bench))
            assert wrong(cold_bench, rows) == [], (name, after, on)
            if not crashed or name != "delete":
                break
    assert points > len(STEPS) * 2


def test_in_a_bucket(cold_bench: ColdBench, s3_bucket: S3Bucket) -> None:
    with Lake(s3_bucket.url, s3_bucket.options) as lake, Catalog(cold_bench.dsn, lake) as catalog:
        cold_bench.lake, cold_bench.catalog = lake, catalog
        fill(cold_bench)
        rows = rows_of(cold_bench)
        assert compact(tiers_of(cold_bench)).files == 5 and wrong(cold_bench, rows) == []
        with pytest.MonkeyPatch.context() as patch:
            fill(cold_bench, first=30)
            rows = rows_of(cold_bench)
            patch.setattr(Lake, "delete", crashing(Lake.delete, after=True, on=2))
            with pytest.raises(Crash):
                compact(tiers_of(cold_bench))
        assert compact(tiers_of(cold_bench), min_files=2).problems == () and wrong(cold_bench, rows) == []


def test_the_command(cli: Cli) -> None:
    cli.json("sidecar", "--once")
    cli.json("consolidate", "--older-than", "0d")
    assert cli("compact").out == "nothing to compact\n"
    said = cli.json("compact", "--dry-run", "--min-files", "2", "--target-bytes", "1000000")
    assert said["files"] == 0 and said["dry_run"] is True
    assert cli.error("compact", "--wait", "2h", code=1)["code"] == "invalid"
    assert cli.error("compact", "--wait", "soon", code=1)["code"] == "invalid"
    assert cli.error("compact", "--min-files", "1", code=1)["hint"]


def test_ids_of_rewrites_are_known_to_whoever_cleans_up(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    compact(tiers_of(cold_bench))
    (merged,) = [url for url in cold_bench.catalog.snapshot_files() if "date=2025-01-01" in url]
    with cold_bench.connect() as conn:
        (row,) = conn.execute("SELECT rewrite_id, kind, state FROM rewrites").fetchall()
    assert merged.rpartition("/")[2].startswith(f"{row[0]}-") and isinstance(row[0], uuid.UUID)
    assert row[1:] == ("compaction", "done")
