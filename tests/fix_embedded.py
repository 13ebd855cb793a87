"""Folders of embedded servers, processes that use them, and questions to them, for the tests of the launcher."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fix_postgres import bin_dir_of

from stratalog.warm.server import EmbeddedPostgres
from stratalog.warm.server_folder import ServerFolder

MAJORS = (15, 17, 18)

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
def pg_bin_dir(request: pytest.FixtureRequest) -> Path:
    return bin_dir_of(request.param)


@pytest.fixture(scope="session")
def pg_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Path]]:
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
def pg_base(tmp_path: Path, pg_bin_dir: Path, pg_clusters: Callable[[Path], Path]) -> Iterator[Path]:
    """A folder with a cluster of each version in turn; whatever server is left in it is stopped at the end."""
    folder = tmp_path / "pg"
    subprocess.run(["cp", "-a", pg_clusters(pg_bin_dir), folder], check=True)
    yield folder
    clean_up(folder)


@pytest.fixture
def pg_empty(tmp_path: Path) -> Iterator[Path]:
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
