"""Content that the sweep has condemned, and how those who put content keep it from being deleted."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.schemas.statements import statements

from .database import Connection, answering


def spare(conn: Connection, pieces: Iterable[tuple[str, str]]) -> int:
    """Take pieces of content (tenant, SHA-256 in hex) off the list of the condemned; returns how many were on it.

    Call it before `put`, outside a transaction. After it a sweep cannot delete them before the grace has passed anew; a
    deletion that is going on is waited for, and `put` then stores the content again.
    """
    known = sorted(pieces)
    values = {"tenants": [tenant for tenant, _ in known], "digests": [bytes.fromhex(sha256) for _, sha256 in known]}
    with answering(), conn.transaction():
        return conn.execute(statements("sweep")["spare"], values).rowcount
