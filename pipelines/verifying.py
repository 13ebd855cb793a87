"""The job `verify_sample`: every day another part of everything is read and verified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratalog.cold.sample import parse_sample
from stratalog.cold.verification import verify_all
from stratalog.schemas.errors import Corrupt

from .place import Place
from .upkeep import Step, make_upkeep

SHARE = "5%"
SHOWN_MAX = 50


def verify(place: Place, warn: Callable[[str], None]) -> dict[str, Any]:
    """Verify a sample; raises `Corrupt` for damage, after each problem was told to the log."""
    report = verify_all(place.installation(), sample=parse_sample(SHARE))
    parts = (*report["tiers"].values(), report["blobs"])
    problems = [problem for part in parts for problem in part["problems"]]
    for problem in problems[:SHOWN_MAX]:
        warn(problem)
    if not report["ok"]:
        seed = report["sample"]["seed"]
        raise Corrupt(
            f"{len(problems)} problems in a sample, the first is: {problems[0]}",
            hint=f"the same again: stratalog verify --read-data {SHARE} --seed {seed}; then all: stratalog verify",
        )
    events = {name: tier["events"] for name, tier in report["tiers"].items()}
    return {**report["sample"], "events": events, "blobs": report["blobs"]["checked"]}


verifying = make_upkeep(
    "verify_sample",
    "25 4 * * *",
    f"Reads {SHARE} of the trajectories and files and all hot logs, and fails where something is damaged.",
    [Step("verify_sample_of_everything", "Another sample each day; its seed is in the metadata.", verify)],
)
