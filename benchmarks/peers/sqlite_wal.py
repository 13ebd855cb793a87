"""SQLite with a write-ahead log that is synced at every commit; threads take turns at one connection."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from harness.driven import Driven
from request import WARM_UP_S, answer, read_request


def main() -> None:
    """Measure."""
    request = read_request()
    records = [os.urandom(size) for size in request.record_bytes]
    lock = threading.Lock()
    path = Path(request.folder) / "sqlite.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS events (lsn INTEGER PRIMARY KEY, record BLOB NOT NULL)")

        def step() -> None:
            for record in records:
                with lock:
                    connection.execute("INSERT INTO events (record) VALUES (?)", (record,))

        Driven().drive_threads([step] * request.appenders, WARM_UP_S)
        driven = Driven()
        driven.drive_threads([step] * request.appenders, request.seconds)
    answer(driven, version=sqlite3.sqlite_version)


if __name__ == "__main__":
    main()
