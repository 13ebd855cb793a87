"""Expired snapshots free their bytes, and nothing else goes: not a row, not a run that somebody may still look for."""

from __future__ import annotations

import datetime as dt
import shutil
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fix_cli import Cli
from fix_cold import ColdBench
from fix_step_crash import Crash, crashing

from stratalog.cold import expiry, pins
from stratalog.cold.catalog import Catalog
from stratalog.cold.check import verify_cold
from stratalog.cold.consolidate import Consolidation
from stratalog.cold.expiry import Expired, expire
from stratalog.cold.installation import Tiers
from stratalog.cold.lake import Lake
from stratalog.cold.metadata_files import moment, named_by
from stratalog.cold.owner import take_over
from stratalog.schemas.errors import Conflict, Invalid, Locked, Unavailable

pytestmark = pytest.mark.postgres


def in_days(days: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(days=days)


def tiers_of(bench: ColdBench) -> Tiers:
    return Tiers(bench.dsn, bench.lake, bench.catalog, bench.store, bench.settings)


def expired(bench: ColdBench, older_than: str = "7d", days: float = 30, **options: Any) -> Expired:
    return expire(tiers_of(bench), older_than, now=in_days(days), **options)


def fill(bench: ColdBench, runs: int = 4) -> None:
    """A snapshot for each run."""
    for number in range(runs):
        bench.task(number, turns=6, day=number % 2)
        assert len(bench.run().runs) == 1


def snapshots(bench: ColdBench) -> list[int]:
    table = bench.catalog.table()
    assert table is not None
    return [snapshot.snapshot_id for snapshot in table.metadata.snapshots]


def metadata_files(bench: ColdBench) -> set[str]:
    return {entry.path for entry in bench.lake.files("iceberg")}


def needed(bench: ColdBench) -> set[str]:
    """The metadata files that the table reaches from where it is now."""
    table = bench.catalog.table()
    assert table is not None
    return set(named_by(bench.catalog, table, table.metadata.snapshots).metadata)


def violations(bench: ColdBench) -> list[str]:
    """What is wrong with the two tiers together."""
    ends: dict[Any, tuple[int, bytes]] = {}
    found = verify_cold(
        bench.lake, bench.catalog, bench.store, lambda id_, last, hash_: ends.update({id_: (last, hash_)})
    )
    marks = {id_: mark for id_, mark in bench.marks().items() if mark[0] >= 0}
    return list(found.problems) + [f"{id_} is not in cold as marked" for id_ in marks if ends.get(id_) != marks[id_]]


def test_bytes_go_and_rows_stay(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    files, all_snapshots = cold_bench.catalog.files(), snapshots(cold_bench)
    before = {path: cold_bench.lake.entry(path) for path in metadata_files(cold_bench)}
    done = expired(cold_bench)
    assert set(done.snapshots) == set(all_snapshots[:-1]) and snapshots(cold_bench) == all_snapshots[-1:]
    assert metadata_files(cold_bench) == needed(cold_bench)
    gone = [entry for path, entry in before.items() if entry and not cold_bench.lake.exists(path)]
    # The version that the commit itself has replaced is among them, and counted.
    assert done.metadata_files == len(gone) and done.bytes == sum(entry.size for entry in gone) > 0
    assert done.data_files == 0 and done.unknown == ()
    assert cold_bench.catalog.files() == files and violations(cold_bench) == []
    assert expired(cold_bench) == Expired(metadata_files=0)


def test_a_consolidation_afterwards_neither_replays_nor_loses(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    expired(cold_bench)
    files = cold_bench.catalog.files()
    assert cold_bench.run().runs == () and cold_bench.catalog.files() == files
    cold_bench.task(9)
    done = cold_bench.run()
    assert done.trajectories == 1 and violations(cold_bench) == []
    assert sum(file.rows for file in cold_bench.catalog.files()) == sum(file.rows for file in files) + done.events
    expired(cold_bench)
    assert violations(cold_bench) == [] and len(snapshots(cold_bench)) == 1


def test_a_dry_run_says_it_and_changes_nothing(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    before = metadata_files(cold_bench), snapshots(cold_bench)
    said = expired(cold_bench, dry_run=True)
    assert (metadata_files(cold_bench), snapshots(cold_bench)) == before
    done = expired(cold_bench)
    # The commit makes one more version old.
    assert said.snapshots == done.snapshots and said.metadata_files + 1 == done.metadata_files


def test_a_snapshot_is_old_when_it_was_replaced_long_ago(cold_bench: ColdBench) -> None:
    fill(cold_bench, 3)
    assert expire(tiers_of(cold_bench)) == Expired()
    table = cold_bench.catalog.table()
    assert table is not None
    second = moment(table.metadata.snapshots[1].timestamp_ms)
    # The second one is older than an hour, too, but was the current one until just now.
    done = expire(tiers_of(cold_bench), "1h", now=second + dt.timedelta(hours=1, milliseconds=1))
    assert done.snapshots == (table.metadata.snapshots[0].snapshot_id,)
    assert violations(cold_bench) == []


def test_pinned_snapshots_stay_whole(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    pinned = snapshots(cold_bench)[1]
    assert len(expired(cold_bench, pinned=frozenset({pinned})).snapshots) == 2
    table = cold_bench.catalog.table()
    assert table is not None
    assert len(table.scan(snapshot_id=pinned).to_arrow()) > 0


def test_what_a_reader_has_pinned_stays_until_it_has_gone(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    first = snapshots(cold_bench)[0]
    with cold_bench.connect() as conn:
        conn.rollback()
        pin = pins.take(conn, "a test")
        pins.set_snapshot(conn, pin, first)
        assert first not in expired(cold_bench).snapshots and first in snapshots(cold_bench)
        pins.release(conn, pin)
    assert expired(cold_bench).snapshots == (first,)


def test_nothing_while_a_plan_is_open_or_a_consolidation_runs(cold_bench: ColdBench) -> None:
    fill(cold_bench)
    cold_bench.task(7)
    before = metadata_files(cold_bench)
    with cold_bench.steps() as steps:
        with pytest.raises(Locked):
            expired(cold_bench)
        assert steps.plan("0d")[0] is not None
    with pytest.raises(Conflict, match="planned"):
        expired(cold_bench)
    assert metadata_files(cold_bench) == before
    cold_bench.run()
    assert len(expired(cold_bench).snapshots) == 4 and violations(cold_bench) == []


@pytest.mark.parametrize("text", ["0d", "59m", "soon", ""])
def test_too_short_or_no_duration(cold_bench: ColdBench, text: str) -> None:
    with pytest.raises(Invalid) as raised:
        expired(cold_bench, text)
    assert raised.value.hint


def test_an_unmarked_run_keeps_its_snapshot(cold_bench: ColdBench) -> None:
    fill(cold_bench, 3)
    table = cold_bench.catalog.table()
    assert table is not None
    summary = table.metadata.snapshots[0].summary
    assert summary is not None
    run_id = summary.additional_properties["stratalog.run-id"]
    # As in a database that was restored from before it: nobody knows whether it was marked.
    cold_bench.execute("DELETE FROM consolidation_items WHERE run_id = %s::uuid", run_id)
    cold_bench.execute("DELETE FROM consolidation_runs WHERE run_id = %s::uuid", run_id)
    assert len(expired(cold_bench).snapshots) == 1
    assert cold_bench.catalog.has_run(run_id) and len(snapshots(cold_bench)) == 2


def test_without_the_rule_a_run_would_be_replayed(cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch) -> None:
    # The negative control: the snapshot of a run that is not marked goes, and its completion commits it once more.
    fill(cold_bench, 1)
    cold_bench.task(5)
    with monkeypatch.context() as patch:
        patch.setattr(Consolidation, "mark", crashing(Consolidation.mark, after=False))
        with pytest.raises(Crash):
            cold_bench.run()
    table = cold_bench.catalog.table()
    assert table is not None
    table.add_files([], {"somebody": "else"}, check_duplicate_files=False)
    with pytest.raises(Conflict):
        expired(cold_bench)
    with monkeypatch.context() as patch:
        patch.setattr(expiry, "_refuse_open_plans", lambda conn: None)
        assert len(expired(cold_bench).snapshots) == 1, "the unmarked one stays even so"
        patch.setattr(expiry, "_run_id", lambda snapshot: None)
        assert len(expired(cold_bench).snapshots) == 1
    cold_bench.run()
    assert any("twice" in wrong for wrong in violations(cold_bench))


STEPS: list[tuple[Any, str, bool]] = [
    (Consolidation, "__enter__", True),
    (expiry, "_expirable", True),
    (Catalog, "expire", False),
    (Catalog, "expire", True),
    (expiry, "_reloaded", True),
    (expiry, "_sizes", True),
    (Lake, "delete", True),
    (expiry, "_delete", True),
]


@pytest.fixture
def filled_bench(cold_bench: ColdBench) -> ColdBench:
    fill(cold_bench)
    return cold_bench


def soon(bench: ColdBench) -> Expired:
    """Expire when leftovers are not a day old yet, so that only what is known to be past may go."""
    return expired(bench, "1h", days=2 / 24)


def crashes(bench: ColdBench, owner: Any, name: str, after: bool, on: int) -> bool:
    """Whether an expiry dies there; in any case both tiers stay whole, and the next one leaves nothing to do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, crashing(getattr(owner, name), after=after, on=on))
        try:
            soon(bench)
        except Crash:
            crashed = True
        else:
            crashed = False
    assert violations(bench) == [], (name, after, on)
    soon(bench)
    assert metadata_files(bench) == needed(bench), (name, after, on)
    assert len(snapshots(bench)) == 1 and violations(bench) == [], (name, after, on)
    return crashed


@pytest.mark.slow
def test_the_next_run_finishes_whatever_step_it_was(cold_bench: ColdBench) -> None:
    number = deletions = 0
    for owner, name, after in STEPS:
        on = 1
        while True:
            for _ in range(2):
                number += 1
                cold_bench.task(number, turns=1)
                assert len(cold_bench.run().runs) == 1
            crashed = crashes(cold_bench, owner, name, after, on)
            if name != "delete":
                assert crashed, f"{name} was never called"
                break
            if not crashed:
                deletions = on - 1
                break
            on += 1
    assert deletions > 4


def test_another_order_would_lose_track(filled_bench: ColdBench, monkeypatch: pytest.MonkeyPatch) -> None:
    # The negative control: had the versions gone first, nothing would tell the next run what is left to do.
    sizes = expiry._sizes
    with monkeypatch.context() as patch:
        patch.setattr(expiry, "_sizes", lambda *given: dict(reversed(sizes(*given).items())))
        patch.setattr(Lake, "delete", crashing(Lake.delete, after=True, on=6))
        with pytest.raises(Crash):
            soon(filled_bench)
    soon(filled_bench)
    left = metadata_files(filled_bench) - needed(filled_bench)
    assert left and violations(filled_bench) == []
    # A day later they are leftovers.
    assert expired(filled_bench).metadata_files == len(left)
    assert metadata_files(filled_bench) == needed(filled_bench)


def test_a_storage_that_keeps_what_was_deleted_is_noticed(
    filled_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Lake, "delete", lambda *given: None)
        with pytest.raises(Unavailable, match="still there"):
            soon(filled_bench)
    soon(filled_bench)
    assert metadata_files(filled_bench) == needed(filled_bench)


def leave(bench: ColdBench, name: str) -> str:
    draft = bench.lake.scratch() / "draft"
    draft.write_bytes(b"PAR1 left by a killed writer")
    bench.lake.publish(draft, path := f"events/tenant=acme/date=2025-01-01/model=m/{name}")
    return path


def test_leftovers_of_our_runs_go_after_a_day_and_others_never(cold_bench: ColdBench) -> None:
    take_over(tiers_of(cold_bench))
    fill(cold_bench, 2)
    with cold_bench.connect() as conn:
        row = conn.execute("SELECT run_id FROM consolidation_runs LIMIT 1").fetchone()
    assert row is not None
    ours = leave(cold_bench, f"{row[0]}-00007-0123456789abcdef.parquet")
    other = leave(cold_bench, f"{uuid.uuid4()}-00000-0123456789abcdef.parquet")
    assert expired(cold_bench, days=0.9, older_than="1h").data_files == 0 and cold_bench.lake.exists(ours)
    done = expired(cold_bench)
    assert done.data_files == 1 and done.unknown == (other,)
    assert not cold_bench.lake.exists(ours) and cold_bench.lake.exists(other)
    assert violations(cold_bench) == []


def test_metadata_of_another_table_is_left_alone(cold_bench: ColdBench) -> None:
    fill(cold_bench, 3)
    table = cold_bench.catalog.table()
    assert table is not None
    current = Path(table.metadata_location.removeprefix("file://"))
    document = msgspec.json.decode(current.read_bytes())
    document["table-uuid"] = str(uuid.uuid4())
    stranger = current.with_name(f"00000-{uuid.uuid4()}.metadata.json")
    stranger.write_bytes(msgspec.json.encode(document))
    avro = shutil.copy(next(current.parent.glob("*-m0.avro")), current.with_name("stranger-m0.avro"))
    done = expired(cold_bench)
    assert len(done.snapshots) == 2 and len(done.unknown) == 2
    assert stranger.exists() and avro.exists()
    stranger.unlink()
    assert expired(cold_bench).metadata_files == 1 and not avro.exists()


def test_the_command(broken: Cli) -> None:
    assert broken.json("storage", "expire", "--dry-run")["snapshots"] == []
    assert broken("storage", "expire").out.startswith("0 snapshots expired, 0 B in 0 files were deleted")
    assert broken.error("storage", "expire", "--older-than", "0d", code=1)["code"] == "invalid"


def test_a_home_without_a_cold_table(cold_bench: ColdBench) -> None:
    assert expired(cold_bench) == Expired()
