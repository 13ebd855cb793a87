"""The job `finish_erasures`: what was asked for and is not gone everywhere yet goes on. The keys are in the home."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stratalog.audit.erasure import erase, open_tiers
from stratalog.audit.keys import FolderKeys

from .day_asset import POOL
from .place import Place
from .upkeep import Step, make_upkeep


def finish(place: Place, warn: Callable[[str], None]) -> dict[str, Any]:
    """Go on with every open request; what keeps one open is told to the log."""
    installation = place.installation(with_home=True)
    keys = FolderKeys(installation.home.path / "keys" / "audit", time.time_ns() // 1_000)
    done = erase(installation, keys, None)
    for problem in () if done.gone is None else done.gone.problems:
        warn(problem)
    for held in done.proceeded.held:
        warn(f"trajectory {held.trajectory_id} of {held.tenant} is held by {', '.join(held.matters)}")
    for behind in done.behind:
        warn(f"log {behind.log_id} has not followed since {behind.seen_at:%Y-%m-%d}: start a sidecar where it is")
    return {
        "unreadable": len(done.proceeded.trajectories),
        "held": len(done.proceeded.held),
        "receipts": len(done.receipts),
        "open": {str(one.erasure_id): list(open_tiers(one)) for one in done.requests if open_tiers(one)},
    }


erasing = make_upkeep(
    "finish_erasures",
    "35 * * * *",
    "Erasures that are asked for go on: unreadable, bytes gone in every tier, receipts. Legal holds win.",
    [Step("go_on_with_erasures", "Nothing is done where nothing is open.", finish, POOL)],
)
