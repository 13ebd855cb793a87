"""kill -9 at random moments, also while a log is opened, pruned and closed: nothing acknowledged is ever missing.

A failure names the seed of its run and the number of the kill. `make soak` runs many more.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from crash.forks import Forks
from crash.kills import kill_again_and_again

pytestmark = [pytest.mark.required_in_ci, pytest.mark.slow]

RUNS, KILLS = 10, 20
CONTROL_RUNS, CONTROL_KILLS = 4, 30


@pytest.mark.parametrize("seed", range(RUNS))
def test_kills_lose_nothing(forks: Forks, tmp_path: Path, seed: int) -> None:
    tally = kill_again_and_again(forks, tmp_path, seed, KILLS)
    assert tally.failures == []
    assert tally.crashes == KILLS and tally.acknowledged > KILLS
    assert len(tally.phases) >= 3, "the kills met only one part of a session"


@pytest.mark.parametrize("sabotage", ["acknowledge_early", "prune_before_commit"])
def test_the_kills_find_a_log_without_its_guard(forks: Forks, tmp_path: Path, sabotage: str) -> None:
    for seed in range(CONTROL_RUNS):
        if kill_again_and_again(forks, tmp_path, seed, CONTROL_KILLS, sabotage).failures:
            return
    pytest.fail(f"the kills did not find a log that does {sabotage}")
