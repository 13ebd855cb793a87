"""Deletions in the cold tier and of bulky content, as far as Postgres has a part in them.

    cold    planned ─▶ started (with a rewrite, before its commit) ─▶ heads marked (after it) ─▶ done (files are gone)
    bulky   planned ─▶ started (the content is not needed any more) ─▶ done (the sweep has taken it)

Guarantee: `start` looks, in one transaction and with holds kept out, whether every deletion of a batch may still be
executed; either all of them are started, or none is and those that may not be are cancelled with the reason. A cold
deletion that has started is beyond its point of no return, unless its rewrite turns out not to have been committed:
then it is judged again. A trajectory goes only together with all that descends from it, or after it. The caller holds
the lock on consolidation, so that nothing is on its way into the cold tier.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import msgspec

from stratalog.schemas.chain import Link
from stratalog.schemas.statements import statements

from .database import Connection, answering
from .deletion import Judged, Tally, cancel, lock_out_holds

Tier = Literal["cold", "bulky"]

_SQL = statements("deletions_lower")


class Open(msgspec.Struct, frozen=True):
    """A deletion that is planned or started, of so many events.

    `day` is in the path of its files; `rewrite` is how far the rewrite is that it leaves with.
    """

    deletion_id: int
    trajectory_id: uuid.UUID
    tenant: str
    policy: str
    state: str
    events: int
    day: str
    rewrite_id: uuid.UUID | None
    rewrite: str | None

    @property
    def committed(self) -> bool:
        """Whether its events have left the cold table already."""
        return self.state == "started" and self.rewrite in ("committed", "done")


class Deleted(msgspec.Struct, frozen=True):
    """Events that are in no tier any more, or (not `done`) on their way out: up to which, by which policy, when."""

    trajectory_id: uuid.UUID
    tenant: str
    through_sequence: int
    version: int
    policy: str
    at: dt.datetime
    done: bool


def needed(conn: Connection) -> bool:
    """Whether there is anything to do below the warm tier: a clock for it is in force, or something was begun."""
    with answering(), conn.transaction():
        return conn.execute(_SQL["needed"]).fetchone() == (True,)


def plan(conn: Connection, tier: Tier, now: dt.datetime) -> int:
    """Make a row for everything that is due in a tier and that nothing keeps; returns how many are new."""
    with answering(), conn.transaction():
        conn.execute(statements("retention")["read_committed"])
        conn.execute(statements("retention")["unlimited"])
        return conn.execute(_SQL["plan"], {"tier": tier, "now": now}).rowcount


def open_deletions(conn: Connection, tier: Tier) -> list[Open]:
    """What is planned or started, by trajectory."""
    with answering(), conn.transaction():
        return [Open(*row) for row in conn.execute(_SQL["open"], {"tier": tier})]


def start(
    conn: Connection, tier: Tier, batch: Sequence[Open], now: dt.datetime, rewrite_id: uuid.UUID | None = None
) -> list[Judged]:
    """Start all of a batch, or cancel those that may not be executed any more and return them: then none is started."""
    ids = [one.deletion_id for one in batch]
    trajectory_ids = sorted(one.trajectory_id for one in batch)
    with answering(), conn.transaction():
        conn.execute(statements("retention")["read_committed"])
        conn.execute(statements("retention")["unlimited"])
        lock_out_holds(conn)
        judged = judge(conn, tier, ids, trajectory_ids, now)
        refused = [one for one in judged if one.refusal is not None]
        if refused:
            _cancel(conn, tier, batch, refused)
            return refused
        values = {"ids": ids, "rewrite_id": rewrite_id}
        conn.execute(_SQL[f"start_{tier}"], values)
        if tier == "bulky":
            conn.execute(_SQL["mark_bulky"], values)
    return []


def judge(
    conn: Connection, tier: Tier, ids: list[int], trajectory_ids: list[uuid.UUID], now: dt.datetime
) -> list[Judged]:
    """Lock these deletions and their heads, then look: what is returned holds until the end of the transaction."""
    conn.execute(_SQL["lock"], {"ids": ids})
    conn.execute(statements("deletions")["lock_heads"], {"ids": trajectory_ids})
    # A statement of its own, after the locks: it sees what was committed before they were had.
    rows = conn.execute(_SQL["judge"], {"tier": tier, "ids": ids, "trajectory_ids": trajectory_ids, "now": now})
    return [Judged(*row) for row in rows]


def _cancel(conn: Connection, tier: Tier, batch: Sequence[Open], refused: Sequence[Judged]) -> None:
    """Note why; those that a hold has cancelled meanwhile are so already."""
    rows = conn.execute(_SQL["lock"], {"ids": [one.deletion_id for one in refused]}).fetchall()
    there = {deletion_id for (deletion_id,) in rows}
    reasons = [(one.deletion_id, str(one.refusal)) for one in refused if one.deletion_id in there]
    if reasons:
        cancel(conn, reasons)
        if tier == "bulky":
            conn.execute(_SQL["unmark_bulky"], {"ids": [deletion_id for deletion_id, _ in reasons]})


def refuse(conn: Connection, batch: Sequence[Open], reason: str) -> None:
    """Cancel what cannot be executed for a reason that is not in Postgres."""
    with answering(), conn.transaction():
        rows = conn.execute(_SQL["lock"], {"ids": [one.deletion_id for one in batch]}).fetchall()
        if rows:
            cancel(conn, [(deletion_id, reason) for (deletion_id,) in rows])


def mark_cold(conn: Connection, rewrite_id: uuid.UUID) -> None:
    """Note on the heads that what left with a committed rewrite is not in the cold tier any more."""
    with answering(), conn.transaction():
        conn.execute(_SQL["mark_cold"], {"rewrite_id": rewrite_id})


def finish_cold(conn: Connection, rewrite_id: uuid.UUID, tally: Tally) -> None:
    """Note that the files are gone, too."""
    with answering(), conn.transaction():
        done = conn.execute(_SQL["finish_cold"], {"rewrite_id": rewrite_id}).fetchall()
    for tenant, policy, events, size in done:
        tally.add(tenant, policy, "done", events, size)


def cancel_held(conn: Connection, tally: Tally) -> None:
    """Give back to its events what is left of the content of started deletions that are held by now."""
    started = [one for one in open_deletions(conn, "bulky") if one.state == "started"]
    with answering(), conn.transaction():
        conn.execute(statements("retention")["read_committed"])
        lock_out_holds(conn)
        values = {"trajectory_ids": [one.trajectory_id for one in started]}
        held = {id_ for (id_,) in conn.execute(_SQL["held_among"], values)}
        refused = [
            Judged(one.deletion_id, one.trajectory_id, one.tenant, one.policy, "held, what is left of it is kept")
            for one in started
            if one.trajectory_id in held
        ]
        if refused:
            _cancel(conn, "bulky", started, refused)
    for one in refused:
        tally.add(one.tenant, one.policy, str(one.refusal))


def given_up(conn: Connection) -> dict[uuid.UUID, int]:
    """Whose events up to where keep no content any more; what is held by now is not among them."""
    with answering(), conn.transaction():
        return dict(conn.execute(_SQL["given_up"]).fetchall())


def dropped_content(conn: Connection) -> list[tuple[str, bytes]]:
    """Tenant and SHA-256 of all content that has gone although events refer to it, sorted."""
    with answering(), conn.transaction():
        return [(tenant, bytes(digest)) for tenant, digest in conn.execute(_SQL["dropped"])]


def finish_bulky(conn: Connection, left: Collection[uuid.UUID], tally: Tally) -> None:
    """Note that nothing is left of the content that only started deletions referred to, but for those of `left`."""
    with answering(), conn.transaction():
        done = conn.execute(_SQL["finish_bulky"], {"trajectory_ids": sorted(left)}).fetchall()
    for tenant, policy, events, size in done:
        tally.add(tenant, policy, "done", events, size)


def cold_starts(conn: Connection) -> dict[uuid.UUID, list[Link]]:
    """After which events trajectories may begin in the cold tier that have left it, or are on their way out."""
    found: dict[uuid.UUID, list[Link]] = {}
    with answering(), conn.transaction():
        for id_, sequence, digest in conn.execute(_SQL["cold_starts"]):
            found.setdefault(id_, []).append(Link(sequence, bytes(digest)))
    return found


def deleted_from_cold(conn: Connection) -> Iterator[Deleted]:
    """What policies have deleted from every tier, by trajectory."""
    with answering(), conn.transaction():
        rows = conn.execute(_SQL["deleted"]).fetchall()
    for row in rows:
        yield Deleted(*row)
