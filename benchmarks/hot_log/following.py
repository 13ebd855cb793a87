"""A sidecar that follows a home, as a process of its own, into a database of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from stratalog.hot.home import Home

STOP_TIMEOUT_S = 60
HEADER = "[hot]\nprune_lag_events = 0\n"


def new_database(server: str, name: str) -> str:
    """An empty database of that name on the server; its DSN."""
    with closing(psycopg.connect(server, autocommit=True)) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return make_conninfo(server, dbname=name)


def settle(server: str) -> None:
    """Have the server write what it holds back, so that it does not do so during what is measured next."""
    with closing(psycopg.connect(server, autocommit=True)) as connection:
        connection.execute("CHECKPOINT")


@contextmanager
def following(home: Path, dsn: str, settings: str = "") -> Iterator[None]:
    """Make the home, and follow it until the end of the block. `settings` are more lines of its section `hot`."""
    Home.open(home, create=True)
    (home / "stratalog.toml").write_text(HEADER + settings, encoding="utf-8")
    command = [sys.executable, "-m", "stratalog", "sidecar", "--home", str(home), "--dsn", dsn]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield
        if process.poll() is not None:
            raise SystemExit(f"the sidecar ended: {process.communicate()[1]}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_TIMEOUT_S)
