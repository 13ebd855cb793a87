"""stratalog: a durable trajectory log for AI agents, tiered from RocksDB through Postgres to Parquet."""

from stratalog.schemas.errors import StratalogError

__all__ = ["StratalogError", "__version__"]
__version__ = "0.1.0"
