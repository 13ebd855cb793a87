"""The plan of a rewrite: which data files go, and how far that has got. See `schemas/sql/warm/008_rewrites.sql`.

The plan is durable before the first new file is written, and each state is set after what it says has happened. So
whoever comes after a crash finds at most one step that was done and is not noted, and every step can be done again.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from typing import Literal

import msgspec
import uuid_utils

from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering

Kind = Literal["erasure", "retention", "compaction"]
Ending = Literal["committed", "done", "undone"]

_SQL = statements("rewrites")


class Plan(msgspec.Struct, frozen=True):
    """A rewrite that is not over; `old` are the paths in the lake of the files that go."""

    rewrite_id: uuid.UUID
    kind: Kind
    state: str
    old: tuple[str, ...]


def make_plan(conn: Connection, kind: Kind, old: Iterable[str]) -> Plan:
    """Plan to replace the files `old` (paths in the lake); durable when it returns."""
    plan = Plan(uuid.UUID(int=uuid_utils.uuid7().int), kind, "planned", tuple(sorted(set(old))))
    with answering(), conn.transaction():
        conn.execute(_SQL["insert_rewrite"], {"rewrite_id": plan.rewrite_id, "kind": kind})
        _insert(conn, plan, "old", plan.old)
    return plan


def note_new_files(conn: Connection, plan: Plan, paths: Iterable[str]) -> None:
    """Note what was written, before it is committed."""
    with answering(), conn.transaction():
        _insert(conn, plan, "new", paths)


def _insert(conn: Connection, plan: Plan, role: str, paths: Iterable[str]) -> None:
    conn.execute(_SQL["insert_files"], {"rewrite_id": plan.rewrite_id, "role": role, "paths": list(paths)})


def note(conn: Connection, plan: Plan, state: Ending) -> Plan:
    """Note that the rewrite has come to `state`; returns the plan with it."""
    with answering(), conn.transaction():
        conn.execute(_SQL[state], {"rewrite_id": plan.rewrite_id})
    return msgspec.structs.replace(plan, state=state)


def open_plans(conn: Connection) -> list[Plan]:
    """The rewrites that are not over, the oldest first."""
    with answering(), conn.transaction():
        return [Plan(id_, kind, state, tuple(old)) for id_, kind, state, old in conn.execute(_SQL["open_rewrites"])]


def replaced(conn: Connection, paths: Collection[str], kind: Kind) -> frozenset[str]:
    """Those of `paths` that a rewrite of this kind has taken out of the table."""
    with answering(), conn.transaction():
        return frozenset(path for (path,) in conn.execute(_SQL["replaced"], {"kind": kind, "paths": list(paths)}))
