"""Every exit code, for a real reason; each with the untouched home beside it that ends with 0."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from fix_cli import EXAMPLES, Cli, database_of
from fix_history import message, started

from stratalog.hot.home import Home
from stratalog.hot.log import HotLog
from stratalog.schemas.envelope import Header
from stratalog.schemas.errors import HomeMissing, Invalid, Locked, MigrationNeeded, OpenRefused, Unavailable
from stratalog.warm.server import EmbeddedPostgres

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
SESSION = EXAMPLES / "claude-code" / "c2a8d7a0-1d0e-4e6e-8d6b-7f0f1d2c3b4a.jsonl"
DEAD = "postgresql://nobody@127.0.0.1:1/none"
WAIT_S = 60
KILLED_AT_THE_END = """
import os
from stratalog.hot.log import HotLog
HotLog.close = lambda log: os._exit(9)
"""
SLOW_IMPORT = """
import time
from stratalog.formats import importing
importing.detect = lambda *_: time.sleep(60)
"""


def dsn_of(cli: Cli) -> str:
    return Home.open(cli.home).settings.warm.dsn


def eager(cli: Cli) -> Home:
    """The home, with a hot log that prunes what it can."""
    return Home.open(cli.home, flags={"hot.hot_bytes_max": 1})


def flip(path: Path, at: float = 0.5) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 1
    path.write_bytes(content)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_10_without_a_home_and_no_home_appears(tmp_path: Path) -> None:
    missing = Cli(tmp_path / "missing")
    for command in ("sidecar --once", "consolidate", "status", "trajectory list", "verify", "doctor", "config show"):
        assert missing.error(*command.split(), code=10)["code"] == HomeMissing.code
    assert missing.error("sql", "select 1", code=10)["code"] == HomeMissing.code
    assert missing.error("quarantine", "list", code=10)["code"] == HomeMissing.code
    assert not missing.home.exists()


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("x")
    foreign = Cli(tmp_path / "letters")
    assert foreign.error("status", code=10)["code"] == HomeMissing.code
    assert foreign.error("import", EXAMPLES, code=1)["code"] == Invalid.code
    assert [path.name for path in foreign.home.iterdir()] == ["dear.txt"]
    (foreign.home / "home.json").write_text("[]")
    assert "not a home" in foreign.error("status", code=1)["message"]
    (foreign.home / "home.json").write_text('{"home_id": "x", "version": 99}')
    assert "version 99" in foreign.error("status", code=1)["message"]


def test_11_while_another_sidecar_follows(cli: Cli) -> None:
    first = cli.start("sidecar")
    try:
        eventually(lambda: bool(cli.json("status")["sidecar"] or {}) and cli.json("status")["sidecar"]["running"])
        assert cli.error("sidecar", "--once", code=11)["code"] == Locked.code
    finally:
        first.send_signal(signal.SIGTERM)
        out, err = first.communicate(timeout=WAIT_S)
    assert (first.returncode, out) == (0, "") and "Traceback" not in err
    assert cli.json("sidecar", "--once")["events"] == 0


def test_12_without_a_server(cli: Cli) -> None:
    for command in ("sidecar --once", "consolidate", "verify", "trajectory list", "quarantine list"):
        assert cli.error(*command.split(), "--dsn", DEAD, code=12)["code"] == Unavailable.code
    assert cli.json("status", "--dsn", DEAD)["postgres"]["state"] == Unavailable.code
    checks = {check["name"]: check for check in cli.json("doctor", "--dsn", DEAD, code=1)["checks"]}
    assert not checks["postgres"]["ok"] and checks["logs"]["ok"]
    assert cli.json("import", SESSION, "--dsn", DEAD)["trajectories"] == 1, "an import needs no server"
    error = cli.error("sidecar", "--once", "--dsn", "no dsn at all", code=1)
    assert error["code"] == Invalid.code and "postgresql://" in error["hint"]


def test_13_when_the_schema_is_not_ours_and_how_to_go_on(cli: Cli) -> None:
    assert cli.json("sidecar", "--once")["trajectories"] == 1
    with psycopg.connect(dsn_of(cli), autocommit=True) as conn:
        number, name, sha256 = conn.execute("SELECT * FROM stratalog.migrations ORDER BY 1 DESC").fetchone()[:3]  # type: ignore[index]
        newer = "INSERT INTO stratalog.migrations (number, name, sha256) VALUES (%s, %s, %s)"
        conn.execute(newer, [number + 1, "999_from_the_future", b"x" * 32])
        for command in ("sidecar --once", "consolidate", "trajectory list", "verify"):
            error = cli.error(*command.split(), code=13)
            assert error["code"] == MigrationNeeded.code and "999_from_the_future" in error["message"]
        conn.execute("DELETE FROM stratalog.migrations WHERE number = %s", [number + 1])
        conn.execute("UPDATE stratalog.migrations SET sha256 = %s WHERE number = %s", [b"x" * 32, number])
        assert "another" in cli.error("sidecar", "--once", code=13)["message"]
        conn.execute("UPDATE stratalog.migrations SET sha256 = %s WHERE number = %s", [sha256, number])
    assert cli.json("sidecar", "--once")["events"] == 0, name


def test_13_when_a_migration_is_missing_until_doctor_migrates(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from stratalog.warm import migrate

    cli.json("sidecar", "--once")
    folder = cli.home.parent / "migrations"
    folder.mkdir()
    for migration in migrate.read_migrations(migrate.default_folder()):
        (folder / f"{migration.name}.sql").write_bytes(migration.text)
    number = len(list(folder.iterdir())) + 1
    (folder / f"{number:03}_later.sql").write_text("CREATE TABLE later (x int);")
    monkeypatch.setattr(migrate, "default_folder", lambda: folder)
    error = cli.error("sidecar", "--once", code=13)
    assert "later" in error["message"] and "doctor --migrate" in error["hint"]
    assert cli.json("doctor", code=1)["ok"] is False
    assert cli.json("doctor", "--migrate")["ok"] is True
    assert cli.json("sidecar", "--once")["events"] == 0


def test_20_for_a_flipped_byte_in_parquet(broken: Cli, filled: Cli, tmp_path: Path) -> None:
    shutil.copytree(filled.home / "cold", tmp_path / "kept")
    try:
        flip(next((filled.home / "cold" / "events").rglob("*.parquet")))
        found = broken.json("verify", code=20)
        assert found["ok"] is False and found["tiers"]["cold"]["problems"]
        assert found["tiers"]["hot"]["problems"] == found["tiers"]["warm"]["problems"] == []
        assert "DAMAGE FOUND" in broken("verify").out
    finally:
        shutil.copytree(tmp_path / "kept", filled.home / "cold", dirs_exist_ok=True)
    assert broken.json("verify")["ok"] is True


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("spoil", [Path.unlink, halve])
@pytest.mark.parametrize("files", ["*.metadata.json", "snap-*.avro", "*-m0.avro"])
def test_20_for_metadata_of_the_table_that_is_gone_or_damaged(
    broken: Cli, filled: Cli, tmp_path: Path, files: str, spoil: Callable[[Path], object]
) -> None:
    shutil.copytree(filled.home / "cold", tmp_path / "kept")
    try:
        found = [path for path in (filled.home / "cold" / "iceberg").rglob("*") if path.match(files)]
        assert found
        for path in found:
            spoil(path)
        report = broken.json("verify", code=20)
        assert any("metadata" in problem for problem in report["tiers"]["cold"]["problems"])
        assert broken.error("sql", "select 1 from events", code=1 if spoil is Path.unlink else 20)["hint"]
    finally:
        shutil.copytree(tmp_path / "kept", filled.home / "cold", dirs_exist_ok=True)
    assert broken.json("verify")["ok"] is True


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE stratalog.trajectory_events SET body = set_byte(body, 5, 7) WHERE sequence_number = 1",
        "UPDATE stratalog.trajectory_events SET created_at = created_at + interval '1 s' WHERE sequence_number = 2",
        "DELETE FROM stratalog.trajectory_events WHERE sequence_number = 3",
        "UPDATE stratalog.trajectories SET head_hash = sha256(head_hash)",
    ],
)
def test_20_for_changed_rows_in_postgres(broken: Cli, damage: str) -> None:
    with psycopg.connect(dsn_of(broken)) as conn:
        assert conn.execute(damage.encode()).rowcount > 0
    found = broken.json("verify", code=20)
    assert found["ok"] is False and found["tiers"]["warm"]["problems"]


def test_20_for_a_damaged_and_for_a_missing_blob(broken: Cli) -> None:
    assert broken.json("verify")["ok"] is True
    (blob,) = (path for path in (broken.home / "cas").rglob("*") if path.is_file() and path.name != "owner.json")
    flip(blob)
    problems = broken.json("verify", code=20)["blobs"]["problems"]
    assert any("other content" in problem for problem in problems)
    blob.unlink()
    assert any(blob.name in problem for problem in broken.json("verify", code=20)["blobs"]["problems"])


def test_21_for_a_damaged_log_until_the_loss_is_accepted(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    assert cli.process("import", EXAMPLES / "claude-code", prelude=KILLED_AT_THE_END).code == 9
    (log,) = (cli.home / "hot").iterdir()
    (wal,) = (log / "db").glob("*.log")
    flip(wal, 0.3)
    error = cli.error("import", SESSION, code=21)
    assert error["code"] == OpenRefused.code and "doctor --accept-loss" in error["hint"]
    assert cli.error("trajectory", "list", code=21)["code"] == OpenRefused.code
    assert cli.json("status")["logs"][0]["error"]["code"] == OpenRefused.code
    assert cli.json("verify", code=20)["tiers"]["hot"]["problems"]
    checks = {check["name"]: check for check in cli.json("doctor", code=1)["checks"]}
    assert not checks["logs"]["ok"] and "--accept-loss" in checks["logs"]["detail"]
    assert cli.json("doctor", "--accept-loss")["ok"] is True
    assert {path.suffix for path in (cli.home / "hot").iterdir()} == {"", ".damaged"}
    assert cli.json("verify")["ok"] is True
    again = cli.json("import", EXAMPLES / "claude-code")
    assert 0 < again["appended"] < again["events"], "what was before the damage is still there"
    assert cli.json("verify")["tiers"]["hot"]["events"] == again["events"]


def test_130_for_an_interrupted_sidecar_and_import(cli: Cli, tmp_path: Path) -> None:
    following = cli.start("sidecar", "--json")
    eventually(lambda: bool(cli.json("status")["sidecar"] or {}) and cli.json("status")["sidecar"]["running"])
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=WAIT_S)
    assert following.returncode == 130 and "Traceback" not in err
    assert [log["lag_events"] for log in cli.json("status")["logs"]] == [0]
    assert json.loads(out)["ended"] is True

    reading = cli.start("import", SESSION, "--json", prelude=SLOW_IMPORT)
    eventually(lambda: bool(cli.json("status")["logs"][0].get("owned")))
    os.kill(reading.pid, signal.SIGINT)
    out, err = reading.communicate(timeout=WAIT_S)
    assert reading.returncode == 130 and "Traceback" not in err
    assert json.loads(out)["error"]["code"] == "interrupted"
    assert cli.json("import", SESSION)["trajectories"] == 1


def test_histories_that_diverged_are_quarantined(cli: Cli, tmp_path: Path) -> None:
    with HotLog.open(cli.home, serve=False) as log:
        trajectory = log.start_blocking(tenant="default", body=started())
        log.append_blocking(trajectory, message("both"))
    other = Cli(shutil.copytree(cli.home, tmp_path / "copy"))
    for at, said in ((cli, "the one"), (other, "the \x1b[31mother")):
        with HotLog.open(at.home, serve=False) as log:
            log.append_blocking(trajectory, message(said))
    assert cli.json("sidecar", "--once")["quarantined"] == 0
    # The copy has the same log, which is not the one that was replicated any more.
    assert "--renew-logs" in other.error("sidecar", "--once", code=1)["hint"]
    assert other.json("doctor", "--renew-logs")["ok"] is True
    assert other.json("sidecar", "--once")["quarantined"] == 1
    (entry,) = other.json("quarantine", "list")
    assert (entry["trajectory_id"], entry["sequence_number"]) == (str(trajectory), 2)
    assert other.json("quarantine", "list", str(trajectory)) == [entry]
    assert other.json("quarantine", "list", str(uuid.uuid4())) == []
    assert other.json("status")["quarantine"] == 1
    shown = other.json("quarantine", "show", str(entry["quarantine_id"]))
    assert set(shown) == {"entry", "header", "body"} and "mother" in shown["body"]
    spoken = other("quarantine", "show", str(entry["quarantine_id"])).out
    assert "mother" in spoken and "\x1b" not in spoken
    assert other.json("quarantine", "retry") == {"admitted": 0, "duplicates": 0, "still_open": 1}
    evidence = tmp_path / "evidence.jsonl"
    assert other.json("quarantine", "export", "--output", evidence) == {"events": 1, "file": str(evidence)}
    (line,) = map(json.loads, evidence.read_text().splitlines())
    assert Header.decode(base64.b64decode(line["header_base64"])).trajectory_id == trajectory
    assert other.json("quarantine", "export") == [line] == [json.loads(other("quarantine", "export").out)]
    assert other.error("quarantine", "export", "--output", evidence, code=1)["code"]
    assert "the one" in cli("trajectory", "show", str(trajectory)).out
    assert cli.json("verify")["ok"] and other.json("verify")["ok"], "what is in quarantine is no damage"


def test_a_renewed_log_whose_beginning_was_pruned_goes_on_where_it_begins(cli: Cli) -> None:
    with HotLog.open(cli.home, serve=False) as log:
        trajectory = log.start_blocking(tenant="default", body=started())
        log.append_blocking(trajectory, message("before"))
    cli.json("sidecar", "--once")
    with HotLog.open(eager(cli), serve=False) as log:
        assert log.prune() == 2
        log.append_blocking(trajectory, message("after"))
    shutil.copytree(cli.home, cli.home.with_name("restored"))
    with HotLog.open(cli.home, serve=False) as log:
        log.append_blocking(trajectory, message("on the first machine"))
    assert cli.json("sidecar", "--once")["events"] == 2
    restored = Cli(cli.home.with_name("restored"))
    with HotLog.open(restored.home, serve=False) as log:
        log.append_blocking(trajectory, message("on the second machine"))
    assert "--renew-logs" in restored.error("sidecar", "--once", code=1)["hint"]
    for _ in range(2):  # twice: the second renewal comes before anything was replicated under the first
        assert restored.json("doctor", "--renew-logs")["ok"] is True
    assert restored.json("sidecar", "--once")["quarantined"] == 1
    with HotLog.open(restored.home, serve=False) as log:
        assert log.replicated_lsn == log.durable_lsn == 4
    assert restored.json("verify")["ok"] is True


def test_a_log_that_begins_behind_what_postgres_has_is_refused(cli: Cli, postgres_server: EmbeddedPostgres) -> None:
    with HotLog.open(cli.home, serve=False) as log:
        trajectory = log.start_blocking(tenant="default", body=started())
        log.append_blocking(trajectory, message("before"))
    cli.json("sidecar", "--once")
    with HotLog.open(eager(cli), serve=False) as log:
        assert log.prune() == 2
        log.append_blocking(trajectory, message("after"))
    with database_of(postgres_server) as empty:
        cli.use(empty)
        error = cli.error("sidecar", "--once", code=1)
    assert error["code"] == "cursor_mismatch" and "backup" in error["hint"]
