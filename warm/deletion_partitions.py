"""Drops whole partitions of the warm tier: what stays moves out first, then DETACH CONCURRENTLY, then DROP.

    mark ─▶ move ─▶ detach ─▶ drop

- *mark* (a short transaction, after every transaction that stores events has ended): trajectories that arrive for these
  days from now on are strays.
- *move* (one transaction, under the locks on all heads of these days): the deletions that leave with the partition are
  judged and started; everything else (unfinished, held, not consolidated, not due) moves to the table for strays, and
  whatever any of these trajectories adds later goes there, too.
- *detach*, outside of a transaction: readers and writers go on. It waits for transactions that look at the database as
  it was before the move, whether they have read the partition yet or not: to them it would seem empty.
- *drop* (one transaction): holds are looked up once more, under the lock on them. What is held, and whatever no started
  deletion names, is kept as strays; then the table goes, with the marks on the heads and the ends of the deletions.

The row in `event_partitions` says how far it is and the catalog of Postgres whether it is attached, so a process that
is killed anywhere leaves a partition that `finish_drops` takes to its end. Nothing is invisible in between but rows
that are in the cold tier.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import psycopg

from stratalog.schemas.errors import Unavailable
from stratalog.schemas.statements import statements

from .database import STATEMENT_TIMEOUT_MS, Connection, answering
from .deletion import Tally, cancel, lock_out_holds

STRAGGLERS_MAX = 0.25
"""The share of a partition's events that may move out. Where more would stay, trajectories are deleted one by one."""
DETACH_TIMEOUT_MS = 600_000
"""How long a detachment waits for older transactions; the next call goes on waiting."""
SNAPSHOT_POLL_S = 0.05


class Partition(msgspec.Struct, frozen=True):
    """A partition that is over: its trajectories and events that are due, and those that stay."""

    name: str
    trajectories: int
    events: int
    staying_trajectories: int
    staying_events: int

    @property
    def droppable(self) -> bool:
        """Whether moving out what stays is less work than deleting what goes."""
        return self.staying_events <= STRAGGLERS_MAX * (self.events + self.staying_events)


def droppable(conn: Connection, now: dt.datetime) -> list[Partition]:
    """The partitions that would be dropped whole at `now`, by name."""
    with answering(), conn.transaction():
        conn.execute(statements("retention")["unlimited"])
        rows = conn.execute(statements("retention")["partitions"], {"now": now}).fetchall()
    return [partition for partition in (Partition(*row) for row in rows) if partition.droppable]


def drop_partitions(conn: Connection, now: dt.datetime, tally: Tally) -> list[str]:
    """Finish what was begun, then drop what is droppable; `conn` must commit by itself. Returns the names."""
    dropped = finish_drops(conn, now, tally)
    for partition in droppable(conn, now):
        mark(conn, partition.name)
        dropped += finish_drops(conn, now, tally)
    return dropped


def finish_drops(conn: Connection, now: dt.datetime, tally: Tally) -> list[str]:
    """Take partitions that are on their way out to their end, from wherever they stand."""
    with answering(), conn.transaction():
        rows = conn.execute(statements("deletions")["dropping"]).fetchall()
    for name, state in rows:
        if state == "marked":
            move(conn, name, now)
        detach(conn, name)
        drop(conn, name, tally)
    return [name for name, _ in rows]


def mark(conn: Connection, name: str) -> None:
    """Close a partition for trajectories that arrive from now on."""
    sql = statements("deletions")
    with answering(), _in_time(name), conn.transaction():
        conn.execute(statements("retention")["read_committed"])
        conn.execute(sql["wait_briefly"])
        conn.execute(sql["lock_partitions"])
        conn.execute(sql["mark_partition"], {"name": name})


def move(conn: Connection, name: str, now: dt.datetime) -> None:
    """Start the deletions that leave with a partition, and move everything else out of it."""
    sql = statements("deletions")
    values = {"name": name, "now": now}
    with answering(), conn.transaction():
        conn.execute(statements("retention")["read_committed"])
        conn.execute(statements("retention")["unlimited"])
        lock_out_holds(conn)
        conn.execute(sql["lock_heads_in"], values)
        conn.execute(sql["join_by_hash"])
        conn.execute(sql["start_in"], values)
        conn.execute(sql["move_stragglers"], values)
        conn.execute(sql["stray_heads_in"], values)
        conn.execute(sql["moved"], values)


def detach(conn: Connection, name: str) -> None:
    """Detach a partition, or end an interrupted detachment; raises `Unavailable` if readers do not end in time."""
    sql = statements("deletions")
    with answering(), _in_time(name):
        row = conn.execute(sql["attachment"], {"name": name}).fetchone()
        if row is None:
            return
        if not row[0]:  # ending an interrupted one waits for that by itself
            wait_for_older_snapshots(conn, name)
        command = conn.execute(sql["detach_command"], {"name": name, "pending": row[0]}).fetchone()
        assert command is not None
        conn.execute(sql["timeout"], {"ms": DETACH_TIMEOUT_MS})
        try:
            conn.execute(command[0].encode())
        finally:
            if not conn.closed:
                conn.execute(sql["timeout"], {"ms": STATEMENT_TIMEOUT_MS})


def wait_for_older_snapshots(conn: Connection, name: str) -> None:
    """Wait until nobody looks at the database as it was before now; raises `Unavailable` if that takes too long."""
    sql = statements("deletions")
    own = conn.execute(sql["own_transaction"]).fetchone()
    assert own is not None
    end = time.monotonic() + DETACH_TIMEOUT_MS / 1000
    while conn.execute(sql["older_snapshots"], {"xid": own[0]}).fetchone() != (0,):
        if time.monotonic() > end:
            raise _still_read(name)
        time.sleep(SNAPSHOT_POLL_S)


@contextmanager
def _in_time(name: str) -> Iterator[None]:
    """Say what a wait was for that took too long."""
    try:
        yield
    except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable) as error:
        raise _still_read(name) from error


def _still_read(name: str) -> Unavailable:
    return Unavailable(
        f"partition {name} is still being read by transactions that began before",
        hint="nothing is lost; run again when they have ended: stratalog retention apply",
    )


def drop(conn: Connection, name: str, tally: Tally) -> None:
    """Drop a detached partition, but for what is held by now; a hold wins until this commits."""
    sql = statements("deletions")
    values = {"name": name}
    with answering(), _in_time(name), conn.transaction():
        conn.execute(statements("retention")["read_committed"])
        conn.execute(statements("retention")["unlimited"])
        conn.execute(sql["wait_briefly"])
        lock_out_holds(conn)
        started = conn.execute(sql["started_in"], values).fetchall()
        conn.execute(sql["lock_heads"], {"ids": [id_ for _, id_ in started]})
        held = conn.execute(sql["held"], {"ids": [deletion_id for deletion_id, _ in started]}).fetchall()
        if held:
            cancel(conn, [(deletion_id, reason) for deletion_id, reason, _, _ in held])
        conn.execute(sql["join_by_hash"])
        conn.execute(sql["drop_partition"], values)
        conn.execute(sql["mark_heads_in"], values)
        done = conn.execute(sql["finish_in"], values).fetchall()
    for _, reason, tenant, policy in held:
        tally.add(tenant, policy, reason)
    for tenant, policy, events, size in done:
        tally.add(tenant, policy, "done", events, size)
