"""Generated trajectories for benchmarks, tests and docs: realistic, complete, and the same for the same seed."""

from .trajectory import GeneratedEvent, GeneratedTrajectory
from .workload import workload
from .writing import contents, envelopes, write

__all__ = ["GeneratedEvent", "GeneratedTrajectory", "contents", "envelopes", "workload", "write"]
