"""Executes the policies in force in the warm tier: plans deletions, drops partitions that may go whole, then the rest.

The tiers below come after it (`cold.retention`). One process at a time; what an earlier one has left is finished,
whatever the policies say by now: a partition that is on its way out, and deletions that were planned (they are judged
again). Without a policy nothing is planned.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from stratalog.schemas.errors import Locked
from stratalog.schemas.statements import statements

from .database import Connection, answering, check_idle
from .deletion import Share, Tally, execute_planned, plan_deletions
from .deletion_partitions import drop_partitions
from .retention_plan import Line, plan, read_now


class Applied(msgspec.Struct, frozen=True):
    """What was done in the warm tier. `kept` is what is due in any tier and something keeps: holds first of all."""

    as_of: dt.datetime
    version: int | None
    planned: int
    shares: tuple[Share, ...]
    partitions: tuple[str, ...]
    kept: tuple[Line, ...]

    @property
    def trajectories(self) -> int:
        """How many have left."""
        return sum(share.trajectories for share in self.shares if share.outcome == "done")

    @property
    def events(self) -> int:
        """How many events have left."""
        return sum(share.events for share in self.shares if share.outcome == "done")

    @property
    def bytes(self) -> int:
        """Bodies and projections as stored."""
        return sum(share.bytes for share in self.shares if share.outcome == "done")


def apply(conn: Connection, now: dt.datetime | None = None) -> Applied:
    """Bring the warm tier to what the policies say at `now` (by default the server's time).

    Raises `Locked` while another process does it, `Unavailable` where Postgres does not answer or older transactions
    keep a partition: what was done until then stays done, and the same call goes on.
    """
    check_idle(conn)
    with _alone(conn):
        with answering(), conn.transaction():
            moment = read_now(conn, now)
        tally = Tally()
        planned = plan_deletions(conn, moment)
        partitions = drop_partitions(conn, moment, tally)
        execute_planned(conn, moment, tally)
        left = plan(conn, moment)
    kept = tuple(line for line in left.due if line.keeps)
    return Applied(moment, left.version, planned, tally.shares(), tuple(partitions), kept)


@contextmanager
def _alone(conn: Connection) -> Iterator[None]:
    """The lock on applying, and a connection that commits by itself, which DETACH CONCURRENTLY needs."""
    sql = statements("deletions")
    committed_by_itself = conn.autocommit
    conn.autocommit = True
    try:
        with answering():
            locked = conn.execute(sql["lock"]).fetchone()
        if locked != (True,):
            raise Locked("another process applies the policies", hint="wait for it to end, then run again")
        try:
            yield
        finally:
            if not conn.closed:
                with answering():
                    conn.execute(sql["unlock"])
    finally:
        if not conn.closed:
            conn.autocommit = committed_by_itself
