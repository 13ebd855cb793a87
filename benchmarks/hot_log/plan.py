"""How much is measured: everything, or with BENCH=quick so much that it is over in three minutes."""

from __future__ import annotations

import os
from dataclasses import dataclass

QUICK = os.environ.get("BENCH") == "quick"


@dataclass(frozen=True, slots=True)
class Plan:
    """Rounds, seconds of each measurement, and sizes."""

    rounds: int = 5
    appenders: tuple[int, ...] = (1, 8, 64, 256)
    sizes: tuple[str, ...] = ("4 KB", "100 KB")
    """Beside 1 KB, at 64 appenders."""
    rates: tuple[int, ...] = (500, 2_000, 10_000)
    append_s: float = 3.0
    arrive_s: float = 5.0
    step_appenders: tuple[int, ...] = (1, 64)
    step_s: float = 3.0
    delay_us: int = 5_000
    stall_s: float = 5.0
    windows_us: tuple[int, ...] = (0, 2_000, 5_000, 10_000)
    window_rates: tuple[int, ...] = (200, 2_000)
    groups: tuple[int, ...] = (16, 64, 256)
    """B_max, with and without a window of 2 ms, 256 coroutines in a closed loop."""
    sweep_s: float = 4.0
    replicated_s: float = 5.0
    amplify_rate: int = 10_000
    amplify_s: float = 90.0
    amplify_settings: str = ""
    memory_events: int = 10_000_000
    memory_memtable_bytes: int = 0
    """0 for the default."""
    reopenings: int = 5


FULL = Plan()
SHORT = Plan(
    rounds=2,
    append_s=0.6,
    arrive_s=0.8,
    step_s=0.6,
    stall_s=1.0,
    windows_us=(0, 2_000, 10_000),
    window_rates=(2_000,),
    groups=(16, 256),
    sweep_s=0.6,
    replicated_s=1.0,
    amplify_s=6.0,
    amplify_settings=f"memtable_bytes = {24 << 20}\n",
    memory_events=80_000,
    memory_memtable_bytes=8 << 20,
    reopenings=2,
)
PLAN = SHORT if QUICK else FULL
