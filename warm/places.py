"""The registry of all that holds content in Postgres: what erasure clears and checks, and what a sweep spares.

A table that holds anything of what events have said, or refers to bulky content, belongs to a place of this list; what
is added later joins by adding a place. Backups copy every table of the schema by themselves.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stratalog.schemas.errors import Corrupt
from stratalog.schemas.events import Source
from stratalog.schemas.protocols import HoldsContent
from stratalog.schemas.statements import statements
from stratalog.schemas.summary import Summary

from .database import Connection
from .streaming import stream

_SQL = statements("places")


class SqlPlace(msgspec.Struct, frozen=True):
    """A place whose work is done by statements of `places.sql`; see `HoldsContent`."""

    name: str
    tables: tuple[str, ...]
    clears: tuple[str, ...]
    readable_if: str
    refers: str = ""
    refers_all: str = ""

    def references(self, conn: Connection, ids: Sequence[uuid.UUID] | None = None) -> Iterator[tuple[str, bytes]]:
        """Tenant and body of all that refers to content, of these trajectories or of all."""
        if self.refers:
            name, values = (self.refers_all, {}) if ids is None else (self.refers, {"ids": list(ids)})
            for tenant, body in stream(conn, _SQL[name], values):
                yield tenant, bytes(body)

    def clear(self, conn: Connection, ids: Sequence[uuid.UUID]) -> int:
        """Take away what can be read of these; returns how many rows changed."""
        return sum(conn.execute(_SQL[name], {"ids": list(ids)}).rowcount for name in self.clears)

    def readable(self, conn: Connection, ids: Sequence[uuid.UUID]) -> list[tuple[str, uuid.UUID]]:
        """What can still be read of these: what it is, and whose."""
        return list(conn.execute(_SQL[self.readable_if], {"ids": list(ids)}).fetchall())


class SummaryPlace(SqlPlace, frozen=True):
    """Rows with a summary, which is cleared, too; `summaries` reads them, `clear_summaries` writes them back."""

    summaries: str = ""
    clear_summaries: str = ""

    def clear(self, conn: Connection, ids: Sequence[uuid.UUID]) -> int:
        """See `SqlPlace`."""
        rows: list[tuple[Any, ...]] = [
            (id_, first, cleared_summary(id_, bytes(summary)))
            for id_, first, summary in conn.execute(_SQL[self.summaries], {"ids": list(ids)}).fetchall()
        ]
        if rows:
            named, firsts, summaries = (list(column) for column in zip(*rows, strict=True))
            values = {"ids": named, "firsts": firsts, "summaries": summaries}
            conn.execute(_SQL[self.clear_summaries], values)
        return super().clear(conn, ids)


PLACES: tuple[HoldsContent, ...] = (
    SqlPlace(
        "events",
        ("trajectory_events_stray",),  # the partitions are found by the ids
        ("clear_events", "clear_strays"),
        "readable_events",
        "events_referring",
        "all_events_referring",
    ),
    SqlPlace(
        "quarantine",
        ("quarantine",),
        ("clear_quarantine",),
        "readable_quarantine",
        "quarantine_referring",
        "all_quarantine_referring",
    ),
    SummaryPlace(
        "heads",
        ("trajectories",),
        ("clear_heads",),
        "readable_heads",
        summaries="head_summaries",
        clear_summaries="clear_head_summaries",
    ),
    SummaryPlace(
        "plans",
        ("consolidation_items",),
        (),
        "readable_plans",
        summaries="plan_summaries",
        clear_summaries="clear_plan_summaries",
    ),
    SqlPlace("subjects", ("trajectory_subjects",), ("forget_subjects",), "readable_subjects"),
)
"""Events first: how many rows of them were cleared is how many events an erasure reports."""


def cleared_summary(trajectory_id: uuid.UUID, stored: bytes) -> bytes:
    """A stored summary without what the events have said: counts, times, status and model stay."""
    try:
        summary = msgspec.msgpack.decode(stored, type=Summary)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the summary of trajectory {trajectory_id} is damaged: {error}") from error
    cleared = msgspec.structs.replace(
        summary,
        agent="",
        labels={"undated": "true"} if summary.undated else {},
        # That it was imported decides who may add to it; from where is nobody's business any more.
        source=None if summary.source is None else Source(format=summary.source.format),
        pending_approvals=[],
        escalations=[],
    )
    return msgspec.msgpack.encode(cleared)
