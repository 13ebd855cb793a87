"""Brings the database schema up to date: numbered SQL files, each applied once, whole or not at all.

A file `NNN_name.sql` runs in a transaction of its own together with the row that records its number, name and SHA-256,
so a crash leaves the schema before or after it, and running again goes on from there. An advisory lock lets one process
migrate at a time; the others wait, then find nothing to do. Nothing is guessed: if a file was changed after it was
applied, or the database knows numbers that this version does not, `MigrationNeeded` is raised and nothing is done.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Traversable
from importlib.resources import files
from typing import TYPE_CHECKING

from stratalog.schemas.errors import Invalid, MigrationNeeded, Unavailable
from stratalog.schemas.extras import require

if TYPE_CHECKING:
    import psycopg

SERVER_VERSION_MIN = 150000
FILE_NAME = re.compile(r"(\d{3})_[a-z0-9_]+\.sql")
# A file that ends the transaction itself would break the promise of "whole or not at all".
# BEGIN and END alone on a line belong to the body of a function.
TRANSACTION_COMMAND = re.compile(
    rb"^[ \t]*(BEGIN([ \t]+(WORK|TRANSACTION))?[ \t]*|(COMMIT|ROLLBACK|START[ \t]+TRANSACTION)\b[^;\n]*);", re.I | re.M
)
# Any number will do, as long as nothing else in the database locks it.
LOCK_KEY = 7_236_181_440_015


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered SQL file."""

    number: int
    name: str
    text: bytes

    @property
    def sha256(self) -> bytes:
        return hashlib.sha256(self.text).digest()


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """The names of the files that the database has, and of those that it still lacks, in order."""

    applied: tuple[str, ...]
    pending: tuple[str, ...]


def default_folder() -> Traversable:
    """Return the folder of the migrations that belong to this version."""
    return files("stratalog.schemas") / "sql" / "warm"


def read_migrations(folder: Traversable) -> list[Migration]:
    """Return the migrations in `folder` by number; `Invalid` unless they are named well and numbered 1, 2, 3, …"""
    found: list[Migration] = []
    for file in folder.iterdir():
        if not file.name.endswith(".sql"):
            continue
        matched = FILE_NAME.fullmatch(file.name)
        if matched is None:
            raise Invalid(f"{file.name} is no name for a migration", hint="name it like 007_what_it_does.sql")
        text = file.read_bytes()
        if TRANSACTION_COMMAND.search(text):
            raise Invalid(f"{file.name} begins or ends a transaction", hint="each file is run in one already")
        found.append(Migration(int(matched[1]), file.name.removesuffix(".sql"), text))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        names = ", ".join(migration.name for migration in found)
        raise Invalid(f"migrations are not numbered 1, 2, 3, …: {names}", hint="rename the newest file")
    return found


def check_server(conn: psycopg.Connection[object]) -> None:
    """Raise `Invalid` for a server older than PostgreSQL 15, or a database that cannot hold every text."""
    version = conn.info.server_version
    if version < SERVER_VERSION_MIN:
        raise Invalid(
            f"the server is PostgreSQL {version // 10000}, stratalog needs {SERVER_VERSION_MIN // 10000} or newer",
            hint="upgrade it, or leave out the DSN to use the embedded one",
        )
    encoding = conn.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise Invalid(
            f"the database is encoded in {encoding}, stratalog needs UTF8",
            hint="make one: CREATE DATABASE stratalog ENCODING 'UTF8' TEMPLATE template0",
        )


def status(conn: psycopg.Connection[object], folder: Traversable | None = None) -> MigrationStatus:
    """Return what is applied and what is pending, without changing anything; `MigrationNeeded` if they contradict."""
    known = read_migrations(folder or default_folder())
    with _translated(), conn.transaction():
        count = _count_applied(known, _recorded(conn))
    names = tuple(migration.name for migration in known)
    return MigrationStatus(names[:count], names[count:])


