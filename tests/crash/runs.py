"""One home that is written, crashed and checked again and again: what the kinds of crashes have in common."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .checker import Verdict
from .forks import Child, Forks
from .ledger import CLOSING, OPEN, OPENING, PRUNING, read_ledger
from .writer import SMALL, WAL_ONLY

EVENTS_MAX = 1500
"""A home with so many events makes room for a new one: the checks read all of it."""
PHASE_TIMEOUT_S = 10.0
DELAYS_S = {OPENING: 0.12, OPEN: 0.1, PRUNING: 0.03, CLOSING: 0.04}
"""About how long each part of a session takes: the crash comes at a random moment of it."""


@dataclass(slots=True)
class Tally:
    """What a number of crashes came to."""

    crashes: int = 0
    acknowledged: int = 0
    in_doubt_there: int = 0
    """Appends that failed in doubt, and turned out to be there."""
    failures: list[str] = field(default_factory=list)
    complete: bool = False
    """Whether all that was to be done was done, where that can be said."""
    phases: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, verdict: Verdict, acknowledged: int, phase: str = "") -> None:
        """Count a crash and what the check said of it."""
        self.crashes += 1
        self.acknowledged += acknowledged
        self.phases[phase] += 1
        if not verdict.ok:
            self.failures.append(f"{name}: {verdict}")


class Run:
    """A home under test, its ledger, and the children that work on it."""

    def __init__(self, forks: Forks, home: Path, ledger: Path, seed: int, sabotage: str = "") -> None:
        self.home = home
        self.ledger = ledger
        self.random = random.Random(seed)
        self.sabotage = sabotage
        self.seed = seed
        self.next_number = 0
        self._forks = forks
        self._acknowledged = 0
        self.environment = self.random.choice([SMALL, SMALL, WAL_ONLY])

    def write(self, **arguments: object) -> Child:
        """Start a writer on this home."""
        given = {"seed": self.random.randrange(1 << 30), "number": self.next_number, **arguments}
        return self._forks.run(
            "crash.writer:write",
            self.environment,
            home=str(self.home),
            ledger=str(self.ledger),
            sabotage=self.sabotage,
            **given,
        )

    def check(self, sabotage: str = "") -> Verdict:
        """Check this home in a child."""
        child = self._forks.run(
            "crash.checker:check", self.environment, home=str(self.home), ledger=str(self.ledger), sabotage=sabotage
        )
        verdict = Verdict(**child.result())
        self.next_number = verdict.next_number
        return verdict

    def newly_acknowledged(self, verdict: Verdict) -> int:
        """How many events were acknowledged since the last time."""
        before, self._acknowledged = self._acknowledged, verdict.acknowledged
        return verdict.acknowledged - before

    def wait_for_a_moment(self, child: Child) -> str:
        """Wait until the writer has come to a random part of a session, and a random time more; returns the part."""
        phase = self.random.choice(list(DELAYS_S))
        self.wait_for(child, lambda ledger, seen: f"\n{phase}\n" in ledger[seen:])
        time.sleep(self.random.uniform(0, DELAYS_S[phase]))
        return phase

    def wait_for(self, child: Child, reached: Callable[[str, int], bool]) -> None:
        """Wait until the ledger says something, given with where this writer's part begins."""
        start = self.ledger.stat().st_size if self.ledger.exists() else 0
        deadline = time.monotonic() + PHASE_TIMEOUT_S
        while time.monotonic() < deadline and not child.ended():
            text = "\n" + (self.ledger.read_text() if self.ledger.exists() else "")
            if reached(text, start):
                return
            time.sleep(0.001)

    def is_full(self) -> bool:
        """Whether it is time for a new home."""
        return self.next_number > EVENTS_MAX


def phase_of(ledger: Path) -> str:
    """What the writer was at when the ledger ends."""
    return read_ledger(ledger).phase
