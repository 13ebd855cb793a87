"""A disk that fails: an error at a write or a sync leaves an append in doubt, and takes nothing else along."""

from __future__ import annotations

import pytest
from crash.crashpoints import crash_at_points
from crash.disks.loop import LoopDisk
from crash.forks import Forks
from crash.workloads import WORKLOADS

pytestmark = [pytest.mark.required_in_ci, pytest.mark.slow]

SAMPLE = 20
SYNCS, CONTROLS, CONTROL_RUNS = 8, 12, 5


@pytest.mark.parametrize("way", ["error", "error_power"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_failed_write_or_sync_loses_nothing(shimmed_forks: Forks, disk: LoopDisk, workload: str, way: str) -> None:
    tally = crash_at_points(shimmed_forks, disk, workload, way, count=SAMPLE, seed=1)
    assert tally.failures == []


def test_an_append_whose_sync_failed_is_in_doubt_and_may_be_there(shimmed_forks: Forks, disk: LoopDisk) -> None:
    tally = crash_at_points(shimmed_forks, disk, "groups", "error", count=SYNCS, kind="fdatasync .log")
    assert tally.failures == []
    assert tally.in_doubt_there > 0, "no append failed and turned out to be there"


@pytest.mark.parametrize(
    ("way", "kind", "sabotage"),
    [("error", "fdatasync .log", "doubt_as_refusal"), ("error_power", "write .log", "swallow_errors")],
)
def test_the_errors_find_a_log_without_its_guard(
    shimmed_forks: Forks, disk: LoopDisk, way: str, kind: str, sabotage: str
) -> None:
    for seed in range(CONTROL_RUNS):
        if crash_at_points(
            shimmed_forks, disk, "groups", way, count=CONTROLS, kind=kind, seed=seed, sabotage=sabotage
        ).failures:
            return
    pytest.fail(f"the errors did not find a log with {sabotage}")
