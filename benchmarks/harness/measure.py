"""Stages, each a process of its own: what it did, how long that took, and how much memory it needed at most.

A stage is a function that takes JSON arguments and returns a JSON object with its own times, so that the start of
Python is not part of them. The peak is VmHWM: ru_maxrss of a child begins with what its parent had.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

Stage = Callable[..., dict[str, Any]]
STAGE_FLAG = "--stage"
TIMEOUT_S = 1800


def stage_command(script: Path, name: str, **arguments: Any) -> list[str]:
    """The command line that runs a stage of `script`."""
    return [sys.executable, str(script), STAGE_FLAG, name, json.dumps(arguments)]


def run_stage(
    script: Path, name: str, *, variables: Mapping[str, str] | None = None, **arguments: Any
) -> dict[str, Any]:
    """Run a stage of `script` in a process of its own; its result, with `peak_bytes`.

    `variables` are added to the environment.
    """
    command = stage_command(script, name, **arguments)
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"the stage {name} ended with exit code {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def be_stage(stages: Mapping[str, Stage], arguments: list[str]) -> bool:
    """In the child: run the stage that the command line names and print its result; false where it names none."""
    if arguments[:1] != [STAGE_FLAG]:
        return False
    result = stages[arguments[1]](**json.loads(arguments[2]))
    print(json.dumps(result | {"peak_bytes": peak_bytes()}))
    return True


def peak_bytes() -> int:
    """The most memory that this process has had resident."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


class Stopwatch:
    """`with Stopwatch() as watch: …`, then `watch.seconds`."""

    seconds = 0.0

    def __enter__(self) -> Stopwatch:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        self.seconds = time.perf_counter() - self._started


class Rounds:
    """Samples by name, over several rounds."""

    def __init__(self) -> None:
        self._samples: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        """One sample."""
        self._samples.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        """The median of the samples of that name."""
        return median(self._samples[name])

    def samples(self, name: str) -> list[float]:
        """The samples of that name, in the order of the rounds."""
        return list(self._samples[name])

    def ratios(self, name: str) -> list[float]:
        """Of each round, the sample over that of its baseline."""
        return [
            value / least for value, least in zip(self.samples(name), self.samples(f"baseline of {name}"), strict=True)
        ]

    def names(self) -> Iterable[str]:
        """The names, in the order of their first samples."""
        return self._samples.keys()

    def spread(self, name: str) -> tuple[float, float]:
        """The smallest and the largest sample."""
        return min(self._samples[name]), max(self._samples[name])
