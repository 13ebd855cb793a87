"""A consolidation that dies at any step is completed by the next one: nothing twice, nothing marked that is not there.

Each case lets one call fail once, before or after it has done its work, and then runs the command again. What counts as
right is checked right after the crash (a mark must have its events in the cold table) and after the second run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from fix_cold import ColdBench
from fix_step_crash import Crash, crashing

from stratalog.cold import consolidate as module
from stratalog.cold import plan as plans
from stratalog.cold.catalog import Catalog
from stratalog.cold.check import verify_cold
from stratalog.cold.consolidate import Consolidation
from stratalog.cold.lake import Lake
from stratalog.schemas import events as ev
from stratalog.schemas.statements import statements

pytestmark = pytest.mark.postgres


def fill(bench: ColdBench) -> None:
    for number in range(6):
        bench.task(number, turns=12, day=number % 2, blob=b"x" * 500 if number == 3 else None)


def violations(bench: ColdBench, *, complete: bool) -> list[str]:
    """What is wrong with the two tiers together; `complete` also asks that nothing is left to do."""
    ends: dict[Any, tuple[int, bytes]] = {}
    found = verify_cold(
        bench.lake, bench.catalog, bench.store, lambda id_, last, hash_: ends.update({id_: (last, hash_)})
    )
    wrong = list(found.problems)
    for id_, mark in bench.marks().items():
        if mark[0] >= 0 and ends.get(id_) != mark:
            wrong.append(f"{id_} is marked {mark[0]} but cold has {ends.get(id_)}")
        if complete and mark[0] < 0:
            wrong.append(f"{id_} is not marked")
    if complete:
        wrong += [f"{path} belongs to nothing" for path in found.unknown]
        with bench.connect() as conn:
            if conn.execute("SELECT count(*) FROM consolidation_runs WHERE state = 'planned'").fetchone() != (0,):
                wrong.append("a run is open")
    return wrong


STEPS: list[tuple[Any, str, bool, int]] = [
    (plans, "make_plan", False, 1),
    (plans, "make_plan", True, 1),
    (module, "write_group", False, 1),
    (module, "write_group", True, 1),
    (Lake, "publish", True, 1),
    (Lake, "publish", False, 2),
    (Lake, "publish", True, 2),
    (Consolidation, "write_files", True, 1),
    (Consolidation, "read_back", False, 1),
    (Consolidation, "read_back", True, 1),
    (Catalog, "commit", False, 1),
    (Catalog, "commit", True, 1),
    (Consolidation, "mark", False, 1),
    (Catalog, "run_totals", True, 3),
    (Consolidation, "mark", True, 1),
]


@pytest.mark.parametrize(("owner", "name", "after", "on"), STEPS)
def test_the_next_run_completes_it(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool, on: int
) -> None:
    fill(cold_bench)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, crashing(getattr(owner, name), after=after, on=on))
        with pytest.raises(Crash):
            cold_bench.run()
    assert violations(cold_bench, complete=False) == []
    cold_bench.run()
    assert violations(cold_bench, complete=True) == []
    snapshots = cold_bench.catalog.snapshot_files()
    assert cold_bench.run().runs == () and cold_bench.catalog.snapshot_files() == snapshots


def test_a_crash_between_the_marks_leaves_none(cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cold_bench)
    broken = {**statements("consolidate"), "mark_run": b"SELECT 1/0"}
    with monkeypatch.context() as patch:
        patch.setattr(module, "_SQL", broken)
        with pytest.raises(Exception, match="division by zero"):
            cold_bench.run()
    assert all(mark == (-1, None) for mark in cold_bench.marks().values())
    assert violations(cold_bench, complete=False) == []
    cold_bench.run()
    assert violations(cold_bench, complete=True) == []


def test_events_that_arrive_between_crash_and_completion_wait_for_the_next_run(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cold_bench)
    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "commit", crashing(Catalog.commit, after=False))
        with pytest.raises(Crash):
            cold_bench.run()
    cold_bench.append(cold_bench.author(2), [ev.Annotation(name="late", score=1.0)])
    done = cold_bench.run()
    assert len(done.runs) == 2 and done.trajectories == 7
    assert violations(cold_bench, complete=True) == []


def test_leftovers_of_an_attempt_with_other_contents_are_removed(
    cold_bench: ColdBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cold_bench)
    with monkeypatch.context() as patch:
        patch.setattr(Consolidation, "read_back", crashing(Consolidation.read_back, after=False))
        with pytest.raises(Crash):
            cold_bench.run()
    before = {entry.path for entry in cold_bench.lake.files()}
    damaged = cold_bench.author(2).trajectory_id
    cold_bench.execute("DELETE FROM trajectory_events WHERE trajectory_id = %s AND sequence_number = 3", damaged)
    done = cold_bench.run()
    assert done.trajectories == 5 and len(done.problems) == 1
    after = {entry.path for entry in cold_bench.lake.files() if entry.path.startswith("events/")}
    assert before - after, "the files with the damaged trajectory"
    assert verify_cold(cold_bench.lake, cold_bench.catalog, cold_bench.store).unknown == ()


def test_marks_before_the_commit_would_be_noticed(cold_bench: ColdBench) -> None:
    # The negative control: a consolidation with the wrong order must fail the check that the others pass.
    fill(cold_bench)
    with cold_bench.steps() as steps, cold_bench.connect() as conn:
        run, _ = steps.plan("0d")
        assert run is not None
        steps.write_files(run)
        conn.execute(statements("consolidate")["mark_trajectories"], {"run_id": run.run_id})
    assert len(violations(cold_bench, complete=False)) == 6


def test_a_second_commit_of_the_same_run_would_be_noticed(cold_bench: ColdBench) -> None:
    # Another negative control: files in the table twice.
    fill(cold_bench)
    cold_bench.run()
    table = cold_bench.catalog._table()
    assert table is not None
    table.add_files(cold_bench.catalog.snapshot_files(), check_duplicate_files=False)
    assert any("twice" in wrong for wrong in violations(cold_bench, complete=True))


KILLED = """
import os, signal, sys
from stratalog.cold.cas import FsContentStore
from stratalog.cold.catalog import Catalog
from stratalog.cold.consolidate import consolidate
from stratalog.cold.lake import Lake
from stratalog.schemas.settings import ColdSettings
from stratalog.warm.database import connect

dsn, lake_url, cas_url, where = sys.argv[1:]

def deadly(call):
    def replaced(*arguments, **named):
        result = call(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)
        return result
    return replaced

owner, name = {"publish": (Lake, "publish"), "commit": (Catalog, "commit")}[where]
setattr(owner, name, deadly(getattr(owner, name)))
lake = Lake(lake_url)
consolidate(lambda: connect(dsn), lake, Catalog(dsn, lake), FsContentStore(cas_url), ColdSettings(), "0d")
"""


@pytest.mark.parametrize("where", ["publish", "commit"])
def test_kill_9(cold_bench: ColdBench, where: str) -> None:
    fill(cold_bench)
    cas_url = cold_bench.lake.url.removesuffix("cold") + "cas"
    command = [sys.executable, "-c", textwrap.dedent(KILLED), cold_bench.dsn, cold_bench.lake.url, cas_url, where]
    killed = subprocess.run(command, env={**os.environ}, capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert violations(cold_bench, complete=False) == []
    cold_bench.run()
    assert violations(cold_bench, complete=True) == []
    assert cold_bench.lake.clean_partial() == 0
