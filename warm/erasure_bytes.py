"""Makes the bytes of erased trajectories go from the files of Postgres.

An UPDATE leaves the old row in its page, and VACUUM only says that its place is free. So, once nobody looks at the
database as it was before, every table that had such a row is written anew (VACUUM FULL) and the old file removed. What
statistics had sampled is sampled anew. Of an embedded server the write-ahead log goes, too: it is switched and
checkpointed until no file is left that was written before; files are never used again (`wal_recycle` is off).

Out of reach, and said so in the receipt: the write-ahead log, replicas and backups of a server that is not ours, and
blocks that a file system or a disk has freed and not written again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import psycopg
from psycopg import sql as compose

from stratalog.schemas.errors import Corrupt, Unavailable
from stratalog.schemas.statements import statements

from . import erasure_ledger
from .database import STATEMENT_TIMEOUT_MS, Connection, answering, check_idle
from .places import PLACES

OLDER_TRANSACTIONS_S = 600.0
"""How long older transactions, which still see the old rows, are waited for."""
LOCK_TIMEOUT_MS = 120_000
WAL_ROUNDS_MAX = 50
POLL_S = 0.05

_SQL = statements("erasure_bytes")


class WarmGone(msgspec.Struct, frozen=True):
    """What was done: trajectories, the tables that were written anew, their bytes before and after, WAL files removed.

    `wal_files` is `None` where the server is not ours.
    """

    trajectories: tuple[uuid.UUID, ...] = ()
    tables: tuple[str, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    wal_files: int | None = None


def remove_bytes(conn: Connection, *, embedded: bool) -> WarmGone:
    """Make the bytes of all erased trajectories go from Postgres; does nothing when they have.

    Raises `Unavailable` where older transactions keep the old rows or a table stays locked: the same call goes on;
    `Corrupt` where something of them is still readable.
    """
    check_idle(conn)
    erased = erasure_ledger.warm_left(conn)
    if not erased:
        return WarmGone()
    _check_unreadable(conn, erased)
    tables = (*_partitions(conn, erased), *(table for place in PLACES for table in place.tables))
    with _committing_by_itself(conn):
        wait_for_older_transactions(conn)
        before = _size(conn, tables)
        for table in tables:
            _write_anew(conn, table)
        if embedded:
            _write_anew(conn, "pg_catalog.pg_statistic")
        after = _size(conn, tables)
        wal_files = remove_wal(conn) if embedded else None
    _check_unreadable(conn, erased)
    with answering(), conn.transaction():
        conn.execute(statements("erasure")["warm_gone"], {"ids": erased})
    return WarmGone(tuple(erased), tables, before, after, wal_files)


def unerased(conn: Connection, erased: Sequence[uuid.UUID]) -> list[tuple[str, uuid.UUID]]:
    """Where something of these is still readable in Postgres: what it is, and whose."""
    with answering(), conn.transaction():
        conn.execute(statements("retention")["unlimited"])
        return [found for place in PLACES for found in place.readable(conn, erased)]


def _check_unreadable(conn: Connection, erased: Sequence[uuid.UUID]) -> None:
    for what, id_ in unerased(conn, erased):
        raise Corrupt(f"trajectory {id_} is erased, but its {what} is readable", hint="run: stratalog erase verify")


def _partitions(conn: Connection, erased: Sequence[uuid.UUID]) -> tuple[str, ...]:
    with answering(), conn.transaction():
        rows = conn.execute(statements("erasure")["partitions_of"], {"ids": list(erased)})
        return tuple(name for (name,) in rows)


@contextmanager
def _committing_by_itself(conn: Connection) -> Iterator[None]:
    """VACUUM and CHECKPOINT run in no transaction; they take as long as they take, but wait for no lock for ever."""
    before = conn.autocommit
    conn.autocommit = True
    try:
        with answering():
            conn.execute(_SQL["statement_timeout"], {"ms": 0})
            conn.execute(_SQL["lock_timeout"], {"ms": LOCK_TIMEOUT_MS})
        try:
            yield
        finally:
            if not conn.closed:
                with answering():
                    conn.execute(_SQL["statement_timeout"], {"ms": STATEMENT_TIMEOUT_MS})
                    conn.execute(_SQL["lock_timeout"], {"ms": 0})
    finally:
        if not conn.closed:
            conn.autocommit = before


def wait_for_older_transactions(conn: Connection) -> None:
    """Wait until no transaction, here or on a replica that tells, sees rows as they were before now."""
    with answering():
        own = conn.execute(_SQL["own_transaction"]).fetchone()
    assert own is not None
    end = time.monotonic() + OLDER_TRANSACTIONS_S
    while True:
        with answering():
            row = conn.execute(_SQL["oldest_seen"], {"xid": own[0]}).fetchone()
        if row == (0,):
            return
        if time.monotonic() > end:
            raise Unavailable(
                "older transactions still see what was erased, so its rows cannot be removed",
                hint="nothing is lost; end them (pg_stat_activity, replication slots), then: stratalog erase finish",
            )
        time.sleep(POLL_S)


def _write_anew(conn: Connection, table: str) -> None:
    """Write a table and its indexes into new files, without dead rows; then sample its statistics anew."""
    name = compose.Identifier(*table.split("."))
    try:
        with answering():
            conn.execute(compose.SQL("VACUUM (FULL, ANALYZE) {}").format(name))
    except Unavailable as error:
        if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            raise Unavailable(
                f"{table} stays locked by another transaction, so it cannot be written anew",
                hint="nothing is lost; run again: stratalog erase finish",
            ) from error
        raise


def _size(conn: Connection, tables: Sequence[str]) -> int:
    with answering():
        row = conn.execute(_SQL["size"], {"names": list(tables)}).fetchone()
    assert row is not None
    size: int = row[0]
    return size


def remove_wal(conn: Connection) -> int:
    """Write and checkpoint until no write-ahead log file is left that was there before; returns how many went.

    Only on a server that is ours: it needs a superuser. `conn` must commit by itself.
    """
    with answering():
        before = {name for (name,) in conn.execute(_SQL["wal_files"])}
        for _ in range(WAL_ROUNDS_MAX):
            conn.execute(_SQL["something"])
            conn.execute(_SQL["switch_wal"])
            conn.execute(b"CHECKPOINT")
            left = before & {name for (name,) in conn.execute(_SQL["wal_files"])}
            if not left:
                return len(before)
    raise Unavailable(
        f"the write-ahead log still has {len(left)} files from before",
        hint="a replication slot or wal_keep_size keeps them; remove that, then: stratalog erase finish",
    )
