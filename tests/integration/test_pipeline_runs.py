"""The Dagster job in this process, as `stratalog demo` runs it, and where Dagster keeps its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

dg = pytest.importorskip("dagster")  # required_in_ci

from fix_cold import ColdBench  # noqa: E402
from fix_damage import Damage, marked  # noqa: E402

from stratalog.hot.home import Home  # noqa: E402
from stratalog.pipelines import build_definitions, run_consolidation  # noqa: E402
from stratalog.pipelines.instance import IN_PROCESS, fail_dead_runs, open_instance  # noqa: E402
from stratalog.schemas.errors import Corrupt, Invalid  # noqa: E402

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]


def test_it_runs_in_this_process_and_keeps_the_run_in_the_home(cold_bench: ColdBench, cold_home: Home) -> None:
    cold_bench.task(1)
    cold_bench.task(2, imported=True, finished=False)
    done = run_consolidation(cold_home, None, "0d")
    assert (done.trajectories, done.problems) == (2, ())
    assert done.files > 0 and done.bytes > 0 and done.events > 0
    assert run_consolidation(cold_home, None, "0d").trajectories == 0
    with open_instance(cold_home) as kept:
        assert kept.get_runs_count() == 2
        assert not kept.telemetry_enabled
    assert (cold_home.path / "dagster" / "dagster.yaml").read_bytes() == packaged_settings()


def packaged_settings() -> bytes:
    return (Path(__file__).parents[2] / "dagster.yaml").read_bytes()


def test_in_this_process_too_failures_are_ours(cold_bench: ColdBench, cold_home: Home, damage: Damage) -> None:
    cold_bench.task(1)
    with pytest.raises(Corrupt, match="read_back_matches_plan failed, nothing was marked"):
        run_consolidation(cold_home, None, "0d")
    assert marked(cold_bench) == [-1]
    assert run_consolidation(cold_home, None, "0d").trajectories == 1
    with pytest.raises(Invalid, match="duration"):
        run_consolidation(cold_home, None, "soon")


def test_a_run_whose_process_was_killed_is_failed_by_the_next_one(cold_home: Home) -> None:
    with open_instance(cold_home) as instance:
        check_dead_runs(instance)


def check_dead_runs(instance: dg.DagsterInstance) -> None:
    ours, theirs = (
        instance.create_run_for_job(
            build_definitions("nowhere").resolve_job_def("consolidate"),
            status=dg.DagsterRunStatus.STARTED,
            tags=tags,
        )
        for tags in ({IN_PROCESS: "true"}, {})
    )
    assert fail_dead_runs(instance) == 1
    status = {run.run_id: run.status for run in instance.get_runs()}
    assert status[ours.run_id] is dg.DagsterRunStatus.FAILURE
    assert status[theirs.run_id] is dg.DagsterRunStatus.STARTED


def test_dagsters_own_storage_can_be_postgres(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dagster_postgres")  # required_in_ci
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(database)
    text = packaged_settings().decode()
    commented = text[text.index("# storage:") :]
    (tmp_path / "dagster.yaml").write_text(text + commented.replace("# ", "").replace("#\n", "\n"))
    query = f"?host={parts['host']}&port={parts.get('port', 5432)}" if str(parts["host"]).startswith("/") else ""
    place = "" if query else f"{parts['host']}:{parts.get('port', 5432)}"
    password = f":{parts['password']}" if parts.get("password") else ""
    monkeypatch.setenv(
        "STRATALOG_DAGSTER_PG_URL", f"postgresql://{parts['user']}{password}@{place}/{parts['dbname']}{query}"
    )
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert "Postgres" in type(instance.run_storage).__name__
        assert instance.get_runs_count() == 0
