"""A backup has everything that was durable when it began, becomes a home again, and tells when it is damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")  # required_in_ci

from fix_cli import EXAMPLES, Cli, database_of
from fix_s3 import S3Bucket

from stratalog.cold import backup as backups
from stratalog.cold import restore as restores
from stratalog.cold.installation import Installation
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog
from stratalog.schemas.events import TaskFinished, ToolResult
from stratalog.schemas.statements import statements
from stratalog.warm.database import connect
from stratalog.warm.server import EmbeddedPostgres

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]

BULK = "line of output\n" * 20_000


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres) -> Iterator[Cli]:
    """A home with something in every tier, and events that only the hot log has yet."""
    with database_of(postgres_server) as dsn:
        cli = Cli(tmp_path_factory.mktemp("lived") / "home")
        cli.json("import", EXAMPLES)
        cli.use(dsn)
        cli.json("sidecar", "--once")
        cli.json("consolidate", "--older-than", "0d")
        with HotLog.open(cli.home, serve=False) as log:
            trajectory_id = log.start_blocking(tenant="acme", task="still running")
            log.append_blocking(trajectory_id, ToolResult(tool_call_id="c1", output=BULK))
        yield cli


@pytest.fixture(scope="module")
def backup(lived: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = lived.json("backup", "create", tmp_path_factory.mktemp("backups"))
    return Path(made["path"])


def events_of(cli: Cli) -> dict[str, tuple[int, str]]:
    """Each trajectory with its number of events and its status, as Postgres has them."""
    return {
        one["trajectory_id"]: (one["events"], one["status"])
        for one in cli.json("trajectory", "list", "--limit", "1000")
    }


def contents_of(cli: Cli) -> set[tuple[str, str]]:
    store = Installation(Home.open(cli.home)).content_store()
    return {(tenant, sha256) for tenant in store.tenants() for sha256 in store.digests(tenant)}


def test_a_restored_home_has_everything_and_goes_on(lived: Cli, backup: Path, tmp_path: Path) -> None:
    lived.json("backup", "restore", backup, tmp_path / "restored")
    restored = Cli(tmp_path / "restored")
    assert restored.json("verify")["ok"] is True
    assert events_of(restored) == events_of(lived)
    question = "select tenant, kind, count(*) as n from events group by all order by all"
    assert restored.json("sql", question) == lived.json("sql", question) != []
    assert contents_of(restored) == contents_of(lived) != set()
    # It goes on: new logs with new ids, the same sources add nothing that contradicts.
    assert not {path.name for path in (restored.home / "hot").iterdir()} & {
        path.name for path in (lived.home / "hot").iterdir()
    }
    with HotLog.open(restored.home, serve=False) as log:
        log.append_blocking(log.start_blocking(tenant="acme", task="after"), TaskFinished(status="completed"))
    assert restored.json("sidecar", "--once")["events"] == 2
    assert restored.json("consolidate", "--older-than", "0d")["events"] == 2
    assert restored.json("verify")["ok"] is True


def test_a_drill_verifies_and_leaves_nothing(
    lived: Cli, backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restores.tempfile, "tempdir", str(tmp_path))
    report = lived.json("backup", "drill", backup)
    assert report["ok"] is True
    assert report["tiers"]["warm"]["events"] > 0 and report["tiers"]["cold"]["events"] > 0
    assert list(tmp_path.iterdir()) == []


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a flipped byte in a table": lambda copy: flip(copy / "warm" / "stratalog.trajectory_events.zst"),
    "a flipped byte in a cold file": lambda copy: flip(next((copy / "cold" / "events").rglob("*.parquet"))),
    "a content that is gone": lambda copy: next(path for path in (copy / "cas").rglob("*") if path.is_file()).unlink(),
    "a file that is none of it": lambda copy: (copy / "cas" / "more").write_bytes(b"?"),
    "a damaged manifest": lambda copy: flip(copy / "manifest.json"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_backup_is_refused(lived: Cli, backup: Path, tmp_path: Path, damage: str) -> None:
    copy = shutil.copytree(backup, tmp_path / "copy")
    DAMAGES[damage](copy)
    error = lived.error("backup", "restore", copy, tmp_path / "restored", code=20)
    assert error["code"] == "corrupt"
    assert not (tmp_path / "restored").exists()


def test_what_cannot_be_restored_says_why(lived: Cli, backup: Path, tmp_path: Path) -> None:
    assert "is not a backup" in lived.error("backup", "drill", tmp_path, code=1)["message"]
    assert "exists" in lived.error("backup", "restore", backup, tmp_path, code=1)["message"]
    copy = shutil.copytree(backup, tmp_path / "newer")
    text = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(text.replace('"001_tables"', '"001_other"'))
    assert "001_other" not in lived.error("backup", "restore", copy, tmp_path / "x", code=13)["hint"]


def test_no_backup_is_made_while_partitions_are_dropped(lived: Cli, tmp_path: Path) -> None:
    sql = statements("deletions")
    with closing(connect(Home.open(lived.home).settings.warm.dsn)) as conn:
        conn.execute(sql["lock"])
        conn.commit()
        assert "retention" in lived.error("backup", "create", tmp_path / "b", code=11)["message"]
        conn.execute(sql["unlock"])
        conn.execute(
            "UPDATE event_partitions SET drop_state = 'marked' WHERE name IN (SELECT min(name) FROM event_partitions)"
        )
        conn.commit()
        assert "retention apply" in lived.error("backup", "create", tmp_path / "b", code=1)["hint"]
        conn.execute("UPDATE event_partitions SET drop_state = NULL")
        conn.commit()
    assert lived.json("backup", "create", tmp_path / "b")["bytes"] > 0


class Killed(BaseException):
    """Stands for kill -9."""


@pytest.mark.parametrize("place", ["_dump", "_copy_cold", "_copy_content", "write_durably"])
def test_a_backup_that_is_killed_is_none_and_the_next_one_is_whole(
    lived: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def killed(*arguments: object, **named: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(backups, place, killed)
        with pytest.raises(Killed):
            backups.create_backup(Installation(Home.open(lived.home)), tmp_path / "b")
    (left,) = (tmp_path / "b").iterdir()
    assert not (left / "manifest.json").exists()
    made = backups.create_backup(Installation(Home.open(lived.home)), tmp_path / "b")
    assert list((tmp_path / "b").iterdir()) == [made]
    assert backups.check_backup(made, backups.read_manifest(made)) == []


@pytest.mark.parametrize("place", ["_restore_files", "_restore_tables", "sync_folder"])
def test_a_restore_that_is_killed_leaves_no_home_and_the_next_one_is_whole(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def killed(*arguments: object, **named: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(restores, place, killed)
        with pytest.raises(Killed):
            restores.restore_backup(backup, tmp_path / "home")
    if place != "sync_folder":
        assert not (tmp_path / "home").exists()
        restores.restore_backup(backup, tmp_path / "home")
    assert Cli(tmp_path / "home").json("verify")["ok"] is True


def test_negative_control_without_replication_first_what_is_only_in_the_hot_log_is_missing(
    lived: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HotLog.open(lived.home, serve=False) as log:
        late = str(log.start_blocking(tenant="acme", task="late"))
    with monkeypatch.context() as patch:
        patch.setattr(backups, "replicate", lambda *arguments: None)
        without = backups.create_backup(Installation(Home.open(lived.home)), tmp_path / "without")
    whole = backups.create_backup(Installation(Home.open(lived.home)), tmp_path / "whole")
    for made, has in ((without, False), (whole, True)):
        restores.restore_backup(made, tmp_path / f"from {made.parent.name}")
        assert (late in events_of(Cli(tmp_path / f"from {made.parent.name}"))) is has


def test_a_sidecar_that_runs_is_waited_for(lived: Cli, tmp_path: Path) -> None:
    following = lived.start("sidecar", "--json")
    try:
        with HotLog.open(lived.home) as log:
            late = str(log.start_blocking(tenant="acme", task="with a sidecar"))
            made = Path(lived.json("backup", "create", tmp_path / "b")["path"])
    finally:
        following.terminate()
        following.communicate(timeout=60)
    restores.restore_backup(made, tmp_path / "home")
    assert late in events_of(Cli(tmp_path / "home"))


def test_a_cold_tier_in_a_bucket_becomes_folders_of_the_restored_home(
    tmp_path: Path, database: str, s3_bucket: S3Bucket
) -> None:
    cli = Cli(tmp_path / "home")
    cli.json("import", EXAMPLES)
    (cli.home / "stratalog.toml").write_text(
        f'''[warm]
dsn = "{database}"
[cold]
url = "{s3_bucket.url}/cold"
cas_url = "{s3_bucket.url}/cas"
storage_options = {{ endpoint_url = "{s3_bucket.options["endpoint_url"]}" }}
'''
    )
    cli.json("sidecar", "--once")
    cli.json("consolidate", "--older-than", "0d")
    made = Path(cli.json("backup", "create", tmp_path / "b")["path"])
    restores.restore_backup(made, tmp_path / "restored")
    s3_bucket.client.delete_objects(
        Bucket=s3_bucket.name,
        Delete={
            "Objects": [
                {"Key": found["Key"]} for found in s3_bucket.client.list_objects_v2(Bucket=s3_bucket.name)["Contents"]
            ]
        },
    )
    restored = Cli(tmp_path / "restored")
    report = restored.json("verify")
    assert report["ok"] is True and report["tiers"]["cold"]["events"] == report["tiers"]["warm"]["events"] > 0
    assert restored.json("sql", "select count(*) as n from events") == [{"n": report["tiers"]["cold"]["events"]}]
    assert cli.json("verify", code=20)["ok"] is False  # what was restored does not lean on the bucket


def test_signed_heads_are_in_it(lived: Cli, tmp_path: Path) -> None:
    assert lived.json("sidecar", "--once") and lived.json("audit", "seal")
    made = Path(lived.json("backup", "create", tmp_path / "b", "--with-keys")["path"])
    lived.json("backup", "restore", made, tmp_path / "home")
    restored = Cli(tmp_path / "home")
    assert restored.json("audit", "verify")["ok"] is True
    assert {path.name for path in (restored.home / "audit").iterdir()} == {
        path.name for path in (lived.home / "audit").iterdir()
    }


def test_keys_are_only_in_it_when_asked_for(lived: Cli, backup: Path, tmp_path: Path) -> None:
    assert not list(backup.rglob("*.key"))
    made = Path(lived.json("backup", "create", tmp_path / "b", "--with-keys")["path"])
    lived.json("backup", "restore", made, tmp_path / "home")
    ours, theirs = Home.open(lived.home), Home.open(tmp_path / "home")
    assert ours.import_key("default") == theirs.import_key("default")
    # So the same sources meet the same trajectories.
    restored = Cli(tmp_path / "home")
    assert restored.json("import", EXAMPLES)["trajectories"] > 0
    before = events_of(restored)
    assert restored.json("sidecar", "--once")["quarantined"] == 0
    assert events_of(restored) == before
