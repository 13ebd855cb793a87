"""What the assets by as-of day have in common."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import dagster as dg

from .days import as_of_days
from .failures import retries

PREFIX = "stratalog"
GROUP = "stratalog"
POOL = "cold_write"
"""Whoever is in it writes to the cold tier; one run at a time (see dagster.yaml)."""


def day_asset(
    key: dg.AssetKey,
    *,
    kinds: set[str],
    deps: Iterable[dg.AssetKey] = (),
    check_specs: Iterable[dg.AssetCheckSpec] = (),
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """An asset of as-of days; a range of days is one run."""
    with warnings.catch_warnings():
        # Dagster calls its policies for backfills beta, at every import.
        warnings.simplefilter("ignore", dg.BetaWarning)
        decorate: Callable[[Callable[..., Any]], dg.AssetsDefinition] = dg.asset(
            key=key,
            deps=list(deps),
            group_name=GROUP,
            partitions_def=as_of_days,
            backfill_policy=dg.BackfillPolicy.single_run(),
            retry_policy=retries,
            pool=POOL,
            kinds=kinds,
            check_specs=list(check_specs),
            code_version="1",
        )
        return decorate
