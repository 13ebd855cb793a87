"""The migration runner: each file once, whole or not at all, by one process at a time, and never on a guess."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from psycopg import sql

from stratalog.schemas.errors import Invalid, MigrationNeeded, Unavailable
from stratalog.warm.migrate import check_server, default_folder, migrate, read_migrations, require_current, status

pytestmark = pytest.mark.postgres


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "sql"
    made.mkdir()
    (made / "001_first.sql").write_text("CREATE TABLE first (n integer);\nINSERT INTO first VALUES (1);\n")
    (made / "002_second.sql").write_text("ALTER TABLE first ADD m text;\nCREATE TABLE second (n integer);\n")
    return made


def connect(dsn: str, **options: Any) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn, **options)


def tables(conn: psycopg.Connection[Any]) -> set[str]:
    return {name for (name,) in conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'stratalog'")}


@pytest.mark.parametrize("autocommit", [True, False])
def test_files_are_applied_in_order_and_once(database: str, folder: Path, autocommit: bool) -> None:
    with connect(database, autocommit=autocommit) as conn:
        assert status(conn, folder).pending == ("001_first", "002_second")
        assert migrate(conn, folder) == ["001_first", "002_second"]
        assert migrate(conn, folder) == []
        assert status(conn, folder).applied == ("001_first", "002_second")
    with connect(database) as conn:
        assert tables(conn) == {"first", "second", "migrations"}
        rows = conn.execute("SELECT number, name, sha256 FROM stratalog.migrations ORDER BY 1").fetchall()
        assert rows == [(known.number, known.name, known.sha256) for known in read_migrations(folder)]
        assert conn.execute("SELECT count(*) FROM stratalog.first").fetchone() == (1,)


def test_status_changes_nothing(database: str, folder: Path) -> None:
    with connect(database, autocommit=True) as conn:
        status(conn, folder)
        assert conn.execute("SELECT to_regnamespace('stratalog')").fetchone() == (None,)


def test_a_later_version_adds_its_own_files(database: str, folder: Path) -> None:
    with connect(database, autocommit=True) as conn:
        migrate(conn, folder)
        require_current(conn, folder)
        (folder / "003_third.sql").write_text("CREATE TABLE third (n integer);")
        with pytest.raises(MigrationNeeded, match="003_third"):
            require_current(conn, folder)
        assert migrate(conn, folder) == ["003_third"]
        require_current(conn, folder)


def test_concurrent_migrators_apply_each_file_once(database: str, folder: Path) -> None:
    (folder / "003_slow.sql").write_text("SELECT pg_sleep(0.2);\nCREATE TABLE slow (n integer);\n")

    def run(_: int) -> list[str]:
        with connect(database) as conn:
            return migrate(conn, folder)

    with ThreadPoolExecutor(4) as pool:
        done = [name for names in pool.map(run, range(4)) for name in names]
    assert sorted(done) == ["001_first", "002_second", "003_slow"]


def test_without_the_lock_they_would_collide(database: str, folder: Path) -> None:
    """The negative control of the test above: a migrator waits for the holder of the lock, and only for it."""
    with connect(database) as holder, connect(database, options="-c lock_timeout=200ms") as waiting:
        holder.execute("SELECT pg_advisory_xact_lock(7236181440015)")
        with pytest.raises(Unavailable, match="lock timeout"):
            migrate(waiting, folder)
        holder.rollback()
        assert migrate(waiting, folder) == ["001_first", "002_second"]


def test_a_file_that_changed_after_it_was_applied_is_refused(database: str, folder: Path) -> None:
    with connect(database, autocommit=True) as conn:
        migrate(conn, folder)
        (folder / "003_third.sql").write_text("CREATE TABLE third (n integer);")
        (folder / "001_first.sql").write_text("CREATE TABLE first (n bigint);")
        for call in (migrate, status):
            with pytest.raises(MigrationNeeded, match="another 001_first"):
                call(conn, folder)
        assert "third" not in tables(conn)


def test_a_newer_database_is_refused(database: str, folder: Path) -> None:
    with connect(database, autocommit=True) as conn:
        migrate(conn, folder)
        (folder / "002_second.sql").unlink()
        for call in (migrate, status, require_current):
            with pytest.raises(MigrationNeeded, match="newer") as refused:
                call(conn, folder)
            assert "upgrade" in refused.value.hint


def test_a_missing_record_in_the_middle_is_refused(database: str, folder: Path) -> None:
    with connect(database, autocommit=True) as conn:
        migrate(conn, folder)
        conn.execute("DELETE FROM stratalog.migrations WHERE number = 1")
        with pytest.raises(MigrationNeeded):
            migrate(conn, folder)


def test_a_file_that_fails_leaves_nothing_and_those_before_stay(database: str, folder: Path) -> None:
    (folder / "003_third.sql").write_text("CREATE TABLE third (n integer);\nSELECT 1 / 0;\n")
    with connect(database) as conn:
        with pytest.raises(Invalid, match="003_third"):
            migrate(conn, folder)
        assert "third" not in tables(conn)
        conn.rollback()
        assert status(conn, folder).pending == ("003_third",)
        (folder / "003_third.sql").write_text("CREATE TABLE third (n integer);\n")
        assert migrate(conn, folder) == ["003_third"]


def test_a_first_file_that_fails_leaves_not_even_the_schema(database: str, folder: Path) -> None:
    (folder / "001_first.sql").write_text("CREATE TABLE first (n integer); SELECT 1 / 0;")
    with connect(database, autocommit=True) as conn:
        with pytest.raises(Invalid):
            migrate(conn, folder)
        assert conn.execute("SELECT to_regnamespace('stratalog')").fetchone() == (None,)


def test_a_migrator_killed_inside_a_file_leaves_nothing_of_it(database: str, folder: Path) -> None:
    # The lock in the file is how this test knows that the child is between its statements.
    (folder / "002_second.sql").write_text(
        "CREATE TABLE second (n integer);\nSELECT pg_advisory_lock(1);\nCREATE TABLE after (n integer);\n"
    )
    program = textwrap.dedent("""
        import pathlib, psycopg, sys
        from stratalog.warm.migrate import migrate
        with psycopg.connect(sys.argv[1]) as conn:
            migrate(conn, pathlib.Path(sys.argv[2]))
    """)
    with connect(database, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(1)")
        child = subprocess.Popen([sys.executable, "-c", program, database, os.fspath(folder)])
        waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND NOT granted"
        while (found := holder.execute(waiting).fetchone()) is None:
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
        child.wait()
        # Postgres meets the closed connection only when it next writes to it: end the wait.
        holder.execute("SELECT pg_terminate_backend(%s, 10000)", found)
        assert tables(holder) == {"first", "migrations"}
        assert status(holder, folder).pending == ("002_second",)
        holder.execute("SELECT pg_advisory_unlock(1)")
    with connect(database) as conn:
        assert migrate(conn, folder) == ["002_second"]
        assert tables(conn) == {"first", "second", "after", "migrations"}


def test_a_connection_inside_a_transaction_is_refused(database: str, folder: Path) -> None:
    with connect(database) as conn:
        conn.execute("SELECT 1")
        with pytest.raises(Invalid, match="outside a transaction"):
            migrate(conn, folder)


def test_a_lost_connection_is_unavailable(database: str, folder: Path) -> None:
    (folder / "002_second.sql").write_text("SELECT pg_terminate_backend(pg_backend_pid());")
    with connect(database) as conn, pytest.raises(Unavailable):
        migrate(conn, folder)


def test_a_role_without_rights_gets_a_hint(database: str, folder: Path) -> None:
    with connect(database, autocommit=True) as conn:
        role = sql.Identifier(f"poor_{os.getpid()}")
        conn.execute(sql.SQL("CREATE ROLE {}").format(role))
        try:
            conn.execute(sql.SQL("SET ROLE {}").format(role))
            with pytest.raises(Invalid, match="permission denied") as refused:
                migrate(conn, folder)
            assert "owner" in refused.value.hint
        finally:
            conn.execute("RESET ROLE")
            conn.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("3_third.sql", "SELECT 1;", "no name"),
        ("003_Third; DROP.sql", "SELECT 1;", "no name"),
        ("004_gap.sql", "SELECT 1;", "not numbered"),
        ("002_twice.sql", "SELECT 1;", "not numbered"),
        ("003_commits.sql", "CREATE TABLE third (n integer);\n  commit ;\n", "transaction"),
        ("003_begins.sql", "BEGIN;\nSELECT 1;", "transaction"),
    ],
)
def test_unfit_files_are_refused_before_anything_runs(
    database: str, folder: Path, name: str, text: str, reason: str
) -> None:
    (folder / name).write_text(text)
    with connect(database, autocommit=True) as conn:
        with pytest.raises(Invalid, match=reason):
            migrate(conn, folder)
        assert tables(conn) == set()


def test_function_bodies_and_foreign_files_are_no_transactions(folder: Path) -> None:
    body = "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$\nBEGIN\n  NULL;\nEND;\n$$;\n-- COMMIT;\n"
    (folder / "003_function.sql").write_text(body)
    (folder / "README.md").write_text("not a migration")
    assert [migration.number for migration in read_migrations(folder)] == [1, 2, 3]


def test_the_migrations_of_this_version_apply(database: str) -> None:
    names = [migration.name for migration in read_migrations(default_folder())]
    with connect(database) as conn:
        assert migrate(conn) == names
        assert status(conn).applied == tuple(names)
        require_current(conn)


def test_an_old_server_is_refused() -> None:
    info = SimpleNamespace(server_version=140012, parameter_status=lambda _: "UTF8")
    with pytest.raises(Invalid, match="PostgreSQL 14"):
        check_server(cast("psycopg.Connection[object]", SimpleNamespace(info=info)))


def test_a_database_that_is_not_utf8_is_refused(database: str) -> None:
    with connect(database, autocommit=True) as conn:
        name = sql.Identifier(f"ascii_{os.getpid()}")
        conn.execute(sql.SQL("CREATE DATABASE {} ENCODING 'SQL_ASCII' TEMPLATE template0").format(name))
        try:
            with connect(database, dbname=f"ascii_{os.getpid()}") as other, pytest.raises(Invalid, match="SQL_ASCII"):
                check_server(other)
        finally:
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
