"""Equations 2 and 3 with the specification's numbers, and the settings that follow from a measured device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.hot.amortisation import (
    SYNC_PLAUSIBLE_US,
    GroupCost,
    effective_us,
    expected_group,
    gathered,
    group_events,
    recommend,
    window_for,
)

WINDOW_US = 2000


def device(sync_us: float, write_us: float = 3.0, per_event_us: float = 0.4) -> list[GroupCost]:
    """A device whose writes take longer with the size of the group and whose syncs do not."""
    return [GroupCost(events, write_us + events * per_event_us, sync_us) for events in (1, 8, 64, 128, 256)]


@pytest.mark.parametrize(("rate", "group"), [(0, 1), (5000, 10), (10_000, 20), (50_000, 64)])
def test_equation_2_with_the_numbers_of_the_specification(rate: float, group: float) -> None:
    assert expected_group(rate, WINDOW_US, 64) == pytest.approx(group)


@pytest.mark.parametrize(("group", "cost_us"), [(1, 1285), (20, 1014.25)])
def test_equation_3_with_the_numbers_of_the_specification(group: float, cost_us: float) -> None:
    assert effective_us(WINDOW_US, 200, 85, group) == pytest.approx(cost_us)


@given(st.floats(0, 1e6), st.floats(0, 1e5), st.integers(1, 4096))
def test_a_group_is_never_empty_and_never_too_large(rate: float, window_us: float, events_max: int) -> None:
    assert 1 <= expected_group(rate, window_us, events_max) <= events_max


def test_what_queues_while_the_barrier_before_runs_is_in_the_group() -> None:
    assert gathered(GroupCost(1, 100, 4900), 2000, 0, 256) == pytest.approx(10)
    assert gathered(GroupCost(1, 100, 4900), 2000, WINDOW_US, 256) == pytest.approx(14)


@given(st.floats(SYNC_PLAUSIBLE_US, 20_000), st.floats(1, 50_000))
def test_without_a_limit_of_syncs_a_timer_is_never_recommended(sync_us: float, rate: float) -> None:
    assert recommend(device(sync_us), 1.0, rate).group_window_us == 0


@pytest.mark.parametrize(
    ("sync_us", "rate", "syncs_max", "window_us"),
    [
        (80, 2000, None, 0),
        (80, 2000, 3000, 0),  # the events themselves are fewer than the syncs that are allowed
        (997, 50_000, 3000, 0),  # so are the syncs, which follow each other
        (97, 50_000, 500, 1900),
        (97, 50_000, 3000, 300),
    ],
)
def test_a_window_where_the_device_limits_syncs(
    sync_us: float, rate: float, syncs_max: float | None, window_us: int
) -> None:
    assert window_for(GroupCost(1, 3, sync_us), rate, syncs_max) == window_us


def test_the_recommended_window_keeps_the_log_below_the_limit() -> None:
    single = GroupCost(1, 3, 97)
    for syncs_max in (100, 333, 1000, 5000):
        period_us = window_for(single, 1e6, syncs_max) + single.write_us + single.sync_us
        assert 1e6 / period_us <= syncs_max * 1.0001


@pytest.mark.parametrize(
    ("costs", "events"),
    [
        (device(5000, per_event_us=0.1), 256),  # a slow sync: the larger the better
        ([GroupCost(64, 64, 64), GroupCost(128, 128, 120), GroupCost(256, 256, 240)], 64),  # nothing is saved
        ([GroupCost(64, 64, 640), GroupCost(128, 128, 640), GroupCost(256, 256, 1216)], 128),
        ([GroupCost(1, 1, 80)], 64),
    ],
)
def test_the_smallest_group_that_is_near_the_best(costs: list[GroupCost], events: int) -> None:
    assert group_events(costs) == events


def test_reasons_name_the_numbers() -> None:
    found = recommend(device(80), 1.0, 2000)
    assert len(found.reasons) == 2
    assert "83 µs" in found.reasons[1] and "2,000 events/s" in found.reasons[1]
    limited = recommend(device(80), 1.0, 50_000, syncs_max=500)
    assert "500 syncs/s" in limited.reasons[1] and limited.group_window_us == 2000


@pytest.mark.parametrize(
    ("sync_us", "write_us", "warned"),
    [(80, 1, False), (0.5, 0.4, True), (SYNC_PLAUSIBLE_US - 1, 1, True), (30, 20, True), (30, 2, False)],
)
def test_an_implausibly_fast_sync_is_warned_of(sync_us: float, write_us: float, warned: bool) -> None:
    assert bool(recommend(device(sync_us), write_us, 2000).warnings) is warned
