"""`build_definitions`: everything of stratalog for a Dagster code location, alone or merged into another one."""

from __future__ import annotations

import os

import dagster as dg

from stratalog.hot.home import Home
from stratalog.schemas.settings import Settings

from .cold_events import cold_events
from .consolidation_marks import consolidation_marks
from .day_asset import GROUP
from .fleet_storage import fleet_storage
from .nightly import consolidate_job, consolidate_nightly
from .place import RESOURCE, Place
from .read_back_checks import read_back
from .retention import has_policies, retention_job, retention_nightly


def build_definitions(where: Home | Settings | str | os.PathLike[str], *, running: bool = True) -> dg.Definitions:
    """The assets, checks, job, schedule and automation over one installation.

    `where` is a home, the path of one (which need not exist yet), or settings with warm.dsn, cold.url and cold.cas_url.
    Nothing is opened before a step runs. `running` says whether the schedules and the automation start switched on;
    that of retention does so only if the home has a file of policies.

    Merge it with `dg.Definitions.merge(yours, build_definitions(…))`: asset keys start with `stratalog`, the group and
    the resource are named `stratalog`, the jobs `consolidate` and `retention`; your executor and loggers stay yours.
    """
    status = dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED
    automation = dg.AutomationConditionSensorDefinition(
        "stratalog_automation",
        target=dg.AssetSelection.groups(GROUP),
        default_status=status,
        minimum_interval_seconds=30,
        description="Counts the cold table after every consolidation.",
    )
    return dg.Definitions(
        assets=[cold_events, consolidation_marks, fleet_storage],
        asset_checks=[read_back],
        jobs=[consolidate_job, retention_job],
        schedules=[
            consolidate_nightly(running=running),
            retention_nightly(running=running and has_policies(where)),
        ],
        sensors=[automation],
        resources={RESOURCE: Place(where)},
    )


def build_job(where: Home | Settings | str | os.PathLike[str]) -> dg.JobDefinition:
    """The job `consolidate` alone, for `dg.build_reconstructable_job`."""
    return build_definitions(where, running=False).resolve_job_def(consolidate_job.name)
