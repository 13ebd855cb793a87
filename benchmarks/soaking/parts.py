"""The parts: what each does in one batch. The tests in tests/crash and tests/simulation do the same in small."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from crash.crashpoints import WAYS, crash_at_points
from crash.disks import cached, loop, shim
from crash.forks import forking
from crash.kills import kill_again_and_again
from crash.powerloss import lose_power_again_and_again
from crash.runs import Tally
from crash.workloads import WORKLOADS

from .counts import ROOT, Part, load, save

RUN_SIMULATION = ROOT / "tests" / "simulation" / "run.py"
BATCH = 50
SIMULATION_BATCH_S = 60.0
COMBINATIONS = [(workload, way) for workload in WORKLOADS for way in WAYS]


def simulate(deadline: float, folder: Path) -> None:
    """What failed before, again; then seeds of the simulation, one after the other."""
    part = load("simulation")
    for failure in list(part.failures):
        again = [sys.executable, RUN_SIMULATION, "--seed", str(json.loads(failure)["seed"])]
        if subprocess.run(again, capture_output=True, check=False).returncode == 0:
            part.cure(failure)
            save("simulation", part)
    while (left_s := deadline - time.monotonic()) > 1:
        seconds = min(SIMULATION_BATCH_S, left_s)
        command = [sys.executable, RUN_SIMULATION, "--seconds", f"{seconds:.0f}"]
        ended = subprocess.run(
            [*command, "--seed", str(part.seed)], capture_output=True, text=True, timeout=seconds * 3 + 60, check=False
        )
        try:
            report = json.loads(ended.stdout)
        except json.JSONDecodeError:
            raise RuntimeError(f"the simulation ended with {ended.returncode}: {ended.stderr[-2000:]}") from None
        count = part.now()
        count.runs += report["runs"]
        count.crashes += report["crashes"]
        count.acknowledged += report.get("acknowledged", 0)
        count.seconds += seconds
        part.add_failures([json.dumps(failure) for failure in report["failures"]])
        part.seed = report.get("next_seed", part.seed + report["runs"])
        save("simulation", part)


def kill(deadline: float, folder: Path) -> None:
    """kill -9 at random moments."""
    with forking(folder) as forks:
        _repeat("kills", deadline, lambda part: kill_again_and_again(forks, folder, part.seed, BATCH))


def lose_power(deadline: float, folder: Path) -> None:
    """Power losses of a file system."""
    template = loop.make_image(folder / "ext4")
    with forking(folder) as forks, loop.loop_disk(template, folder) as disk:
        _repeat("power-losses", deadline, lambda part: lose_power_again_and_again(forks, disk, part.seed, BATCH))


def lose_cache(deadline: float, folder: Path) -> None:
    """Power losses of a disk with a volatile cache."""
    template = loop.make_image(folder / "ext4")
    with forking(folder) as forks, cached.cached_disk(template, folder) as disk:
        _repeat("volatile-cache", deadline, lambda part: lose_power_again_and_again(forks, disk, part.seed, BATCH))


def crash_everywhere(deadline: float, folder: Path) -> None:
    """Every crash point of every workload, in every way, again and again."""
    template = loop.make_image(folder / "ext4")
    library = shim.preloaded(shim.build(folder))

    def batch(part: Part) -> Tally:
        workload, way = COMBINATIONS[part.seed % len(COMBINATIONS)]
        end = min(deadline, time.monotonic() + SIMULATION_BATCH_S)
        tally = crash_at_points(forks, disk, workload, way, first=part.place, go_on=lambda: time.monotonic() < end)
        part.place = 0 if tally.complete else part.place + tally.crashes
        part.seed += tally.complete
        part.now().runs += tally.complete
        return tally

    with forking(folder, library) as forks, loop.loop_disk(template, folder) as disk:
        _repeat("crash-points", deadline, batch, counts_seeds=True)


def _repeat(name: str, deadline: float, batch: Callable[[Part], Tally], *, counts_seeds: bool = False) -> None:
    part = load(name)
    while time.monotonic() < deadline:
        start = time.monotonic()
        tally = batch(part)
        count = part.now()
        count.crashes += tally.crashes
        count.acknowledged += tally.acknowledged
        count.seconds += time.monotonic() - start
        part.add_failures(tally.failures)
        part.seed += not counts_seeds
        save(name, part)


PARTS: dict[str, Callable[[float, Path], None]] = {
    "simulation": simulate,
    "kills": kill,
    "crash-points": crash_everywhere,
    "power-losses": lose_power,
    "volatile-cache": lose_cache,
}


def why_not(name: str) -> str:
    """Why a part cannot run here; empty where it can."""
    if name == "simulation":
        return "" if RUN_SIMULATION.exists() else "there is no simulation"
    if name == "crash-points":
        return loop.why_not() or shim.why_not()
    if name == "power-losses":
        return loop.why_not()
    return loop.why_not() or cached.why_not() if name == "volatile-cache" else ""


def run(name: str, seconds: float) -> None:
    """Run a part for a time, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="stratalog-soak-") as folder:
        PARTS[name](time.monotonic() + seconds, Path(folder))
