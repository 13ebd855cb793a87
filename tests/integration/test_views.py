"""The DuckDB views over local files: their columns, their meaning, and what they never show."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import sys
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from fix_parquet import DAY, SECRET, Trail, write_files
from hypothesis import given
from hypothesis import strategies as st

from stratalog.cold.lake import Lake
from stratalog.cold.query import connect, init_script, json_value, rows, run_sql
from stratalog.cold.views import VIEWS, duckdb_path, view_statements
from stratalog.schemas.arrow import NAMES
from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.errors import Corrupt, Invalid, MissingExtra, NotFound
from stratalog.schemas.events import (
    ApprovalResolved,
    Authorized,
    Compacted,
    LateResult,
    MessageReceived,
    ModelReplied,
    Part,
    TaskStarted,
    ToolIntent,
    ToolResult,
    raw_json,
)

COLUMNS = {
    "trajectories": "trajectory_id UUID, tenant VARCHAR, date DATE, model VARCHAR, status VARCHAR, "
    "started_at TIMESTAMP WITH TIME ZONE, finished_at TIMESTAMP WITH TIME ZONE, turns BIGINT, events BIGINT, "
    "input_tokens BIGINT, output_tokens BIGINT, cost_usd DOUBLE, labels JSON, source JSON, undated BOOLEAN",
    "messages": "trajectory_id UUID, sequence_number BIGINT, turn BIGINT, role VARCHAR, text VARCHAR, blob VARCHAR",
    "tool_calls": "trajectory_id UUID, sequence_number BIGINT, turn BIGINT, tool_call_id VARCHAR, tool VARCHAR, "
    "arguments VARCHAR, decision VARCHAR, status VARCHAR, output VARCHAR, duration_ms DOUBLE, inferred BOOLEAN",
}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake(str(tmp_path / "lake")) as opened:
        yield opened


def talk(number: int, **options: object) -> Trail:
    trail = Trail(number, **options)  # type: ignore[arg-type]
    trail.add(TaskStarted(task="do it"), 0)
    trail.add(MessageReceived(role="user", parts=(Part(text="hello"),)), 0)
    trail.add(ModelReplied(text="hi", input_tokens=5, output_tokens=2))
    return trail


@pytest.mark.parametrize("empty", [True, False])
def test_columns_are_the_documented_ones_with_and_without_files(lake: Lake, empty: bool) -> None:
    con = connect(files=[] if empty else write_files(lake, talk(1)))
    for view, expected in COLUMNS.items():
        described = con.execute(f"DESCRIBE {view}").fetchall()
        assert ", ".join(f"{row[0]} {row[1]}" for row in described) == expected
    events = [row[0] for row in con.execute("DESCRIBE events").fetchall()]
    assert events == [name for name in NAMES if name != "segment_secret"]
    assert con.execute("SELECT count(*) FROM events").fetchone() == (0 if empty else 3,)


def test_types_of_the_empty_views_are_those_of_files(lake: Lake) -> None:
    full, empty = connect(files=write_files(lake, talk(1))), connect(files=[])
    for view in VIEWS:
        assert full.execute(f"DESCRIBE {view}").fetchall() == empty.execute(f"DESCRIBE {view}").fetchall()


def test_secrets_are_in_the_file_but_in_no_view(lake: Lake) -> None:
    files = write_files(lake, talk(1))
    con = connect(files=files)
    found = con.execute("SELECT segment_secret FROM read_parquet(?)", [duckdb_path(files[0])]).fetchall()
    assert (SECRET,) in found
    for view in VIEWS:
        for row in con.execute(f"SELECT * FROM {view}").fetchall():
            assert SECRET not in row
    with pytest.raises(Invalid, match="segment_secret"):
        run_sql(con, "SELECT segment_secret FROM events")


def test_the_last_segment_of_a_trajectory_wins(lake: Lake) -> None:
    trail = talk(1, status="running")
    first = trail.add(LateResult(tool_call_id="c"), 1)
    trail.segment(first, status="completed", turns=7, labels='{"team":"blue"}', source='{"format":"x"}')
    files = write_files(lake, trail, talk(2, labels="{not json", cost_usd=0.5))
    con = connect(files=files)
    assert run_sql(
        con,
        "SELECT trajectory_id, model, status, turns, labels->>'team' AS team, source->>'format' AS format, date "
        "FROM trajectories WHERE tenant = 'acme' AND status = 'completed' ORDER BY turns NULLS LAST",
    ) == [
        {
            "trajectory_id": str(trail.id),
            "model": "claude/x",
            "status": "completed",
            "turns": 7,
            "team": "blue",
            "format": "x",
            "date": "2026-03-01",
        },
        {
            "trajectory_id": str(talk(2).id),
            "model": "claude/x",
            "status": "completed",
            "turns": None,
            "team": None,
            "format": None,
            "date": "2026-03-01",
        },
    ]


def test_messages_are_what_was_said_and_what_the_model_saw(lake: Lake) -> None:
    trail = talk(1)
    intent = trail.add(ToolIntent(tool_call_id="c", tool="ls"))
    trail.add(ToolResult(tool_call_id="c", intent=intent, output="a b"))
    bulky = BlobRef.of(b"x" * 100)
    trail.add(ModelReplied(text=Blob(bulky)), 2)
    trail.add(Compacted(summary="so far"), 2)
    found = run_sql(connect(files=write_files(lake, trail)), "SELECT * FROM messages ORDER BY sequence_number")
    assert [(row["sequence_number"], row["turn"], row["role"], row["text"], row["blob"]) for row in found] == [
        (1, 0, "user", "hello", None),
        (2, 1, "assistant", "hi", None),
        (4, 1, "tool", "a b", None),
        (5, 2, "assistant", None, bulky.sha256),
        (6, 2, "summary", "so far", None),
    ]


def calls_of(lake: Lake, *trails: Trail) -> list[tuple[object, ...]]:
    con = connect(files=write_files(lake, *trails))
    return con.execute(
        "SELECT sequence_number, tool_call_id, tool, decision, status, output FROM tool_calls "
        "ORDER BY trajectory_id, sequence_number"
    ).fetchall()


def test_a_call_is_an_intent_with_its_result_and_the_decision_before_it(lake: Lake) -> None:
    trail = Trail(1)
    trail.add(Authorized(tool_call_id="c", decision="hold"))
    trail.add(ApprovalResolved(tool_call_id="c", decision="approved"))
    intent = trail.add(ToolIntent(tool_call_id="c", tool="rm", arguments=raw_json({"path": "/x"})))
    trail.add(ToolResult(tool_call_id="c", intent=intent, output="gone", duration_ms=12.5, tool="rm"))
    trail.add(Authorized(tool_call_id="c", decision="deny"))
    con = connect(files=write_files(lake, trail))
    assert run_sql(con, "SELECT * FROM tool_calls WHERE status = 'ok'") == [
        {
            "trajectory_id": str(trail.id),
            "sequence_number": 2,
            "turn": 1,
            "tool_call_id": "c",
            "tool": "rm",
            "arguments": '{"path":"/x"}',
            "decision": "approved",
            "status": "ok",
            "output": "gone",
            "duration_ms": 12.5,
            "inferred": False,
        }
    ]


def test_a_call_without_a_result_is_in_doubt_and_only_the_first_result_counts(lake: Lake) -> None:
    trail = Trail(1)
    first = trail.add(ToolIntent(tool_call_id="a", tool="t"))
    trail.add(ToolIntent(tool_call_id="b", tool="t"))
    trail.add(ToolResult(tool_call_id="a", intent=first, status="timeout"))
    trail.add(ToolResult(tool_call_id="a", intent=first, status="ok", output="twice"))
    trail.add(ToolResult(tool_call_id="b", status="ok", output="answers no intent"))
    late = trail.add(ToolIntent(tool_call_id="l", tool="t"))
    trail.add(LateResult(tool_call_id="l", intent=late, output="late"))
    assert calls_of(lake, trail) == [
        (0, "a", "t", None, "timeout", None),
        (1, "b", "t", None, "in_doubt", None),
        (5, "l", "t", None, "ok", "late"),
    ]


def test_denied_calls_have_a_row_of_their_own_also_where_ids_repeat(lake: Lake) -> None:
    trail = Trail(1)
    trail.add(Authorized(tool_call_id="x", decision="deny", tool="rm"))
    trail.add(Authorized(tool_call_id="x", decision="allow", tool="ls"))
    intent = trail.add(ToolIntent(tool_call_id="x", tool="ls"))
    trail.add(ToolResult(tool_call_id="x", intent=intent))
    trail.add(Authorized(tool_call_id="x", decision="hold", tool="mv"))
    trail.add(ApprovalResolved(tool_call_id="x", decision="denied", tool="mv"))
    other = Trail(2)
    other.add(ToolIntent(tool_call_id="x", tool="same id, other trajectory"))
    assert calls_of(lake, trail, other) == [
        (0, "x", "rm", "deny", "denied", None),
        (2, "x", "ls", "allow", "ok", None),
        (5, "x", "mv", "denied", "denied", None),
        (0, "x", "same id, other trajectory", None, "in_doubt", None),
    ]


def test_an_erased_call_says_so_and_shows_nothing(lake: Lake) -> None:
    trail = Trail(1)
    intent = trail.add(ToolIntent(tool_call_id="x", tool="ls"), erased=True)
    trail.add(ToolResult(tool_call_id="x", intent=intent, output="private"), erased=True)
    assert calls_of(lake, trail) == [(0, None, None, None, "erased", None)]


def scan_of(con: duckdb.DuckDBPyConnection, query: str) -> str:
    return "".join(row[1] for row in con.execute(f"EXPLAIN ANALYZE {query}").fetchall())


def test_conditions_on_tenant_and_date_touch_only_their_files(lake: Lake) -> None:
    trails = [talk(number, start=DAY + dt.timedelta(days=number)) for number in range(6)]
    con = connect(files=write_files(lake, *trails, talk(9, tenant="globex")))
    for view in ("events", "trajectories"):
        assert "Scanning Files: 1/7" in scan_of(con, f"SELECT count(*) FROM {view} WHERE date = '2026-03-03'")
        assert "Scanning Files: 1/7" in scan_of(con, f"SELECT count(*) FROM {view} WHERE tenant = 'globex'")


@pytest.mark.parametrize("view", VIEWS)
def test_a_trajectory_id_reaches_the_scan(lake: Lake, view: str) -> None:
    trail = talk(1)
    trail.add(ToolIntent(tool_call_id="c", tool="t"))
    con = connect(files=write_files(lake, trail, talk(2)))
    query = f"SELECT * FROM {view} WHERE trajectory_id = '{trail.id}'"
    assert {row["trajectory_id"] for row in run_sql(con, query)} == {str(trail.id)}
    plan = re.sub(r"[^A-Za-z_=']", "", con.execute(f"EXPLAIN {query}").fetchall()[0][1])
    # The look-up of denials, which reads narrow columns only, is the one scan that it does not reach.
    unreached = 1 if view == "tool_calls" else 0
    assert plan.count("Function") - plan.count("trajectory_id='") <= unreached, plan


def test_a_root_with_pattern_characters_quotes_and_equals_signs(tmp_path: Path) -> None:
    with Lake(f"file://{tmp_path}/o'hara [a]*/tenant=evil/x=1") as lake:
        con = connect(files=write_files(lake, talk(1), talk(2)))
        assert run_sql(con, "SELECT tenant, count(*) AS n FROM events GROUP BY tenant") == [{"tenant": "acme", "n": 6}]
        assert "x" not in [row[0] for row in con.execute("DESCRIBE events").fetchall()]


def test_views_stay_on_their_snapshot(lake: Lake) -> None:
    con = connect(files=write_files(lake, talk(1)))
    write_files(lake, talk(2))
    assert run_sql(con, "SELECT count(*) AS n FROM trajectories") == [{"n": 1}]


def test_the_init_script_makes_the_same_views_in_a_plain_duckdb(lake: Lake) -> None:
    files = write_files(lake, talk(1), talk(2))
    con = duckdb.connect()
    con.execute(init_script(files))
    for view in VIEWS:
        assert (
            con.execute(f"SELECT * FROM {view} ORDER BY ALL").fetchall()
            == connect(files=files).execute(f"SELECT * FROM {view} ORDER BY ALL").fetchall()
        )


def test_the_init_script_for_s3_names_the_server_but_no_credentials() -> None:
    script = init_script(
        ["s3://b/o'x.parquet"],
        {"endpoint_url": "http://127.0.0.1:9000", "key": "AKIA1", "secret": "hush", "region": "r"},
    )
    assert "'s3://b/o''x.parquet'" in script
    assert "ENDPOINT '127.0.0.1:9000'" in script and "USE_SSL false" in script
    assert "AKIA1" not in script and "hush" not in script


def test_wrong_sql_is_invalid_and_the_hint_lists_the_views() -> None:
    con = connect(files=[])
    for text in ("SELEC 1", "SELECT * FROM nowhere", "SELECT 1/'x'"):
        with pytest.raises(Invalid) as caught:
            run_sql(con, text)
        assert all(view in caught.value.hint for view in VIEWS)


def test_a_file_that_was_removed_or_damaged_is_named(lake: Lake) -> None:
    files = write_files(lake, talk(1), talk(2))
    con = connect(files=files)
    (lake.scratch() / "x").write_bytes(b"PAR1 and then something else")
    lake.publish(lake.scratch() / "x", lake.path_of(files[1]))
    with pytest.raises(Corrupt, match=talk(2).id.hex[-12:]):
        run_sql(con, "SELECT sum(length(text)) FROM events")
    lake.delete(files[1])
    with pytest.raises(NotFound, match=talk(2).id.hex[-12:]):
        run_sql(con, "SELECT sum(length(text)) FROM events")


def test_a_module_that_duckdb_lacks_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytz", None)
    con = connect(files=[])
    try:
        assert run_sql(con, "SELECT now() IS NOT NULL AS there, now() AS t")[0]["there"] is True  # DuckDB 2
    except MissingExtra as error:
        assert "stratalog[cold]" in error.hint  # DuckDB 1.5


def test_nothing_is_installed_by_a_query() -> None:
    con = connect(files=[])
    assert run_sql(con, "SELECT current_setting('autoinstall_known_extensions') AS x") in (
        [{"x": False}],
        [{"x": "false"}],
    )


def test_rows_are_json_values() -> None:
    found = run_sql(
        connect(files=[]),
        """SELECT 1 AS a, 2 AS a, 'nan'::DOUBLE AS nan, '-inf'::DOUBLE AS inf, 1.50::DECIMAL(9, 2) AS d,
           3::DECIMAL(9, 2) AS whole, 170141183460469231731687303715884105727::HUGEINT AS huge, '\\xAB'::BLOB AS b,
           '2026-01-02 03:04:05+00'::TIMESTAMPTZ AS t, DATE '2026-01-02' AS day, NULL AS nothing,
           [uuid '0198c0de-0000-7000-8000-000000000000'] AS ids, {'x': 'nan'::DOUBLE} AS s, MAP {1: true} AS m,
           INTERVAL 90 MINUTE AS i""",
    )
    assert found == [
        {
            "a": 1,
            "a_1": 2,
            "nan": None,
            "inf": None,
            "d": 1.5,
            "whole": 3,
            "huge": 2**127 - 1,
            "b": "ab",
            "t": "2026-01-02T03:04:05+00:00",
            "day": "2026-01-02",
            "nothing": None,
            "ids": ["0198c0de-0000-7000-8000-000000000000"],
            "s": {"x": None},
            "m": {"1": True},
            "i": "1:30:00",
        }
    ]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


KEYS = st.text() | st.integers() | st.none()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.decimals() | st.text() | st.binary() | st.uuids(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    )
)
def test_every_value_becomes_json(value: object) -> None:
    assert json.loads(json.dumps(json_value(value), allow_nan=False)) is not ...


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=6))
def test_decimals_keep_their_value(value: Decimal) -> None:
    assert Decimal(str(json_value(value))) == value


def test_a_result_that_is_too_long_is_refused_and_can_be_streamed() -> None:
    con = connect(files=[])
    assert len(run_sql(con, "SELECT * FROM range(10)", rows_max=10)) == 10
    with pytest.raises(Invalid, match="more than 10 rows"):
        run_sql(con, "SELECT * FROM range(11)", rows_max=10)
    assert sum(row["range"] for row in rows(con, "SELECT * FROM range(5000)")) == sum(range(5000))


def test_statements_without_rows_give_none() -> None:
    con = connect(files=[])
    assert run_sql(con, "-- nothing") == []
    with pytest.raises(Invalid, match="no SQL"):
        run_sql(con, " ")
    run_sql(con, "CREATE TABLE mine (x INTEGER)")
    assert run_sql(con, "SELECT * FROM mine") == []


def test_the_statements_take_hostile_file_names_for_text(tmp_path: Path) -> None:
    nasty = f"{tmp_path}/x'); DROP VIEW events; --.parquet"
    assert "''); DROP" in view_statements([nasty])[0]


def test_infinity_is_not_a_number() -> None:
    assert json_value(math.inf) is None and json_value(uuid.UUID(int=0)) == str(uuid.UUID(int=0))
