"""Which files the cold table of a home consists of right now."""

from __future__ import annotations

from stratalog.hot.home import Home


def lake_url(home: Home) -> str:
    """Where the Parquet files of a home lie."""
    return home.settings.cold.url or f"file://{home.path / 'cold'}"


def snapshot_files(home: Home) -> list[str]:
    """The URLs of the data files of the current snapshot; starts the embedded Postgres where the home has one.

    Raises `Unavailable` where Postgres or the lake do not answer.
    """
    if home.settings.warm.dsn:
        return _files(home, home.settings.warm.dsn)
    if not (home.path / "pg").exists():
        return []  # nothing has ever been replicated, so nothing can be cold
    from stratalog.warm.server import EmbeddedPostgres

    with EmbeddedPostgres(home.path / "pg") as server:
        return _files(home, server.dsn)


def _files(home: Home, dsn: str) -> list[str]:
    from .catalog import Catalog
    from .lake import Lake

    with Lake(lake_url(home), home.settings.cold.storage_options) as lake, Catalog(dsn, lake) as catalog:
        return catalog.snapshot_files()
