"""The power fails at a random moment: what a file system had not brought to the device is gone.

Acknowledgements end before the power does: an acknowledgement that arrives while the file system goes down is one that
nobody would have seen.
"""

from __future__ import annotations

from .disks import Disk
from .forks import Forks
from .ledger import forget_late_acknowledgements
from .runs import Run, Tally, phase_of


def lose_power_again_and_again(forks: Forks, disk: Disk, seed: int, losses: int, sabotage: str = "") -> Tally:
    """Cut the power of a writer's disk so many times; each time everything acknowledged must be there."""
    tally = Tally()
    run = _fresh(forks, disk, seed, 0, sabotage)
    for number in range(losses):
        if run.is_full():
            run = _fresh(forks, disk, seed, number, sabotage)
        child = run.write()
        run.wait_for_a_moment(child)
        seen = run.ledger.stat().st_size if run.ledger.exists() else 0
        disk.cut_power()
        child.kill()
        if run.ledger.exists():
            forget_late_acknowledgements(run.ledger, seen)
        phase = phase_of(run.ledger)
        disk.restart()
        verdict = run.check()
        name = f"power loss {number} of seed {seed}, at {phase!r}"
        tally.add(name, verdict, run.newly_acknowledged(verdict), phase)
        if not verdict.ok:
            break
    return tally


def _fresh(forks: Forks, disk: Disk, seed: int, number: int, sabotage: str) -> Run:
    disk.renew()
    ledger = disk.path.parent / "ledger"
    ledger.unlink(missing_ok=True)
    return Run(forks, disk.path / "home", ledger, seed * 100_003 + number, sabotage)
