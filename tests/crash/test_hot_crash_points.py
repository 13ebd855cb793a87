"""Death at each kind of file operation, then a power loss: a sample here, every single one in `make soak`."""

from __future__ import annotations

import pytest
from crash.crashpoints import crash_at_points
from crash.disks.loop import LoopDisk
from crash.forks import Forks
from crash.workloads import WORKLOADS

pytestmark = [pytest.mark.required_in_ci, pytest.mark.slow]

SAMPLES = {"power": 24, "torn": 12}
CONTROL_SAMPLE, CONTROL_RUNS = 30, 5
"""A busy machine may have written back by itself what a control has not synced: then another sample finds it."""


@pytest.mark.parametrize("way", SAMPLES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_nothing_is_lost_wherever_it_dies(shimmed_forks: Forks, disk: LoopDisk, workload: str, way: str) -> None:
    tally = crash_at_points(shimmed_forks, disk, workload, way, count=SAMPLES[way], seed=1)
    assert tally.failures == []
    assert tally.crashes == SAMPLES[way]
    expected = {"write .log", "write MANIFEST"} | ({"fdatasync .log", "fsync folder"} if way == "power" else set())
    assert expected <= set(tally.phases), tally.phases


@pytest.mark.parametrize(
    ("workload", "way", "sabotage"),
    [
        ("groups", "power", "no_sync"),
        ("groups", "power", "sync_first"),
        ("prune", "torn", "prune_before_commit"),
        ("reopen", "torn", "marks_in_place"),
        ("erase", "torn", "content_before_event"),
        ("erase", "torn", "done_before_purge"),
    ],
)
def test_the_points_find_a_log_without_its_guard(
    shimmed_forks: Forks, disk: LoopDisk, workload: str, way: str, sabotage: str
) -> None:
    for seed in range(1, CONTROL_RUNS + 1):
        if crash_at_points(
            shimmed_forks, disk, workload, way, count=CONTROL_SAMPLE, seed=seed, sabotage=sabotage
        ).failures:
            return
    pytest.fail(f"the crash points did not find a log with {sabotage}")
