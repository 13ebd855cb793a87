"""The power of a file system is cut at random moments: nothing acknowledged is missing when it is back.

What a program has written and not synced is lost here, other than by a kill, so the controls are logs that do not sync.
"""

from __future__ import annotations

import pytest
from crash.disks.loop import LoopDisk
from crash.forks import Forks
from crash.powerloss import lose_power_again_and_again

pytestmark = [pytest.mark.required_in_ci, pytest.mark.slow]

RUNS, LOSSES = 6, 10
CONTROL_RUNS, CONTROL_LOSSES = 4, 10


@pytest.mark.parametrize("seed", range(RUNS))
def test_power_losses_lose_nothing(forks: Forks, disk: LoopDisk, seed: int) -> None:
    tally = lose_power_again_and_again(forks, disk, seed, LOSSES)
    assert tally.failures == []
    assert tally.crashes == LOSSES and tally.acknowledged > LOSSES


@pytest.mark.parametrize("sabotage", ["no_sync", "sync_first"])
def test_power_losses_find_a_log_that_does_not_sync(forks: Forks, disk: LoopDisk, sabotage: str) -> None:
    for seed in range(CONTROL_RUNS):
        if lose_power_again_and_again(forks, disk, seed, CONTROL_LOSSES, sabotage).failures:
            return
    pytest.fail(f"the power losses did not find a log with {sabotage}")
