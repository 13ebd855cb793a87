"""Run the simulation: `python tests/simulation/run.py --seed 7 --trace`, or many seeds for a time; see README.md."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # as a script: its folder's names must not hide installed ones
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import json
import time
import traceback
from typing import Any

import msgspec

from simulation.bugs import BUGS, planted
from simulation.clock import installed
from simulation.schedule import Schedule
from simulation.world import Violation, World

COMMAND = "python tests/simulation/run.py --seed {seed}{bug} --trace"


class Outcome(msgspec.Struct, frozen=True):
    """What became of one run; `failure` is empty where every invariant held."""

    seed: int
    crashes: int
    steps: int
    acknowledged: int
    replicated: int
    cold: int
    digest: str
    failure: str = ""
    trace: tuple[str, ...] = ()
    stack: str = ""

    def told(self, bug: str = "") -> str:
        """The failure as a person wants to see it: what, the last steps, and how to see it again."""
        command = COMMAND.format(seed=self.seed, bug=f" --bug {bug}" if bug else "")
        steps = "\n".join(self.trace)
        return f"{steps}\n\nseed {self.seed}: {self.failure}\nreplay it with: {command}"


def run(seed: int, bug: str = "", *, profile: dict[str, Any] | None = None, on_line: Any = None) -> Outcome:
    """One run from its seed; `profile` replaces settings of the drawn one, by default those that the bug wants."""
    world = World(seed, bug)
    world.on_line = on_line
    if profile is None:
        profile = BUGS[bug].profile if bug else {}
    world.profile = msgspec.structs.replace(world.profile, **profile)
    failure = stack = ""
    with installed(world), planted(bug):
        try:
            Schedule(world).run()
        except (Exception, Violation) as error:  # noqa: BLE001 - whatever the product raises is a finding
            failure = f"{type(error).__name__}: {error}"
            stack = traceback.format_exc()
    oracle = world.oracle
    replicated = len(oracle.canonical) + len(oracle.quarantined)
    counts = (world.crashes, world.steps, len(oracle.acked), replicated, len(oracle.cold))
    return Outcome(seed, *counts, world.digest(), failure, tuple(world.trace) if failure else (), stack)


def soak(first_seed: int, seconds: float) -> dict[str, Any]:
    """Runs of one seed after the other until the time is over."""
    deadline = time.monotonic() + seconds
    totals = {"runs": 0, "crashes": 0, "steps": 0, "acknowledged": 0}
    failures = []
    seed = first_seed
    while time.monotonic() < deadline:
        done = run(seed)
        totals["runs"] += 1
        for name in ("crashes", "steps", "acknowledged"):
            totals[name] += getattr(done, name)
        if done.failure:
            failures.append({"seed": seed, "failure": done.failure, "replay": COMMAND.format(seed=seed, bug="")})
        seed += 1
    return {**totals, "first_seed": first_seed, "next_seed": seed, "failures": failures}


def main() -> int:
    """The command line; exits with 1 where an invariant was violated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the seed, or the first one")
    parser.add_argument("--seconds", type=float, help="run seeds from there on for so long, and print JSON")
    parser.add_argument("--bug", default="", choices=["", *BUGS], help="plant a bug")
    parser.add_argument("--trace", action="store_true", help="print every step")
    options = parser.parse_args()
    if options.seconds is not None:
        report = soak(options.seed, options.seconds)
        print(json.dumps(report))
        return 1 if report["failures"] else 0
    done = run(options.seed, options.bug, on_line=print if options.trace else None)
    if done.failure:
        print(done.stack)
        print(f"\nseed {done.seed}: {done.failure}" if options.trace else done.told(options.bug))
        return 1
    print(f"seed {done.seed}: good; {done.crashes} crashes, {done.acknowledged} acknowledged, digest {done.digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
