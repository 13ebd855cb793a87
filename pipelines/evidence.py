"""What a run's committed files really are: read from storage once more, and compared with its plan.

This is the last look before the marks, after which the warm tier may drop the events. It trusts nothing that the run
has said of itself: the files are those of the catalog's snapshot, the rows and their number come from the files.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.cold import plan as plans
from stratalog.cold.consolidate import ReadBack
from stratalog.cold.installation import Tiers
from stratalog.cold.plan import Run
from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.schemas.protocols import ContentStore


class Evidence(msgspec.Struct, frozen=True):
    """What was found for one run. `rows` are those that the files' footers tell."""

    run_id: str
    planned: int
    committed: int
    rows: int
    read: ReadBack
    blobs: int
    blob_problems: tuple[str, ...]


class WatchedStore:
    """A content store that remembers what could not be read."""

    def __init__(self, store: ContentStore) -> None:
        self._store = store
        self.read = 0
        self.problems: list[str] = []

    def get(self, tenant: str, sha256: str) -> bytes:
        """The content, verified."""
        self.read += 1
        try:
            return self._store.get(tenant, sha256)
        except (NotFound, Corrupt) as error:
            self.problems.append(f"{tenant}/{sha256}: {error.message}")
            raise

    def put(self, tenant: str, ref: BlobRef, content: bytes) -> None:
        """Store content."""
        self._store.put(tenant, ref, content)

    def has(self, tenant: str, sha256: str) -> bool:
        """Whether the content is there."""
        return self._store.has(tenant, sha256)

    def digests(self, tenant: str) -> Iterator[str]:
        """The digests of a tenant."""
        return self._store.digests(tenant)

    def tenants(self) -> Iterator[str]:
        """The tenants."""
        return self._store.tenants()


def gather(tiers: Tiers, run: Run) -> Evidence:
    """Read a committed run back. Raises `Unavailable` where Postgres or the storage do not answer, else never."""
    store = WatchedStore(tiers.store)
    with tiers.consolidation(store) as work, tiers.connect() as conn:
        _, planned = plans.totals(conn, run)
        files = tiers.catalog.run_files(str(run.run_id))
        committed = tiers.catalog.run_totals(str(run.run_id))
        read = work.read_back(run, files)
    return Evidence(
        str(run.run_id),
        planned,
        0 if committed is None else committed.events,
        sum(_footer_rows(tiers, file.url) for file in files),
        read,
        store.read,
        tuple(store.problems),
    )


def _footer_rows(tiers: Tiers, url: str) -> int:
    try:
        with tiers.lake.open(url) as stream, pq.ParquetFile(stream) as file:
            rows: int = file.metadata.num_rows
            return rows
    except (NotFound, pa.ArrowException, OSError):
        # Nothing can be counted in a file that is gone or has no footer; the sum then falls short of the plan.
        return 0
