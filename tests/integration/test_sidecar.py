"""The sidecar with real logs and a real Postgres: nothing lost, nothing twice, whatever breaks on the way."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from fix_history import MemoryContents, Story, message, started
from fix_postgres import FAST_SETTINGS
from fix_proxy import LosesCommits

from stratalog.hot.home import Home
from stratalog.hot.log import HotLog, NewEvent
from stratalog.hot.source import open_source
from stratalog.schemas import ids
from stratalog.schemas.chain import Link
from stratalog.schemas.errors import Corrupt, CursorMismatch, Fenced, Locked, MigrationNeeded, Unavailable
from stratalog.schemas.events import TaskFinished, TrajectoryClaimed
from stratalog.warm import quarantine, replicator
from stratalog.warm.check import verify_warm
from stratalog.warm.database import Connection, connect
from stratalog.warm.ingest import read_cursor
from stratalog.warm.migrate import migrate
from stratalog.warm.queries import import_key, read_events
from stratalog.warm.server import EmbeddedPostgres
from stratalog.warm.sidecar import Sidecar
from stratalog.warm.sidecar_status import read_status

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
WAIT_S = 60


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A fresh home whose sidecar takes small batches."""
    return Home.open(tmp_path / "home", create=True, flags={"warm.batch_events_max": 16, "warm.poll_ms": 20})


def fill(home: Home, trajectories: int, events: int, role: str = "worker") -> dict[uuid.UUID, Link]:
    """Append to a log of the home; returns the heads."""
    heads = {}
    with HotLog.open(home, role=role, serve=False) as log:
        for _ in range(trajectories):
            id_ = log.start_blocking(tenant="default", body=started())
            last = log.append_many_blocking(id_, [NewEvent(message(f"m{n}")) for n in range(events - 1)])[-1]
            heads[id_] = Link(last.sequence_number, last.hash)
    return heads


@contextmanager
def following(sidecar: Sidecar) -> Iterator[None]:
    """Run a sidecar in the background; what it raises is raised here at the end."""
    stop, errors = threading.Event(), []

    def work() -> None:
        try:
            sidecar.run(stop)
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(WAIT_S)
    assert not thread.is_alive()
    assert errors == []


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def assert_replicated(conn: Connection, heads: dict[uuid.UUID, Link]) -> None:
    found = verify_warm(conn)
    assert (found.problems, found.heads) == ([], heads)
    assert quarantine.entries(conn) == []


def test_one_run_replicates_all_logs_and_the_next_finds_nothing(
    home: Home, warm_dsn: str, warm: Connection, contents: MemoryContents
) -> None:
    heads = fill(home, 3, 50) | fill(home, 2, 30, role="import")
    assert Sidecar(home, warm_dsn, contents).run_once() == {
        "events": 210,
        "trajectories": 5,
        "blobs": 0,
        "quarantined": 0,
    }
    assert_replicated(warm, heads)
    assert Sidecar(home, warm_dsn, contents).run_once()["events"] == 0
    with HotLog.open(home, serve=False) as log:
        assert log.replicated_lsn == log.durable_lsn == 150
    status = read_status(home)
    assert status is not None and not status.alive and status.alarms == []
    assert sorted((log.lsn, log.lag_events) for log in status.logs) == [(60, 0), (150, 0)]


def test_a_following_sidecar_reaches_the_replicated_barrier_and_finds_new_logs(
    home: Home, warm_dsn: str, warm: Connection, contents: MemoryContents
) -> None:
    with following(Sidecar(home, warm_dsn, contents)), HotLog.open(home) as log:
        id_ = log.start_blocking(tenant="default", task="t")
        receipt = log.append_blocking(id_, message(), barrier="replicated", timeout_s=WAIT_S)
        assert log.replicated_lsn >= receipt.lsn
        with HotLog.open(home) as second:
            other = second.start_blocking(tenant="default", task="t")
            second.append_blocking(other, TaskFinished(status="completed"), barrier="replicated", timeout_s=WAIT_S)
        status = read_status(home)
        assert status is not None and status.alive
    assert [e.header.sequence_number for e in read_events(warm, id_)] == [0, 1]
    assert len(list(read_events(warm, other))) == 2


