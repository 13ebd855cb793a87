"""Simulated time, and the modules of the product that get it instead of the real one."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from stratalog.cold import consolidate, group, readback, warm_events
from stratalog.hot import budget, contents, engine, heads, marks, openings, replication
from stratalog.schemas import ids
from stratalog.warm import replicator, sidecar_status

from . import cold

if TYPE_CHECKING:
    from .world import World

START_US = 1_800_000_000_000_000
CHUNK_BYTES = 64
SAVE_EVERY_EVENTS = 7


class SimClock:
    """Microseconds since 1970, as true time; hosts have an offset of their own."""

    def __init__(self) -> None:
        self.now_us = START_US

    def now(self) -> dt.datetime:
        """The time as the database tells it."""
        return ids.from_us(self.now_us)

    # What the product calls of the module `time`.

    def monotonic(self) -> float:
        return self.now_us / 1e6

    def time(self) -> float:
        return self.now_us / 1e6


@contextlib.contextmanager
def installed(world: World) -> Iterator[None]:
    """Time, ids and Parquet of the simulator in the product's modules, and limits small enough to be met."""
    random_ids: Any = SimpleNamespace(uuid4=world.new_uuid, UUID=uuid.UUID)
    run_ids: Any = SimpleNamespace(uuid7=world.new_trajectory_id)
    with contextlib.ExitStack() as stack:

        def replaced(module: Any, **values: Any) -> None:
            for name, value in values.items():
                stack.enter_context(mock.patch.object(module, name, value))

        for module in (budget, engine, marks, replication, replicator, sidecar_status):
            replaced(module, time=world.clock)
        replaced(openings, uuid=random_ids)
        replaced(contents, uuid=random_ids, CHUNK_BYTES=CHUNK_BYTES)
        replaced(heads, SAVE_EVERY_EVENTS=SAVE_EVERY_EVENTS)
        # An acknowledgement never prunes by itself here: pruning is a step of its own, with its crashes.
        replaced(engine, PRUNE_EVENTS_MIN=1 << 60)
        replaced(consolidate, uuid_utils=run_ids)
        replaced(group, EventsWriter=cold.SimWriter)
        replaced(readback, read_events=cold.read_events)
        replaced(warm_events, _copy=cold.copy_events)
        yield
