"""Pins of readers, on a real Postgres: who is waited for, and that nobody is waited for in vain."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from fix_cli import Cli
from fix_cold import ColdBench
from psycopg import sql
from psycopg.conninfo import make_conninfo

from stratalog.cold import pins
from stratalog.cold.query import READER, connect, run_sql
from stratalog.hot.home import Home
from stratalog.schemas.errors import Invalid, NotFound, Unavailable
from stratalog.warm import database
from stratalog.warm.database import Connection
from stratalog.warm.migrate import migrate

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
Connect = Callable[[], Connection]

HOLD = """
import sys
from stratalog.cold import pins
from stratalog.warm.database import connect
conn = connect(sys.argv[1])
print(pins.take(conn, "a process"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def connected(database: str) -> Iterator[Connect]:
    """Makes connections to a migrated database, and closes them."""
    from stratalog.warm import database as warm

    with warm.connect(database, check=False) as conn:
        conn.rollback()
        migrate(conn)
    with contextlib.ExitStack() as opened:
        yield lambda: opened.enter_context(contextlib.closing(warm.connect(database)))


def rows(conn: Connection) -> list[tuple[Any, ...]]:
    with conn.transaction():
        return conn.execute("SELECT pin_id, reader FROM snapshot_pins ORDER BY pin_id").fetchall()


def end_time_of(conn: Connection, pin_id: int) -> None:
    """Let the time of a pin be over, as if it had been taken long ago."""
    with conn.transaction():
        conn.execute(
            "UPDATE snapshot_pins SET pinned_at = now() - interval '2 h', pinned_until = now() - interval '1 h' "
            "WHERE pin_id = %s",
            [pin_id],
        )


def test_a_pin_says_who_reads_what_since_when_and_until_when(connected: Connect) -> None:
    reader, job = connected(), connected()
    assert pins.oldest(job) is None
    pin_id = pins.take(reader, "ada's notebook", 60)
    pins.set_snapshot(reader, pin_id, 2**62 + 1)
    (pin,) = pins.live(job)
    assert (pin.pin_id, pin.snapshot_id, pin.reader) == (pin_id, 2**62 + 1, "ada's notebook")
    assert pin.pinned_until - pin.pinned_at == pytest.approx(dt.timedelta(seconds=60), abs=dt.timedelta(seconds=1))
    pins.release(reader, pin_id)
    assert pins.live(job) == [] and rows(job) == []
    pins.release(reader, pin_id)  # again


def test_the_oldest_pin_is_the_one_that_was_taken_first(connected: Connect) -> None:
    first, second, job = connected(), connected(), connected()
    ids = [pins.take(first, "one"), pins.take(second, "two"), pins.take(first, "three")]
    assert [pin.pin_id for pin in pins.live(job)] == ids
    pins.release(first, ids[0])
    oldest = pins.oldest(job)
    assert oldest is not None and oldest.reader == "two"


def test_a_pin_goes_with_its_session(connected: Connect) -> None:
    reader, job = connected(), connected()
    pins.take(reader, "gone in a moment")
    assert len(pins.live(job)) == 1
    reader.close()
    assert pins.wait_for(job, seconds_max=10) == ()
    assert len(rows(job)) == 1, "the control: the row alone pins nothing"
    pin_id = pins.take(connected(), "the next one")
    assert rows(job) == [(pin_id, "the next one")]


def test_a_killed_process_leaves_no_pin(connected: Connect, database: str) -> None:
    job = connected()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, database], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and int(process.stdout.readline()) > 0
    assert [pin.reader for pin in pins.wait_for(job, seconds_max=0)] == ["a process"], (
        "the control: it pins while alive"
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert pins.wait_for(job, seconds_max=30) == ()
    process.stdout.close()


def test_a_pin_ends_when_its_time_is_over_although_the_reader_is_there(connected: Connect) -> None:
    reader, job = connected(), connected()
    pin_id = pins.take(reader, "slow")
    assert len(pins.live(job)) == 1
    end_time_of(job, pin_id)
    assert pins.live(job) == [] and pins.wait_for(job, seconds_max=0) == ()
    pins.release(reader, pin_id)


def test_a_row_that_a_restarted_server_has_kept_pins_nothing(connected: Connect) -> None:
    reader, job = connected(), connected()
    pins.take(reader, "terminated")
    with job.transaction():
        job.execute("SELECT pg_terminate_backend(%s)", [reader.info.backend_pid])
    assert pins.wait_for(job, seconds_max=30) == ()
    with pytest.raises(Unavailable):
        pins.take(reader, "on a dead connection")


def test_a_job_waits_for_those_that_are_there_and_for_nobody_else(connected: Connect) -> None:
    readers, job = [connected() for _ in range(3)], connected()
    ids = [pins.take(readers[0], "early"), pins.take(readers[1], "early, too")]
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            pins.take(readers[2], "late: it reads the new snapshot")
        pins.release(readers[len(waits) - 1], ids[len(waits) - 1])

    assert pins.wait_for(job, seconds_max=60, sleep=sleep) == ()
    assert len(waits) == 2 and all(0 < seconds <= pins.PAUSE_S for seconds in waits)
    assert [pin.reader for pin in pins.live(job)] == ["late: it reads the new snapshot"]


def test_a_job_does_not_wait_for_readers_of_the_new_snapshot(connected: Connect) -> None:
    reader, other, job = connected(), connected(), connected()
    pin_id = pins.take(reader, "reads 7")
    assert pins.wait_for(job, seconds_max=0, reading={7}) != (), "it does not say yet what it reads"
    pins.set_snapshot(reader, pin_id, 7)
    assert pins.wait_for(job, seconds_max=0, reading={7}) == ()
    assert [pin.pin_id for pin in pins.wait_for(job, seconds_max=0, reading={8})] == [pin_id]
    pins.set_snapshot(other, pins.take(other, "reads 6"), 6)
    assert [pin.reader for pin in pins.wait_for(job, seconds_max=0, reading={7})] == ["reads 6"]
    pins.take(other, "has just come")
    assert pins.pinned_snapshots(job) == {6, 7}


def test_waiting_is_bounded_and_says_for_whom_it_was(connected: Connect) -> None:
    reader, job = connected(), connected()
    pins.take(reader, "for ever")
    slept: list[float] = []
    assert [pin.reader for pin in pins.wait_for(job, seconds_max=0.001, sleep=slept.append)] == ["for ever"]
    assert sum(slept) < 10_000 and pins.wait_for(connected(), seconds_max=0) != ()


@pytest.mark.parametrize("seconds", [0, -1, pins.PIN_S_MAX + 1, float("nan"), float("inf")])
def test_the_time_of_a_pin_is_bounded(connected: Connect, seconds: float) -> None:
    with pytest.raises(Invalid, match="a pin lasts up to"):
        pins.take(connected(), "x", seconds)


def test_names_of_readers_are_cut_to_what_can_be_stored(connected: Connect) -> None:
    reader, job = connected(), connected()
    pins.take(reader, "a\0b" + "ü" * 500)
    pins.take(reader, "  ")
    assert [len(pin.reader) for pin in pins.live(job)] == [200, 7]


def test_a_pin_needs_a_connection_of_its_own(connected: Connect) -> None:
    reader = connected()
    reader.execute("SELECT 1")
    with pytest.raises(Invalid, match="outside a transaction"):
        pins.take(reader, "x")


@pytest.fixture
def read_only(connected: Connect, database: str) -> Iterator[str]:
    """The DSN of a role that may read everything and write nothing."""
    role = sql.Identifier(f"reader_{database[-12:]}" if database[-12:].isalnum() else "reader_of_pins")
    admin = connected()
    with admin.transaction():
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        admin.execute(sql.SQL("GRANT USAGE ON SCHEMA stratalog TO {}").format(role))
        admin.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA stratalog TO {}").format(role))
    yield make_conninfo(database, user=role.as_string().strip('"'))
    with admin.transaction():
        admin.execute(sql.SQL("DROP OWNED BY {}").format(role))
        admin.execute(sql.SQL("DROP ROLE {}").format(role))


def test_a_role_that_may_only_read_pins_what_it_reads(connected: Connect, read_only: str) -> None:
    job = connected()
    with contextlib.closing(database.connect(read_only)) as conn:
        with pytest.raises(psycopg.errors.InsufficientPrivilege), conn.transaction():
            conn.execute("DELETE FROM snapshot_pins")
        pin_id = pins.take(conn, "analyst", 60)
        pins.set_snapshot(conn, pin_id, 7)
        (pin,) = pins.live(job)
        assert (pin.pin_id, pin.snapshot_id, pin.reader) == (pin_id, 7, "analyst")
        assert pins.wait_for(job, seconds_max=0) == (pin,)
        pins.release(conn, pin_id)
        assert pins.live(job) == [] and rows(job) == []
        pins.take(conn, "again")
    assert pins.live(job) == [], "with the session the pin is gone"


def test_a_role_that_may_only_read_touches_no_pin_of_others(connected: Connect, read_only: str) -> None:
    owner = connected()
    pin_id = pins.take(owner, "ada", 60)
    with contextlib.closing(database.connect(read_only)) as conn:
        pins.set_snapshot(conn, pin_id, 7)
        pins.release(conn, pin_id)
        with conn.transaction():  # nor does it get more than an hour by asking the function itself
            (mine,) = conn.execute("SELECT pin_snapshot('greedy', 1e12)").fetchone() or ()
        live = {pin.pin_id: pin for pin in pins.live(owner)}
        assert live[pin_id].snapshot_id is None
        assert live[mine].pinned_until - live[mine].pinned_at <= dt.timedelta(hours=1, seconds=1)


def test_a_role_that_may_not_pin_is_told_so(connected: Connect, read_only: str) -> None:
    with contextlib.closing(connected()) as admin, admin.transaction():
        admin.execute("REVOKE EXECUTE ON FUNCTION pin_snapshot FROM PUBLIC")
    with contextlib.closing(database.connect(read_only)) as conn:
        with pytest.raises(Invalid, match="may not pin") as caught:
            pins.take(conn, "analyst")
        assert "GRANT" in caught.value.hint and "--no-pin" in caught.value.hint
        assert pins.live(conn) == []


def test_a_connection_over_a_home_is_pinned_as_long_as_it_is_there(cli: Cli) -> None:
    cli.json("sidecar", "--once")
    cli.json("consolidate", "--older-than", "0d")
    home = Home.open(cli.home)
    with contextlib.closing(database.connect(home.settings.warm.dsn)) as job:
        opened = connect(home)
        (pin,) = pins.live(job)
        assert pin.reader == READER and pin.snapshot_id is not None
        with pins.pinned_snapshot(home, "another") as snapshot:
            assert snapshot.snapshot_id == pin.snapshot_id and len(snapshot.files) == 1
            assert len(pins.live(job)) == 2
        assert run_sql(opened, "SELECT count(*) AS n FROM trajectories") == [{"n": 1}]
        assert pins.wait_for(job, seconds_max=0, reading={pin.snapshot_id}) == ()
        opened.close()
        del opened
        gc.collect()
        assert pins.live(job) == [] and rows(job) == []
        unpinned = connect(home, pin_s=0)
        assert pins.live(job) == []
        assert run_sql(unpinned, "SELECT count(*) AS n FROM trajectories") == [{"n": 1}]


def test_the_command_pins_while_it_runs_and_leaves_nothing(cli: Cli) -> None:
    cli.json("sidecar", "--once")
    cli.json("consolidate", "--older-than", "0d")
    query = "SELECT count(*) AS n FROM trajectories"
    dsn = Home.open(cli.home).settings.warm.dsn
    for flags in ((), ("--untrusted",), ("--no-pin",), ("--untrusted", "--no-pin")):
        assert cli.json("sql", *flags, query) == [{"n": 1}]
        with contextlib.closing(database.connect(dsn)) as job:
            assert pins.live(job) == [] and rows(job) == []
    with contextlib.closing(database.connect(dsn)) as job:
        (last,) = job.execute("SELECT max(pin_id) FROM snapshot_pins").fetchall()
        job.rollback()
        assert last == (None,)
        assert pins.take(job, "counted") == 3, "two of the four questions were pinned"


def test_a_failed_question_releases_its_pin(cli: Cli) -> None:
    cli.json("sidecar", "--once")
    cli.json("consolidate", "--older-than", "0d")
    assert cli("sql", "SELEC").code == 1
    gc.collect()
    with contextlib.closing(database.connect(Home.open(cli.home).settings.warm.dsn)) as job:
        assert pins.live(job) == []


def test_files_of_a_pinned_snapshot_outlive_a_job_that_waits(cold_bench: ColdBench) -> None:
    """The protocol as a job has to follow it; the control: a job that does not wait takes the files away."""
    cold_bench.task(1)
    cold_bench.run()
    (old,) = cold_bench.catalog.snapshot_files()
    with contextlib.closing(cold_bench.connect()) as reader, contextlib.closing(cold_bench.connect()) as job:
        pin_id = pins.take(reader, "reads the old file")
        view = connect(files=[old])
        assert pins.wait_for(job, seconds_max=0) != ()  # so the job lets the file lie
        assert run_sql(view, "SELECT count(*) AS n FROM trajectories") == [{"n": 1}]
        pins.release(reader, pin_id)
        assert pins.wait_for(job, seconds_max=0) == ()
        cold_bench.lake.delete(old)
        with pytest.raises(NotFound):
            run_sql(view, "SELECT count(text) AS n FROM events")


def test_psycopg_of_another_database_sees_no_pin_of_ours(connected: Connect, database: str) -> None:
    """Advisory locks are per database: the same pin id elsewhere is another pin."""
    reader, job = connected(), connected()
    pin_id = pins.take(reader, "here")
    elsewhere = make_conninfo(database, dbname="postgres")
    pins.release(reader, pin_id)
    with psycopg.connect(elsewhere, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(hashtextextended('stratalog.pin.' || %s::bigint, 0))", [pin_id])
        with job.transaction():
            job.execute(
                "INSERT INTO snapshot_pins (pin_id, reader, pinned_until) OVERRIDING SYSTEM VALUE "
                "VALUES (%s, 'stale', now() + interval '1 h')",
                [pin_id],
            )
        assert pins.live(job) == []
