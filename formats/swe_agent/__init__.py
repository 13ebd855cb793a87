"""SWE-agent trajectories: one `.traj` per run."""

from .reader import SweAgent

__all__ = ["SweAgent"]
