"""What the policies in force would do: a dry run that changes nothing, from one view of the database.

Each tier has a clock of its own, but for the hot logs, which forget by a rule of their own (`hot`). What no clock will
reach is counted, too, with the reason.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec

from stratalog.schemas.statements import statements

from . import retention
from .database import Connection, answering, check_idle
from .deletion_partitions import Partition, droppable

EXECUTED_TIERS = ("warm", "cold", "bulky")


class Line(msgspec.Struct, frozen=True):
    """What one policy asks for in one tier of one tenant. `keeps` says what stands against it, empty if nothing does.

    `bytes` are bodies and projections as stored, `None` where that is not known before it is done. `matters` are those
    that hold it, or that hold a branch of it.
    """

    tier: str
    tenant: str
    policy: str
    version: int
    after_us: int
    keeps: str
    matters: tuple[str, ...]
    trajectories: int
    events: int
    bytes: int | None

    @property
    def goes(self) -> bool:
        """Whether `apply` would delete it."""
        return not self.keeps and self.tier in EXECUTED_TIERS


class Upcoming(msgspec.Struct, frozen=True):
    """What comes next: the first moment, and how many trajectories become due within 7 and 30 days, and in all."""

    tier: str
    tenant: str
    policy: str
    version: int
    next_at: dt.datetime
    within_7_days: int
    within_30_days: int
    trajectories: int


class Never(msgspec.Struct, frozen=True):
    """Trajectories of a tenant that no clock will reach as things stand, and why."""

    tenant: str
    why: str
    trajectories: int


class Plan(msgspec.Struct, frozen=True):
    """The dry run. `version` is `None` as long as nothing was loaded; then nothing is deleted."""

    as_of: dt.datetime
    version: int | None
    sha256: str
    """Of the file that was loaded as this version, hexadecimal; empty without one."""
    policies: int
    due: tuple[Line, ...]
    upcoming: tuple[Upcoming, ...]
    partitions: tuple[Partition, ...]
    """Those that would be dropped whole."""
    never: tuple[Never, ...] = ()
    hot: str = retention.HOT_RULE
    executed_tiers: tuple[str, ...] = EXECUTED_TIERS


def plan(conn: Connection, now: dt.datetime | None = None) -> Plan:
    """What `apply` would do at `now` (by default the server's time), and what keeps the rest."""
    check_idle(conn)
    sql = statements("retention")
    with answering(), conn.transaction():
        conn.execute(sql["one_view"])
        conn.execute(sql["unlimited"])
        moment = read_now(conn, now)
        version = retention.newest(conn)
        policies = conn.execute(sql["policies"]).fetchall()
        values = {"now": moment}
        warm = [_line("warm", *row) for row in conn.execute(sql["plan_warm"], values)]
        lower = [_line(*row, None) for row in conn.execute(sql["plan_lower"], values)]
        upcoming = [_upcoming(row) for row in conn.execute(sql["upcoming"], values)]
        never = [Never(*row) for row in conn.execute(sql["never"])]
        partitions = droppable(conn, moment)
    return Plan(
        moment,
        None if version is None else version.version,
        "" if version is None else version.sha256.hex(),
        len(policies),
        (*warm, *lower),
        tuple(upcoming),
        tuple(partitions),
        tuple(never),
    )


def read_now(conn: Connection, now: dt.datetime | None) -> dt.datetime:
    """`now`, by default the server's time."""
    row = conn.execute(statements("retention")["now"], {"now": now}).fetchone()
    assert row is not None
    moment: dt.datetime = row[0]
    return moment


class Growth(msgspec.Struct, frozen=True):
    """How fast storage grows: bytes of the database, bytes a day of both tiers in the last week; policies in force."""

    database_bytes: int
    warm_bytes_per_day: int
    cold_bytes_per_day: int
    policies: int


def growth(conn: Connection) -> Growth:
    """For `stratalog doctor`."""
    with answering(), conn.transaction():
        row = conn.execute(statements("retention")["growth"]).fetchone()
    assert row is not None
    size, warm, cold, policies = row
    return Growth(size, warm // 7, cold // 7, policies)


def _line(tier: str, *row: Any) -> Line:
    tenant, version, policy, after_us, keeps, matters, trajectories, events, size = row
    return Line(tier, tenant, policy, version, after_us, keeps or "", tuple(matters or ()), trajectories, events, size)


def _upcoming(row: tuple[Any, ...]) -> Upcoming:
    tier, tenant, version, *rest = row
    policy, *counts = rest
    return Upcoming(tier, tenant, policy, version, *counts)
