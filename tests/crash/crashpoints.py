"""Crash points: the same work again and again, which dies, or fails, at its n-th file operation.

`power` dies before the operation, and everything that was not synced is gone. `torn` dies with half of a write done,
and everything that was written stays. In `error` the operation fails once, with EIO; the disk is well when the log is
opened again. In `error_power` it fails once, and then the power fails too.
"""

from __future__ import annotations

import errno
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .checker import Verdict
from .disks import shim
from .disks.loop import LoopDisk
from .forks import Child, Forks
from .runs import Tally
from .workloads import NEXT_NUMBER
from .writer import SMALL


@dataclass(frozen=True, slots=True)
class Way:
    """How the work ends."""

    action: int
    classes: int
    loses_power: bool


WAYS = {
    "power": Way(shim.DIE, shim.ALL, True),
    "torn": Way(shim.DIE_TORN, shim.WRITE, False),
    "error": Way(shim.FAIL, shim.WRITE | shim.SYNC, False),
    "error_power": Way(shim.FAIL, shim.WRITE | shim.SYNC, True),
}


class CrashPoints:
    """The crash points of one workload. `forks` has the shim preloaded."""

    def __init__(self, forks: Forks, disk: LoopDisk, workload: str, sabotage: str = "") -> None:
        self._forks = forks
        self._disk = disk
        self._workload = workload
        self._sabotage = sabotage
        self._folder = disk.path.parent
        self._ledger = self._folder / "ledger"
        self._prepared = self._prepare()

    @property
    def _home(self) -> str:
        return str(self._disk.path / "home")

    def _prepare(self) -> Path:
        """Make the file system from which the work begins."""
        self._ledger.unlink(missing_ok=True)
        self._disk.renew()
        self._forks.run(
            "crash.workloads:prepare", SMALL, home=self._home, ledger=str(self._ledger), workload=self._workload
        ).wait()
        self._ledger.touch()
        shutil.copyfile(self._ledger, self._folder / "ledger-prepared")
        return self._disk.save("prepared")

    def operations(self, way: Way) -> list[shim.Operation]:
        """The file operations of the work that can be hit, when nothing happens."""
        trace = self._folder / "trace"
        self._work({"folder": self._home, "classes": way.classes, "trace": str(trace)}).result()
        verdict = self._check()
        assert verdict.ok, f"the undisturbed work: {verdict}"
        return shim.read_trace(trace)

    def crash_at(self, operation: shim.Operation, way: Way) -> Verdict:
        """Do the work up to an operation, crash, restart, and check."""
        arm = {"folder": self._home, "nth": operation.number, "action": way.action, "classes": way.classes}
        child = self._work({**arm, "error": errno.EIO})
        status, escaped = child.wait(), ""
        if status not in (0, -signal.SIGKILL):
            escaped = child.traceback() or f"the work ended with {status}"
        if way.loses_power:
            self._disk.cut_power()
            self._disk.restart()
        verdict = self._check()
        if escaped:
            verdict.problems.append(escaped)
        return verdict

    def _work(self, arm: dict[str, object]) -> Child:
        self._disk.renew(self._prepared)
        shutil.copyfile(self._folder / "ledger-prepared", self._ledger)
        return self._forks.run(
            "crash.workloads:work",
            SMALL,
            home=self._home,
            ledger=str(self._ledger),
            workload=self._workload,
            number=NEXT_NUMBER,
            arm=arm,
            sabotage=self._sabotage,
        )

    def _check(self) -> Verdict:
        child = self._forks.run("crash.checker:check", SMALL, home=self._home, ledger=str(self._ledger))
        return Verdict(**child.result())


def crash_at_points(
    forks: Forks,
    disk: LoopDisk,
    workload: str,
    way: str,
    *,
    count: int | None = None,
    seed: int = 0,
    sabotage: str = "",
    kind: str = "",
    first: int = 0,
    go_on: Callable[[], bool] = lambda: True,
) -> Tally:
    """Crash at `count` operations of a workload, of each kind if it suffices, or of one `kind`.

    For `None` at all of them, from place `first` on, while `go_on()`.
    """
    tally = Tally()
    points = CrashPoints(forks, disk, workload, sabotage)
    operations = [operation for operation in points.operations(WAYS[way]) if kind in ("", operation.kind)]
    chosen = operations[first:] if count is None else shim.spread(operations, count, random.Random(seed))
    for operation in chosen:
        if not go_on():
            return tally
        verdict = points.crash_at(operation, WAYS[way])
        name = f"{workload}, {way}, at operation {operation.number} ({operation.name} {operation.path})"
        tally.add(name, verdict, verdict.acknowledged, operation.kind)
        tally.in_doubt_there += verdict.in_doubt_there
        if sabotage and tally.failures:
            return tally
    tally.complete = True
    return tally
