"""Sums of foreign numbers: a count that a provider or a file reports may be negative or of any size."""

from __future__ import annotations

COUNT_MAX = (1 << 63) - 1
"""The largest sum: what a signed 64-bit column holds."""


def add_count(total: int, reported: int | None) -> int:
    """`total` and what was reported: nothing for an absent or a negative number, and never more than `COUNT_MAX`."""
    return min(total + max(reported or 0, 0), COUNT_MAX)
