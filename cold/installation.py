"""One installation: a home and the tiers that its settings name, opened when they are asked for.

Without a DSN the embedded Postgres of the home is used and kept at the schema of this version. A Postgres of somebody's
own is set up when it is empty, and otherwise migrated only when told to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.hot.home import Home
from stratalog.schemas.extras import require

if TYPE_CHECKING:
    from stratalog.cold.cas import FsContentStore
    from stratalog.cold.catalog import Catalog
    from stratalog.cold.consolidate import Consolidated, Consolidation
    from stratalog.cold.lake import Lake
    from stratalog.schemas.protocols import ContentStore
    from stratalog.schemas.settings import ColdSettings
    from stratalog.warm.database import Connection
    from stratalog.warm.server import EmbeddedPostgres


class Installation:
    """The tiers of a home; cheap to make."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.settings = home.settings

    @property
    def embedded(self) -> bool:
        """Whether Postgres is ours."""
        return not self.settings.warm.dsn

    @contextmanager
    def server(self, *, migrate: bool = False) -> Iterator[str | EmbeddedPostgres]:
        """A server that answers and has the right schema: a DSN, or the embedded one, which runs until the end.

        Raises `Unavailable`, `MigrationNeeded` (unless `migrate`), `Invalid` for a server that is too old.
        """
        require("psycopg", "warm")
        if not self.embedded:
            self._prepare(self.settings.warm.dsn, migrate=migrate)
            yield self.settings.warm.dsn
            return
        from stratalog.warm.server import EmbeddedPostgres

        with EmbeddedPostgres(self.home.path / "pg") as server:
            self._prepare(server.dsn, migrate=True)
            yield server

    @contextmanager
    def postgres(self, *, migrate: bool = False) -> Iterator[str]:
        """The DSN of such a server."""
        with self.server(migrate=migrate) as server:
            yield server if isinstance(server, str) else server.dsn

    @property
    def has_postgres(self) -> bool:
        """Whether there is a warm tier at all: a DSN is set, or the embedded server was used before."""
        return not self.embedded or (self.home.path / "pg").exists()

    def _prepare(self, dsn: str, *, migrate: bool) -> None:
        from stratalog.warm import database
        from stratalog.warm import migrate as migrations

        with closing(database.connect(dsn, check=False)) as conn:
            migrations.check_server(conn)
            status = migrations.status(conn)
            if status.pending and (migrate or not status.applied):
                migrations.migrate(conn)
        database.connect(dsn).close()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection to the warm tier."""
        from stratalog.warm import database

        with self.postgres() as dsn, closing(database.connect(dsn)) as conn:
            yield conn

    def content_store(self, dsn: str = "") -> FsContentStore:
        """Content-addressed storage; with a DSN, what Postgres knows of packs is used and kept true."""
        require("fsspec", "cold")
        from stratalog.cold.cas import FsContentStore

        table = None
        if dsn:
            from stratalog.cold.pack_table import PackTable
            from stratalog.warm import database

            table = PackTable(lambda: database.connect(dsn))
        settings = self.settings.cold
        return FsContentStore(settings.cas_url or f"file://{self.home.folder('cas')}", settings.storage_options, table)

    def lake(self) -> Lake:
        """Where the Parquet files lie."""
        require("fsspec", "cold")
        from stratalog.cold.lake import Lake

        settings = self.settings.cold
        return Lake(settings.url or f"file://{self.home.folder('cold')}", settings.storage_options)

    def catalog(self, dsn: str, lake: Lake) -> Catalog:
        """The table catalog, in the same Postgres."""
        require("pyiceberg", "cold")
        from stratalog.cold.catalog import Catalog

        return Catalog(dsn, lake, movable=self.embedded)

    @contextmanager
    def tiers(self) -> Iterator[Tiers]:
        """Everything that consolidation needs, until the end of the block; raises what `postgres` and `lake` raise."""
        require_cold()
        with (
            self.postgres() as dsn,
            self.lake() as lake,
            self.catalog(dsn, lake) as catalog,
            closing(self.content_store(dsn)) as store,
        ):
            yield Tiers(dsn, lake, catalog, store, self.settings.cold)


@dataclass(frozen=True, slots=True)
class Tiers:
    """The opened warm and cold tier."""

    dsn: str
    lake: Lake
    catalog: Catalog
    store: FsContentStore
    settings: ColdSettings

    def connect(self) -> Connection:
        """A new connection to the warm tier; close it."""
        from stratalog.warm import database

        return database.connect(self.dsn)

    def consolidation(self, store: ContentStore | None = None) -> Consolidation:
        """The steps of a consolidation; `store` replaces the content store. Enter it to take the lock.

        Raises `Conflict` where the lake or the content store belongs to another database; see `owner.py`.
        """
        from .consolidate import Consolidation
        from .owner import require_owner

        require_owner(self)
        return Consolidation(self.connect, self.lake, self.catalog, store or self.store, self.settings)

    def consolidate(self, older_than: str | None = None) -> Consolidated:
        """Move everything that ended `older_than` ago (by default the setting's); see `cold.consolidate`."""
        from .consolidate import consolidate
        from .owner import require_owner

        require_owner(self)
        return consolidate(self.connect, self.lake, self.catalog, self.store, self.settings, older_than)


def require_cold() -> None:
    """Raise `MissingExtra` unless what the cold tier needs is installed."""
    for module in ("duckdb", "pyarrow", "fsspec"):
        require(module, "cold")
