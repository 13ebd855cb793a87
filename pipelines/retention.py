"""The job `retention`: the policies in force, executed in every tier. Its schedule starts only where there are any.

What survives a crash is what `warm.retention_apply`, `cold.retention` and `cold.retention_content` guarantee: the
database knows what is planned and how far it is.
"""

# No postponed annotations here: Dagster reads those of ops to know config and resources.

import os
from pathlib import Path
from typing import Any

import dagster as dg
import msgspec

from stratalog.cold.held_objects import apply_locks
from stratalog.cold.retention import apply_lower
from stratalog.hot.home import Home
from stratalog.schemas.settings import Settings
from stratalog.warm.deletion_lower import needed
from stratalog.warm.retention import FILE_NAME
from stratalog.warm.retention_apply import apply

from .failures import failing, retries
from .place import Place

RETENTION_CRON = "45 3 * * *"
"""03:45 UTC: after the nightly consolidation, whose marks tell what may go."""


@dg.op(
    name="apply_retention",
    retry_policy=retries,
    out=dg.Out(dg.Nothing),
    description="Deletes what the policies say from Postgres, the lake and bulky content, as far as nothing holds it.",
)
def apply_retention(context: dg.OpExecutionContext, stratalog: dg.ResourceParam[Place]) -> None:
    """Apply the policies; the metadata says what has gone and what was kept."""
    with stratalog.open() as tiers, failing(), tiers.connect() as conn:
        conn.rollback()
        # What was consolidated since the last run.
        locks = apply_locks(tiers)
        done = apply(conn)
        lower = apply_lower(tiers, done.as_of) if needed(conn) else None
    if done.version is None:
        context.log.info("no policy is in force, nothing is deleted")
    for line in done.kept:
        if line.matters:
            context.log.warning(
                f"{line.trajectories} trajectories of {line.tenant} are due by policy {line.policy} and held by "
                f"{', '.join(line.matters)}"
            )
    if lower is not None and lower.cold.readers:
        context.log.warning(
            f"old files are still being read by {', '.join(lower.cold.readers)}: they go with the next run"
        )
    metadata: dict[str, Any] = {
        "version": done.version,
        "trajectories": done.trajectories,
        "events": done.events,
        "bytes": done.bytes,
        "partitions": list(done.partitions),
        # Dagster takes what JSON knows.
        "kept": msgspec.json.decode(msgspec.json.encode(done.kept)),
        "outcomes": msgspec.json.decode(msgspec.json.encode(done.shares)),
        "locks": msgspec.to_builtins(locks),
        "lower_tiers": msgspec.json.decode(msgspec.json.encode(lower)),
    }
    context.add_output_metadata(metadata)


@dg.job(
    name="retention",
    executor_def=dg.in_process_executor,
    description="What the policies in force say about every tier. Legal holds win.",
)
def retention_job() -> None:
    """One step."""
    apply_retention()


def retention_nightly(*, running: bool) -> dg.ScheduleDefinition:
    """Every night after the consolidation; `running` says whether it starts switched on."""
    return dg.ScheduleDefinition(
        name="retention_nightly",
        job=retention_job,
        cron_schedule=RETENTION_CRON,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED,
        description="Applies the retention policies in force.",
    )


def has_policies(where: Home | Settings | str | os.PathLike[str]) -> bool:
    """Whether the home has a file of policies; with settings alone, the schedule is switched on by hand."""
    if isinstance(where, Settings):
        return False
    return ((where.path if isinstance(where, Home) else Path(where).expanduser()) / FILE_NAME).is_file()
