"""The Dagster job `retention`: it applies what is in force, reports it, and is off where there are no policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

dg = pytest.importorskip("dagster")  # required_in_ci

from fix_cold import ColdBench  # noqa: E402
from fix_damage import settings_of  # noqa: E402
from fix_retention import events_here, load, place  # noqa: E402

from stratalog.hot.home import Home  # noqa: E402
from stratalog.pipelines import build_definitions  # noqa: E402

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]


def run_job(bench: ColdBench) -> Any:
    job = build_definitions(settings_of(bench)).resolve_job_def("retention")
    return job.execute_in_process(raise_on_error=False)


def metadata(result: Any) -> dict[str, Any]:
    (event,) = [event for event in result.all_node_events if event.is_successful_output]
    return {name: value.value for name, value in event.step_output_data.metadata.items()}


def test_the_job_applies_the_policies_and_says_what_was_kept(cold_bench: ColdBench) -> None:
    held, gone = cold_bench.task(1), cold_bench.task(2)
    cold_bench.run()
    result = run_job(cold_bench)
    assert result.success and metadata(result)["trajectories"] == 0
    assert len(events_here(cold_bench)) == 2, "there is no policy"
    load(cold_bench)
    place(cold_bench, "case", trajectories=(held.trajectory_id,))
    result = run_job(cold_bench)
    assert result.success
    found = metadata(result)
    assert (found["version"], found["trajectories"], found["kept"][0]["matters"]) == (1, 1, ["case"])
    left = events_here(cold_bench)
    assert held.trajectory_id in left and gone.trajectory_id not in left


def test_the_job_goes_through_every_tier(cold_bench: ColdBench) -> None:
    cold_bench.task(1)
    cold_bench.task(2, model="other")
    cold_bench.run()
    load(cold_bench, '[[policy]]\nname = "all"\nmodel = "atlas-4"\nwarm = "0d"\ncold = "0d"\nbulky = "0d"\n')
    result = run_job(cold_bench)
    assert result.success
    assert metadata(result)["lower_tiers"]["cold"]["shares"][0]["trajectories"] == 1
    assert sum(file.rows for file in cold_bench.catalog.files()) == len(cold_bench.authors) // 2 * 18


def test_the_schedule_is_on_only_where_there_are_policies(cold_bench: ColdBench, tmp_path: Path) -> None:
    def state(where: Any, running: bool = True) -> Any:
        definitions = build_definitions(where, running=running)
        return definitions.resolve_schedule_def("retention_nightly").default_status

    home = Home.open(tmp_path / "home", create=True)
    stopped, on = dg.DefaultScheduleStatus.STOPPED, dg.DefaultScheduleStatus.RUNNING
    assert state(home) == state(home.path) == state(str(home.path)) == state(settings_of(cold_bench)) == stopped
    (home.path / "retention.toml").write_text("")
    assert state(home) == state(str(home.path)) == on
    assert state(home, running=False) == stopped
