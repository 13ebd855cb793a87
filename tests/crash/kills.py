"""kill -9 at a random moment of a session: what the process has written stays, what it was about to do does not."""

from __future__ import annotations

import shutil
from pathlib import Path

from .forks import Forks
from .runs import Run, Tally, phase_of


def kill_again_and_again(forks: Forks, folder: Path, seed: int, kills: int, sabotage: str = "") -> Tally:
    """Kill a writer so many times, on homes below `folder`; each time everything acknowledged must be there."""
    tally = Tally()
    run = _fresh(forks, folder, seed, 0, sabotage)
    for number in range(kills):
        if run.is_full():
            run = _fresh(forks, folder, seed, number, sabotage)
        child = run.write()
        run.wait_for_a_moment(child)
        child.kill()
        phase = phase_of(run.ledger)
        verdict = run.check()
        tally.add(f"kill {number} of seed {seed}, at {phase!r}", verdict, run.newly_acknowledged(verdict), phase)
        if not verdict.ok:
            break
    return tally


def _fresh(forks: Forks, folder: Path, seed: int, number: int, sabotage: str) -> Run:
    place = folder / "kills"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return Run(forks, place / "home", place / "ledger", seed * 100_003 + number, sabotage)
