"""Work as agents do it: trajectories of some length that begin and end, so that what is replicated can be pruned."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from stratalog.hot import HotLog, Receipt
from stratalog.schemas.events import EventBody

from . import bodies

LENGTH = 64
"""Events of a trajectory, its start and its end included."""


class Trajectories:
    """One agent: a trajectory after the other."""

    def __init__(self, log: HotLog, told: Callable[[Receipt], None]) -> None:
        """`told` gets each receipt but those of starts."""
        self._log = log
        self._told = told
        self._result: EventBody = bodies.result()
        self._finished: EventBody = bodies.finished()
        self._trajectory_id: uuid.UUID | None = None
        self._events = 0

    async def append(self) -> None:
        """Append the next event. One call at a time."""
        if self._trajectory_id is None:
            self._trajectory_id, self._events = await self._log.start(tenant="default", task="bench"), 1
            return
        self._events += 1
        last = self._events == LENGTH
        receipt = await self._log.append(self._trajectory_id, self._finished if last else self._result)
        self._told(receipt)
        if last:
            self._trajectory_id = None
