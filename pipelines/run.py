"""Runs the Dagster job `consolidate` in this process, with what it says kept in `HOME/dagster`.

What survives a crash is what the job itself guarantees: the database knows the open run, and the next
call completes it.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import dagster as dg

from stratalog.cold.consolidate import Consolidated
from stratalog.cold.installation import Installation
from stratalog.hot.files import FileLock
from stratalog.hot.home import Home
from stratalog.schemas.errors import Corrupt, StratalogError

from .build import build_definitions
from .cold_events import KEY
from .consolidation_marks import MARKS_KEY
from .failures import translated
from .instance import IN_PROCESS, fail_dead_runs, open_instance
from .nightly import JOB

SEE = "see its run in: stratalog dagster"


def run_consolidation(home: Home, as_of: dt.date | None = None, older_than: str | None = None) -> Consolidated:
    """Consolidate what had ended by the end of the day `as_of` (by default: until now), less `older_than`.

    Raises `Locked` while another consolidation runs (one in another process is waited for, about two minutes),
    `Corrupt` where a check failed and nothing was marked, else what the step that failed has raised.
    """
    day = (as_of or dt.datetime.now(dt.UTC).date()).isoformat()
    installation = Installation(home)
    lock = FileLock(home.run / "dagster.lock")
    lock.acquire()
    try:
        # The server stays up from the first step to the last.
        with installation.postgres(), open_instance(home) as instance:
            fail_dead_runs(instance)
            result = _execute(home, instance, day, older_than)
            if not result.success:
                raise _error_of(result)
            return _consolidated(result)
    finally:
        lock.release()


def _execute(home: Home, instance: dg.DagsterInstance, day: str, older_than: str | None) -> dg.ExecuteInProcessResult:
    config: dict[str, Any] = {
        "ops": {KEY.to_python_identifier(): {"config": {"older_than": older_than}}},
        "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
    }
    job = build_definitions(home).resolve_job_def(JOB)
    return job.execute_in_process(
        instance=instance, partition_key=day, run_config=config, tags={IN_PROCESS: "true"}, raise_on_error=False
    )


def _error_of(result: dg.ExecuteInProcessResult) -> StratalogError:
    """Why the run has failed, as what a caller can act on."""
    for check in result.get_asset_check_evaluations():
        if check.blocking and not check.passed:
            problems = check.metadata["problems"].value
            return Corrupt(
                f"the check {check.check_name} failed, nothing was marked: {problems[0]}",  # type: ignore[index]
                hint="see what else was found in: stratalog dagster",
            )
    for event in result.filter_events(lambda event: event.is_step_failure):
        failure = event.step_failure_data
        if failure.user_failure_data is not None:
            return translated(failure.user_failure_data)
        if failure.error is not None:
            return StratalogError(f"step {event.step_key}: {failure.error.message.strip()}", hint=SEE)
    return StratalogError(f"the Dagster job {JOB} failed", hint=SEE)


def _consolidated(result: dg.ExecuteInProcessResult) -> Consolidated:
    written = _metadata(result, KEY)
    marked = _metadata(result, MARKS_KEY)
    return Consolidated(
        marked["trajectories"],
        marked["events"],
        marked["files"],
        marked["bytes"],
        tuple(written["problems"]),
        tuple(marked["runs"]),
    )


def _metadata(result: dg.ExecuteInProcessResult, key: dg.AssetKey) -> dict[str, Any]:
    materialized = result.asset_materializations_for_node(key.to_python_identifier())
    return {name: value.value for name, value in materialized[-1].metadata.items()}
