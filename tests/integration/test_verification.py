"""`verify` compares the tiers with each other: what one of them says of another must be true."""

from __future__ import annotations

import pytest
from fix_cold import ColdBench

from stratalog.cold.consolidate import Consolidation
from stratalog.cold.installation import Installation
from stratalog.cold.verification import verify_all
from stratalog.hot.home import Home
from stratalog.hot.log import HotLog
from stratalog.schemas import events as ev
from stratalog.warm.sidecar import Sidecar

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]


def problems(home: Home) -> list[str]:
    report = verify_all(Installation(home))
    found = [problem for tier in report["tiers"].values() for problem in tier["problems"]]
    assert report["ok"] == (not found)
    return found


def test_tiers_that_agree_have_no_problems(cold_bench: ColdBench, cold_home: Home) -> None:
    cold_bench.task(1)
    cold_bench.task(2)
    cold_bench.run()
    assert problems(cold_home) == []


def test_what_is_marked_as_consolidated_must_be_in_the_cold_tier(cold_bench: ColdBench, cold_home: Home) -> None:
    cold_bench.task(1)
    cold_bench.task(2)
    cold_bench.run()
    cold_bench.execute("DELETE FROM stratalog_catalog.iceberg_tables")
    (problem,) = problems(cold_home)
    assert "2 trajectories are marked as consolidated and cannot be read from the cold tier" in problem


def test_a_mark_of_another_history_is_noticed(cold_bench: ColdBench, cold_home: Home) -> None:
    cold_bench.task(1)
    cold_bench.run()
    cold_bench.execute("UPDATE trajectories SET consolidated_hash = decode(repeat('ab', 32), 'hex')")
    assert any("with another hash" in problem for problem in problems(cold_home))


def test_a_run_that_is_committed_and_not_yet_marked_is_no_damage(
    cold_bench: ColdBench, cold_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold_bench.task(1)
    cold_bench.run()
    cold_bench.append(cold_bench.author(1), [ev.Annotation(name="late", score=1.0)])
    with monkeypatch.context() as patch:
        patch.setattr(Consolidation, "mark", _killed)
        with pytest.raises(Killed):
            cold_bench.run()
    assert cold_bench.marks()[cold_bench.author(1).trajectory_id][0] < cold_bench.author(1).at.sequence_number
    assert problems(cold_home) == []
    cold_bench.run()
    assert problems(cold_home) == []


class Killed(Exception):
    """The process ends here."""


def _killed(*arguments: object) -> None:
    raise Killed


def test_a_cold_tier_that_is_shorter_than_its_marks_is_noticed(cold_bench: ColdBench, cold_home: Home) -> None:
    cold_bench.task(1)
    cold_bench.run()
    end = cold_bench.author(1).at.sequence_number
    cold_bench.append(cold_bench.author(1), [ev.Annotation(name="late", score=1.0)])
    cold_bench.execute("UPDATE trajectories SET consolidated_through = head_sequence, consolidated_hash = head_hash")
    assert any(f"cold ends at event {end}, warm has marked event {end + 1}" in found for found in problems(cold_home))


def test_what_was_replicated_must_be_in_the_warm_tier(cold_bench: ColdBench, cold_home: Home) -> None:
    installation = Installation(cold_home)
    with HotLog.open(cold_home) as log:  # a live trajectory keeps its events in the log
        kept, lost = (log.start_blocking(tenant="acme", task=task) for task in ("kept", "lost"))
        for number in range(3):
            for trajectory_id in (kept, lost):
                log.append_blocking(trajectory_id, ev.Annotation(name=str(number)))
    Sidecar(cold_home, cold_bench.dsn, installation.content_store()).run_once()
    assert problems(cold_home) == []
    with HotLog.open(cold_home) as log:
        log.append_blocking(kept, ev.Annotation(name="not yet replicated"))
    assert problems(cold_home) == []
    for table in ("trajectory_events", "trajectories"):
        cold_bench.execute(f"DELETE FROM {table} WHERE trajectory_id = %s", lost)
    (problem,) = problems(cold_home)
    assert f"event 0 of {lost} was replicated and is not in the warm tier" in problem
