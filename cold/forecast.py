"""How storage grows: what was written on each of the last days, and where that leads.

The forecast is a straight line: what lies there now, plus the mean of the days for every further day. It takes nothing
away, so it is what happens without retention. Days before the first on which anything was written do not count, and
today counts as the part of a day that has passed (at least an hour, so that one import right after midnight does not
look like a flood).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import msgspec

HORIZONS_DAYS = (30, 90, 365)
_PART_MIN = 1 / 24


class Day(msgspec.Struct, frozen=True):
    """Bytes that were written on one UTC day."""

    day: dt.date
    warm: int = 0
    cold: int = 0
    content: int = 0

    @property
    def bytes(self) -> int:
        """Of all tiers."""
        return self.warm + self.cold + self.content


class Growth(msgspec.Struct, frozen=True):
    """Bytes a day, and the bytes of a tier in so many days."""

    tier: str
    bytes_per_day: float
    forecast: dict[int, float]


def growth(days: Sequence[Day], now: dt.datetime, bytes_now: dict[str, int]) -> tuple[Growth, ...]:
    """The growth of the tiers warm, cold and content; `days` in order, `now` in UTC."""
    span = _span_days(days, now)
    found = []
    for tier in ("warm", "cold", "content"):
        rate = sum(getattr(day, tier) for day in days) / span if span else 0.0
        lies = bytes_now.get(tier, 0)
        found.append(Growth(tier, rate, {horizon: lies + rate * horizon for horizon in HORIZONS_DAYS}))
    return tuple(found)


def _span_days(days: Sequence[Day], now: dt.datetime) -> float:
    """How many days the written bytes are spread over; 0 where nothing was written."""
    busy = [day.day for day in days if day.bytes]
    if not busy:
        return 0.0
    past = (now.date() - busy[0]).days
    midnight = dt.datetime.combine(now.date(), dt.time(), dt.UTC)
    return past + max(_PART_MIN, (now - midnight).total_seconds() / 86_400)