def require_current(conn: psycopg.Connection[object], folder: Traversable | None = None) -> None:
    """Raise `MigrationNeeded` unless the database has exactly the schema of this version."""
    pending = status(conn, folder).pending
    if pending:
        raise MigrationNeeded(f"the database lacks {len(pending)} migrations: {', '.join(pending)}")


def migrate(conn: psycopg.Connection[object], folder: Traversable | None = None) -> list[str]:
    """Apply what is pending, and return the names of what this call applied.

    `conn` must be outside a transaction; whether it commits by itself does not matter. Raises `MigrationNeeded` as
    described above, `Invalid` for an unfit server or a file that fails, `Unavailable` if the connection is lost.
    """
    psycopg = require("psycopg", "warm")
    check_server(conn)
    if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        raise Invalid("migrate needs a connection outside a transaction", hint="commit or roll back first")
    known = read_migrations(folder or default_folder())
    done: list[str] = []
    while True:
        with _translated(), conn.transaction():
            migration = _next(conn, known)
            if migration is None:
                return done
            _apply(conn, migration)
        done.append(migration.name)


def _next(conn: psycopg.Connection[object], known: Sequence[Migration]) -> Migration | None:
    """Lock out other migrators until the transaction ends, and return the first pending migration."""
    # A role's time limits are meant for queries.
    conn.execute("SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0")
    # The files name their objects without the schema.
    conn.execute("SET LOCAL search_path = stratalog")
    conn.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK_KEY])
    count = _count_applied(known, _recorded(conn))
    return known[count] if count < len(known) else None


def _recorded(conn: psycopg.Connection[object]) -> list[tuple[int, str, bytes]]:
    psycopg = require("psycopg", "warm")
    with conn.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
        there = cursor.execute("SELECT to_regclass('stratalog.migrations') IS NOT NULL").fetchone()
        if there != (True,):
            return []
        return list(cursor.execute("SELECT number, name, sha256 FROM stratalog.migrations ORDER BY number").fetchall())


def _count_applied(known: Sequence[Migration], recorded: Sequence[tuple[int, str, bytes]]) -> int:
    """Return how many of the known migrations are recorded, after checking that these are the same ones."""
    if len(recorded) > len(known):
        newer = ", ".join(name for _, name, _ in recorded[len(known) :])
        raise MigrationNeeded(
            f"the database is newer than this version of stratalog: it has {newer}",
            hint="upgrade: pip install --upgrade stratalog",
        )
    for migration, (number, name, sha256) in zip(known, recorded, strict=False):
        if number != migration.number or sha256 != migration.sha256:
            raise MigrationNeeded(
                f"the database was migrated with another {name} than this version has ({migration.name})",
                hint="install the version of stratalog that made this database",
            )
    return len(recorded)


def _apply(conn: psycopg.Connection[object], migration: Migration) -> None:
    psycopg = require("psycopg", "warm")
    try:
        if migration.number == 1:
            conn.execute((files("stratalog.schemas") / "sql" / "migrations.sql").read_bytes())
        conn.execute(migration.text)
        conn.execute(
            "INSERT INTO stratalog.migrations (number, name, sha256) VALUES (%s, %s, %s)",
            [migration.number, migration.name, migration.sha256],
        )
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        raise Invalid(
            f"migration {migration.name} failed, nothing of it was done: {error}",
            hint="migrate as the owner of the database, to which nothing else has added to the schema stratalog",
        ) from error


@contextmanager
def _translated() -> Iterator[None]:
    psycopg = require("psycopg", "warm")
    try:
        yield
    except psycopg.OperationalError as error:
        raise Unavailable(f"Postgres did not answer while migrating: {error}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise Invalid(
            f"this role may not see the migrations: {error}",
            hint="GRANT USAGE ON SCHEMA stratalog and SELECT ON stratalog.migrations to it",
        ) from error
