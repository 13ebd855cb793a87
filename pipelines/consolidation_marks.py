"""The asset `consolidation_marks`: tells the warm tier what it may drop, once the checks have passed.

The blocking checks keep this step from running after a failure in the same Dagster run. It also looks for itself: it
marks a run only where the latest evaluation of every check has passed and names that run. So it cannot be had alone, by
materializing only this asset after a failed check, nor for a run that somebody else committed in between.
"""

# No postponed annotations here: Dagster reads those of assets and checks to know config and resources.

import dagster as dg

from stratalog.cold.consolidate import Consolidated
from stratalog.schemas.errors import Conflict

from .cold_events import KEY, committed_runs
from .day_asset import PREFIX, day_asset
from .failures import failing
from .place import Place
from .read_back_checks import SPECS

MARKS_KEY = dg.AssetKey([PREFIX, "consolidation_marks"])


@day_asset(MARKS_KEY, kinds={"postgres"}, deps=[KEY])
def consolidation_marks(
    context: dg.AssetExecutionContext, stratalog: dg.ResourceParam[Place]
) -> dg.MaterializeResult[None]:
    """For each trajectory, up to where it lies in the cold table, read back and compared."""
    done = Consolidated()
    with stratalog.open() as tiers, tiers.consolidation() as work:
        runs = committed_runs(tiers)
        with failing():
            require_passed(context.instance, [str(run.run_id) for run in runs])
        for run in runs:
            done += work.mark(run)
    return dg.MaterializeResult(
        metadata={
            "trajectories": done.trajectories,
            "events": done.events,
            "files": done.files,
            "bytes": done.bytes,
            "runs": list(done.runs),
        }
    )


def require_passed(instance: dg.DagsterInstance, run_ids: list[str]) -> None:
    """Raise `Conflict` unless the latest evaluation of every check has passed and names all these runs."""
    for spec in SPECS:
        missing = set(run_ids) - _passed_runs(instance, spec.key)
        if missing:
            raise Conflict(
                f"run {min(missing)} has not passed the check {spec.name}",
                hint="materialize cold_events together with its checks, or run: stratalog consolidate",
            )


def _passed_runs(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> set[str]:
    record = instance.get_latest_asset_check_evaluation_record(key)
    event = record.event.dagster_event if record is not None and record.event is not None else None
    if event is None or event.event_type is not dg.DagsterEventType.ASSET_CHECK_EVALUATION:
        return set()
    evaluation = event.asset_check_evaluation_data
    runs = evaluation.metadata["runs"].value if evaluation.passed else ()
    return {str(run) for run in runs} if isinstance(runs, list) else set()
