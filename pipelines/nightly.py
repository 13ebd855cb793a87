"""The job `consolidate` and its nightly schedule."""

from __future__ import annotations

import datetime as dt

import dagster as dg

from .cold_events import cold_events
from .consolidation_marks import consolidation_marks
from .days import as_of_days

JOB = "consolidate"
CRON = "15 2 * * *"
"""02:15 UTC: the day before is over, also for hosts whose clocks are a little behind."""

# The steps share one process: starting one for each takes longer than a usual night's work.
consolidate_job = dg.define_asset_job(
    JOB,
    selection=dg.AssetSelection.assets(cold_events, consolidation_marks),
    partitions_def=as_of_days,
    executor_def=dg.in_process_executor,
    description="Plan, files, read-back, commit, checks, marks: everything that had ended by the end of the as-of day.",
)


def consolidate_nightly(*, running: bool) -> dg.ScheduleDefinition:
    """Every night the day that has just ended; `running` says whether it starts switched on."""

    @dg.schedule(
        job=consolidate_job,
        name="consolidate_nightly",
        cron_schedule=CRON,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED,
        description="Consolidates what had ended by the end of the day before.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        day = (context.scheduled_execution_time.astimezone(dt.UTC) - dt.timedelta(days=1)).date().isoformat()
        return dg.RunRequest(run_key=day, partition_key=day)

    return nightly
