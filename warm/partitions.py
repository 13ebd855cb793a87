"""Which partition the events of a trajectory belong in: that of the day its id carries, or the table for strays.

Ids that carry no time (not UUIDv7), or one further ahead than partitions are made, are stray, and so is everything
once there are too many partitions: planning and locking would suffer for all.
"""

from __future__ import annotations

import datetime as dt
import uuid

from stratalog.schemas import ids

PARTITIONS_MAX = 500
DAYS_AHEAD = 7


def start_day(trajectory_id: uuid.UUID) -> dt.date | None:
    """The UTC day that a UUIDv7 carries; `None` for other ids and for days after the year 9999."""
    if trajectory_id.version != 7:
        return None
    started_us = ids.uuid7_time_us(trajectory_id)
    moment = ids.from_us(started_us)
    return moment.date() if ids.to_us(moment) == started_us else None


def makeable(missing: list[dt.date], existing: int, today: dt.date) -> list[dt.date]:
    """Those of the missing days that get a partition: not too far ahead, and only while there are few enough."""
    near = [day for day in missing if day <= today + dt.timedelta(days=DAYS_AHEAD)]
    return near[: max(0, PARTITIONS_MAX - existing)]
