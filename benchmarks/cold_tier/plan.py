"""How much is measured: everything, or with BENCH=quick so much that it is over in three minutes."""

from __future__ import annotations

import os
from dataclasses import dataclass

QUICK = os.environ.get("BENCH") == "quick"


@dataclass(frozen=True, slots=True)
class Plan:
    """Rounds and sizes."""

    rounds: int = int(os.environ.get("BENCH_ROUNDS", "3"))
    trajectories: int = 3_000
    """Of the profile `mixed`, one tenant and day: about 130 MB of bodies."""
    many: int = 10_000
    """Of the profile `small`, among which one is looked for and erased."""
    repeats: int = 9
    """Of a question, on one connection."""
    memory_trajectories: tuple[int, int] = (4_500, 22_500)
    """About 0.2 and 1 GB of bodies."""


PLAN = Plan(rounds=1, trajectories=600, many=1_000, repeats=5, memory_trajectories=(250, 1_000)) if QUICK else Plan()
