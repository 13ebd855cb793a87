"""The Dagster job over a real Postgres and real Parquet: what it moves, what its checks hold back, crashes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

dg = pytest.importorskip("dagster")  # required_in_ci

from fix_cold import ColdBench  # noqa: E402
from fix_damage import ORIGINAL_COMMIT, Damage, marked, settings_of  # noqa: E402

from stratalog.cold.consolidate import Consolidation  # noqa: E402
from stratalog.hot.home import Home  # noqa: E402
from stratalog.pipelines import build_definitions  # noqa: E402
from stratalog.pipelines.cold_events import KEY  # noqa: E402
from stratalog.pipelines.consolidation_marks import MARKS_KEY  # noqa: E402
from stratalog.pipelines.days import as_of  # noqa: E402
from stratalog.pipelines.fleet_storage import STORAGE_KEY  # noqa: E402
from stratalog.pipelines.instance import open_instance  # noqa: E402
from stratalog.pipelines.read_back_checks import SPECS  # noqa: E402
from stratalog.schemas.errors import Invalid  # noqa: E402
from stratalog.schemas.settings import Settings  # noqa: E402

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]

TODAY = dt.datetime.now(dt.UTC).date()


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """One Dagster instance for all tests, with the settings that we ship."""
    home = Home.open(tmp_path_factory.mktemp("dagster") / "home", create=True)
    with open_instance(home) as opened:
        yield opened


@pytest.fixture
def defs(cold_bench: ColdBench) -> dg.Definitions:
    return build_definitions(settings_of(cold_bench))


def config(older_than: str | None = "0d") -> dict[str, Any]:
    return {"ops": {"stratalog__cold_events": {"config": {"older_than": older_than}}}}


def run_job(
    defs: dg.Definitions, instance: dg.DagsterInstance, day: str = TODAY.isoformat(), older_than: str | None = "0d"
) -> dg.ExecuteInProcessResult:
    job = defs.resolve_job_def("consolidate")
    return job.execute_in_process(
        instance=instance, partition_key=day, run_config=config(older_than), raise_on_error=False
    )


def metadata(result: dg.ExecuteInProcessResult, key: dg.AssetKey) -> dict[str, Any]:
    materialized = result.asset_materializations_for_node(key.to_python_identifier())
    return {name: value.value for name, value in materialized[-1].metadata.items()}


def steps_that_ran(result: dg.ExecuteInProcessResult) -> set[str]:
    return {event.step_key for event in result.all_events if event.is_step_start}


def test_a_run_moves_checks_and_marks_everything(
    cold_bench: ColdBench, defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    for number in range(3):
        cold_bench.task(number, blob=b"x" * 50_000)
    cold_bench.task(9, tenant="globex", model="beta/2")
    cold_bench.task(10, finished=False)
    result = run_job(defs, instance)
    assert result.success
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert {name for name, check in checks.items() if check.passed} == set(checks)
    assert set(checks) == {spec.name for spec in SPECS} | {"nothing_left_out"}
    assert checks["every_blob_present"].metadata["checked"].value > 0
    written = metadata(result, KEY)
    assert written["dagster/row_count"] == checks["no_missing_events"].metadata["in_files"].value > 0
    rows = [record.data for record in written["by_tenant_and_model"].records]
    assert [row["tenant"] for row in rows] == ["acme", "globex"]
    assert sum(row["events"] for row in rows) == written["dagster/row_count"]
    assert written["plot"].startswith("![events and bytes](data:image/png;base64,iVBOR")
    marks = metadata(result, MARKS_KEY)
    assert (marks["trajectories"], marks["events"]) == (4, written["dagster/row_count"])
    assert len(marks["runs"]) == 1
    assert [through >= 0 for through in marked(cold_bench)] == [False, True, True, True, True]


def test_a_second_run_changes_nothing(
    cold_bench: ColdBench, defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    cold_bench.task(1)
    assert run_job(defs, instance).success
    before = (cold_bench.catalog.snapshot_files(), cold_bench.marks())
    again = run_job(defs, instance, day="2026-01-31")
    assert again.success
    assert metadata(again, KEY)["dagster/row_count"] == 0
    assert metadata(again, MARKS_KEY)["trajectories"] == 0
    assert (cold_bench.catalog.snapshot_files(), cold_bench.marks()) == before


def test_a_failed_check_keeps_the_marks_from_being_set(
    cold_bench: ColdBench, defs: dg.Definitions, instance: dg.DagsterInstance, damage: Damage
) -> None:
    cold_bench.task(1)
    result = run_job(defs, instance)
    assert not result.success
    failed = {check.check_name for check in result.get_asset_check_evaluations() if not check.passed}
    assert "read_back_matches_plan" in failed
    assert MARKS_KEY.to_python_identifier() not in steps_that_ran(result)
    assert marked(cold_bench) == [-1]
    # Negative control: nothing but the checks is in the way of these marks.
    with cold_bench.steps() as work, cold_bench.connect() as conn:
        from stratalog.cold.plan import open_runs

        work.mark(open_runs(conn)[0])
    assert marked(cold_bench)[0] > 0


def test_without_the_blocking_flag_the_marks_step_runs_and_refuses_by_itself(
    cold_bench: ColdBench,
    defs: dg.Definitions,
    instance: dg.DagsterInstance,
    damage: Damage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cold_bench.task(1)
    assert not run_job(defs, instance).success
    alone = defs.resolve_job_def("consolidate").execute_in_process(
        instance=instance,
        partition_key=TODAY.isoformat(),
        asset_selection=[MARKS_KEY],
        raise_on_error=False,
    )
    assert MARKS_KEY.to_python_identifier() in steps_that_ran(alone)
    assert not alone.success
    assert marked(cold_bench) == [-1]
    # Negative control: without that refusal, the marks would be set.
    monkeypatch.setattr("stratalog.pipelines.consolidation_marks.require_passed", lambda *_: None)
    assert (
        defs.resolve_job_def("consolidate")
        .execute_in_process(instance=instance, partition_key=TODAY.isoformat(), asset_selection=[MARKS_KEY])
        .success
    )
    assert marked(cold_bench)[0] > 0


def test_the_next_run_puts_a_damaged_file_back(
    cold_bench: ColdBench, defs: dg.Definitions, instance: dg.DagsterInstance, damage: Damage
) -> None:
    cold_bench.task(1)
    assert not run_job(defs, instance).success
    assert damage.path is not None and damage.path.read_bytes() != damage.content
    assert run_job(defs, instance).success
    assert damage.path.read_bytes() == damage.content
    assert marked(cold_bench)[0] > 0


def test_a_lost_blob_keeps_the_marks_from_being_set(
    cold_bench: ColdBench, defs: dg.Definitions, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold_bench.task(1, blob=b"y" * 40_000)

    def commit_and_lose(work: Consolidation, run: Any, files: Any) -> Any:
        done = ORIGINAL_COMMIT(work, run, files)
        for path in Path(cold_bench.lake.url.removeprefix("file://")).parent.glob("cas/**/*"):
            if path.is_file():
                path.unlink()
        return done

    monkeypatch.setattr(Consolidation, "commit", commit_and_lose)
    result = run_job(defs, instance)
    failed = {check.check_name for check in result.get_asset_check_evaluations() if not check.passed}
    assert "every_blob_present" in failed
    assert marked(cold_bench) == [-1]


def test_a_re_execution_from_the_failed_check_sets_the_marks(
    cold_bench: ColdBench, cold_home: Home, defs: dg.Definitions, instance: dg.DagsterInstance, damage: Damage
) -> None:
    cold_bench.task(1)
    failed = run_job(defs, instance)
    assert not failed.success
    damage.undo()
    again = dg.execute_job(
        dg.build_reconstructable_job("stratalog.pipelines.build", "build_job", (str(cold_home.path),)),
        instance=instance,
        # As the UI does it, the tags of the first run go along.
        tags={"dagster/partition": TODAY.isoformat()},
        reexecution_options=dg.ReexecutionOptions.from_failure(failed.run_id, instance),
    )
    assert again.success
    assert {event.step_key for event in again.all_events if event.is_step_start} == {
        "stratalog__read_back",
        MARKS_KEY.to_python_identifier(),
    }
    assert marked(cold_bench)[0] > 0


@pytest.mark.parametrize("step", ["write_files", "read_back", "commit", "mark"])
def test_a_crash_in_any_step_is_completed_by_the_next_run(
    cold_bench: ColdBench,
    defs: dg.Definitions,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    cold_bench.task(1)

    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Consolidation, step, killed)
        assert not run_job(defs, instance).success
    assert marked(cold_bench) == [-1]
    result = run_job(defs, instance)
    assert result.success
    assert metadata(result, MARKS_KEY)["trajectories"] == 1
    assert marked(cold_bench)[0] > 0


def test_a_backfill_of_many_days_is_one_run_for_the_last_one(
    cold_bench: ColdBench, defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    cold_bench.task(1)
    cold_bench.task(2, day=200)
    first, last = "2025-01-01", "2025-01-30"
    result = defs.resolve_job_def("consolidate").execute_in_process(
        instance=instance,
        run_config=config(),
        tags={"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last},
        raise_on_error=False,
    )
    assert result.success
    assert metadata(result, KEY)["as_of"] == "2025-01-31T00:00:00+00:00"
    assert metadata(result, MARKS_KEY)["trajectories"] == 1
    assert len(instance.get_materialized_partitions(MARKS_KEY)) >= 30
    for asset in (KEY, MARKS_KEY):
        policy = defs.resolve_asset_graph().get(asset).backfill_policy
        assert policy is not None and policy.policy_type.name == "SINGLE_RUN"


def test_the_schedule_asks_for_the_day_that_has_ended(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    schedule = defs.resolve_schedule_def("consolidate_nightly")
    context = dg.build_schedule_context(
        instance=instance,
        scheduled_execution_time=dt.datetime(2026, 3, 1, 2, 15, tzinfo=dt.UTC),
        repository_def=defs.get_repository_def(),
    )
    request = schedule.evaluate_tick(context).run_requests[0]  # type: ignore[index]
    assert request.partition_key == "2026-02-28"


def test_the_cutoff_of_a_day_is_its_end_or_now() -> None:
    now = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
    assert as_of("2026-02-01", now) == dt.datetime(2026, 2, 2, tzinfo=dt.UTC)
    assert as_of("2026-03-01", now) == now


def test_the_storage_asset_follows_the_marks_by_itself(
    cold_bench: ColdBench, defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    cold_bench.task(1)

    def tick(cursor: Any = None) -> Any:
        selection = dg.AssetSelection.groups("stratalog")
        return dg.evaluate_automation_conditions(defs=defs, instance=instance, asset_selection=selection, cursor=cursor)

    before = tick()
    run_job(defs, instance)
    after = tick(before.cursor)
    assert after.get_num_requested(STORAGE_KEY) == 1
    idle = tick(after.cursor)
    assert idle.total_requested == 0
    counted = dg.materialize(
        [asset for asset in defs.assets or () if isinstance(asset, dg.AssetsDefinition) and STORAGE_KEY in asset.keys],
        instance=instance,
        resources=dict(defs.resources or {}),
    )
    assert metadata(counted, STORAGE_KEY)["dagster/row_count"] > 0


def test_it_merges_into_a_code_location_of_somebody_else(tmp_path: Path) -> None:
    @dg.asset(group_name="default")
    def cold_events() -> None: ...

    @dg.asset_check(asset=cold_events)
    def no_missing_events() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    theirs = dg.Definitions(
        assets=[cold_events],
        asset_checks=[no_missing_events],
        jobs=[dg.define_asset_job("nightly", selection=[cold_events])],
        schedules=[dg.ScheduleDefinition(name="nightly", cron_schedule="0 0 * * *", job_name="nightly")],
        resources={"warehouse": object(), "io_manager": dg.mem_io_manager},
        executor=dg.multiprocess_executor,
        loggers={"console": dg.colored_console_logger},
    )
    merged = dg.Definitions.merge(theirs, build_definitions(tmp_path / "not-there", running=False))
    dg.Definitions.validate_loadable(merged)
    graph = merged.resolve_asset_graph()
    assert {KEY, MARKS_KEY, STORAGE_KEY, dg.AssetKey("cold_events")} <= set(graph.get_all_asset_keys())
    assert merged.resolve_job_def("consolidate").executor_def is dg.in_process_executor
    assert not (tmp_path / "not-there").exists()


def test_loading_the_definitions_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    monkeypatch.setenv("STRATALOG_HOME", str(tmp_path / "home"))
    module = importlib.reload(importlib.import_module("stratalog.pipelines.definitions"))
    dg.Definitions.validate_loadable(module.defs)
    assert list(tmp_path.iterdir()) == []


def test_settings_without_a_place_for_everything_are_refused() -> None:
    with pytest.raises(Invalid, match="need a home"):
        build_definitions(Settings())
