"""Sums of foreign numbers: what a provider or a file reports may be negative, of any size, or no number at all."""

from __future__ import annotations

import math

COUNT_MAX = (1 << 63) - 1
"""The largest sum: what a signed 64-bit column holds."""
COST_USD_MAX = 1e15
"""More than anybody can spend, and far from where floats lose cents or become infinite."""


def add_count(total: int, reported: int | None) -> int:
    """`total` and what was reported: nothing for an absent or a negative number, and never more than `COUNT_MAX`."""
    return min(total + max(reported or 0, 0), COUNT_MAX)


def add_cost(total_usd: float, reported_usd: float | None) -> float:
    """`total_usd` and what was reported, which may be a credit; within ±`COST_USD_MAX`, without what is not finite."""
    if reported_usd is None or not math.isfinite(reported_usd):
        return total_usd
    return max(-COST_USD_MAX, min(total_usd + reported_usd, COST_USD_MAX))
