"""The events that an auditor's question is about, trajectory by trajectory, from the warm and from the cold tier.

What has left the warm tier comes from the cold one, if that is given; what is in both comes once. Memory is bounded by
the events of the wanted kinds in one trajectory, and of what has left the warm tier in one day.
"""

from __future__ import annotations

import datetime as dt
import heapq
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import groupby

import msgspec

from stratalog.cold.history import ColdFiles, cold_events, day_of, events_of, files_of, runs_of
from stratalog.schemas import events as ev
from stratalog.schemas.codec import decode_body, decode_event
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.ids import to_us
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering
from stratalog.warm.streaming import ROWS_PER_FETCH, stream

SINGLE_MAX = 20
"""So many trajectories are looked up one by one in the cold tier; of more, all files of their days are read."""


class Asked(msgspec.Struct, frozen=True):
    """Whose events are asked for; `None` is everybody's."""

    tenant: str | None = None
    trajectory_id: uuid.UUID | None = None


class Place(msgspec.Struct, frozen=True):
    """Where and when an event happened; `at` is µs since 1970."""

    tenant: str
    trajectory_id: str
    sequence_number: int
    at: int


class Found(msgspec.Struct, frozen=True):
    """An event with its place."""

    place: Place
    kind: str
    body: ev.EventBody


def needs_cold(conn: Connection) -> bool:
    """Whether events have left the warm tier, so that it alone does not answer everything."""
    return bool(_dropped(conn, Asked()))


def _dropped(conn: Connection, asked: Asked) -> dict[uuid.UUID, str]:
    """The trajectories of which events are in the cold tier alone, with their tenants."""
    parameters = {"tenant": asked.tenant, "trajectory_id": asked.trajectory_id}
    return dict(stream(conn, statements("audit")["dropped"], parameters))


_Group = tuple[uuid.UUID, list[Found]]


@contextmanager
def by_trajectory(
    conn: Connection, asked: Asked, kinds: Sequence[str], cold: ColdFiles | None
) -> Iterator[Iterator[list[Found]]]:
    """The events of some kinds, one list per trajectory; the transaction ends with the block, however that ends."""
    parameters = {"kinds": list(kinds), "tenant": asked.tenant, "trajectory_id": asked.trajectory_id}
    with answering(), conn.transaction():
        conn.execute(statements("audit")["unlimited"])
        dropped = {} if cold is None else _dropped(conn, asked)
        with conn.cursor("stratalog_questions", binary=True) as cursor:
            cursor.itersize = ROWS_PER_FETCH
            cursor.execute(statements("audit")["events_of_kinds"], parameters)
            warm = ((id_, [_found(*row) for row in rows]) for id_, rows in groupby(cursor, key=lambda row: row[0]))
            left = iter(()) if cold is None else _from_cold(cold, dropped, frozenset(kinds))
            both = heapq.merge(warm, left, key=lambda group: group[0])
            yield (_in_order(groups) for _, groups in groupby(both, key=lambda group: group[0]))


def _in_order(groups: Iterator[_Group]) -> list[Found]:
    """The events of one trajectory from both tiers; what is in both comes once."""
    found = {event.place.sequence_number: event for _, events in groups for event in events}
    return [found[number] for number in sorted(found)]


def _from_cold(cold: ColdFiles, dropped: Mapping[uuid.UUID, str], kinds: Set[str]) -> Iterator[_Group]:
    """What the cold tier has of these trajectories, by id: day by day, because ids begin with the time of the start."""
    if len(dropped) <= SINGLE_MAX:
        for id_, tenant in dropped.items():
            yield id_, [_from_envelope(one) for one in events_of(cold, tenant, id_) if one.header.kind in kinds]
        return
    days = {day_of(id_) for id_ in dropped}
    urls = [url for tenant in sorted(set(dropped.values())) for url in files_of(cold.urls, tenant)]
    by_day = {day: [url for url in urls if f"/date={day}/" in url] for day in sorted(days)}
    for day_urls in by_day.values():
        found: dict[uuid.UUID, list[Found]] = {}
        for files in runs_of(day_urls):
            for one in cold_events(cold.lake, files, erased=cold.erased):
                if one.header.kind in kinds and one.header.trajectory_id in dropped:
                    found.setdefault(one.header.trajectory_id, []).append(_from_envelope(one))
        yield from sorted(found.items(), key=lambda group: group[0])


def _from_envelope(envelope: Envelope) -> Found:
    header = envelope.header
    place = Place(header.tenant, str(header.trajectory_id), header.sequence_number, header.created_at)
    return Found(place, header.kind, decode_event(envelope).body)


def _found(
    id_: uuid.UUID, sequence_number: int, tenant: str, kind: str, created_at: dt.datetime, body: bytes, erased: bool
) -> Found:
    place = Place(tenant, str(id_), sequence_number, to_us(created_at))
    return Found(place, kind, ev.Unknown(kind, b"", "erased") if erased else decode_body(kind, bytes(body)))


def unreadable(found: Found) -> str:
    """Why an event says nothing."""
    return f"unreadable: {found.body.reason}" if isinstance(found.body, ev.Unknown) else "unreadable"
