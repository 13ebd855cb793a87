"""A disk that runs full: appends are refused before it does, and in doubt when it has; with room, all goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.checker import Verdict
from crash.disks import full
from crash.forks import Forks
from crash.ledger import read_ledger
from crash.writer import FOR_EVER, SMALL

from stratalog.hot import HotLog
from stratalog.schemas.errors import DiskBudgetExceeded
from stratalog.schemas.events import Annotation

pytestmark = pytest.mark.required_in_ci

SIZE_BYTES = 24 << 20
BUDGET = {**SMALL, "STRATALOG_HOT__DISK_FREE_MIN": "0.25"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[full.SmallDisk]:
    if reason := full.why_not():
        pytest.skip(reason)
    with full.small_disk(tmp_path / "disk", SIZE_BYTES) as mounted:
        yield mounted


class Written:
    """A home on a small disk."""

    def __init__(self, forks: Forks, disk: full.SmallDisk) -> None:
        self._forks = forks
        self._places = {"home": str(disk.path / "home"), "ledger": str(disk.path.parent / "ledger")}
        self.ledger = disk.path.parent / "ledger"

    def write(self, environment: dict[str, str], sessions: int, sabotage: str = "") -> None:
        number = read_ledger(self.ledger).next_number
        child = self._forks.run(
            "crash.writer:write",
            environment,
            **self._places,
            sessions=sessions,
            number=number,
            prunes=False,
            sabotage=sabotage,
        )
        child.result()

    def check(self) -> Verdict:
        return Verdict(**self._forks.run("crash.checker:check", SMALL, **self._places).result())


@pytest.mark.parametrize("free_bytes", [0, 1 << 16, 300_000, 1_000_000])
def test_a_full_disk_loses_nothing_and_with_room_all_goes_on(
    forks: Forks, disk: full.SmallDisk, free_bytes: int
) -> None:
    written = Written(forks, disk)
    written.write(SMALL, 2)
    disk.leave(free_bytes)
    written.write(SMALL, FOR_EVER)
    before = read_ledger(written.ledger)
    assert set(before.failed.values()) <= {"in_doubt"}
    assert before.failed or free_bytes < 1_000_000, "no append met the full disk"
    disk.make_room()
    verdict = written.check()
    assert verdict.ok, str(verdict)
    written.write(SMALL, 2)
    assert len(read_ledger(written.ledger).acknowledged) > len(before.acknowledged)
    verdict = written.check()
    assert verdict.ok, str(verdict)


def test_the_budget_refuses_before_the_disk_is_full(forks: Forks, disk: full.SmallDisk) -> None:
    written = Written(forks, disk)
    written.write(BUDGET, FOR_EVER)
    codes = read_ledger(written.ledger).failed
    assert set(codes.values()) == {"disk_budget_exceeded"}
    verdict = written.check()
    assert verdict.ok and verdict.in_doubt_there == 0, str(verdict)


def test_a_refused_append_is_done_once_there_is_room(disk: full.SmallDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in BUDGET.items():
        monkeypatch.setenv(name, value)
    with HotLog.open(disk.path / "home", serve=False) as log:
        trajectory_id = log.start_blocking(tenant="default")
        disk.leave(SIZE_BYTES // 10)
        with pytest.raises(DiskBudgetExceeded):
            while True:  # it looks at the disk every now and then
                last = log.append_blocking(trajectory_id, Annotation(name="before"))
        disk.make_room()
        receipt = None
        while receipt is None:
            try:
                receipt = log.append_blocking(trajectory_id, Annotation(name="after"))
            except DiskBudgetExceeded:
                continue
        assert receipt.sequence_number == last.sequence_number + 1


def test_a_full_disk_finds_a_log_that_goes_on_all_the_same(forks: Forks, disk: full.SmallDisk) -> None:
    written = Written(forks, disk)
    written.write(SMALL, 1)
    disk.leave(1_000_000)
    written.write(SMALL, 20, sabotage="swallow_errors")
    disk.make_room()
    assert not written.check().ok
