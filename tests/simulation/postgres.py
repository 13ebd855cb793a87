"""A Postgres in memory: transactions over tables of rows, row locks, restarts, connections that break, lost replies.

It understands the statements of `schemas/sql/queries/` by their text, so the product's own ledger, ingest, quarantine,
plan and consolidation run on it unchanged. Isolation is READ COMMITTED. A statement that would have to wait for a lock
fails as one that ran into its timeout does: the one who holds the lock lies lower on the stack and cannot go on first.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg

from stratalog.schemas.errors import Unavailable

if TYPE_CHECKING:
    from .world import Process, World

TABLES = ("cursor", "head", "event", "lease", "seals", "quarantine", "run", "item")
Row = Any
Handler = Callable[["Transaction", dict[str, Any]], "list[tuple[Any, ...]] | int"]


class Result:
    """What a statement returns."""

    def __init__(self, found: list[tuple[Any, ...]] | int) -> None:
        self._rows = [] if isinstance(found, int) else found
        self.rowcount = found if isinstance(found, int) else len(found)

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)


class Transaction:
    """Sees what is committed and what it wrote itself."""

    def __init__(self, postgres: SimPostgres, connection: SimConnection) -> None:
        self.postgres = postgres
        self.connection = connection
        self.wrote: dict[str, dict[Any, Row]] = {}
        self.after_commit: list[Callable[[], None]] = []

    def get(self, table: str, key: Any) -> Row:
        """A row, or `None`."""
        wrote = self.wrote.get(table)
        if wrote is not None and key in wrote:
            return wrote[key]
        return self.postgres.tables[table].get(key)

    def put(self, table: str, key: Any, row: Row) -> None:
        """Write a row; `None` deletes it."""
        self.wrote.setdefault(table, {})[key] = row

    def rows(self, table: str) -> Iterator[tuple[Any, Row]]:
        """All rows of a table."""
        wrote = self.wrote.get(table, {})
        for key, row in self.postgres.tables[table].items():
            if key not in wrote:
                yield key, row
        for key, row in wrote.items():
            if row is not None:
                yield key, row

    def quarantined(self, trajectory_id: Any) -> list[tuple[int, dict[str, Any]]]:
        """The quarantine rows of a trajectory with their ids, in order of sequence number and id."""
        known = self.postgres.quarantine_of.get(trajectory_id, ())
        new = [
            number
            for number, row in self.wrote.get("quarantine", {}).items()
            if row["trajectory_id"] == trajectory_id and number not in known
        ]
        found = [(number, self.get("quarantine", number)) for number in (*known, *new)]
        return sorted(found, key=lambda entry: (entry[1]["sequence_number"], entry[0]))

    def lock(self, table: str, key: Any, *, share: bool = False) -> None:
        """Lock a row until the end; fails where somebody else has it."""
        holders = self.postgres.locks.setdefault((table, key), {})
        if any(holder is not self and not (share and shared) for holder, shared in holders.items()):
            raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        holders[self] = share and holders.get(self, True)


class SimConnection:
    """A session of one process."""

    def __init__(self, postgres: SimPostgres, process: Process) -> None:
        self.postgres = postgres
        self.process = process
        self.closed = False
        self.holds_advisory = False
        self._generation = postgres.generation
        self._transaction: Transaction | None = None

    @property
    def info(self) -> Any:
        """As `check_idle` reads it."""
        statuses = psycopg.pq.TransactionStatus
        return SimpleNamespace(transaction_status=statuses.IDLE if self._transaction is None else statuses.INTRANS)

    def execute(self, statement: bytes | Handler, parameters: dict[str, Any] | None = None) -> Result:
        """Run a statement of the product, or a handler of ours where the product has none yet."""
        transaction = self._transaction
        assert transaction is not None, "a statement outside a transaction"
        self.postgres.world.point("statement")
        self._check()
        handler = statement if callable(statement) else self.postgres.handlers[statement]
        return Result(handler(transaction, parameters or {}))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction, as psycopg has it."""
        self._check()
        transaction = self._transaction = Transaction(self.postgres, self)
        try:
            yield
        except psycopg.Rollback:
            self._end(transaction)
        except BaseException:
            self._end(transaction)
            raise
        else:
            try:
                self._commit(transaction)
            finally:
                self._end(transaction)

    def rollback(self) -> None:
        """Leave the transaction that is open, if one is."""
        self._check()
        if self._transaction is not None:
            self._end(self._transaction)

    def close(self) -> None:
        """End the session."""
        self.abandon()

    def abandon(self) -> None:
        """The session is over, whatever it was doing."""
        if not self.closed:
            self.closed = True
            self.holds_advisory = False
            if self._transaction is not None:
                self._end(self._transaction)

    def _check(self) -> None:
        postgres = self.postgres
        if not postgres.up or self._generation != postgres.generation or not self.process.reachable():
            self.abandon()
        if self.closed:
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    def _commit(self, transaction: Transaction) -> None:
        postgres, world = self.postgres, self.postgres.world
        world.point("COMMIT")
        self._check()
        lost = bool(transaction.wrote) and world.chance(world.profile.lost_reply)
        if lost and world.chance(0.5):
            world.tell(self.process.name, "the connection breaks before COMMIT arrives")
            self.abandon()
            self._check()
        postgres.apply(transaction)
        self._end(transaction)
        if lost:
            world.tell(self.process.name, "the reply to COMMIT is lost")
            self.abandon()
        else:
            world.point("reply to COMMIT")
        self._check()

    def _end(self, transaction: Transaction) -> None:
        if self._transaction is transaction:
            self._transaction = None
        locks = self.postgres.locks
        for key in [key for key, holders in locks.items() if transaction in holders]:
            holders = locks[key]
            del holders[transaction]
            if not holders:
                del locks[key]


