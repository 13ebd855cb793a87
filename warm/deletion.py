"""Planned deletions of single trajectories in the warm tier: judged and executed in one transaction, a few at a time.

Guarantee: rows of a trajectory go only if, in the same transaction and under its locks, no hold covers it, the policy
that planned it is still in force and due, the mark of the cold tier covers the head, no consolidation of it is open and
nothing of it is in quarantine. Otherwise the deletion is cancelled with the reason. The head stays, with
`dropped_through`, so an event that is sent again is known. A crash leaves each deletion planned or done.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Sequence

import msgspec

from stratalog.schemas.statements import statements

from .database import Connection, answering

TRAJECTORIES_PER_STEP = 20
"""Few, so that ingest never waits long for a head, and a hold never long for its turn."""


class Share(msgspec.Struct, frozen=True):
    """What became of the deletions of one tenant and policy: `outcome` is `done`, or why they were cancelled."""

    tenant: str
    policy: str
    outcome: str
    trajectories: int
    events: int
    bytes: int


class Tally:
    """Sums what becomes of deletions."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str], list[int]] = {}

    def add(self, tenant: str, policy: str, outcome: str, events: int = 0, size: int = 0) -> None:
        """Count one deletion."""
        sums = self._sums.setdefault((tenant, policy, outcome), [0, 0, 0])
        for at, number in enumerate((1, events, size)):
            sums[at] += number

    def shares(self) -> tuple[Share, ...]:
        """The sums, those that are done first."""
        ordered = sorted(self._sums.items(), key=lambda entry: (entry[0][2] != "done", entry[0]))
        return tuple(Share(*key, *sums) for key, sums in ordered)


class Judged(msgspec.Struct, frozen=True):
    """A planned deletion under lock; `refusal` says why it may not be executed, if so."""

    deletion_id: int
    trajectory_id: uuid.UUID
    tenant: str
    policy: str
    refusal: str | None


def plan_deletions(conn: Connection, now: dt.datetime) -> int:
    """Make a row for everything that is due and that nothing keeps; returns how many are new."""
    with answering(), conn.transaction():
        conn.execute(statements("retention")["read_committed"])
        conn.execute(statements("retention")["unlimited"])
        return conn.execute(statements("deletions")["plan"], {"now": now}).rowcount


def execute_planned(conn: Connection, now: dt.datetime, tally: Tally) -> None:
    """Execute or cancel every planned deletion, whoever planned it."""
    after = 0
    while True:
        with answering(), conn.transaction():
            rows = conn.execute(
                statements("deletions")["next_planned"], {"after": after, "limit": TRAJECTORIES_PER_STEP}
            ).fetchall()
        if not rows:
            return
        after = rows[-1][0]
        execute(conn, rows, now, tally)


def execute(conn: Connection, planned: Sequence[tuple[int, uuid.UUID]], now: dt.datetime, tally: Tally) -> None:
    """Execute or cancel these deletions, in one transaction; nothing is counted unless it commits."""
    sql = statements("deletions")
    done: list[tuple[Judged, int, int]] = []
    with answering(), conn.transaction():
        conn.execute(statements("retention")["read_committed"])
        conn.execute(statements("retention")["unlimited"])
        lock_out_holds(conn)
        judged = judge(conn, planned, now)
        refused = [one for one in judged if one.refusal is not None]
        if refused:
            cancel(conn, [(one.deletion_id, str(one.refusal)) for one in refused])
        for one in judged:
            if one.refusal is None:
                row = conn.execute(sql["remove"], {"id": one.trajectory_id}).fetchone()
                assert row is not None
                done.append((one, *row))
        if done:
            columns = {
                "ids": [one.deletion_id for one, _, _ in done],
                "events": [events for _, events, _ in done],
                "bytes": [size for _, _, size in done],
            }
            conn.execute(sql["finish"], columns)
            conn.execute(sql["mark_heads"], {"ids": [one.trajectory_id for one, _, _ in done]})
    for one in refused:
        tally.add(one.tenant, one.policy, str(one.refusal))
    for one, events, size in done:
        tally.add(one.tenant, one.policy, "done", events, size)


def lock_out_holds(conn: Connection) -> None:
    """Until the end of the transaction, no hold is placed; waits for one that is being placed."""
    conn.execute(statements("holds")["lock_out_holds"])


def judge(conn: Connection, planned: Sequence[tuple[int, uuid.UUID]], now: dt.datetime) -> list[Judged]:
    """Lock these deletions and their heads, then look: what is returned holds until the end of the transaction."""
    sql = statements("deletions")
    conn.execute(sql["lock_planned"], {"ids": [deletion_id for deletion_id, _ in planned]})
    conn.execute(sql["lock_heads"], {"ids": sorted(id_ for _, id_ in planned)})
    # A statement of its own, after the locks: it sees what was committed before they were had.
    rows = conn.execute(sql["judge"], {"ids": [deletion_id for deletion_id, _ in planned], "now": now})
    return [Judged(*row) for row in rows]


def cancel(conn: Connection, refused: Iterable[tuple[int, str]]) -> None:
    """Note that these deletions will not happen, and why."""
    numbers, reasons = zip(*refused, strict=True)
    conn.execute(statements("deletions")["cancel"], {"ids": list(numbers), "reasons": list(reasons)})
