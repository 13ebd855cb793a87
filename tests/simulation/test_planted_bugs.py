"""The simulation can fail: every planted bug is found, and without it the very same run is good.

`BUGS` says within how many seeds, counted from 0; README.md has the same table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.bugs import BUGS
from simulation.run import run

README = Path(__file__).with_name("README.md").read_text()


@pytest.mark.required_in_ci
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    bug = BUGS[name]
    found = next((done for done in (run(seed, name) for seed in range(bug.seeds)) if done.failure), None)
    assert found is not None, f"{name} was not found within {bug.seeds} seeds"
    control = run(found.seed, profile=bug.profile)
    assert not control.failure, control.told()


def test_the_table_of_bugs_is_the_one_of_the_page() -> None:
    for name, bug in BUGS.items():
        assert f"| `{name}` | {bug.what} | {bug.seeds} |" in README
