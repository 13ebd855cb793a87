"""The blocking checks between the commit and the marks. While one fails, nothing is marked and nothing can be dropped.

All of them come from one reading of the files. They look at every open run that is committed, not only at those of the
same Dagster run, because the marks will be set for all of them.
"""

# No postponed annotations here: Dagster reads those of assets and checks to know config and resources.

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from .cold_events import KEY, committed_runs
from .day_asset import POOL
from .evidence import Evidence, gather
from .failures import retries
from .place import Place

SHOWN_MAX = 50
READ_BACK = "read_back_matches_plan"
NO_MISSING = "no_missing_events"
BLOBS = "every_blob_present"
SPECS = [
    dg.AssetCheckSpec(
        READ_BACK,
        asset=KEY,
        blocking=True,
        description="In storage, every file is what was written, and every segment verifies and is the planned one.",
    ),
    dg.AssetCheckSpec(
        NO_MISSING,
        asset=KEY,
        blocking=True,
        description="The plan, the catalog and the footers of the files count the same events.",
    ),
    dg.AssetCheckSpec(
        BLOBS,
        asset=KEY,
        blocking=True,
        description="All bulky content that the events refer to is in the content store, with its digest.",
    ),
]


@dg.multi_asset_check(name="stratalog__read_back", specs=SPECS, retry_policy=retries, pool=POOL)
def read_back(stratalog: dg.ResourceParam[Place]) -> Iterator[dg.AssetCheckResult]:
    """Read every committed run back from storage before it may be marked."""
    with stratalog.open() as tiers:
        found = [gather(tiers, run) for run in committed_runs(tiers)]
    yield from results(found)


def results(found: Sequence[Evidence]) -> Iterator[dg.AssetCheckResult]:
    """The three results; each names the runs that it is about, which the marks rely on."""
    damage = [
        f"run {one.run_id}: {trouble}"
        for one in found
        for trouble in (*one.read.unreadable, *(f"trajectory {id_}: {why}" for id_, why in one.read.damaged.items()))
    ]
    planned, committed, rows = (sum(counts) for counts in _counts(found))
    content = [problem for one in found for problem in one.blob_problems]
    yield _result(READ_BACK, found, damage, {"events": rows})
    short = [
        f"run {one.run_id}: {one.planned} events planned, {one.committed} in the catalog, {one.rows} in the files"
        for one in found
        if not one.planned == one.committed == one.rows
    ]
    yield _result(NO_MISSING, found, short, {"planned": planned, "in_catalog": committed, "in_files": rows})
    yield _result(BLOBS, found, content, {"checked": sum(one.blobs for one in found)})


def _counts(found: Sequence[Evidence]) -> tuple[list[int], list[int], list[int]]:
    return [one.planned for one in found], [one.committed for one in found], [one.rows for one in found]


def _result(name: str, found: Sequence[Evidence], problems: list[str], metadata: dict[str, Any]) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=KEY,
        check_name=name,
        passed=not problems,
        metadata={
            **metadata,
            "runs": [one.run_id for one in found],
            "problems": problems[:SHOWN_MAX],
            "problem_count": len(problems),
        },
    )
