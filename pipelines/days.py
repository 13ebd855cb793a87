"""The only partition: an as-of day, in UTC.

A day is not the day of any data. It is the moment up to which a run looks: everything that had ended by the end of
that day (less `older_than`) and is not in the cold table yet. So a day that was missed is made good by any later one, a
range of days means its last day, and running an old day again finds nothing to do.
"""

from __future__ import annotations

import datetime as dt

import dagster as dg

FIRST_DAY = "2025-01-01"

as_of_days = dg.DailyPartitionsDefinition(start_date=FIRST_DAY, end_offset=1)
"""Up to and including today."""


def as_of(day: str, now: dt.datetime) -> dt.datetime:
    """The moment up to which a run of `day` (YYYY-MM-DD) looks: the day's end, or `now` while it is not over."""
    start = dt.datetime.fromisoformat(day).replace(tzinfo=dt.UTC)
    return min(start + dt.timedelta(days=1), now)
