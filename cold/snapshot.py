"""Which files the cold table of a home consists of right now."""

from __future__ import annotations

from stratalog.hot.home import Home

from .installation import Installation


def snapshot_files(home: Home) -> list[str]:
    """The URLs of the data files of the current snapshot; starts the embedded Postgres where the home has one.

    Raises `Unavailable` where Postgres or the lake do not answer, `MigrationNeeded`, `MissingExtra`.
    """
    installation = Installation(home)
    if not installation.has_postgres:
        return []  # nothing has ever been replicated, so nothing can be cold
    with installation.postgres() as dsn, installation.lake() as lake, installation.catalog(dsn, lake) as catalog:
        return catalog.snapshot_files()
