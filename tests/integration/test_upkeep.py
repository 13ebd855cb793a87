"""The Dagster jobs that keep an installation in order, over a real Postgres and real files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

dg = pytest.importorskip("dagster")  # required_in_ci

from fix_cold import ColdBench  # noqa: E402
from fix_damage import settings_of  # noqa: E402

from stratalog.audit.publication import HeadFile  # noqa: E402
from stratalog.hot.home import Home  # noqa: E402
from stratalog.pipelines import build_definitions, verifying  # noqa: E402
from stratalog.pipelines.build import UPKEEP  # noqa: E402
from stratalog.pipelines.failures import translated  # noqa: E402
from stratalog.pipelines.instance import open_instance  # noqa: E402
from stratalog.schemas.errors import Corrupt, Invalid  # noqa: E402

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]
JOBS = ["seal", "verify_sample", "compact", "clean", "finish_erasures"]


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """One Dagster instance for all tests."""
    home = Home.open(tmp_path_factory.mktemp("dagster") / "home", create=True)
    with open_instance(home) as opened:
        yield opened


def run_job(where: Any, name: str, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = build_definitions(where, running=False).resolve_job_def(name)
    return job.execute_in_process(instance=instance, raise_on_error=False)


def metadata(result: dg.ExecuteInProcessResult, step: str) -> dict[str, Any]:
    outputs = [event for event in result.all_events if event.is_successful_output and event.step_key == step]
    return {name: value.value for name, value in outputs[-1].step_output_data.metadata.items()}


def failure(result: dg.ExecuteInProcessResult) -> Exception:
    (event, *_) = result.filter_events(lambda event: event.is_step_failure)
    return translated(event.step_failure_data.user_failure_data)


def test_every_job_runs_on_an_empty_installation(
    cold_bench: ColdBench, cold_home: Home, instance: dg.DagsterInstance
) -> None:
    assert [upkeep.job.name for upkeep in UPKEEP][: len(JOBS)] == JOBS
    for name in JOBS:
        assert run_job(cold_home, name, instance).success, name


def test_seals_are_published_and_the_next_run_has_nothing_to_do(
    cold_bench: ColdBench, cold_home: Home, instance: dg.DagsterInstance
) -> None:
    cold_bench.task(1)
    cold_bench.task(2, tenant="globex")
    said = metadata(run_job(cold_home, "seal", instance), "seal_heads")
    assert (said["tenants"], said["leaves"]) == (2, 2)
    (head,) = HeadFile(cold_home.path / "audit", "acme").read()
    assert {"tenant": "acme", "size": 1, "root": head.root_hash} in said["heads"]
    assert metadata(run_job(cold_home, "seal", instance), "seal_heads")["leaves"] == 0


def test_seals_need_a_home_for_their_keys(cold_bench: ColdBench, instance: dg.DagsterInstance) -> None:
    result = run_job(settings_of(cold_bench), "seal", instance)
    assert not result.success and isinstance(failure(result), Invalid)
    schedules = {one.name: one for one in build_definitions(settings_of(cold_bench)).schedules or ()}
    assert schedules["seal_schedule"].default_status is dg.DefaultScheduleStatus.STOPPED
    assert schedules["clean_schedule"].default_status is dg.DefaultScheduleStatus.RUNNING


def test_a_sample_is_verified_and_damage_fails_the_run(
    cold_bench: ColdBench, cold_home: Home, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "SHARE", "99%")
    for number in range(3):
        cold_bench.task(number)
    cold_bench.run()
    said = metadata(run_job(cold_home, "verify_sample", instance), "verify_sample_of_everything")
    assert said["share"] == 0.99 and said["seed"] >= 0
    assert said["looked_at"]["trajectories"] + said["left_out"]["trajectories"] == 3
    cold_bench.execute("UPDATE trajectory_events SET body = '{}' WHERE sequence_number = 2")
    result = run_job(cold_home, "verify_sample", instance)
    error = failure(result)
    assert not result.success and isinstance(error, Corrupt) and "--seed" in (error.hint or "")


def test_content_that_nothing_needs_is_condemned(
    cold_bench: ColdBench, cold_home: Home, instance: dg.DagsterInstance
) -> None:
    from stratalog.schemas.blobs import BlobRef

    cold_bench.task(1, blob=b"needed" * 10_000)
    stray = b"nobody needs it" * 1_000
    cold_bench.store.put("acme", BlobRef.of(stray), stray)
    cold_bench.run()
    result = run_job(cold_home, "clean", instance)
    assert metadata(result, "expire_snapshots")["snapshots"] == 0
    swept = metadata(result, "sweep_content")
    assert (swept["needed"], swept["condemned"], swept["deleted"]) == (1, 1, 0)


def test_small_files_become_few(cold_bench: ColdBench, cold_home: Home, instance: dg.DagsterInstance) -> None:
    for number in range(10):
        cold_bench.task(number)
        cold_bench.run()
    assert len(cold_bench.catalog.snapshot_files()) == 10
    said = metadata(run_job(cold_home, "compact", instance), "merge_files")
    assert (said["folders"], said["files"], said["new_files"], said["problems"]) == (1, 10, 1, 0)
    assert len(cold_bench.catalog.snapshot_files()) == 1


def test_an_erasure_is_finished_and_one_that_is_held_stays_open(
    cold_bench: ColdBench, cold_home: Home, instance: dg.DagsterInstance
) -> None:
    from contextlib import closing

    from fix_retention import place

    from stratalog.warm import erasure

    ids = [cold_bench.task(number).trajectory_id for number in (1, 2)]
    cold_bench.run()
    place(cold_bench, "court", trajectories=(ids[1],))
    with closing(cold_bench.connect()) as conn:
        erasure.request(conn, erasure.Selection(trajectories=tuple(ids)), by="mira", reason="asked for")
    said = metadata(run_job(cold_home, "finish_erasures", instance), "go_on_with_erasures")
    assert (said["unreadable"], said["held"]) == (1, 1) and said["receipts"] >= 1
    again = metadata(run_job(cold_home, "finish_erasures", instance), "go_on_with_erasures")
    assert (again["unreadable"], again["held"]) == (0, 1)
    with cold_bench.connect() as conn:
        assert conn.execute("SELECT trajectory_id FROM erased_trajectories").fetchall() == [(ids[0],)]


def test_a_step_that_fails_ends_the_job(cold_bench: ColdBench, cold_home: Home, instance: dg.DagsterInstance) -> None:
    cold_bench.task(1)
    cold_bench.run()
    (url,) = cold_bench.catalog.snapshot_files()
    Path(url.removeprefix("file://")).write_bytes(b"no parquet")
    with cold_bench.connect() as conn:
        conn.execute("UPDATE consolidation_runs SET state = 'planned', finished_at = NULL")
    result = run_job(cold_home, "clean", instance)
    assert not result.success
    assert {event.step_key for event in result.all_events if event.is_step_start} == {"expire_snapshots"}
