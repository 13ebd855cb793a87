"""What a workload is made of."""

from __future__ import annotations

import msgspec

from stratalog.schemas.errors import Invalid


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and shares of one kind of workload. Shares are probabilities, 0 to 1."""

    turns_min: int
    turns_max: int
    turns_median: int
    events_min: int = 0
    """Turns go on until there are this many events."""
    output_lines_median: int = 24
    output_lines_max: int = 250
    bulky_share: float = 0.0
    """Tool results of more than 32 KiB."""
    huge: bool = False
    """One tool result of more than 1 MiB in each trajectory."""
    child_share: float = 0.0
    fork_share: float = 0.0
    ends: bool = True


PROFILES = {
    "mixed": Profile(turns_min=2, turns_max=60, turns_median=8, bulky_share=0.004, child_share=0.15, fork_share=0.06),
    "small": Profile(turns_min=1, turns_max=4, turns_median=2, output_lines_median=4, output_lines_max=20),
    "bulky": Profile(turns_min=5, turns_max=20, turns_median=8, bulky_share=0.3, huge=True),
    "long": Profile(turns_min=100, turns_max=100_000, turns_median=150, events_min=1_000, bulky_share=0.002),
    "running": Profile(turns_min=1, turns_max=20, turns_median=5, ends=False),
}


def profile_of(name: str) -> Profile:
    """The profile of that name; raises `Invalid`."""
    if name not in PROFILES:
        raise Invalid(f"there is no workload profile {name!r}", hint=f"use one of {', '.join(PROFILES)}")
    return PROFILES[name]
