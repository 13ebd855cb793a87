"""Every command: its help, its one JSON document, the shapes that the documentation promises."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from fix_cli import EXAMPLES, Cli, call

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]

COMMANDS = [
    "demo",
    "import",
    "sidecar",
    "consolidate",
    "compact",
    "sql",
    "status",
    "trajectory list",
    "trajectory show",
    "verify",
    "quarantine list",
    "quarantine show",
    "quarantine retry",
    "quarantine export",
    "retention load",
    "retention plan",
    "retention apply",
    "hold add",
    "hold apply",
    "hold list",
    "hold release",
    "erase",
    "erase finish",
    "erase list",
    "erase show",
    "erase receipts",
    "erase verify",
    "erase abandon-log",
    "subject add",
    "subject find",
    "subject label",
    "audit seal",
    "audit verify",
    "audit recover",
    "audit prove",
    "audit bundle",
    "audit approvals",
    "audit policies",
    "audit effects",
    "audit settlements",
    "key list",
    "key rotate",
    "key export",
    "backup create",
    "backup restore",
    "backup drill",
    "storage expire",
    "storage sweep",
    "storage pack",
    "storage reindex",
    "storage owner",
    "doctor",
    "config show",
    "bench device",
    "dagster",
]
LISTED = {
    "trajectory_id": str,
    "tenant": str,
    "model": str,
    "status": str,
    "events": int,
    "started_at": (str, type(None)),
    "finished_at": (str, type(None)),
    "tier": str,
    "tiers": list,
    "source": (dict, type(None)),
}
VIEW_COLUMNS = {
    "trajectories": "trajectory_id tenant date model status started_at finished_at turns events input_tokens "
    "output_tokens cost_usd labels source undated",
    "messages": "trajectory_id sequence_number turn role text blob",
    "tool_calls": "trajectory_id sequence_number turn tool_call_id tool arguments decision status output duration_ms "
    "inferred",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_the_common_options(command: str) -> None:
    said = call(*command.split(), "--help")
    assert said.code == 0 and said.err == ""
    assert f"Example: stratalog {command}" in " ".join(said.out.split())
    assert all(option in said.out for option in ("--home", "STRATALOG_HOME", "--json", "--dsn"))


def test_the_help_of_the_program_names_every_command() -> None:
    said = call("--help")
    assert said.code == 0
    assert all(re.search(rf"^│ {command.split()[0]} ", said.out, re.MULTILINE) for command in COMMANDS)
    assert re.fullmatch(r"\d+\.\d+\.\d+", call("--version").out.strip())


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("import",),
        ("import", "x", "--no-such-option"),
        ("sql",),
        ("trajectory", "show", "not-a-uuid"),
        ("trajectory", "list", "--limit", "many"),
        ("quarantine", "show"),
    ],
)
def test_a_wrong_command_line_is_2(filled: Cli, arguments: tuple[str, ...]) -> None:
    error = filled.error(*arguments, code=2)
    assert error["code"] == "usage" and error["hint"]


def test_import(tmp_path: Path) -> None:
    new, damaged = Cli(tmp_path / "home"), tmp_path / "damaged.jsonl"
    sample = (EXAMPLES / "claude-code" / "c2a8d7a0-1d0e-4e6e-8d6b-7f0f1d2c3b4a.jsonl").read_text()
    damaged.write_text(sample + '{"type": "user", "mess\n' + sample.splitlines()[0] + "\n")
    first = new.json("import", damaged, code=3)
    assert set(first) == {"files", "trajectories", "events", "opaque_events", "problems", "appended"}
    (problem,) = first["problems"]
    assert set(problem) == {"file", "line", "reason"}
    assert (problem["file"], problem["line"]) == (str(damaged), len(sample.splitlines()) + 1)
    again = new.json("import", damaged, code=3)
    assert again == first | {"appended": 0}
    assert first["appended"] == first["events"] > 0


def test_sidecar_consolidate_and_the_second_time_of_both(cli: Cli) -> None:
    first = cli.json("sidecar", "--once")
    assert first == {"events": first["events"], "trajectories": 1, "blobs": 0, "quarantined": 0}
    assert cli.json("sidecar", "--once") == dict.fromkeys(first, 0)
    moved = cli.json("consolidate", "--older-than", "0d")
    assert moved == {"trajectories": 1, "events": first["events"], "files": 1, "bytes": moved["bytes"]}
    assert moved["bytes"] > 0
    assert cli.json("consolidate", "--older-than", "0d") == dict.fromkeys(moved, 0)
    assert cli.error("consolidate", "--older-than", "soon", code=1)["code"] == "invalid"


def test_trajectory_list(filled: Cli) -> None:
    found = filled.json("trajectory", "list")
    assert len(found) == 7
    for row in found:
        assert list(row) == list(LISTED)
        assert all(isinstance(row[name], kind) for name, kind in LISTED.items())
    assert {row["tier"] for row in found} == {"cold"}
    assert {tuple(row["tiers"]) for row in found} == {("hot", "warm", "cold")}
    assert [row["trajectory_id"] for row in found] == sorted((row["trajectory_id"] for row in found), reverse=True)
    imported = filled.json("trajectory", "list", "--status", "imported")
    assert imported == [row for row in found if row["status"] == "imported"] != []
    assert filled.json("trajectory", "list", "--limit", "2") == found[:2]
    assert filled.json("trajectory", "list", "--tenant", "nobody") == []
    spoken = filled("trajectory", "list").out
    assert all(row["trajectory_id"] in spoken for row in found)


def test_trajectory_show(filled: Cli) -> None:
    for row in filled.json("trajectory", "list"):
        shown = filled.json("trajectory", "show", row["trajectory_id"])
        events = shown.pop("event_list")
        assert shown == row
        assert [event["sequence_number"] for event in events] == list(range(row["events"]))
        assert {"kind", "created_at", "epoch", "hash", "body"} < set(events[0])
        spoken = filled("trajectory", "show", row["trajectory_id"])
        lines = spoken.out.splitlines()
        assert len(lines[lines.index("") + 2 :]) == row["events"], "one line an event"
        assert filled("trajectory", "show", row["trajectory_id"], "--full").code == 0
    missing = "00000000-0000-7000-8000-000000000000"
    assert filled.error("trajectory", "show", missing, code=1)["code"] == "not_found"


@pytest.mark.parametrize("view", VIEW_COLUMNS)
def test_the_views_have_their_stable_columns(filled: Cli, view: str) -> None:
    (row,) = filled.json("sql", f"select * from {view} limit 1")
    assert list(row) == VIEW_COLUMNS[view].split()


def test_sql_says_what_is_wrong(filled: Cli) -> None:
    assert filled.json("sql", "select 1 as a where false") == []
    assert filled("sql", "select 1 as a, 'x' as b").out.split() == ["a", "b", "1", "x"]
    error = filled.error("sql", "select nonsense from nowhere", code=1)
    assert error["code"] == "invalid" and "views are" in error["hint"]


def test_the_init_script_works_in_a_fresh_duckdb(filled: Cli) -> None:
    script = filled("sql", "--init").out
    assert filled.json("sql", "--init") == {"sql": script}
    with duckdb.connect() as fresh:
        fresh.execute(script)
        counts = [fresh.execute(f"select count(*) from {view}").fetchall()[0][0] for view in VIEW_COLUMNS]
    for view, count in zip(VIEW_COLUMNS, counts, strict=True):
        assert filled.json("sql", f"select count(*) as n from {view}") == [{"n": count}]


def test_status(filled: Cli) -> None:
    found = filled.json("status")
    assert set(found) == {"home", "logs", "disk", "sidecar", "postgres", "consolidation", "quarantine"}
    (log,) = found["logs"]
    expected = "head_lsn durable_lsn replicated_lsn pruned_lsn lag_events lag_bytes lag_seconds"
    assert set(expected.split()) < set(log)
    assert log["head_lsn"] == log["durable_lsn"] == log["replicated_lsn"] > 0
    assert log["lag_events"] == log["lag_bytes"] == log["lag_seconds"] == 0
    assert 0 < found["disk"]["free"] < 1
    assert found["postgres"]["state"] == "ok" and found["postgres"]["trajectories"] == 7
    assert found["sidecar"]["running"] is False
    assert found["consolidation"]["trajectories"] == 7 and found["quarantine"] == 0
    assert "quarantine  empty" in filled("status").out


def test_verify(filled: Cli) -> None:
    found = filled.json("verify")
    assert list(found) == ["ok", "tiers", "blobs"] and list(found["tiers"]) == ["hot", "warm", "cold"]
    assert found["ok"] is True and found["blobs"]["problems"] == [] and found["blobs"]["checked"] > 0
    events = sum(row["events"] for row in filled.json("trajectory", "list"))
    assert list(found["tiers"].values()) == [{"events": events, "trajectories": 7, "problems": []}] * 3
    assert filled("verify").out.splitlines()[-1] == "verified"


def test_doctor(filled: Cli) -> None:
    found = filled.json("doctor")
    assert set(found) == {"ok", "checks"} and found["ok"] is True
    assert all(set(check) == {"name", "ok", "detail"} and check["ok"] for check in found["checks"])
    assert {"home", "disk", "sync", "logs", "postgres", "lake"} < {check["name"] for check in found["checks"]}


def test_quarantine_is_empty(filled: Cli) -> None:
    assert filled.json("quarantine", "list") == filled.json("quarantine", "export") == []
    assert filled.json("quarantine", "retry") == {"admitted": 0, "duplicates": 0, "still_open": 0}
    assert filled("quarantine", "export").out == ""
    assert filled.error("quarantine", "show", "1", code=1)["code"] == "not_found"


def test_settings_come_from_the_flag_the_environment_the_file_the_default(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cli.home / "stratalog.toml").write_text(
        '[warm]\ndsn = "postgresql://me:in-toml@host/db"\npoll_ms = 5\n[cold]\nzstd_level = 4\n'
        '[cold.storage_options]\nsecret = "in-toml"\nendpoint_url = "http://host"\n'
    )
    monkeypatch.setenv("STRATALOG_WARM__POLL_MS", "7")
    monkeypatch.setenv("STRATALOG_TENANT", "research")
    found = cli.json("config", "show", "--origin", "--dsn", "host=x password='a b' user=y")
    assert found["warm.dsn"] == {"value": "host=x password=*** user=y", "origin": "flag"}
    assert found["warm.poll_ms"] == {"value": 7, "origin": "environment"}
    assert found["tenant"] == {"value": "research", "origin": "environment"}
    assert found["cold.zstd_level"] == {"value": 4, "origin": str(cli.home / "stratalog.toml")}
    assert found["cold.older_than"] == {"value": "7d", "origin": "default"}
    plain = cli.json("config", "show")
    assert plain["warm.poll_ms"] == 7 and plain["warm.dsn"] == "postgresql://me:***@host/db"
    assert plain["cold.storage_options"] == {"secret": "***", "endpoint_url": "http://host"}
    assert "in-toml" not in cli("config", "show", "--origin").out.replace("stratalog.toml", "")
    monkeypatch.setenv("STRATALOG_WARM__POLL_MS", "often")
    assert cli.error("config", "show", code=1)["code"] == "invalid"
    monkeypatch.setenv("STRATALOG_WARM__POLL_MS", "7")
    (cli.home / "stratalog.toml").write_text("[warm\n")
    assert "stratalog.toml" in cli.error("config", "show", code=1)["message"]


def test_the_whole_way_with_the_embedded_server_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATALOG_HOME", str(tmp_path / "home"))
    imported = call("import", EXAMPLES, "--json").document
    assert (imported["files"], imported["trajectories"], imported["problems"]) == (7, 7, [])
    assert call("import", EXAMPLES, "--json").document == imported | {"appended": 0}
    replicated = call("sidecar", "--once", "--json").document
    assert (replicated["events"], replicated["trajectories"]) == (imported["events"], 7)
    assert call("sidecar", "--once", "--json").document == dict.fromkeys(replicated, 0)
    moved = call("consolidate", "--older-than", "0d", "--json").document
    assert (moved["events"], moved["trajectories"]) == (imported["events"], 7)
    assert call("consolidate", "--older-than", "0d", "--json").document == dict.fromkeys(moved, 0)
    # The rest also answers after the home was moved.
    monkeypatch.setenv("STRATALOG_HOME", str((tmp_path / "home").rename(tmp_path / "moved")))
    verified = call("verify", "--json").document
    assert verified["ok"] and {tier["events"] for tier in verified["tiers"].values()} == {imported["events"]}
    listed = call("trajectory", "list", "--json").document
    in_sql = call("sql", "select trajectory_id, model, status, events from trajectories", "--json").document
    assert sorted(map(tuple, (row.values() for row in in_sql))) == sorted(
        (row["trajectory_id"], row["model"], row["status"], row["events"]) for row in listed
    )
    assert sum(row["events"] for row in listed) == imported["events"]
    status = call("status", "--json").document
    assert status["postgres"]["events"] == status["logs"][0]["durable_lsn"] == imported["events"]


@pytest.mark.slow
def test_demo_is_the_whole_way_and_json_too(tmp_path: Path) -> None:
    pytest.importorskip("dagster")
    said = Cli(tmp_path / "home").process("demo", EXAMPLES, "--json")
    assert said.code == 0
    assert list(said.document) == ["import", "sidecar", "consolidate", "verify", "sql"]
    events = said.document["import"]["events"]
    assert said.document["sidecar"]["events"] == said.document["consolidate"]["events"] == events
    assert said.document["verify"]["ok"] and all(answer["rows"] for answer in said.document["sql"])


def test_as_a_program(filled: Cli) -> None:
    said = filled.process("trajectory", "list", "--json")
    assert said.code == 0 and said.err == "" and len(said.document) == 7
    program = Path(sys.executable).with_name("stratalog")
    environment = {**os.environ, "STRATALOG_HOME": str(filled.home)}
    done = subprocess.run([program, "config", "show", "--json"], env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout)["tenant"] == "default"
