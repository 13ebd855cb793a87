"""A warm tier with trajectories that have ended long ago and are in the cold tier, and policies for it."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any, Literal

import psycopg
from fix_cold import ColdBench

from stratalog.warm import hold, retention
from stratalog.warm.database import Connection, connect
from stratalog.warm.retention_apply import Applied, apply
from stratalog.warm.retention_plan import Plan, plan

WEEK = '[[policy]]\nname = "week"\nwarm = "7d"\n'
JANUARY = "trajectory_events_202501"


class Crash(BaseException):
    """Not an Exception, so that nothing on the way may handle it."""


class Hooked(psycopg.Connection[tuple[Any, ...]]):
    """Calls `hook` with each statement, before and after it is executed."""

    hook: Callable[[bytes, Literal["before", "after"]], None]

    def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
        self.hook(query, "before")
        found = super().execute(query, *arguments, **options)
        self.hook(query, "after")
        return found


def hooked(conn: Connection, hook: Callable[[bytes, Literal["before", "after"]], None]) -> Connection:
    """The same connection, watched."""
    conn.__class__ = Hooked
    conn.hook = hook  # type: ignore[attr-defined]
    return conn


def load(bench: ColdBench, text: str = WEEK) -> int:
    """Put policies into force; returns the version."""
    with closing(bench.connect()) as conn:
        return retention.load(conn, retention.parse_policies(text), by="tester")[0].version


def run_apply(bench: ColdBench, now: dt.datetime | None = None) -> Applied:
    """Apply on a connection of its own."""
    with closing(bench.connect()) as conn:
        return apply(conn, now)


def make_plan(bench: ColdBench, now: dt.datetime | None = None) -> Plan:
    """Plan on a connection of its own."""
    with closing(bench.connect()) as conn:
        return plan(conn, now)


def place(bench: ColdBench, matter: str, **scope: Any) -> hold.Placed:
    """Place a hold."""
    with closing(bench.connect()) as conn:
        return hold.place(conn, matter, hold.Scope(**scope), by="tester", reason="because")


def rows(bench: ColdBench, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    with closing(connect(bench.dsn)) as conn:
        return conn.execute(query.encode(), values).fetchall()


def events_here(bench: ColdBench) -> dict[uuid.UUID, int]:
    """How many events of each trajectory are in the warm tier; those without any are left out."""
    return dict(rows(bench, "SELECT trajectory_id, count(*) FROM all_events GROUP BY 1"))  # type: ignore[arg-type]


def deletions(bench: ColdBench) -> dict[str, int]:
    """How many deletions are in each state."""
    return dict(rows(bench, "SELECT state, count(*) FROM deletions GROUP BY 1"))  # type: ignore[arg-type]


def partitions(bench: ColdBench) -> set[str]:
    """The partitions that are attached."""
    query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'trajectory_events'::regclass"
    return {name for (name,) in rows(bench, query)}
