"""Reading the ledger of erasures: who asked, how far each place has followed, and what other places have to do.

The ledger is a list in the order of `place`; nothing is ever taken from it. A hot log follows it from where it stands
(`log_erasures`); a log that cannot be reached stays behind, visibly, and so does the receipt of the hot tier.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Sequence

import msgspec

from stratalog.schemas.errors import Invalid, NotFound
from stratalog.schemas.statements import statements

from . import hold
from .database import Connection, answering, check_idle

TRAJECTORIES_PER_STEP = 1_000
"""How many a log is asked to erase at once."""


class Pending(msgspec.Struct, frozen=True):
    """What a log still has to erase, and the place in the ledger where it stands afterwards."""

    place: int
    trajectories: tuple[uuid.UUID, ...]


class Request(msgspec.Struct, frozen=True):
    """A request and how far it has got; the numbers count trajectories."""

    erasure_id: int
    kind: str
    tenant: str | None
    requested_by: str
    reason: str
    requested_at: dt.datetime
    trajectories: int
    unreadable: int
    held: int
    warm_gone: int
    cold_gone: int
    place: int
    """The last place in the ledger that it has; a log that stands there or beyond has nothing of it."""
    receipts: list[str]
    """The tiers that have given one."""

    @property
    def open(self) -> int:
        """How many are not unreadable yet: held, or asked for and not looked at."""
        return self.trajectories - self.unreadable


class Item(msgspec.Struct, frozen=True):
    """One trajectory of a request. `erased_by` is the request that was first; the times say since when it is gone."""

    trajectory_id: uuid.UUID
    tenant: str
    state: str
    matters: tuple[str, ...]
    erased_by: int | None
    erased_at: dt.datetime | None
    warm_gone_at: dt.datetime | None
    cold_gone_at: dt.datetime | None


class LogBehind(msgspec.Struct, frozen=True):
    """A log that has not followed the ledger so far; `seen_at` is when something last came from it."""

    log_id: uuid.UUID
    place: int
    seen_at: dt.datetime


class Entry(msgspec.Struct, frozen=True):
    """One line of the ledger as it is kept outside the database."""

    trajectory_id: uuid.UUID
    tenant: str
    erased_at: dt.datetime
    reason: str
    requested_by: str


def requests(conn: Connection, erasure_id: int | None = None) -> list[Request]:
    """All requests, oldest first, or one of them; raises `NotFound` for a number that is none."""
    with answering(), conn.transaction():
        rows = conn.execute(statements("erasure")["entries"], {"erasure_id": erasure_id}).fetchall()
    if erasure_id is not None and not rows:
        raise NotFound(f"there is no erasure {erasure_id}", hint="list them: stratalog erase list")
    return [Request(*row) for row in rows]


def items(conn: Connection, erasure_id: int) -> list[Item]:
    """What a request names, by id."""
    with answering(), conn.transaction():
        rows = conn.execute(statements("erasure")["items"], {"erasure_id": erasure_id}).fetchall()
    return [Item(row[0], row[1], row[2], tuple(row[3]), *row[4:]) for row in rows]


def among(conn: Connection, ids: Iterable[uuid.UUID]) -> frozenset[uuid.UUID]:
    """Those of `ids` that are in the ledger."""
    with answering(), conn.transaction():
        return frozenset(id_ for (id_,) in conn.execute(statements("erasure")["among"], {"ids": list(ids)}))


def requests_of(conn: Connection, ids: Iterable[uuid.UUID]) -> list[tuple[uuid.UUID, int]]:
    """The request by which each of these was erased; those that are not erased are left out."""
    with answering(), conn.transaction():
        rows = conn.execute(statements("ledger")["read_erased"], {"ids": sorted(ids)}).fetchall()
    return [(id_, number) for id_, number in rows]


def entries(conn: Connection) -> list[Entry]:
    """The whole ledger, in its order."""
    with answering(), conn.transaction():
        return [Entry(*row) for row in conn.execute(statements("erasure")["ledger"])]


def warm_left(conn: Connection) -> list[uuid.UUID]:
    """Erased trajectories whose bytes may still be in Postgres."""
    return _ids(conn, "warm_left")


def cold_left(conn: Connection) -> list[uuid.UUID]:
    """Erased trajectories whose bytes may still be in the cold tier."""
    return _ids(conn, "cold_left")


def pending(conn: Connection, log_id: uuid.UUID) -> Pending | None:
    """The next entries that a log has to follow, `None` when it stands at the end."""
    values = {"log_id": log_id, "limit": TRAJECTORIES_PER_STEP}
    with answering(), conn.transaction():
        rows = conn.execute(statements("erasure")["pending_of_log"], values).fetchall()
    return Pending(rows[-1][0], tuple(id_ for _, id_ in rows)) if rows else None


def followed(conn: Connection, log_id: uuid.UUID, place: int, events: int) -> None:
    """Note that a log has erased everything up to `place`, `events` bodies this time."""
    values = {"log_id": log_id, "place": place, "events": events}
    with answering(), conn.transaction():
        conn.execute(statements("erasure")["followed_by_log"], values)


def logs_behind(conn: Connection, place: int) -> list[LogBehind]:
    """The logs that were replicated here and have not followed the ledger up to `place`, nor were abandoned."""
    with answering(), conn.transaction():
        return [LogBehind(*row) for row in conn.execute(statements("erasure")["logs_behind"], {"place": place})]


def abandon(conn: Connection, log_id: uuid.UUID, reason: str) -> None:
    """Do not wait for a log any more, because its disk was destroyed; the reason goes into the receipts."""
    check_idle(conn)
    hold.check_text("reason", reason)
    with answering(), conn.transaction():
        known = conn.execute(statements("ingest")["read_cursor"], {"log_id": log_id}).fetchone()
        if known is None:
            raise Invalid(
                f"no log {log_id} was ever replicated here", hint="see which are behind: stratalog erase show N"
            )
        conn.execute(statements("erasure")["abandon_log"], {"log_id": log_id, "reason": reason})


def abandoned(conn: Connection) -> dict[uuid.UUID, str]:
    """The logs that nobody waits for, and why."""
    with answering(), conn.transaction():
        return dict(conn.execute(statements("erasure")["abandoned_logs"]).fetchall())


def _ids(conn: Connection, name: str) -> list[uuid.UUID]:
    with answering(), conn.transaction():
        return [id_ for (id_,) in conn.execute(statements("erasure")[name])]


def content_left(conn: Connection, erasure_id: int | None = None) -> Sequence[tuple[str, str, int]]:
    """Content (tenant, SHA-256 in hex, request) that erased bodies referred to and that was not looked at yet."""
    with answering(), conn.transaction():
        rows = conn.execute(statements("erasure")["content_left"], {"erasure_id": erasure_id}).fetchall()
    return [(tenant, bytes(digest).hex(), number) for tenant, digest, number in rows]


def content_counts(conn: Connection, erasure_id: int) -> tuple[int, int]:
    """Of a request: pieces of content that are still to be looked at, and pieces that others need, too."""
    with answering(), conn.transaction():
        row = conn.execute(statements("erasure")["content_counts"], {"erasure_id": erasure_id}).fetchone()
    assert row is not None
    return row[0], row[1]
