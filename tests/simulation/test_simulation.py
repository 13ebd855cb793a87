"""Thousands of seeded runs of whole installations, with tens of thousands of crashes: every invariant holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.run import run

RUN = Path(__file__).with_name("run.py")
RANGES = 8
SEEDS_PER_RANGE = 300
CRASHES_MIN = 20_000
"""Of all ranges together; kills, power losses and crashes of Postgres."""


@pytest.mark.required_in_ci
@pytest.mark.slow
@pytest.mark.parametrize("part", range(RANGES))
def test_every_invariant_holds_whatever_crashes(part: int) -> None:
    crashes = 0
    for seed in range(part * SEEDS_PER_RANGE, (part + 1) * SEEDS_PER_RANGE):
        done = run(seed)
        if done.failure:
            pytest.fail(done.told(), pytrace=False)
        crashes += done.crashes
    assert crashes >= CRASHES_MIN / RANGES


def test_the_runs_reach_every_tier() -> None:
    done = [run(seed) for seed in range(30)]
    for count in ("acknowledged", "replicated", "cold"):
        assert sum(getattr(each, count) for each in done) > 300, count


def test_a_seed_gives_the_same_run_again() -> None:
    for seed in range(5):
        assert run(seed) == run(seed)
    assert len({run(seed).digest for seed in range(5)}) == 5


@pytest.mark.parametrize("hash_seed", ["0", "1", "12345"])
def test_a_run_does_not_depend_on_the_order_of_sets(hash_seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    told = subprocess.run(
        [sys.executable, RUN, "--seed", "3"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert told.strip().endswith(f"digest {run(3).digest}")


def test_a_failure_tells_its_last_steps_and_how_to_see_it_again() -> None:
    failed = next(done for done in (run(seed, "ack-before-flush") for seed in range(20)) if done.failure)
    told = failed.told("ack-before-flush")
    assert failed.failure in told and failed.trace[-1] in told
    command = told.rpartition("replay it with: python ")[2].split()
    again = subprocess.run([sys.executable, *command], cwd=RUN.parents[2], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert failed.failure in again.stdout and failed.trace[-1] in again.stdout


def test_a_soak_counts_what_it_did() -> None:
    told = subprocess.run(
        [sys.executable, RUN, "--seed", "5", "--seconds", "0.5"], capture_output=True, text=True, check=True
    ).stdout
    report = json.loads(told)
    assert report["failures"] == [] and report["runs"] > 0 and report["crashes"] > 0
    assert report["next_seed"] == 5 + report["runs"]
