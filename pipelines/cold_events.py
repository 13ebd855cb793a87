"""The asset `cold_events`: plan, files, read-back, commit. It never sets a mark.

Which runs are on their way is known to the database alone: a run is open from its plan to its marks. This asset brings
every open run to its commit, whoever began it; so it does the same after a crash, in a re-execution and for any day.
"""

# No postponed annotations here: Dagster reads those of assets and checks to know config and resources.

import datetime as dt

import dagster as dg

from stratalog.cold import plan as plans
from stratalog.cold.consolidate import Consolidation
from stratalog.cold.installation import Tiers
from stratalog.cold.plan import Run

from .day_asset import PREFIX, day_asset
from .days import as_of
from .place import Place
from .report import describe

KEY = dg.AssetKey([PREFIX, "cold_events"])
NOTHING_LEFT_OUT = dg.AssetCheckSpec(
    "nothing_left_out",
    asset=KEY,
    description="No trajectory was left out because it is damaged or has events in quarantine. Only warns.",
)


class Age(dg.Config):
    """How old is old enough."""

    older_than: str | None = None
    """How long ago a trajectory must have ended at the as-of day's end, such as `7d`; by default the setting's."""


@day_asset(KEY, kinds={"parquet", "iceberg"}, check_specs=[NOTHING_LEFT_OUT])
def cold_events(
    context: dg.AssetExecutionContext, config: Age, stratalog: dg.ResourceParam[Place]
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster knows only the plain class beside check results
    """Finished trajectories in the cold table: one row per event, zstd Parquet by tenant, start day and model."""
    until = as_of(context.partition_key_range.end, dt.datetime.now(dt.UTC))
    with stratalog.open() as tiers, tiers.consolidation() as work:
        problems = publish(tiers, work, config.older_than, until)
        runs = committed_runs(tiers)
        files = [file for run in runs for file in tiers.catalog.run_files(str(run.run_id))]
    for problem in problems:
        context.log.warning(problem)
    return dg.MaterializeResult(
        metadata={
            **describe(files),
            "as_of": until.isoformat(),
            "runs": [str(run.run_id) for run in runs],
            "problems": list(problems),
        },
        check_results=[
            dg.AssetCheckResult(
                check_name=NOTHING_LEFT_OUT.name,
                passed=not problems,
                severity=dg.AssetCheckSeverity.WARN,
                metadata={"problems": list(problems)},
            )
        ],
    )


def publish(tiers: Tiers, work: Consolidation, older_than: str | None, until: dt.datetime) -> tuple[str, ...]:
    """Commit every open run, then everything that qualifies now; returns what had to wait or be left out, and why."""
    problems: tuple[str, ...] = ()
    runs = open_runs(tiers)
    if runs:
        tiers.lake.clean_partial()
    for run in runs:
        problems += work.publish(run)
    planned, waiting = work.plan(older_than, until)
    problems += waiting
    if planned is not None:
        problems += work.publish(planned)
    return tuple(dict.fromkeys(problems))


def open_runs(tiers: Tiers) -> list[Run]:
    """The runs that are planned and not marked, the oldest first."""
    with tiers.connect() as conn:
        return plans.open_runs(conn)


def committed_runs(tiers: Tiers) -> list[Run]:
    """The open runs that only lack their marks: committed, or without anything left to commit."""
    with tiers.connect() as conn:
        return [
            run
            for run in plans.open_runs(conn)
            if tiers.catalog.has_run(str(run.run_id)) or plans.totals(conn, run) == (0, 0)
        ]
