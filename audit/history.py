"""The exact events of a trajectory up to a leaf, from the warm tier, or from the cold one as far as they left warm."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

from stratalog.cold.history import ColdFiles, events_of
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.warm import queries
from stratalog.warm.database import Connection

from .leaf import Leaf


def events_up_to(conn: Connection, cold: ColdFiles, leaf: Leaf) -> Iterator[Envelope]:
    """The events from the first one to that of the leaf, in order; raises `Corrupt` where one is missing or differs."""
    position = -1
    for envelope in _events(conn, cold, leaf):
        if envelope.header.sequence_number != position + 1:
            raise Corrupt(f"trajectory {leaf.trajectory_id}: event {position + 1} is in no tier")
        position += 1
        if position == leaf.sequence_number and envelope.hash != leaf.event_hash:
            raise Corrupt(f"trajectory {leaf.trajectory_id}: event {position} has another hash than was sealed")
        yield envelope
        if position == leaf.sequence_number:
            return
    raise Corrupt(f"trajectory {leaf.trajectory_id}: event {position + 1} is in no tier")


def secret_of(conn: Connection, trajectory_id: uuid.UUID) -> bytes | None:
    """The secret that the warm tier has for a trajectory, `None` where it has none."""
    with contextlib.suppress(NotFound):
        return queries.head(conn, trajectory_id).secret
    return None


def _events(conn: Connection, cold: ColdFiles, leaf: Leaf) -> Iterator[Envelope]:
    if queries.hash_at(conn, leaf.trajectory_id, 0) is not None:
        yield from queries.read_events(conn, leaf.trajectory_id)
        return
    found = events_of(cold, leaf.tenant, leaf.trajectory_id)
    yield from found
    last = found[-1].header.sequence_number if found else -1
    if last < leaf.sequence_number:
        yield from queries.read_events(conn, leaf.trajectory_id, last + 1)
