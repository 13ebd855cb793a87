"""`build_definitions`: everything of stratalog for a Dagster code location, alone or merged into another one."""

from __future__ import annotations

import os

import dagster as dg

from stratalog.hot.home import Home
from stratalog.schemas.settings import Settings

from .cleaning import cleaning, compacting
from .cold_events import cold_events
from .consolidation_marks import consolidation_marks
from .day_asset import GROUP
from .erasing import erasing
from .fleet_storage import fleet_storage
from .nightly import consolidate_job, consolidate_nightly
from .packed_content import packed_content
from .place import RESOURCE, Place
from .read_back_checks import read_back
from .retention import has_policies, retention_job, retention_nightly
from .sealing import sealing
from .upkeep import Upkeep
from .verifying import verifying

UPKEEP = (sealing, verifying, compacting, cleaning, erasing)


def build_definitions(where: Home | Settings | str | os.PathLike[str], *, running: bool = True) -> dg.Definitions:
    """The assets, checks, job, schedule and automation over one installation.

    `where` is a home, the path of one (which need not exist yet), or settings with warm.dsn, cold.url and cold.cas_url.
    Nothing is opened before a step runs. `running` says whether the schedules and the automation start switched on;
    that of retention does so only if the home has a file of policies, those of seals and erasures only with a home.

    Merge it with `dg.Definitions.merge(yours, build_definitions(…))`: asset keys start with `stratalog`, the group and
    the resource are named `stratalog`, the jobs `consolidate`, `retention`, `seal`, `verify_sample`,
    `compact`, `clean`, `finish_erasures`; your executor and loggers stay yours.
    """
    status = dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED
    automation = dg.AutomationConditionSensorDefinition(
        "stratalog_automation",
        target=dg.AssetSelection.groups(GROUP),
        default_status=status,
        minimum_interval_seconds=30,
        description="After every consolidation: packs its content, and counts the cold table.",
    )
    return dg.Definitions(
        assets=[cold_events, consolidation_marks, packed_content, fleet_storage],
        asset_checks=[read_back],
        jobs=[consolidate_job, retention_job, *(upkeep.job for upkeep in UPKEEP)],
        schedules=[
            consolidate_nightly(running=running),
            retention_nightly(running=running and has_policies(where)),
            *(upkeep.schedule(running=running and _has_keys(upkeep, where)) for upkeep in UPKEEP),
        ],
        sensors=[automation],
        resources={RESOURCE: Place(where)},
    )


def build_job(where: Home | Settings | str | os.PathLike[str]) -> dg.JobDefinition:
    """The job `consolidate` alone, for `dg.build_reconstructable_job`."""
    return build_definitions(where, running=False).resolve_job_def(consolidate_job.name)


def _has_keys(upkeep: Upkeep, where: Home | Settings | str | os.PathLike[str]) -> bool:
    """Whether what the job needs is there: seals and receipts are signed with keys, which lie in a home."""
    return upkeep not in (sealing, erasing) or not isinstance(where, Settings)
