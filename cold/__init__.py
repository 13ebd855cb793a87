"""The cold tier: finished trajectories as Parquet, bulky content by its hash, and DuckDB over both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .query import connect as connect

__all__ = ["connect"]


def __getattr__(name: str) -> Any:
    # DuckDB and pyarrow are loaded when they are first needed.
    if name == "connect":
        from stratalog.schemas.extras import require

        for module in ("duckdb", "pyarrow", "fsspec"):
            require(module, "cold")
        from .query import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
