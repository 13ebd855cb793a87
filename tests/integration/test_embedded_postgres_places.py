"""The launcher: wherever the folder and the programs lie, and whoever they belong to."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest
from fix_embedded import ask, owner, postmaster, query, runs_stratalog, user_process
from fix_postgres import bin_dir_of

from stratalog.schemas.errors import Unavailable
from stratalog.warm import binaries as binaries_module
from stratalog.warm.server import EmbeddedPostgres
from stratalog.warm.server_user import ServerUser

pytestmark = pytest.mark.postgres
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts the server as another user")


@pytest.mark.parametrize("name", ["x" * 100, "with, comma and blank", "naïve"])
def test_a_path_unfit_for_a_socket_gets_a_private_temporary_folder(tmp_path: Path, name: str) -> None:
    bin_dir_of(None)
    base = tmp_path / name / "pg"
    with EmbeddedPostgres(base) as server:
        host = Path(str(psycopg.conninfo.conninfo_to_dict(server.dsn)["host"]))
        assert host.parent == Path(tempfile.gettempdir())
        assert stat.S_IMODE(host.stat().st_mode) == 0o700
        with EmbeddedPostgres(base) as joined:
            assert joined.dsn == server.dsn
    # A cleaner of temporary files came by: the next start makes another one.
    host.rmdir()
    with EmbeddedPostgres(base) as server:
        assert query(server.dsn, "SELECT 1") == 1
        again = Path(str(psycopg.conninfo.conninfo_to_dict(server.dsn)["host"]))
    again.rmdir()


def test_a_socket_folder_that_others_could_have_made_is_not_trusted(tmp_path: Path) -> None:
    bin_dir_of(None)
    base, trap = tmp_path / ("x" * 100), tmp_path / "trap"
    base.mkdir()
    trap.mkdir(mode=0o755)
    (base / "socket-folder").write_text(str(trap))
    with EmbeddedPostgres(base) as server:
        host = Path(str(psycopg.conninfo.conninfo_to_dict(server.dsn)["host"]))
        assert host != trap
    host.rmdir()


@as_root
def test_root_may_keep_the_data_where_only_root_can_go(tmp_path: Path, pg_bin_dir: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    base = closed / "home" / "pg"
    user = ServerUser.of(base / "data")
    with EmbeddedPostgres(base, bin_dir=pg_bin_dir) as server:
        assert not user.can_use(base / "data")  # else this proves nothing
        assert owner(postmaster(base)) == user.uid != 0
        query(server.dsn, "CREATE TABLE t AS SELECT g FROM generate_series(1, 100000) g")
        query(server.dsn, "CREATE DATABASE other")
        query(server.dsn, "CHECKPOINT")
        os.kill(postmaster(base), signal.SIGKILL)
        server.start()
        assert query(server.dsn, "SELECT count(*) FROM t") == 100000
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    shutil.rmtree(closed)


@as_root
@pytest.mark.parametrize("major", [17, 18])
def test_programs_that_the_servers_user_cannot_read_are_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, major: int
) -> None:
    package = bin_dir_of(major).parent.parent
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for folder in (package, package.with_name(package.name + ".libs")):
        if folder.exists():
            subprocess.run(["cp", "-a", folder, closed], check=True)
    with tempfile.TemporaryDirectory() as reachable:
        Path(reachable).chmod(0o755)
        cache = Path(reachable) / "cache"
        unsafe = Path(reachable) / "unsafe"
        unsafe.mkdir()
        unsafe.chmod(0o777)
        (cache / "partial").mkdir(parents=True)
        monkeypatch.setattr(binaries_module, "CACHE_FOLDERS", (unsafe, cache))
        for _ in range(2):
            with EmbeddedPostgres(tmp_path / "pg", bin_dir=closed / package.name / "pginstall" / "bin") as server:
                assert query(server.dsn, "SELECT 1") == 1
                program = Path(f"/proc/{postmaster(tmp_path / 'pg')}/cmdline").read_bytes().split(b"\0")[0]
                assert Path(os.fsdecode(program)).is_relative_to(cache)
        assert [path.name[:9] for path in cache.iterdir() if path.is_dir()] == ["postgres-"]
        assert list(unsafe.iterdir()) == []
    shutil.rmtree(closed)


@as_root
def test_a_normal_user_runs_the_server_and_root_joins_as_that_user(pg_bin_dir: Path) -> None:
    account = {"user": 1, "group": 1, "extra_groups": [], "cwd": "/", "env": {"PYTHONPATH": os.pathsep.join(sys.path)}}
    python = next(filter(lambda path: runs_stratalog(path, account), (sys.executable, "/usr/bin/python3")), None)
    if python is None:
        pytest.skip("another user cannot read this Python environment")
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 1, 1)
        base = Path(folder) / "pg"
        with user_process(base, pg_bin_dir, python=python, **account) as normal:
            dsn = ask(normal)
            assert owner(postmaster(base)) == 1
            with EmbeddedPostgres(base) as root:
                assert root.dsn == dsn
                assert ask(normal, "stop") == "False"
                os.kill(postmaster(base), signal.SIGKILL)
                root.start()
                assert owner(postmaster(base)) == 1


@as_root
def test_data_of_root_is_refused_with_the_command_that_repairs(pg_base: Path) -> None:
    os.chown(pg_base / "data", 0, 0)
    with pytest.raises(Unavailable, match="belongs to root") as refused:
        EmbeddedPostgres(pg_base).start()
    assert "chown" in refused.value.hint
