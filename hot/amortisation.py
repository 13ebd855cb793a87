"""What group commit costs by the specification's equations 2 and 3, and which settings follow for a measured device.

Pure functions; times in µs, rates in events/s. Equation 3 spreads the cost of a barrier over the events that share it:
it is a cost, not the latency of a waiter, who waits for the whole write and sync whatever the group's size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

WINDOW_OF_SPECIFICATION_US = 2000
WINDOW_STEP_US = 100
GROUP_EVENTS_LEAST = 64
"""A smaller group is never recommended: the specification's B_max."""
NEAR_ENOUGH = 1.10
"""A larger group that saves less than this factor of the cost per event is not worth its longer write."""
SYNC_PLAUSIBLE_US = 15.0
"""A device that confirms a sync faster than this most likely keeps it in a volatile cache."""
SYNC_OVER_WRITE_LEAST = 3.0
"""A sync that adds less than this many times a plain write has hardly reached a device."""


class GroupCost(msgspec.Struct, frozen=True):
    """One `writev` of `events` records, then fdatasync; medians in µs."""

    events: int
    write_us: float
    sync_us: float

    @property
    def per_event_us(self) -> float:
        """Write and sync, spread over the events of the group."""
        return (self.write_us + self.sync_us) / self.events


class Recommendation(msgspec.Struct, frozen=True):
    """Settings of the hot log for a device, and why."""

    group_events_max: int
    group_window_us: int
    reasons: list[str]
    warnings: list[str]


def expected_group(rate: float, window_us: float, events_max: int) -> float:
    """Equation 2: how many events share a barrier, when `rate` events/s arrive and the window is `window_us`."""
    return min(float(events_max), max(1.0, rate * window_us / 1e6))


def effective_us(window_us: float, write_us: float, sync_us: float, group: float) -> float:
    """Equation 3: half the window, and write and sync spread over `group` events."""
    return window_us / 2 + (write_us + sync_us) / group


def gathered(cost: GroupCost, rate: float, window_us: float, events_max: int) -> float:
    """How many events share a barrier in this log: those that arrive in the window and while the barrier before ran.

    Equation 2 with the barrier added to the window; without a window it is what makes groups at all.
    """
    return expected_group(rate, window_us + cost.write_us + cost.sync_us, events_max)


def recommend(
    costs: Sequence[GroupCost], write_us: float, rate: float, syncs_max: float | None = None
) -> Recommendation:
    """Settings for a device with these costs, `write_us` for a write without a sync, and `rate` events/s.

    `syncs_max` is how many syncs a second the device allows (the IOPS of a network volume), where that is limited.
    """
    single = min(costs, key=lambda cost: cost.events)
    largest = group_events(costs)
    window_us = window_for(single, rate, syncs_max)
    return Recommendation(
        largest,
        window_us,
        [_group_reason(costs, largest), _window_reason(single, rate, window_us, syncs_max, largest)],
        _warnings(single, write_us),
    )


def window_for(single: GroupCost, rate: float, syncs_max: float | None) -> int:
    """W in µs: 0, unless the log would sync more often than the device allows."""
    barrier_us = single.write_us + single.sync_us
    if syncs_max is None or min(rate, 1e6 / barrier_us) <= syncs_max:
        return 0
    return max(0, math.ceil((1e6 / syncs_max - barrier_us) / WINDOW_STEP_US) * WINDOW_STEP_US)


def group_events(costs: Sequence[GroupCost]) -> int:
    """The smallest measured group, of 64 or more, whose cost per event is near that of the best."""
    large = [cost for cost in costs if cost.events >= GROUP_EVENTS_LEAST]
    if not large:
        return GROUP_EVENTS_LEAST
    least = min(cost.per_event_us for cost in large)
    return min(cost.events for cost in large if cost.per_event_us <= least * NEAR_ENOUGH)


def _group_reason(costs: Sequence[GroupCost], largest: int) -> str:
    chosen = next((cost for cost in costs if cost.events == largest), None)
    single = min(costs, key=lambda cost: cost.events)
    if chosen is None:
        return f"groups of {largest} were not measured; it is the specification's B_max"
    return (
        f"an event costs {single.per_event_us:,.1f} µs in a group of {single.events} and {chosen.per_event_us:,.1f} µs "
        f"in one of {largest}; larger groups save less than {NEAR_ENOUGH - 1:.0%} of that"
    )


def _window_reason(single: GroupCost, rate: float, window_us: int, syncs_max: float | None, events_max: int) -> str:
    barrier_us = single.write_us + single.sync_us
    if window_us:
        return (
            f"the device allows {syncs_max:,.0f} syncs/s; a window of {window_us:,} µs and the barrier of "
            f"{barrier_us:,.0f} µs keep the log below that"
        )
    timer = WINDOW_OF_SPECIFICATION_US
    without = effective_us(0, single.write_us, single.sync_us, gathered(single, rate, 0, events_max))
    with_timer = effective_us(timer, single.write_us, single.sync_us, gathered(single, rate, timer, events_max))
    return (
        f"the barrier before ({barrier_us:,.0f} µs) is the window: at {rate:,.0f} events/s an event costs "
        f"{without:,.0f} µs (Eq 3) without a timer and {with_timer:,.0f} µs with one of {timer:,} µs"
    )


def _warnings(cost: GroupCost, write_us: float) -> list[str]:
    if cost.sync_us >= SYNC_PLAUSIBLE_US and cost.sync_us >= write_us * SYNC_OVER_WRITE_LEAST:
        return []
    return [
        f"fdatasync takes {cost.sync_us:,.1f} µs and a plain write {write_us:,.1f} µs: implausibly fast for a device "
        "that keeps what it confirms. A volatile write cache, a file system in memory or a virtual disk that ignores "
        "flushes would lose acknowledged events in a power loss"
    ]
