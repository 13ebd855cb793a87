"""Streams the events of planned segments out of the warm tier, in the order of the files, with bounded memory.

Segments are read in batches of about `BATCH_EVENTS` events, a long one in several, each batch by one binary COPY whose
rows are taken one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from stratalog.schemas.statements import statements
from stratalog.warm.copying import Copied, copied_events
from stratalog.warm.database import Connection, answering

from .plan import Item

BATCH_EVENTS = 4_096

_SQL = statements("consolidate")


class _Range(msgspec.Struct, frozen=True):
    item: Item
    first: int
    last: int


def warm_events(conn: Connection, items: Iterable[Item]) -> Iterator[tuple[Item, Copied | None]]:
    """Each item with each of its events in order, and once with `None` when it has no further one."""
    for batch in _batches(items):
        events = _copy(conn, batch)
        event = next(events, None)
        for part in batch:
            key = part.item.trajectory_id.bytes
            while event is not None and event.trajectory == key:
                yield part.item, event
                event = next(events, None)
            if part.last == part.item.last_sequence:
                yield part.item, None


def _batches(items: Iterable[Item]) -> Iterator[list[_Range]]:
    batch: list[_Range] = []
    room = BATCH_EVENTS
    for item in items:
        first = item.first_sequence
        while first <= item.last_sequence:
            last = min(item.last_sequence, first + room - 1)
            batch.append(_Range(item, first, last))
            room -= last - first + 1
            first = last + 1
            if room == 0:
                yield batch
                batch, room = [], BATCH_EVENTS
    if batch:
        yield batch


def _copy(conn: Connection, batch: list[_Range]) -> Iterator[Copied]:
    values = {
        "ids": [part.item.trajectory_id for part in batch],
        "firsts": [part.first for part in batch],
        "lasts": [part.last for part in batch],
    }
    with answering(), conn.transaction():
        conn.execute(_SQL["unlimited"])
        yield from copied_events(conn, _SQL["events"], values)
