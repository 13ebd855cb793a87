"""A disk with a volatile cache loses a random part of what it was not told to flush: nothing acknowledged is in it.

Other than in a power loss of the file system alone, writes reach the platter in no order here. The controls are a log
that does not sync, and a file system that does not tell the disk to flush.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from crash.disks.cached import cached_disk
from crash.forks import Forks
from crash.powerloss import lose_power_again_and_again

pytestmark = [pytest.mark.required_in_ci, pytest.mark.slow]

RUNS, LOSSES = 3, 5
CONTROL_RUNS, CONTROL_LOSSES = 4, 8


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_volatile_cache_loses_nothing_acknowledged(
    forks: Forks, cached_image: Path, tmp_path: Path, seed: int
) -> None:
    with cached_disk(cached_image, tmp_path) as disk:
        tally = lose_power_again_and_again(forks, disk, seed, LOSSES)
        assert tally.failures == []
        assert tally.crashes == LOSSES and tally.acknowledged > LOSSES
        assert disk.unflushed > 0, "there was never anything to lose"


@pytest.mark.parametrize(("sabotage", "barriers"), [("no_sync", True), ("", False)])
def test_a_volatile_cache_finds_what_does_not_flush(
    forks: Forks, cached_image: Path, tmp_path: Path, sabotage: str, barriers: bool
) -> None:
    with cached_disk(cached_image, tmp_path, barriers=barriers) as disk:
        for seed in range(CONTROL_RUNS):
            try:
                tally = lose_power_again_and_again(forks, disk, seed, CONTROL_LOSSES, sabotage)
            except OSError:
                return  # without barriers not even the file system need survive
            if tally.failures:
                return
    pytest.fail("the power losses did not find it")
