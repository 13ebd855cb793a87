"""The jobs `compact` and `clean`: small files become few; old snapshots, their files and unneeded content go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stratalog.cold.compaction import compact
from stratalog.cold.expiry import expire
from stratalog.cold.sweep import sweep

from .day_asset import POOL
from .place import Place
from .upkeep import Step, make_upkeep


def merge_files(place: Place, warn: Callable[[str], None]) -> dict[str, Any]:
    """Merge the small files of each folder; files that somebody still reads go with the next job."""
    with place.open() as tiers:
        done = compact(tiers)
    for problem in done.problems:
        warn(problem)
    return msgspec.structs.asdict(done) | {"problems": len(done.problems)}


def expire_snapshots(place: Place, warn: Callable[[str], None]) -> dict[str, Any]:
    """Expire what is old enough; files that nothing explains are told to the log and stay."""
    with place.open() as tiers:
        done = expire(tiers)
    for path in done.unknown:
        warn(f"nothing names {path}, and nothing says where it is from")
    return msgspec.structs.asdict(done) | {"snapshots": len(done.snapshots), "unknown": len(done.unknown)}


def sweep_content(place: Place, warn: Callable[[str], None]) -> dict[str, Any]:
    """Condemn what nothing refers to, delete what was condemned long ago."""
    with place.open() as tiers:
        done = sweep(tiers, tiers.store)
    for problem in done.problems:
        warn(problem)
    return msgspec.structs.asdict(done) | {"problems": len(done.problems)}


cleaning = make_upkeep(
    "clean",
    "10 5 * * 0",
    "Every week: old snapshots and their files, then content that nothing refers to. A grace keeps what is new.",
    [
        Step("expire_snapshots", "Snapshots beyond their age, unless somebody reads them.", expire_snapshots, POOL),
        Step("sweep_content", "Content that nothing refers to, after its grace.", sweep_content, POOL),
    ],
)
compacting = make_upkeep(
    "compact",
    "15 3 * * *",
    "After the nightly consolidation: the small files of a folder become few. Readers keep what they have pinned.",
    [Step("merge_files", "Files far below the target size, where a folder has several.", merge_files, POOL)],
)