class SimPostgres:
    """The server; what is committed survives its restarts."""

    def __init__(self, world: World) -> None:
        from .statements import HANDLERS

        self.world = world
        self.handlers = HANDLERS
        self.tables: dict[str, dict[Any, Row]] = {name: {} for name in TABLES}
        self.quarantine_of: dict[Any, list[int]] = {}
        self.quarantine_at: dict[Any, int] = {}
        self.events_of: dict[Any, list[int]] = {}
        self.locks: dict[tuple[str, Any], dict[Transaction, bool]] = {}
        self.up = True
        self.generation = 0
        self.last_quarantine_id = 0
        self.no_claims_before_us = 0

    def connect(self, process: Process) -> SimConnection:
        """A new session; raises `Unavailable`."""
        self.world.point("connect")
        if not self.up or not process.reachable():
            raise Unavailable("Postgres does not answer")
        connection = SimConnection(self, process)
        process.connections.append(connection)
        return connection

    def stop(self) -> None:
        """Crash: every session ends, what is not committed is gone."""
        self.up = False
        self.generation += 1
        self.locks.clear()

    def start(self, lease_us: int) -> None:
        """Come back; no lease is granted for one lease time, because renewals may have been missed."""
        self.up = True
        self.no_claims_before_us = self.world.clock.now_us + lease_us

    def apply(self, transaction: Transaction) -> None:
        """Commit: what was written becomes what everybody sees, and is checked."""
        self.world.oracle.committing(transaction)
        for table, rows in transaction.wrote.items():
            base = self.tables[table]
            for key, row in rows.items():
                if row is None:
                    base.pop(key, None)
                else:
                    base[key] = row
                    if table == "quarantine":
                        self._index_quarantine(key, row)
                    elif table == "event":
                        known = self.events_of.setdefault(key[0], [])
                        if key[1] not in known:
                            bisect.insort(known, key[1])
        for call in transaction.after_commit:
            call()

    def _index_quarantine(self, number: int, row: Row) -> None:
        self.quarantine_at[row["log_id"], row["lsn"]] = number
        numbers = self.quarantine_of.setdefault(row["trajectory_id"], [])
        if number not in numbers:
            numbers.append(number)

    def advisory_held(self) -> bool:
        """Whether a live session holds the consolidation's lock."""
        return any(
            connection.holds_advisory and not connection.closed and connection._generation == self.generation
            for connection in self.sessions
        )

    @property
    def sessions(self) -> list[SimConnection]:
        """All sessions of living processes."""
        return [connection for process in self.processes() for connection in process.connections]

    def processes(self) -> list[Process]:
        """The processes that live; set by the scheduler."""
        return []
