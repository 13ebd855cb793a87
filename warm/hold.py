"""Legal holds: what may not be deleted, by whom and why, and until when.

A hold covers what it names, and all that descends from it (forks, sub-agents), also what comes later. What these
descend from is kept, too, because a branch refers to what its parent holds.

Guarantee: from the moment that `place` returns, nothing that the hold covers leaves any tier, but for what `place`
reports as done or lost. It excludes all deletions for the length of its transaction (see 003_retention.sql), cancels
those that are planned and tells of the others. A deletion that has started in the warm tier (its partition is being
dropped) or for bulky content keeps what is held, because the hold is looked up again in the very transaction that
deletes; one that has started in the cold tier is beyond its point of no return. The history is never changed: a release
is a row, too, and Postgres refuses to update or delete any.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence

import msgspec
import psycopg

from stratalog.schemas import ids
from stratalog.schemas.errors import Invalid, NotFound
from stratalog.schemas.statements import statements

from .database import Connection, answering, check_idle

TEXT_MAX = 2000
SELECTED_MAX = 5_000_000
"""The most trajectories that a selection may name; for more, hold the tenant."""


class Scope(msgspec.Struct, frozen=True):
    """What to hold: exactly one of a tenant (also what it will write), a set, or a condition over `trajectories`."""

    tenant: str | None = None
    trajectories: tuple[uuid.UUID, ...] = ()
    where: str | None = None


class Placed(msgspec.Struct, frozen=True):
    """A new hold, and what it met: trajectories known here and not known here, and the deletions of what it covers."""

    hold_id: int
    matter: str
    trajectories: int
    """Known here, with those that descend from what the hold names."""
    descendants: int
    """Those of them that a set or a selection does not name itself."""
    unknown: int
    ancestors: int
    """Others that are kept because what is covered descends from them."""
    cancelled: int
    """Planned deletions that will not start."""
    started: int
    """Deletions under way in Postgres or for bulky content; what is still there of that is kept when they go on."""
    done: int
    """Deletions that came before the hold: these events are in the cold tier alone."""
    content_done: int
    """Bulky content that went before the hold; the events are there."""
    lost: int
    """Deletions in the cold tier that are done or beyond their point of no return: these events are in no tier."""


class Hold(msgspec.Struct, frozen=True):
    """One hold as it is listed; `trajectories` counts those that it names, of a tenant those that are known here.

    `descendants` counts what else it covers now, because it descends from what a set or a selection names.
    """

    hold_id: int
    matter: str
    kind: str
    tenant: str | None
    selection: str | None
    placed_by: str
    reason: str
    placed_at: dt.datetime
    trajectories: int
    descendants: int
    released_by: str | None
    release_reason: str | None
    released_at: dt.datetime | None


def place(conn: Connection, matter: str, scope: Scope, *, by: str, reason: str) -> Placed:
    """Place a hold. A condition is evaluated once, now; raises `Invalid` for a bad scope or one that names nothing."""
    check_idle(conn)
    for name, text in (("matter", matter), ("name of who places it", by), ("reason", reason)):
        check_text(name, text)
    kind = _kind(scope)
    if scope.tenant is not None:
        ids.check_tenant(scope.tenant)
    found = select(conn, scope.where) if scope.where is not None else list(scope.trajectories)
    if scope.where is not None and not found:
        raise Invalid(
            "the selection names no trajectory, nothing was held", hint="look with: stratalog trajectory list"
        )
    sql = statements("holds")
    values = {"matter": matter, "kind": kind, "tenant": scope.tenant, "selection": scope.where}
    with answering(), conn.transaction():
        conn.execute(statements("retention")["read_committed"])
        conn.execute(statements("retention")["unlimited"])
        conn.execute(sql["lock_out_deletions"])
        row = conn.execute(sql["insert_hold"], {**values, "by": by, "reason": reason}).fetchone()
        assert row is not None
        (hold_id,) = row
        if found:
            conn.execute(sql["insert_trajectories"], {"hold_id": hold_id, "ids": sorted(set(found))})
        met = [_Met(*row) for row in conn.execute(sql["lock_deletions"], {"hold_id": hold_id})]
        for covered, why in ((True, f"held by {matter}"), (False, f"needed by a branch held by {matter}")):
            planned = [one.deletion_id for one in met if one.state == "planned" and one.covered is covered]
            conn.execute(sql["cancel_deletions"], {"ids": planned, "reason": why})
        counts = conn.execute(sql["covered"], {"hold_id": hold_id}).fetchone()
    assert counts is not None
    return Placed(hold_id, matter, *counts, *_outcomes(met))


class _Met(msgspec.Struct, frozen=True):
    """A deletion that a new hold has met: of what it covers, or of what that descends from."""

    deletion_id: int
    state: str
    tier: str
    covered: bool


def _outcomes(met: Sequence[_Met]) -> list[int]:
    """How many were cancelled, go on without what is held, were done in Postgres, of content, in the cold tier."""
    kinds = [(one.tier, one.state) for one in met]
    return [
        sum(state == "planned" for _, state in kinds),
        sum(state == "started" and tier != "cold" for tier, state in kinds),
        kinds.count(("warm", "done")),
        kinds.count(("bulky", "done")),
        kinds.count(("cold", "started")) + kinds.count(("cold", "done")),
    ]


def select(conn: Connection, where: str) -> list[uuid.UUID]:
    """The trajectories that a condition over the columns of `trajectories` names; read-only, one statement.

    Raises `Invalid` with what Postgres says of it.
    """
    check_text("condition", where)
    # In lines of its own, so that a comment in it ends; with a parameter, so that Postgres takes only one statement.
    condition = where.replace("%", "%%")
    query = f"SELECT trajectory_id FROM trajectories WHERE (\n{condition}\n)\nLIMIT %(limit)s"
    with answering(), conn.transaction():
        conn.execute(statements("holds")["read_only"])
        try:
            rows = conn.execute(query.encode(), {"limit": SELECTED_MAX + 1}, binary=True).fetchall()
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            raise Invalid(
                f"the condition is refused: {' '.join(str(error).split())}",
                hint="write it over the columns of trajectories, such as: labels ->> 'team' = 'research'",
            ) from error
    found = [id_ for (id_,) in rows]
    if not all(isinstance(id_, uuid.UUID) for id_ in found):
        raise Invalid("the condition names something else than trajectories")
    if len(found) > SELECTED_MAX:
        raise Invalid(f"the selection names more than {SELECTED_MAX:,} trajectories", hint="hold the tenant")
    return found


def entries(conn: Connection, *, everything: bool = False) -> list[Hold]:
    """The holds that are in force, oldest first; `everything` also those that were released."""
    with answering(), conn.transaction():
        return [Hold(*row) for row in conn.execute(statements("holds")["entries"], {"all": everything})]


def release(conn: Connection, matter: str, *, by: str, reason: str, hold_id: int | None = None) -> list[int]:
    """Release the holds of a matter, or one of them; returns their ids. Raises `NotFound` where none is in force."""
    check_idle(conn)
    for name, text in (("name of who releases it", by), ("reason", reason)):
        check_text(name, text)
    sql = statements("holds")
    with answering(), conn.transaction():
        conn.execute(statements("retention")["read_committed"])
        conn.execute(sql["lock_out_deletions"])
        active = conn.execute(sql["active"], {"matter": matter, "hold_id": hold_id}).fetchall()
        for (found,) in active:
            conn.execute(sql["release"], {"hold_id": found, "by": by, "reason": reason})
    if not active:
        which = f"hold {hold_id} of matter" if hold_id is not None else "matter"
        raise NotFound(f"no hold of {which} {matter} is in force", hint="list them: stratalog hold list --all")
    return [found for (found,) in active]


def _kind(scope: Scope) -> str:
    given = {
        "tenant": scope.tenant is not None,
        "trajectories": bool(scope.trajectories),
        "selection": scope.where is not None,
    }
    kinds: Sequence[str] = [kind for kind, there in given.items() if there]
    if len(kinds) != 1:
        raise Invalid("a hold needs one of a tenant, trajectories or a condition", hint="place several for one matter")
    return kinds[0]


def check_text(name: str, text: str) -> None:
    """Raise `Invalid` unless `text` can stand in the record: 1 to `TEXT_MAX` characters, without NUL, UTF-8."""
    if not text.strip() or len(text) > TEXT_MAX or "\0" in text:
        raise Invalid(f"the {name} must be a text of 1 to {TEXT_MAX:,} characters without NUL")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"the {name} is not UTF-8") from error
