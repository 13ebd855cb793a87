"""How a run is disturbed: drawn from its seed, so that some runs have only one kind of trouble and some have all."""

from __future__ import annotations

import random

import msgspec


class Profile(msgspec.Struct, frozen=True):
    """Shares (of points, of commits, of operations) and settings of one run."""

    hosts: int
    steps: int
    kill_at_point: float
    others_at_point: float
    kill: float
    """Weight of plain kills and power losses among the steps, beside appends with 40."""
    lost_reply: float
    network: float
    io_error: float
    restores: bool
    imports_mostly: bool
    """Hosts import the same few sources, in any order, and agents do little."""
    takeovers: float
    replicated: float
    finish: float
    cold: float
    group_events_max: int
    batch_events_max: int
    prune_lag_events: int
    hot_bytes_max: int

    @classmethod
    def drawn(cls, rng: random.Random) -> Profile:
        """The profile of a seed."""
        pick = rng.choice
        return cls(
            hosts=pick((1, 2, 2, 3)),
            steps=pick((150, 250, 400)),
            kill_at_point=pick((0.0, 0.01, 0.02, 0.05)),
            others_at_point=pick((0.0, 0.05, 0.1, 0.2)),
            kill=pick((2.0, 6.0, 14.0)),
            lost_reply=pick((0.0, 0.05, 0.2)),
            network=pick((0.0, 1.0, 3.0)),
            io_error=pick((0.0, 0.0, 0.01)),
            restores=rng.random() < 0.3,
            imports_mostly=rng.random() < 0.15,
            takeovers=pick((0.0, 6.0, 12.0)),
            replicated=pick((0.0, 0.1, 0.4)),
            finish=pick((0.02, 0.08)),
            cold=pick((0.0, 1.0, 4.0)),
            group_events_max=pick((1, 4, 64)),
            batch_events_max=pick((1, 4, 64)),
            prune_lag_events=pick((0, 0, 5)),
            hot_bytes_max=pick((0, 4 << 30)),
        )
