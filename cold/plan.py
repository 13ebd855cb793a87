"""The plan of a consolidation run: which segments of which trajectories go to the cold tier, and into which folders.

The plan is made by one transaction and then fixed: what arrives later waits for the next run. A crash therefore leaves
either no plan, or a whole one that the next run completes. The only change a plan knows is that trajectories found
damaged are left out before anything of the run is committed.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Iterator

import msgspec
import psycopg

from stratalog.schemas.ids import model_slug
from stratalog.schemas.statements import statements
from stratalog.schemas.summary import Summary
from stratalog.warm.database import Connection, answering

ITEMS_PAGE = 1_000
QUARANTINED_SHOWN_MAX = 1_000

_SQL = statements("consolidate")


class Run(msgspec.Struct, frozen=True):
    """A planned run."""

    run_id: uuid.UUID
    cutoff: dt.datetime


class Group(msgspec.Struct, frozen=True):
    """The items that share a folder. `date` counts days since 1970; `models` are the full names."""

    tenant: str
    day: str
    date: int
    slug: str
    models: tuple[str, ...]

    @property
    def folder(self) -> str:
        """The folder below the lake's root."""
        return f"events/tenant={self.tenant}/date={self.day}/model={self.slug}"


class Item(msgspec.Struct, frozen=True):
    """One segment on its way. `secret` is None for an erased trajectory; `summary` is the one at the segment's end."""

    trajectory_id: uuid.UUID
    model: str
    first_sequence: int
    last_sequence: int
    previous_hash: bytes
    last_hash: bytes
    summary: bytes
    secret: bytes | None

    @property
    def events(self) -> int:
        """How many events the segment has."""
        return self.last_sequence - self.first_sequence + 1

    def decoded_summary(self) -> Summary:
        """The summary; raises `msgspec.MsgspecError` for bytes that are none."""
        return msgspec.msgpack.decode(self.summary, type=Summary) if self.summary else Summary()


def open_runs(conn: Connection) -> list[Run]:
    """The runs that were planned and not completed, the oldest first."""
    with answering(), conn.transaction():
        return [Run(*row) for row in conn.execute(_SQL["open_runs"])]


def make_plan(conn: Connection, run_id: uuid.UUID, cutoff: dt.datetime, idle_cutoff: dt.datetime) -> Run | None:
    """Plan everything that qualifies as one run; `None` where nothing does. Durable when it returns."""
    with answering(), conn.transaction():
        conn.execute(_SQL["unlimited"])
        conn.execute(_SQL["insert_run"], {"run_id": run_id, "cutoff": cutoff})
        planned = conn.execute(
            _SQL["insert_items"], {"run_id": run_id, "cutoff": cutoff, "idle_cutoff": idle_cutoff}
        ).rowcount
        if planned == 0:
            raise psycopg.Rollback
    return Run(run_id, cutoff) if planned else None


def quarantined(conn: Connection, cutoff: dt.datetime, idle_cutoff: dt.datetime) -> list[tuple[uuid.UUID, int]]:
    """Trajectories that wait because of events in quarantine, with how many; at most 1,000 of them."""
    with answering(), conn.transaction():
        found = conn.execute(
            _SQL["quarantined"],
            {"cutoff": cutoff, "idle_cutoff": idle_cutoff, "limit": QUARANTINED_SHOWN_MAX},
        )
        return [(trajectory_id, count) for trajectory_id, count in found]


def groups(conn: Connection, run: Run) -> list[Group]:
    """The folders of a run, in order."""
    found: dict[tuple[str, str, int, str], list[str]] = {}
    with answering(), conn.transaction():
        for tenant, day, date, model in conn.execute(_SQL["groups"], {"run_id": run.run_id}):
            found.setdefault((tenant, day, date, model_slug(model)), []).append(model)
    return [Group(*key, tuple(models)) for key, models in sorted(found.items())]


def items(conn: Connection, run: Run, group: Group) -> Iterator[Item]:
    """The items of one folder, in the order of their trajectory ids, read page by page."""
    after: uuid.UUID | None = None
    while True:
        values = {
            "run_id": run.run_id,
            "tenant": group.tenant,
            "date": group.date,
            "models": list(group.models),
            "after": after,
            "limit": ITEMS_PAGE,
        }
        with answering(), conn.transaction():
            page = [Item(*row) for row in conn.execute(_SQL["items"], values)]
        yield from page
        if len(page) < ITEMS_PAGE:
            return
        after = page[-1].trajectory_id


def drop_items(conn: Connection, run: Run, trajectory_ids: Iterable[uuid.UUID]) -> None:
    """Leave trajectories out of the run; only before its commit."""
    with answering(), conn.transaction():
        conn.execute(_SQL["drop_items"], {"run_id": run.run_id, "ids": list(trajectory_ids)})


def totals(conn: Connection, run: Run) -> tuple[int, int]:
    """How many segments and events the run has."""
    with answering(), conn.transaction():
        row = conn.execute(_SQL["totals"], {"run_id": run.run_id}).fetchone()
    assert row is not None
    return row[0], row[1]
