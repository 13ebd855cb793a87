"""The asset `fleet_storage`: what the cold table holds in all, counted anew after every consolidation."""

# No postponed annotations here: Dagster reads those of assets and checks to know config and resources.

import dagster as dg

from .consolidation_marks import MARKS_KEY
from .day_asset import GROUP, PREFIX
from .failures import retries
from .place import Place
from .report import describe

STORAGE_KEY = dg.AssetKey([PREFIX, "fleet_storage"])

after_marks = (
    dg.AutomationCondition.any_deps_updated().since_last_handled() & ~dg.AutomationCondition.in_progress()
).with_label("after the marks")


@dg.asset(
    key=STORAGE_KEY,
    deps=[MARKS_KEY],
    group_name=GROUP,
    automation_condition=after_marks,
    retry_policy=retries,
    kinds={"iceberg"},
    code_version="1",
)
def fleet_storage(stratalog: dg.ResourceParam[Place]) -> dg.MaterializeResult[None]:
    """Events, files and bytes of the cold table's current snapshot, by tenant and model."""
    with stratalog.open() as tiers:
        files = tiers.catalog.files()
    return dg.MaterializeResult(metadata=describe(files))
