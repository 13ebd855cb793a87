"""SQL of people who are not trusted: it answers like the open connection, and does not get out.

Each attempt to escape has a control: the same statement works on the open connection, so that it fails for the reason
that is claimed. The walls are tested one by one: the judgement of statements, the locked DuckDB, the process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from fix_answers import ANSWERS
from fix_cli import Cli
from fix_questions import SECRET, Tale, known_trajectories, write_tales
from fix_s3 import S3Bucket

from stratalog.cold.lake import Lake
from stratalog.cold.query import connect, open_views, run_sql
from stratalog.cold.untrusted import Limits, ask_untrusted, files_of_tenant
from stratalog.cold.untrusted_process import lock, locked_config
from stratalog.cold.untrusted_statement import TABLE_FUNCTIONS, check_statement
from stratalog.cold.views import duckdb_path, literal
from stratalog.schemas.errors import Corrupt, Invalid

SMALL = Limits(seconds=20, memory_mb=200, rows_max=100)
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
QUERIES = [part.split("```")[0] for part in PAGE.split("```sql\n")[1:]]


@dataclass(frozen=True)
class Snapshot:
    """The small known set in a lake whose path is awkward, and a file beside it."""

    files: list[str]
    tales: list[Tale]
    beside: Path

    def path(self, tenant: str) -> str:
        """A file of this tenant, as an SQL string."""
        return literal(duckdb_path(files_of_tenant(self.files, tenant)[0]))


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    root = tmp_path_factory.mktemp("o'hara [x]")
    (root / "beside.csv").write_text("a,b\n1,2\n")
    with Lake(str(root / "lake")) as lake:
        trajectories, erased = known_trajectories()
        written = write_tales(lake, trajectories, erased)
    return Snapshot(written.files, written.tales, root / "beside.csv")


@pytest.fixture
def locked(snapshot: Snapshot) -> Iterator[duckdb.DuckDBPyConnection]:
    """The connection that the process has, in this one, without the judgement of statements."""
    files = files_of_tenant(snapshot.files, "acme")
    with open_views(files, {}, tenant="acme", config=locked_config(SMALL)) as connection:
        lock(connection, files)
        yield connection


def filled_in(statement: str, snapshot: Snapshot) -> str:
    beside = literal(duckdb_path(str(snapshot.beside)))
    out = literal(str(snapshot.beside.with_name("out.csv")))
    names = {"OWN": snapshot.path("acme"), "OTHER": snapshot.path("globex"), "BESIDE": beside, "OUT": out}
    for name, value in names.items():
        statement = statement.replace(f"${name}", value)
    return statement


READS = [
    "SELECT * FROM read_csv('/etc/passwd', header = false, sep = '|')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob($BESIDE)",
    "SELECT * FROM sniff_csv($BESIDE)",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM $BESIDE",
    "SELECT segment_secret FROM read_parquet($OTHER)",
    "SELECT segment_secret FROM $OTHER",
    "SELECT * FROM parquet_metadata($OTHER)",
]
WRITES = [
    "COPY (SELECT 1 AS a) TO $OUT",
    "COPY events TO $OUT",
    "ATTACH $OUT AS more",
    "EXPORT DATABASE $OUT",
]
SETTINGS = ["SET threads = 1", "PRAGMA threads = 1", "RESET memory_limit"]
ONLY_FORBIDDEN = [
    "SELECT segment_secret FROM read_parquet($OWN)",
    "SELECT segment_secret FROM $OWN",
    "FROM query('SELECT 1')",
    "SELECT current_setting('memory_limit')",
    "SELECT sql FROM duckdb_views() WHERE view_name = 'events'",
    "SELECT sql FROM duckdb_views WHERE view_name = 'events'",
    "SELECT sql FROM sqlite_master WHERE name = 'events'",
    "SELECT definition FROM pg_catalog.pg_views",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SHOW TABLES",
    "SHOW ALL TABLES",
    "CREATE TABLE mine (a INTEGER)",
    "CREATE MACRO f(a) AS a + 1",
    "DROP VIEW events",
    "EXPLAIN SELECT * FROM events",
    "LOAD json",
    "PREPARE p AS SELECT 1",
    "BEGIN",
    "SELECT 1; SELECT 2",
    "SELECT * FROM memory.main.events LIMIT 1",
    "SELECT * FROM (WITH duckdb_views AS (SELECT 1) SELECT 1), duckdb_views LIMIT 1",
    "SELECT (SELECT max(database_name) FROM duckdb_databases())",
    "SELECT 1 ORDER BY (SELECT count(*) FROM duckdb_views())",
    "SELECT count(*) FILTER (WHERE current_setting('threads') IS NOT NULL) FROM events",
    "SELECT sleep_ms(1)",
    "SELECT write_log('x')",
    "DESCRIBE SELECT * FROM read_parquet($OWN)",
    "SUMMARIZE SELECT segment_last_sequence FROM read_parquet($OWN)",
    "SELECT * FROM (VALUES (1)) v(a) WHERE EXISTS (SELECT 1 FROM $OWN)",
    "PIVOT (SELECT * FROM read_parquet($OWN)) ON kind USING count(*)",
    "SELECT * FROM (PIVOT (SELECT kind FROM read_parquet($OWN)) ON kind IN ('ToolIntent') USING count(*))",
]
ALLOWED = [
    "SELECT kind, count(*) FROM events GROUP BY ALL ORDER BY ALL",
    "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 3) SELECT * FROM r ORDER BY i",
    "WITH events AS (SELECT 1 AS mine) SELECT * FROM events",
    "SELECT * FROM Trajectories ORDER BY trajectory_id LIMIT 3",
    "SELECT t.trajectory_id, x.i FROM trajectories t, range(2) x(i) ORDER BY ALL",
    "SELECT [x + 1 FOR x IN [1, 2]] AS l, {'a': 1} AS s, list_transform([1], lambda y: y + 1) AS m",
    "SELECT tool, rank() OVER (ORDER BY duration_ms) AS r FROM tool_calls WHERE duration_ms > 0 ORDER BY ALL",
    "SELECT * FROM (PIVOT tool_calls ON status IN ('ok', 'error') USING count(*) GROUP BY tool) ORDER BY ALL",
    "SELECT j.key FROM events, json_each(rest) AS j WHERE kind = 'Authorized' ORDER BY ALL",
    "SELECT 1 AS a UNION ALL SELECT 2 ORDER BY a DESC LIMIT 1",
    "DESCRIBE tool_calls",
    "VALUES (1), (2)",
    "SELECT 'read_csv(''/etc/passwd'')' AS text, CAST(1 AS VARCHAR) AS n, pg_typeof(1) AS t",
]


@pytest.mark.parametrize("statement", ALLOWED)
def test_questions_are_allowed_and_run_on_the_locked_connection(
    snapshot: Snapshot, locked: duckdb.DuckDBPyConnection, statement: str
) -> None:
    check_statement(locked, statement)
    opened = connect(files=files_of_tenant(snapshot.files, "acme"))
    assert run_sql(locked, statement) == run_sql(opened, statement)


def test_every_question_of_the_page_is_allowed_and_answered(snapshot: Snapshot) -> None:
    judge = duckdb.connect()
    for query in QUERIES:
        check_statement(judge, query)
    for number in (1, 14, 21):
        answered = ask_untrusted(snapshot.files, QUERIES[number - 1])
        assert [list(row.values()) for row in answered] == ANSWERS[number - 1](snapshot.tales)


@pytest.mark.parametrize("statement", [*READS, *WRITES, *SETTINGS, *ONLY_FORBIDDEN])
def test_what_reaches_beyond_the_views_is_refused_before_it_runs(snapshot: Snapshot, statement: str) -> None:
    judge = connect(files=snapshot.files)
    with pytest.raises(Invalid, match=r"not allowed|only SELECT|one statement|is not a view|only DESCRIBE"):
        check_statement(judge, filled_in(statement, snapshot))


@pytest.mark.parametrize("statement", [*READS, *WRITES, *SETTINGS, *ONLY_FORBIDDEN])
def test_the_control_all_of_that_runs_on_the_open_connection(snapshot: Snapshot, statement: str) -> None:
    out = snapshot.beside.with_name("out.csv")
    with connect(files=snapshot.files) as opened:
        opened.execute(filled_in(statement, snapshot)).fetchall()
    assert out.exists() == (statement in WRITES)
    if out.is_dir():
        shutil.rmtree(out)
    out.unlink(missing_ok=True)


@pytest.mark.parametrize("statement", [*READS, *WRITES])
def test_the_locked_connection_opens_no_other_file(
    snapshot: Snapshot, locked: duckdb.DuckDBPyConnection, statement: str
) -> None:
    with pytest.raises(duckdb.PermissionException):
        locked.execute(filled_in(statement, snapshot)).fetchall()
    assert not snapshot.beside.with_name("out.csv").exists()
    assert locked.execute("SELECT count(*) FROM trajectories").fetchone() == (6,)


@pytest.mark.parametrize(
    "statement",
    [*SETTINGS, "INSTALL httpfs", "LOAD httpfs", "SET lock_configuration = false", "SET enable_external_access = true"],
)
def test_the_locked_connection_keeps_its_settings_and_loads_nothing(
    locked: duckdb.DuckDBPyConnection, statement: str
) -> None:
    with pytest.raises((duckdb.InvalidInputException, duckdb.PermissionException, duckdb.IOException)):
        locked.execute(statement)


def test_variables_of_python_are_no_tables(locked: duckdb.DuckDBPyConnection) -> None:
    mine = pa.table({"a": [1]})  # noqa: F841
    assert connect(files=[]).execute("SELECT * FROM mine").fetchall() == [(1,)]
    with pytest.raises(duckdb.CatalogException):
        locked.execute("SELECT * FROM mine")


def test_a_tenant_sees_only_its_own(snapshot: Snapshot) -> None:
    query = "SELECT tenant, count(*) AS n FROM events GROUP BY tenant ORDER BY tenant"
    assert [row["tenant"] for row in ask_untrusted(snapshot.files, query)] == ["acme", "globex"]
    assert [row["tenant"] for row in ask_untrusted(snapshot.files, query, tenant="globex")] == ["globex"]
    assert ask_untrusted(snapshot.files, query, tenant="nobody") == []
    for view in ("trajectories", "messages", "tool_calls"):
        ids = ask_untrusted(snapshot.files, f"SELECT DISTINCT trajectory_id AS id FROM {view}", tenant="globex")
        assert {row["id"] for row in ids} == {str(tale.id) for tale in snapshot.tales if tale.tenant == "globex"}


def test_a_file_that_is_no_tenants_is_not_given_to_anybody(snapshot: Snapshot) -> None:
    with pytest.raises(Corrupt, match="folder of a tenant"):
        files_of_tenant([*snapshot.files, "file:///lake/events/stray.parquet"], "acme")
    with pytest.raises(Invalid):
        ask_untrusted(snapshot.files, "SELECT 1", tenant="../globex")
    nested = "file:///tenant=acme/date=x/model=y/events/tenant=globex/date=2026-01-01/model=m/f.parquet"
    assert files_of_tenant([nested], "acme") == []


def test_secrets_are_in_the_files_but_in_no_answer(snapshot: Snapshot) -> None:
    opened = connect(files=snapshot.files)
    assert opened.execute(f"SELECT DISTINCT segment_secret FROM {snapshot.path('acme')}").fetchone() == (SECRET,)
    with pytest.raises(Invalid, match="segment_secret"):
        ask_untrusted(snapshot.files, "SELECT segment_secret FROM events")
    for view in ("events", "trajectories"):
        assert SECRET.hex() not in str(ask_untrusted(snapshot.files, f"SELECT * FROM {view}"))


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) AS n FROM range(10000000) a, range(10000000) b WHERE a.range * b.range = 7",
        "SELECT sum(hash(a.range)) AS n FROM range(100000000000) a(range)",
        "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r) SELECT max(i) FROM r",
    ],
)
def test_a_query_that_takes_too_long_is_stopped(snapshot: Snapshot, statement: str) -> None:
    with pytest.raises(Invalid, match=r"more than 0\.5 s"):
        ask_untrusted(snapshot.files, statement, limits=Limits(seconds=0.5))


HUNGRY = [
    "SELECT length(repeat('x', 500000000)) AS n",
    "SELECT count(*) AS n FROM (SELECT DISTINCT a.range * 100000 + b.range FROM range(10000) a, range(3000) b)",
]


@pytest.mark.parametrize("statement", HUNGRY)
def test_a_query_that_takes_too_much_memory_is_stopped(snapshot: Snapshot, statement: str) -> None:
    with pytest.raises(Invalid, match="more than 100 MB"):
        ask_untrusted(snapshot.files, statement, limits=Limits(memory_mb=100))


def test_the_control_with_the_memory_it_answers(snapshot: Snapshot) -> None:
    assert ask_untrusted(snapshot.files, HUNGRY[0], limits=Limits(memory_mb=2000)) == [{"n": 500_000_000}]


def test_an_answer_that_is_too_long_is_refused(snapshot: Snapshot) -> None:
    assert len(ask_untrusted(snapshot.files, "SELECT * FROM range(100)", limits=SMALL)) == 100
    with pytest.raises(Invalid, match="more than 100 rows"):
        ask_untrusted(snapshot.files, "SELECT * FROM range(101)", limits=SMALL)
    with pytest.raises(Invalid, match="more than 5000 bytes"):
        ask_untrusted(snapshot.files, "SELECT repeat('x', 6000) AS x", limits=Limits(result_bytes_max=5000))


def test_values_of_all_kinds_arrive_as_on_the_open_connection(snapshot: Snapshot) -> None:
    query = """SELECT 'nan'::DOUBLE AS nan, 170141183460469231731687303715884105727::HUGEINT AS huge,
      '\\xAB'::BLOB AS b,
      '2026-01-02 03:04:05+00'::TIMESTAMPTZ AS t, {'x': [1, NULL]} AS s, MAP {1: true} AS m, 1 AS a, 2 AS a,
      '{"k": "\\u00e9"}'::JSON AS j, chr(27) || 'ü' AS text, uuid '0198c0de-0000-7000-8000-000000000000' AS id"""
    assert ask_untrusted(snapshot.files, query) == run_sql(connect(files=[]), query)


@pytest.mark.parametrize(
    "statement",
    [
        "",
        ";",
        "SELEC 1",
        "SELECT 1\0",
        "SELECT '\ud800'",
        "SELECT $1",
        "SELECT " + "abs(" * 5000 + "1" + ")" * 5000,
        "x" * 200_000,
    ],
)
def test_nonsense_is_an_error_of_ours(snapshot: Snapshot, statement: str) -> None:
    with pytest.raises(Invalid):
        ask_untrusted(snapshot.files, statement)


@pytest.mark.parametrize("limits", [Limits(seconds=0), Limits(memory_mb=-1), Limits(seconds=float("nan"))])
def test_limits_must_be_limits(snapshot: Snapshot, limits: Limits) -> None:
    with pytest.raises(Invalid, match="more than 0"):
        ask_untrusted(snapshot.files, "SELECT 1", limits=limits)


def test_the_process_can_write_no_file(snapshot: Snapshot) -> None:
    program = (
        "import os, sys\nfrom stratalog.cold import untrusted_process as p\n"
        "from stratalog.cold.untrusted import Limits\nopen(sys.argv[1], 'w').write('before')\np._confine(Limits())\n"
        "f = open(sys.argv[1], 'w')\nf.write('after')\ntry:\n    f.flush()\nexcept OSError:\n    os._exit(7)\n"
    )
    target = snapshot.beside.with_name("written")
    done = subprocess.run([sys.executable, "-c", program, str(target)], check=False)
    assert done.returncode == 7 and target.read_text() == ""


def test_the_environment_stays_here(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    from stratalog.cold import untrusted

    monkeypatch.setenv("STRATALOG_WARM_DSN", "postgresql://secret@host/db")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    assert not {"STRATALOG_WARM_DSN", "AWS_SECRET_ACCESS_KEY", "HOME"} & set(untrusted._environment(snapshot.files))
    assert "AWS_SECRET_ACCESS_KEY" in untrusted._environment(["s3://bucket/x"])
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "hush"


def test_no_function_of_this_duckdb_is_allowed_that_sounds_like_a_way_out() -> None:
    """A new DuckDB may bring new functions: whoever sees this fail decides about them."""
    con = duckdb.connect()
    kinds: dict[str, Any] = {}
    for name, kind in con.execute("SELECT function_name, function_type FROM duckdb_functions()").fetchall():
        kinds.setdefault(name, set()).add(kind)
    suspicious = (
        "env",
        "file",
        "secret",
        "setting",
        "variable",
        "scan",
        "read",
        "write",
        "load",
        "exec",
        "sleep",
        "query",
    )
    harmless = {"parse_filename", "thread_id"}
    let_through = []
    for name, found in kinds.items():
        if found <= {"table", "table_macro", "pragma"} or name in harmless or not any(s in name for s in suspicious):
            continue
        try:
            check_statement(con, f'SELECT "{name}"()')
            let_through.append(name)
        except Invalid:
            continue
    assert let_through == []
    assert set(kinds) >= TABLE_FUNCTIONS


@pytest.mark.required_in_ci
def test_files_in_an_object_store_are_read_and_no_others(s3_bucket: S3Bucket) -> None:
    trajectories, erased = known_trajectories()
    with Lake(s3_bucket.url, s3_bucket.options) as lake:
        files = write_tales(lake, trajectories, erased).files
    query = "SELECT tenant, count(*) AS n FROM events GROUP BY tenant"
    rows = ask_untrusted(files, query, tenant="globex", storage_options=s3_bucket.options)
    assert rows == [{"tenant": "globex", "n": 33}]
    (own, *_), (other, *_) = files_of_tenant(files, "acme"), files_of_tenant(files, "globex")
    with open_views([own], s3_bucket.options, config=locked_config(SMALL)) as locked:
        control = f"SELECT count(*) FROM read_parquet({literal(other)})"
        assert locked.execute(control).fetchall() != []
        lock(locked, [own])
        assert locked.execute("SELECT count(*) > 0 FROM events").fetchall() == [(True,)]
        with pytest.raises(duckdb.PermissionException):
            locked.execute(control).fetchall()


@pytest.mark.postgres
def test_the_command_takes_untrusted_sql(filled: Cli) -> None:
    query = "SELECT tenant, count(*) AS n FROM trajectories GROUP BY tenant"
    assert filled.json("sql", "--untrusted", query) == filled.json("sql", query)
    assert filled.json("sql", "--untrusted", "--tenant", "nobody", query) == []
    assert "not a view" in filled.error("sql", "--untrusted", "SELECT * FROM '/etc/passwd'", code=1)["message"]
    assert "more than 3 rows" in filled.error("sql", "--untrusted", "--rows", "3", "FROM events", code=1)["message"]
    assert filled.error("sql", "--tenant", "default", query, code=2)["code"] == "usage"