def test_blobs_are_in_the_content_store_before_the_events(
    home: Home, warm_dsn: str, warm: Connection, contents: MemoryContents
) -> None:
    fill(home, 1, 5)
    with HotLog.open(home, serve=False) as log:
        log.start_blocking(tenant="default", body=started())
        log.start_blocking(tenant="default", task="bulky " * 20_000)
        log_id, last = log.log_id, log.durable_lsn
    contents.broken = Corrupt("not the content that its digest says")
    sidecar = Sidecar(home, warm_dsn, contents)
    with pytest.raises(Corrupt):
        sidecar.run_once()
    cursor = read_cursor(warm, log_id)
    assert cursor is None or cursor.lsn < last
    assert [log.state for log in sidecar.status().logs] == ["stopped"]
    contents.broken = None
    assert sidecar.run_once()["blobs"] == 1
    assert list(contents.pieces.values()) == [b"bulky " * 20_000]
    assert verify_warm(warm).events == last


def test_a_content_store_that_comes_back_is_waited_for(
    home: Home, warm_dsn: str, contents: MemoryContents, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HotLog.open(home, serve=False) as log:
        log.start_blocking(tenant="default", task="bulky " * 20_000)
    contents.broken = OSError("no route")
    monkeypatch.setattr(replicator, "PATIENCE_S", 0.0)
    with pytest.raises(Unavailable):
        Sidecar(home, warm_dsn, contents).run_once()
    sidecar = Sidecar(home, warm_dsn, contents)
    with following(sidecar):
        eventually(lambda: any(log.state == "retrying" for log in sidecar.status().logs))
        contents.broken = None
        eventually(lambda: bool(contents.pieces))
        eventually(lambda: sidecar.status().logs[0].lsn == 1)


def test_one_sidecar_for_a_home(home: Home, warm_dsn: str, contents: MemoryContents) -> None:
    with following(Sidecar(home, warm_dsn, contents)):
        eventually(lambda: read_status(home) is not None)
        with pytest.raises(Locked):
            Sidecar(home, warm_dsn, contents).run_once()
    Sidecar(home, warm_dsn, contents).run_once()


def test_a_database_that_is_not_ready_is_told_at_once(home: Home, database: str, contents: MemoryContents) -> None:
    with pytest.raises(MigrationNeeded):
        Sidecar(home, database, contents).run_once()
    with pytest.raises(Unavailable):
        Sidecar(home, "host=/nonexistent dbname=x", contents).run_once()


def test_a_stolen_trajectory_is_quarantined_and_its_writer_fenced(
    home: Home, warm_dsn: str, warm: Connection, contents: MemoryContents
) -> None:
    secret = os.urandom(32)
    with HotLog.open(home) as log:
        id_ = log.start_blocking(tenant="default", body=started(), secret=secret)
        head = log.head(id_)
        assert head is not None
        with following(Sidecar(home, warm_dsn, contents)), HotLog.open(home) as thief:
            log.append_blocking(id_, message(), barrier="replicated", timeout_s=WAIT_S)
            claim = TrajectoryClaimed(holder="thief", token=1)
            after = Link(head.sequence_number, head.hash)
            asyncio.run(thief.resume("default", id_, after, epoch=1, secret=secret, body=claim))
            with pytest.raises(Fenced):
                thief.append_blocking(id_, message("mine"), barrier="replicated", timeout_s=WAIT_S)
    status = read_status(home)
    assert status is not None and len(status.alarms) == 1
    assert {entry.reason for entry in quarantine.entries(warm)} == {"divergent"}
    assert verify_warm(warm).problems == []


def test_a_log_restored_from_an_old_copy_stops_alone(
    home: Home, warm_dsn: str, warm: Connection, contents: MemoryContents, tmp_path: Path
) -> None:
    fill(home, 1, 20)
    (restored,) = home.log_ids()
    shutil.copytree(home.log_folder(restored), tmp_path / "copy")
    fill(home, 1, 20)
    Sidecar(home, warm_dsn, contents).run_once()
    shutil.rmtree(home.log_folder(restored))
    shutil.copytree(tmp_path / "copy", home.log_folder(restored))
    fill(home, 1, 40)  # the restored log goes on with other events at the same LSNs
    other = fill(home, 1, 20, role="import")
    sidecar = Sidecar(home, warm_dsn, contents)
    with pytest.raises(CursorMismatch):
        sidecar.run_once()
    assert other.items() <= verify_warm(warm).heads.items()
    assert [log.state for log in sidecar.status().logs] == ["stopped", "waiting"]
    with following(sidecar):
        eventually(lambda: [log.state for log in sidecar.status().logs] == ["stopped", "waiting"])
    assert quarantine.entries(warm) == []


def test_a_log_in_use_by_a_reader_is_waited_for(
    home: Home, warm_dsn: str, warm: Connection, contents: MemoryContents
) -> None:
    heads = fill(home, 1, 20)
    (log_id,) = home.log_ids()
    reader = open_source(home, log_id)
    timer = threading.Timer(3.0, reader.close)
    timer.start()
    Sidecar(home, warm_dsn, contents).run_once()
    timer.join()
    assert_replicated(warm, heads)


def test_the_import_key_of_a_tenant_is_published(
    home: Home, warm_dsn: str, warm: Connection, contents: MemoryContents
) -> None:
    fill(home, 1, 2)
    Sidecar(home, warm_dsn, contents).run_once()
    assert import_key(warm, "default") is None
    key, id_ = home.import_key("default"), ids.new_trajectory_id()
    with HotLog.open(home, serve=False) as log:
        log.start_blocking(
            tenant="default", body=started(imported=True), trajectory_id=id_, secret=ids.imported_secret(key, id_)
        )
    Sidecar(home, warm_dsn, contents).run_once()
    assert import_key(warm, "default") == key


def test_commits_whose_reply_is_lost_are_neither_repeated_nor_forgotten(
    home: Home, warm_dsn: str, warm: Connection, contents: MemoryContents
) -> None:
    heads = fill(home, 4, 50)
    with LosesCommits(warm_dsn, every=7) as proxy:
        counts = Sidecar(home, proxy.dsn, contents).run_once()
    assert proxy.lost > 1
    assert_replicated(warm, heads)
    (log_id,) = home.log_ids()
    cursor = read_cursor(warm, log_id)
    assert cursor is not None and cursor.lsn == 200
    # What the lost replies would have counted is known to the database alone.
    assert counts["events"] <= 200


def test_without_the_cursor_a_lost_reply_would_store_events_twice(warm_dsn: str, warm: Connection) -> None:
    """The negative control: the proxy does what it says, and a client that simply tries again doubles its rows."""
    with warm.transaction():
        warm.execute("CREATE TABLE control (number integer)")
    number = 0
    conn = None
    with LosesCommits(warm_dsn, every=7) as proxy:
        while number < 50:
            try:
                conn = conn or psycopg.connect(proxy.dsn)
                with conn.transaction():
                    conn.execute("INSERT INTO stratalog.control VALUES (%s)", [number])
                number += 1
            except psycopg.OperationalError:
                conn = None
    with warm.transaction():
        found = warm.execute("SELECT count(*), count(DISTINCT number) FROM control").fetchone()
    assert found == (50 + proxy.lost, 50) and proxy.lost > 1


def test_killed_connections_do_not_stop_it(
    home: Home, warm_dsn: str, warm: Connection, contents: MemoryContents
) -> None:
    heads = fill(home, 4, 150)
    kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
    kill += "datname = current_database()"
    done, killed = threading.Event(), 0
    runner = threading.Thread(target=lambda: (Sidecar(home, warm_dsn, contents).run_once(), done.set()))
    runner.start()
    while killed < 5 and not done.wait(0.02) and runner.is_alive():
        with warm.transaction():
            # Only once it replicates: a server that fails at the very first connection is told at once.
            row = warm.execute(b"SELECT count(*) FROM log_cursors").fetchone()
            if row and row[0]:
                row = warm.execute(kill.encode()).fetchone()
                killed += row[0] if row else 0
    runner.join(WAIT_S)
    assert done.is_set() and killed > 0
    assert_replicated(warm, heads)


def test_an_embedded_server_that_is_killed_is_started_again(
    home: Home, tmp_path: Path, contents: MemoryContents
) -> None:
    heads = fill(home, 4, 400)
    # Here the server's promises count: a commit that it acknowledged is there after a kill -9.
    settings = {**FAST_SETTINGS, "fsync": "on", "full_page_writes": "on"}
    with EmbeddedPostgres(tmp_path / "pg", settings=settings) as server:
        with psycopg.connect(server.dsn) as conn:
            migrate(conn)
        (log_id,) = home.log_ids()
        sidecar = Sidecar(home, server, contents)
        with following(sidecar):
            for part in (1, 2):
                eventually(lambda part=part: bool((s := sidecar.status().logs) and s[0].lsn >= part * 400))
                postmaster = int((tmp_path / "pg" / "data" / "postmaster.pid").read_text().split()[0])
                os.kill(postmaster, signal.SIGKILL)
            eventually(lambda: sidecar.status().logs[0].lsn == 1600)
            assert sidecar.status().logs[0].last_error_code == "unavailable"
        server.start()
        with connect(server.dsn) as checked:
            assert_replicated(checked, heads)
            cursor = read_cursor(checked, log_id)
            assert cursor is not None and cursor.lsn == 1600


PROGRAM = """
import sys, pathlib, threading
from stratalog.hot.home import Home
from stratalog.warm.sidecar import Sidecar
sys.path.insert(0, sys.argv[3])
from fix_history import MemoryContents
home = Home.open(pathlib.Path(sys.argv[1]), flags={"warm.batch_events_max": 4})
Sidecar(home, sys.argv[2], MemoryContents()).run(threading.Event())
"""


def test_a_sidecar_that_is_killed_goes_on_where_postgres_stands(
    home: Home, warm_dsn: str, warm: Connection, contents: MemoryContents
) -> None:
    heads = fill(home, 10, 200)
    (log_id,) = home.log_ids()
    seen = []
    for part in range(1, 5):
        command = [sys.executable, "-c", PROGRAM, str(home.path), warm_dsn, str(Path(__file__).parents[1])]
        process = subprocess.Popen(command)
        try:
            eventually(lambda part=part: _position(warm, log_id) >= part * 300)
        finally:
            process.kill()
            process.wait()
        seen.append(_position(warm, log_id))
    # The kills did hit it on the way: a test in which it had ended before would prove nothing.
    assert seen == sorted(set(seen)) and seen[0] < 2000
    Sidecar(home, warm_dsn, contents).run_once()
    assert_replicated(warm, heads)
    with HotLog.open(home, serve=False) as log:
        assert log.replicated_lsn == 2000


def _position(conn: Connection, log_id: uuid.UUID) -> int:
    cursor = read_cursor(conn, log_id)
    return cursor.lsn if cursor else 0


def test_two_homes_that_import_the_same_source_meet(
    home: Home, warm_dsn: str, warm: Connection, contents: MemoryContents, tmp_path: Path
) -> None:
    story = Story().tell(30, imported=True)
    homes = [home, Home.open(tmp_path / "other", create=True, flags={"warm.batch_events_max": 7})]
    for place, count in zip(homes, (20, 30), strict=True):
        with HotLog.open(place, serve=False) as log:
            first, *rest = story.events[:count]
            log.start_blocking(
                tenant="default",
                body=started(imported=True),
                trajectory_id=story.trajectory_id,
                secret=story.secret,
                created_at=first.header.created_at,
            )
            log.append_many_blocking(story.trajectory_id, [NewEvent(message(), e.header.created_at) for e in rest])
    runs = [threading.Thread(target=Sidecar(place, warm_dsn, contents).run_once) for place in homes]
    for run in runs:
        run.start()
    for run in runs:
        run.join(WAIT_S)
    assert_replicated(warm, {story.trajectory_id: story.head})
