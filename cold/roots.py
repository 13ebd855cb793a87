"""What content is needed: every reference in the warm tier, in quarantine and in the cold table, read exactly.

The caller holds the lock on consolidation. Then every event is in at least one of the places all the time: what leaves
the warm tier has been in the cold table before, and no plan is completed meanwhile. Only while a partition is being
dropped can rows be in no table for a moment, so that is refused. What cannot be read is never taken for unneeded.

Memory: about 150 bytes for each piece of content that is referred to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.schemas.arrow import INDEX
from stratalog.schemas.blobs import references
from stratalog.schemas.errors import Conflict, Corrupt
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering
from stratalog.warm.places import PLACES

from .catalog import Catalog
from .columns import Row, body_of
from .lake import Lake
from .rows import rows_of
from .storage import translated

_SQL = statements("sweep")
_BLOB = "blob"


class Roots:
    """The needed content by tenant."""

    def __init__(self) -> None:
        self._digests: dict[str, set[bytes]] = {}

    def add(self, tenant: str, sha256: str) -> None:
        """Take in a reference; one that is no digest refers to nothing that could be stored."""
        try:
            self._digests.setdefault(tenant, set()).add(bytes.fromhex(sha256))
        except ValueError:
            return

    def __contains__(self, piece: tuple[str, bytes]) -> bool:
        return piece[1] in self._digests.get(piece[0], ())

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return ((tenant, digest) for tenant, digests in sorted(self._digests.items()) for digest in sorted(digests))

    def __len__(self) -> int:
        return sum(map(len, self._digests.values()))


def find_roots(conn: Connection, lake: Lake, catalog: Catalog) -> Roots:
    """Read all references; raises `Conflict` while a partition is being dropped, `Corrupt` for a damaged file."""
    roots = Roots()
    for file in catalog.files():
        for row in referring_rows(lake, file.url):
            for sha256 in digests_in(row):
                roots.add(row[INDEX["tenant"]], sha256)
    with whole_partitions(conn), answering(), conn.transaction():
        conn.execute(_SQL["unlimited"])
        for place in PLACES:
            for tenant, body in place.references(conn):
                for ref in references(body):
                    roots.add(tenant, ref.sha256)
    return roots


@contextmanager
def whole_partitions(conn: Connection) -> Iterator[None]:
    """Raise `Conflict` where a partition is being dropped, at the beginning of the block or until its end."""
    before = _partitions(conn)
    yield
    if not set(before) <= set(_partitions(conn)):
        raise _dropping()


def _partitions(conn: Connection) -> list[str]:
    with answering(), conn.transaction():
        row = conn.execute(_SQL["partitions"]).fetchone()
    assert row is not None
    names: list[str] = row[0]
    if row[1]:
        raise _dropping()
    return names


def _dropping() -> Conflict:
    return Conflict(
        "a partition of the warm tier is being dropped, so it cannot be told what its rows refer to",
        hint="finish it with: stratalog retention apply; then run it again",
    )


def referring_rows(lake: Lake, url: str) -> Iterator[Row]:
    """The rows of one Parquet file that refer to content; those whose `blob` is null do not, and are not read.

    Raises `Corrupt`, `NotFound`.
    """
    try:
        with (
            translated("read", url),
            lake.open(url) as stream_,
            pq.ParquetFile(stream_, page_checksum_verification=True) as file,
        ):
            for group in range(file.num_row_groups):
                refers = pc.is_valid(file.read_row_group(group, columns=[_BLOB]).column(_BLOB))
                if not pc.any(refers).as_py():
                    continue
                for batch in file.read_row_group(group).filter(refers).to_batches():
                    yield from rows_of(batch)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise Corrupt(f"{url} cannot be read: {error}", hint="nothing was deleted; see: stratalog verify") from error


def digests_in(row: Row) -> Iterator[str]:
    """What one such row refers to (SHA-256 in hex, as it is written there)."""
    yield row[INDEX[_BLOB]]
    # The column has the first reference only.
    for ref in references(body_of(row)):
        yield ref.sha256
