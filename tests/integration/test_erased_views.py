"""Whoever asks sees nothing of what was erased: at once in the views, and never again once the bytes are gone."""

from __future__ import annotations

import contextlib
import gc
import uuid
from collections.abc import Iterator

import duckdb
import pytest
from fix_cli import Cli
from psycopg import sql
from psycopg.conninfo import make_conninfo

from stratalog.cold import pins
from stratalog.cold.erased import erase_in_cold
from stratalog.cold.installation import Installation
from stratalog.cold.pins import pinned_snapshot
from stratalog.cold.query import connect, init_script, run_sql
from stratalog.cold.untrusted import ask_untrusted
from stratalog.cold.views import VIEWS, view_statements
from stratalog.hot.home import Home
from stratalog.schemas.arrow import CLEARED
from stratalog.schemas.errors import Invalid, NotFound, SnapshotErased
from stratalog.warm import database

pytestmark = pytest.mark.postgres

LEFT = "SELECT count(*) AS n FROM events WHERE NOT erased"
EVENTS = "SELECT count(*) AS n FROM events"


@pytest.fixture
def home(cli: Cli) -> Home:
    """A home whose one trajectory is in the cold tier."""
    cli.json("sidecar", "--once")
    cli.json("consolidate", "--older-than", "0d")
    return Home.open(cli.home)


def note_erased(home: Home) -> uuid.UUID:
    """What an erasure has noted before it comes to the cold tier."""
    with contextlib.closing(database.connect(home.settings.warm.dsn)) as conn, conn.transaction():
        row = conn.execute(
            "INSERT INTO erasures (kind, requested_by, reason) VALUES ('trajectories', 'a test', 'asked') "
            "RETURNING erasure_id"
        ).fetchone()
        assert row is not None
        found = conn.execute(
            "INSERT INTO erased_trajectories (trajectory_id, tenant, erasure_id) "
            "SELECT trajectory_id, tenant, %s FROM trajectories RETURNING trajectory_id",
            (row[0],),
        ).fetchone()
    assert found is not None
    return uuid.UUID(str(found[0]))


def erase(home: Home) -> None:
    """Take the bytes away."""
    with Installation(home).tiers() as tiers, contextlib.closing(tiers.connect()) as conn:
        erased = pins.masked(conn)
        assert erase_in_cold(tiers, erased).gone and pins.masked(conn) == frozenset()


