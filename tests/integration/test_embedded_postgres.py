"""The launcher: one server for one folder, whoever starts it and whoever is killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
from pathlib import Path

import psycopg
import pytest
from fix_embedded import MAJORS, ask, postmaster, query, user_process
from fix_postgres import bin_dir_of

from stratalog.schemas.errors import StratalogError
from stratalog.warm.server import SERVER_ENVIRONMENT, EmbeddedPostgres
from stratalog.warm.server_folder import ServerFolder
from stratalog.warm.server_user import Passage, ServerUser

pytestmark = pytest.mark.postgres


@pytest.mark.required_in_ci
@pytest.mark.parametrize("major", MAJORS)
def test_every_supported_version_starts_durable_and_private(pg_empty: Path, major: int) -> None:
    with EmbeddedPostgres(pg_empty, bin_dir=bin_dir_of(major), settings={"work_mem": "5MB"}) as server:
        assert server.major == major
        shown = {
            name: query(server.dsn, f"SHOW {name}")
            for name in ("fsync", "synchronous_commit", "listen_addresses", "max_locks_per_transaction", "work_mem")
        }
        assert shown == {
            "fsync": "on",
            "synchronous_commit": "on",
            "listen_addresses": "",
            "max_locks_per_transaction": "512",
            "work_mem": "5MB",
        }
        assert query(server.dsn, "SHOW data_checksums") == "on"
        assert query(server.dsn, "SHOW server_encoding") == "UTF8"
        assert query(server.dsn, "SHOW wal_compression") in ("lz4", "pglz", "on")
        host = psycopg.conninfo.conninfo_to_dict(server.dsn)["host"]
        assert stat.S_IMODE(Path(str(host)).stat().st_mode) == 0o700
    assert ServerFolder(pg_empty).postmaster() is None


def test_a_second_process_joins_and_the_last_one_stops(pg_base: Path, pg_bin_dir: Path) -> None:
    with user_process(pg_base, pg_bin_dir) as other:
        dsn = ask(other)
        server = EmbeddedPostgres(pg_base, bin_dir=pg_bin_dir).start()
        assert server.dsn == dsn
        first = postmaster(pg_base)
        # The process that started it goes; the server stays for us.
        assert ask(other, "stop") == "False"
        other.wait()
        assert query(server.dsn, "SELECT 1") == 1
        assert postmaster(pg_base) == first
        assert server.stop() is True
        assert ServerFolder(pg_base).postmaster() is None
        assert server.stop() is False


def test_two_objects_in_one_process_count_as_two_users(pg_base: Path) -> None:
    with EmbeddedPostgres(pg_base) as outer:
        inner = EmbeddedPostgres(pg_base).start()
        assert inner.stop() is False
        assert query(outer.dsn, "SELECT 1") == 1


def test_concurrent_first_starts_make_one_server(pg_empty: Path) -> None:
    bin_dir_of(None)
    results: list[EmbeddedPostgres | Exception] = []

    def start() -> None:
        try:
            results.append(EmbeddedPostgres(pg_empty).start())
        except StratalogError as error:
            results.append(error)

    threads = [threading.Thread(target=start) for _ in range(3)]
    with user_process(pg_empty) as first, user_process(pg_empty) as second:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        servers = [result for result in results if isinstance(result, EmbeddedPostgres)]
        assert len(servers) == 3, results
        dsns = {ask(first), ask(second), *(server.dsn for server in servers)}
        assert len(dsns) == 1
        starts = (pg_empty / "server.log").read_text().count("database system is ready to accept connections")
        assert starts == 1
        assert [ask(first, "stop"), ask(second, "stop")] == ["False", "False"]
        assert [server.stop() for server in servers] == [False, False, True]


def test_a_server_whose_users_were_all_killed_is_met_again(pg_base: Path, pg_bin_dir: Path) -> None:
    with user_process(pg_base, pg_bin_dir) as one, user_process(pg_base, pg_bin_dir) as two:
        dsn = ask(one)
        assert ask(two) == dsn
        one.send_signal(signal.SIGKILL)
        two.send_signal(signal.SIGKILL)
        one.wait(), two.wait()
    left = postmaster(pg_base)
    with EmbeddedPostgres(pg_base) as server:
        assert postmaster(pg_base) == left
        assert query(server.dsn, "SELECT 1") == 1
    assert ServerFolder(pg_base).postmaster() is None


def test_a_killed_server_starts_again_with_what_was_committed(pg_base: Path, pg_bin_dir: Path) -> None:
    server = EmbeddedPostgres(pg_base, bin_dir=pg_bin_dir).start()
    query(server.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    killed = postmaster(pg_base)
    # A child that is busy outlives its main process for a moment; it must be gone before another server starts.
    busy = psycopg.connect(server.dsn)
    busy.execute("CREATE TABLE lost (n integer)")
    os.kill(killed, signal.SIGKILL)
    assert server.start() is server
    busy.close()
    assert postmaster(pg_base) != killed
    assert query(server.dsn, "SELECT n FROM kept") == 7
    assert query(server.dsn, "SELECT to_regclass('lost')") is None
    assert server.stop() is True


def test_stop_is_content_with_a_server_that_is_dead_already(pg_base: Path) -> None:
    server = EmbeddedPostgres(pg_base).start()
    os.kill(postmaster(pg_base), signal.SIGKILL)
    assert server.stop() is True


def test_a_stale_pid_file_that_names_a_living_foreign_process_is_ignored(pg_base: Path, pg_bin_dir: Path) -> None:
    user = ServerUser.of(pg_base / "data")
    with subprocess.Popen(["sleep", "1000"], **user.identity) as foreign:
        try:
            pid_file = pg_base / "data" / "postmaster.pid"
            pid_file.write_text(f"{foreign.pid}\n{pg_base}/data\n1\n5432\n{pg_base}/s\n\n0 0\nready\n")
            # Negative control: PostgreSQL itself takes that process for a server.
            with Passage(user) as passage:
                command = [pg_bin_dir / "postgres", "-D", passage.path(pg_base / "data"), "-c", "listen_addresses="]
                keep = {"cwd": "/", "env": SERVER_ENVIRONMENT, "pass_fds": passage.descriptors, **user.identity}
                refused = subprocess.run(command, capture_output=True, text=True, check=False, **keep)
            assert "already exists" in refused.stderr
            with EmbeddedPostgres(pg_base, bin_dir=pg_bin_dir) as server:
                assert query(server.dsn, "SELECT 1") == 1
            assert foreign.poll() is None
        finally:
            foreign.kill()


def test_a_half_made_cluster_is_made_anew(pg_empty: Path, pg_bin_dir: Path) -> None:
    left = pg_empty / "data.new"
    left.mkdir(parents=True)
    (left / "PG_VERSION").write_text("9\n")
    (left / "global").mkdir()
    with EmbeddedPostgres(pg_empty, bin_dir=pg_bin_dir) as server:
        assert query(server.dsn, "SELECT 1") == 1
    assert not left.exists()


def test_a_starter_killed_inside_initdb_does_no_harm(pg_empty: Path) -> None:
    bin_dir_of(None)
    with user_process(pg_empty) as starter:
        while not (pg_empty / "data.new" / "global").exists():
            assert starter.poll() is None
            assert not (pg_empty / "data").exists()
        starter.send_signal(signal.SIGKILL)
        starter.wait()
        # Its initdb may go on writing: the next start waits until it is gone.
        with EmbeddedPostgres(pg_empty) as server:
            assert query(server.dsn, "SELECT 1") == 1
    assert not (pg_empty / "data.new").exists()
