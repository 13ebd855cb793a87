"""Connections to Postgres as all of stratalog uses them, and one place that translates its errors.

Every connection speaks of the schema `stratalog` and of UTC, gives up on statements that take too long and on
transactions that are left open, and commits durably. Nothing is committed unless the caller says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from stratalog.schemas.errors import Invalid, StratalogError, Unavailable
from stratalog.schemas.statements import statements

from . import migrate

CONNECT_TIMEOUT_S = 10
STATEMENT_TIMEOUT_MS = 60_000
IDLE_TIMEOUT_MS = 60_000

Connection = psycopg.Connection[tuple[Any, ...]]


def connect(dsn: str, *, check: bool = True, statement_timeout_ms: int = STATEMENT_TIMEOUT_MS) -> Connection:
    """Connect; `check` also looks at the version of the server and of the schema.

    Raises `Unavailable` where no server answers, `Invalid` for one that is too old or a DSN that is none, and
    `MigrationNeeded` where the schema is not that of this version.
    """
    try:
        conn = psycopg.connect(
            dsn, connect_timeout=CONNECT_TIMEOUT_S, application_name="stratalog", client_encoding="utf8"
        )
    except psycopg.OperationalError as error:
        raise Unavailable(f"Postgres does not answer: {_line(error)}") from error
    except psycopg.Error as error:
        raise Invalid(f"not a DSN: {_line(error)}", hint="write it like postgresql://user@host:5432/name") from error
    try:
        with answering():
            conn.execute(
                statements("session")["prepare_session"],
                {"statement_timeout_ms": statement_timeout_ms, "idle_timeout_ms": IDLE_TIMEOUT_MS},
            )
            conn.commit()
        if check:
            migrate.check_server(conn)
            migrate.require_current(conn)
    except BaseException:
        conn.close()
        raise
    return conn


@contextmanager
def answering() -> Iterator[None]:
    """Translate the errors of Postgres: `Unavailable` where trying again may help, else an error that says why not."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction) as error:
        raise Unavailable(f"Postgres did not answer: {_line(error)}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise Invalid(f"Postgres does not allow this role to do that: {_line(error)}") from error
    except psycopg.Error as error:
        raise StratalogError(f"Postgres refused: {_line(error)}") from error


def check_idle(conn: Connection) -> None:
    """Raise `Invalid` inside a transaction: what must be committed at its end would not be."""
    if conn.info.transaction_status not in (
        psycopg.pq.TransactionStatus.IDLE,
        psycopg.pq.TransactionStatus.UNKNOWN,
    ):
        raise Invalid("this needs a connection outside a transaction", hint="commit or roll back first")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
