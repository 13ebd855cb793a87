"""Content that is about to be deleted, by the sweep or by an erasure, and how those who put content keep it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import psycopg

from stratalog.schemas.statements import statements

from .database import Connection, answering


@contextlib.contextmanager
def putting(conn: Connection, pieces: Iterable[tuple[str, str]]) -> Iterator[None]:
    """Put pieces of content (tenant, SHA-256 in hex) in this block, and commit the events that refer to them, too.

    Nobody deletes them from here until their events are seen: a sweep counts its grace anew, an erasure waits for the
    end of the block, or notices that they were put after it had looked. `conn` must be outside a transaction.
    """
    with answering(), conn.transaction():
        conn.execute(statements("sweep")["begin_putting"])
    try:
        spare(conn, pieces)
        yield
    finally:
        # With a broken connection the lock is gone, and so is the transaction that would have committed the events.
        if not conn.closed:
            with contextlib.suppress(psycopg.Error), conn.transaction():
                conn.execute(statements("sweep")["end_putting"])


def spare(conn: Connection, pieces: Iterable[tuple[str, str]]) -> int:
    """Take pieces of content (tenant, SHA-256 in hex) off the list of the condemned; returns how many were on it.

    Outside a transaction. After it a sweep cannot delete them before the grace has passed anew; a deletion that is
    going on is waited for, and whoever puts the content then stores it again.
    """
    known = sorted(pieces)
    values = {"tenants": [tenant for tenant, _ in known], "digests": [bytes.fromhex(sha256) for _, sha256 in known]}
    with answering(), conn.transaction():
        conn.execute(statements("sweep")["note_put"], values)
        return conn.execute(statements("sweep")["spare"], values).rowcount