def said(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Where the views show something that came from a body."""
    found = [
        name
        for name in CLEARED
        if name != "segment_secret" and run_sql(connection, f"SELECT 1 FROM events WHERE {name} IS NOT NULL LIMIT 1")
    ]
    for query in (
        "SELECT 1 FROM messages WHERE text IS NOT NULL OR blob IS NOT NULL LIMIT 1",
        "SELECT 1 FROM tool_calls WHERE tool IS NOT NULL OR output IS NOT NULL OR status <> 'erased' LIMIT 1",
        "SELECT 1 FROM events WHERE trajectory_agent <> '' LIMIT 1",
        "SELECT 1 FROM trajectories WHERE labels NOT IN ('{}', '{\"undated\":\"true\"}') LIMIT 1",
        "SELECT 1 FROM trajectories WHERE source.run_id IS NOT NULL LIMIT 1",
    ):
        if run_sql(connection, query):
            found.append(query)
    return found


def test_views_show_nothing_of_it_before_the_bytes_are_gone(home: Home) -> None:
    before = connect(home)
    (events,) = run_sql(before, EVENTS)
    # The control: who was there before sees everything.
    assert {"text", "tool", "output"} <= set(said(before))
    note_erased(home)
    assert "text" in said(before)
    after = connect(home)
    assert said(after) == [] and run_sql(after, LEFT) == [{"n": 0}] and run_sql(after, EVENTS) == [events]
    assert said(connect(home, pin_s=0)) == []
    assert run_sql(after, "SELECT count(*) AS n FROM trajectories") == [{"n": 1}]
    columns = [[row["column_name"] for row in run_sql(one, f"DESCRIBE {VIEWS[0]}")] for one in (before, after)]
    assert columns[0] == columns[1]


def test_untrusted_questions_and_plain_duckdb_shells_show_nothing_either(home: Home, cli: Cli) -> None:
    query = "SELECT count(text) + count(tool) + count(output) AS n FROM events"
    assert cli.json("sql", "--untrusted", query) != [{"n": 0}]
    erased = note_erased(home)
    assert cli.json("sql", "--untrusted", query) == [{"n": 0}] == cli.json("sql", query)
    with pinned_snapshot(home, "a test") as snapshot:
        assert snapshot.masked == {erased}
        assert ask_untrusted(snapshot.files, query, tenant="default", masked=snapshot.masked) == [{"n": 0}]
        shell = duckdb.connect()
        shell.execute(init_script(snapshot.files, None, snapshot.masked))
        assert shell.execute(query).fetchone() == (0,)
        shell.execute(init_script(snapshot.files))
        assert shell.execute(query).fetchone() != (0,)
    assert str(erased) in cli.json("sql", "--init")["sql"]


def test_without_erasures_the_views_are_what_they_were(home: Home) -> None:
    with pinned_snapshot(home, "a test") as snapshot:
        assert snapshot.masked == frozenset()
        assert view_statements(snapshot.files, snapshot.masked) == view_statements(snapshot.files)


def test_who_reads_during_an_erasure_is_told(home: Home, cli: Cli) -> None:
    reading = connect(home)
    (events,) = run_sql(reading, EVENTS)
    note_erased(home)
    erase(home)
    with pytest.raises(SnapshotErased) as caught:
        run_sql(reading, "SELECT count(text) FROM events")
    assert "ask again" in caught.value.hint
    again = connect(home)
    assert run_sql(again, EVENTS) == [events] and run_sql(again, LEFT) == [{"n": 0}] and said(again) == []
    assert cli.json("sql", "--untrusted", LEFT) == [{"n": 0}]


def test_who_has_pinned_files_that_are_erased_is_told(home: Home) -> None:
    with pytest.raises(SnapshotErased), pinned_snapshot(home, "a test") as snapshot:
        note_erased(home)
        erase(home)
        ask_untrusted(snapshot.files, EVENTS, masked=snapshot.masked)


def test_a_file_that_is_missing_for_another_reason_was_not_erased(home: Home) -> None:
    # The control.
    reading = connect(home)
    with Installation(home).lake() as lake, pinned_snapshot(home, "a test") as snapshot:
        lake.delete(snapshot.files[0])
    with pytest.raises(NotFound) as caught:
        run_sql(reading, "SELECT count(text) FROM events")
    assert not isinstance(caught.value, SnapshotErased)


@pytest.fixture
def without_ledger(home: Home) -> Iterator[str]:
    """A role that may read all but what was erased."""
    dsn, role = home.settings.warm.dsn, sql.Identifier(f"reader_{uuid.uuid4().hex[:8]}")
    with contextlib.closing(database.connect(dsn)) as admin:
        with admin.transaction():
            admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
            for schema in ("stratalog", "stratalog_catalog"):
                admin.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), role))
                tables = sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}")
                admin.execute(tables.format(sql.Identifier(schema), role))
            admin.execute(sql.SQL("REVOKE ALL ON erased_trajectories FROM {}").format(role))
        yield make_conninfo(dsn, user=role.as_string().strip('"'))
        gc.collect()
        with admin.transaction():
            admin.execute(sql.SQL("DROP OWNED BY {}").format(role))
            admin.execute(sql.SQL("DROP ROLE {}").format(role))


def test_who_may_not_know_what_was_erased_may_not_read(without_ledger: str) -> None:
    with contextlib.closing(database.connect(without_ledger)) as conn:
        with pytest.raises(Invalid, match="may not see what was erased") as caught:
            pins.masked(conn)
        assert "GRANT SELECT" in caught.value.hint
