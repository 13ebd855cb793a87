"""The bytes of erased trajectories in the files of Postgres: heap, TOAST, indexes, statistics and write-ahead log."""

from __future__ import annotations

import secrets
import threading
import time
from pathlib import Path

import psycopg
import pytest
from fix_erasure import arrive, canary_story, erase, files_with, others
from fix_history import assert_sound, message

from stratalog.schemas.errors import Corrupt, Unavailable
from stratalog.warm import erasure_bytes, erasure_ledger
from stratalog.warm.database import Connection, connect
from stratalog.warm.erasure_bytes import remove_bytes
from stratalog.warm.server import EmbeddedPostgres

__all__ = ["others"]
pytestmark = pytest.mark.usefixtures("others")


@pytest.fixture
def data(postgres_server: EmbeddedPostgres) -> Path:
    """The cluster's folder."""
    with psycopg.connect(postgres_server.dsn) as conn:
        row = conn.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        # The setting names it by a descriptor of the server; where a process of it works tells the folder.
        return Path(f"/proc/{row[0]}/cwd").resolve()


def canary() -> str:
    return f"canary{secrets.token_hex(12)}"


def flush(conn: Connection) -> None:
    """So that the files have what is in shared memory, and statistics have samples."""
    conn.autocommit = True
    conn.execute("ANALYZE")
    conn.execute("CHECKPOINT")
    conn.autocommit = False


def test_no_file_has_it_any_more(warm: Connection, data: Path) -> None:
    word = canary()
    story = canary_story(word, finish=False)
    # Incompressible and large: it lies out of line, as it is.
    story.write(message(f"{word} {secrets.token_hex(6000)}"))
    arrive(warm, story)
    flush(warm)
    assert files_with(data, word.encode())
    erase(warm, story)
    flush(warm)
    assert files_with(data, word.encode()), "a control: an UPDATE leaves the bytes"
    done = remove_bytes(warm, embedded=True)
    assert done.trajectories == (story.trajectory_id,)
    assert done.wal_files
    flush(warm)
    assert files_with(data, word.encode()) == []
    assert files_with(data, story.secret) == []
    assert erasure_ledger.warm_left(warm) == []
    assert remove_bytes(warm, embedded=True) == erasure_bytes.WarmGone()
    assert_sound(warm)


@pytest.mark.parametrize("left_out", ["tables", "wal"])
def test_each_step_is_needed(warm: Connection, data: Path, left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    word = canary()
    story = canary_story(word)
    arrive(warm, story)
    flush(warm)
    erase(warm, story)
    if left_out == "tables":
        monkeypatch.setattr(erasure_bytes, "_write_anew", lambda conn, table: conn.execute(b"VACUUM"))
    else:
        monkeypatch.setattr(erasure_bytes, "remove_wal", lambda conn: 0)
    remove_bytes(warm, embedded=True)
    found = files_with(data, word.encode())
    assert any(("base/" if left_out == "tables" else "pg_wal/") in name for name in found)


def test_older_transactions_are_waited_for(warm: Connection, warm_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    story = canary_story(canary())
    arrive(warm, story)
    with connect(warm_dsn) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM trajectories")
        erase(warm, story)
        monkeypatch.setattr(erasure_bytes, "OLDER_TRANSACTIONS_S", 0.2)
        with pytest.raises(Unavailable, match="older transactions"):
            remove_bytes(warm, embedded=True)
        assert erasure_ledger.warm_left(warm) == [story.trajectory_id]
        assert not warm.autocommit
        monkeypatch.undo()
        done: list[erasure_bytes.WarmGone] = []
        thread = threading.Thread(target=lambda: done.append(remove_bytes(warm, embedded=True)))
        thread.start()
        time.sleep(0.2)
        assert not done
        reader.rollback()
        thread.join()
    assert done[0].trajectories == (story.trajectory_id,)


def test_a_table_that_stays_locked(warm: Connection, warm_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    story = canary_story(canary())
    arrive(warm, story)
    erase(warm, story)
    monkeypatch.setattr(erasure_bytes, "LOCK_TIMEOUT_MS", 100)
    with connect(warm_dsn) as other:
        other.execute("LOCK TABLE quarantine IN ACCESS SHARE MODE")
        with pytest.raises(Unavailable, match="quarantine stays locked"):
            remove_bytes(warm, embedded=True)
    assert erasure_ledger.warm_left(warm) == [story.trajectory_id]
    assert remove_bytes(warm, embedded=True).trajectories == (story.trajectory_id,)


def test_what_is_still_readable_is_not_called_gone(warm: Connection) -> None:
    story = canary_story(canary())
    arrive(warm, story)
    erase(warm, story)
    with warm.transaction():
        warm.execute(
            "UPDATE trajectory_events SET tool_name = 'x' WHERE trajectory_id = %s AND sequence_number = 2",
            (story.trajectory_id,),
        )
    with pytest.raises(Corrupt, match="event 2 is readable"):
        remove_bytes(warm, embedded=True)
    assert erasure_ledger.warm_left(warm) == [story.trajectory_id]


def test_a_server_that_is_not_ours(warm: Connection) -> None:
    story = canary_story(canary())
    arrive(warm, story)
    erase(warm, story)
    assert remove_bytes(warm, embedded=False).wal_files is None
