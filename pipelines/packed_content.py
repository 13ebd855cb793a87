"""The asset `packed_content`: content of what was consolidated moves into packs, after every consolidation."""

# No postponed annotations here: Dagster reads those of assets and checks to know config and resources.

import dagster as dg

from stratalog.cold.packs import pack
from stratalog.schemas.errors import Corrupt

from .consolidation_marks import MARKS_KEY
from .day_asset import GROUP, PREFIX
from .failures import failing, retries
from .fleet_storage import after_marks
from .place import Place

PACKED_KEY = dg.AssetKey([PREFIX, "packed_content"])
PROBLEMS_SHOWN = 20


@dg.asset(
    key=PACKED_KEY,
    deps=[MARKS_KEY],
    group_name=GROUP,
    automation_condition=after_marks,
    retry_policy=retries,
    code_version="1",
)
def packed_content(stratalog: dg.ResourceParam[Place]) -> dg.MaterializeResult[None]:
    """Content that consolidated trajectories refer to, in packs; fails for damage, once all the rest is packed."""
    with failing():
        with stratalog.open() as tiers:
            done = pack(tiers)
        if done.problems:
            shown = "\n".join(done.problems[:PROBLEMS_SHOWN])
            raise Corrupt(f"{len(done.problems)} pieces of content could not be packed:\n{shown}")
    return dg.MaterializeResult(
        metadata={
            "pieces": done.pieces,
            "content_bytes": done.raw_bytes,
            "packs": done.packs,
            "pack_bytes": done.bytes,
            "loose_deleted": done.deleted,
            "loose_waiting": done.waiting,
        }
    )
