"""The job `seal`: every hour a signed head of each tenant whose trajectories have moved. The keys are in the home."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stratalog.audit.installation import seal_all
from stratalog.audit.keys import FolderKeys

from .place import Place
from .upkeep import Step, make_upkeep


def seal(place: Place, warn: Callable[[str], None]) -> dict[str, Any]:
    """Seal every tenant; the metadata says what was published."""
    installation = place.installation(with_home=True)
    now_us = time.time_ns() // 1_000
    keys = FolderKeys(installation.home.path / "keys" / "audit", now_us)
    sealed = seal_all(installation, keys, now_us)
    return {
        "tenants": len(sealed),
        "leaves": sum(one.leaves for one in sealed),
        "heads": [
            {"tenant": one.head.tenant, "size": one.head.tree_size, "root": one.head.root_hash} for one in sealed
        ],
    }


sealing = make_upkeep(
    "seal",
    "5 * * * *",
    "A leaf for every trajectory that has moved, and a signed head of each tenant's tree.",
    [Step("seal_heads", "Publishes the heads, first in the home, then in the storage.", seal)],
)
