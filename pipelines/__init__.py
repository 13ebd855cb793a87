"""Dagster definitions over the tiers: assets, checks, a nightly run. Thin shells; nothing else imports Dagster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .build import build_definitions as build_definitions
    from .run import run_consolidation as run_consolidation

__all__ = ["build_definitions", "run_consolidation"]


def __getattr__(name: str) -> Any:
    # Dagster is loaded when it is first needed.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stratalog.schemas.extras import require

    for module in ("dagster", "matplotlib"):
        require(module, "pipelines")
    if name == "build_definitions":
        from .build import build_definitions

        return build_definitions
    from .run import run_consolidation

    return run_consolidation
