"""The one commit of a rewrite: some data files leave the table and others come, in one Iceberg snapshot.

The snapshot carries the rewrite's id. It is committed on the state of the table that was read before the caller's guard
was asked: whoever has lost the lock on consolidation, but does not know it yet, cannot commit any more once somebody
else has `fence`d it off. The snapshot also says which files left, but not what was in them: the bounds of their columns
are content, and would stay in its manifests after the files have gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import stamina
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _OverwriteFiles

from stratalog.schemas.errors import Conflict, Unavailable

from .catalog import COMMIT_ATTEMPTS, Catalog, catalog_errors, reading_metadata

REWRITE_ID = "stratalog.rewrite-id"
"""Key of the rewrite's id in a snapshot's summary."""
UNDONE_ID = "stratalog.undone-rewrite-id"
"""Key of the id of a rewrite that must not be committed any more."""


def has_rewrite(catalog: Catalog, rewrite_id: str) -> bool:
    """Whether the rewrite has been committed."""
    table = catalog.table()
    return table is not None and _has(table, rewrite_id)


def replace_files(
    catalog: Catalog, old: Collection[str], new: Sequence[str], rewrite_id: str, guard: Callable[[], None]
) -> None:
    """Replace the files `old` by `new` (absolute URLs) in one snapshot; does nothing where that has happened already.

    `guard` raises where this process may not commit any more. Raises `Conflict` where the table has not all of `old`,
    `Unavailable` where Postgres or the lake do not answer: whether it was committed then has to be looked up.
    """
    going = {catalog.recorded(url) for url in old}
    with catalog_errors():
        for attempt in stamina.retry_context(
            on=CommitFailedException, attempts=COMMIT_ATTEMPTS, wait_initial=0.05, wait_max=2.0, timeout=60.0
        ):
            with attempt:
                table = _table(catalog)
                guard()
                if not _has(table, rewrite_id):
                    _replace(table, going, [catalog.recorded(url) for url in new], {REWRITE_ID: rewrite_id})


def fence(catalog: Catalog, rewrite_id: str) -> None:
    """Commit a snapshot that changes nothing, so that a commit which is still on its way comes too late."""
    with catalog_errors():
        for attempt in stamina.retry_context(
            on=CommitFailedException, attempts=COMMIT_ATTEMPTS, wait_initial=0.05, wait_max=2.0, timeout=60.0
        ):
            with attempt:
                _table(catalog).add_files([], {UNDONE_ID: rewrite_id}, check_duplicate_files=False)


def _table(catalog: Catalog) -> Table:
    table = catalog.table()
    if table is None:
        raise Unavailable("the cold table has gone while its files were rewritten")
    return table


def _has(table: Table, rewrite_id: str) -> bool:
    return any(
        snapshot.summary is not None and snapshot.summary.additional_properties.get(REWRITE_ID) == rewrite_id
        for snapshot in table.metadata.snapshots
    )


def _replace(table: Table, going: Collection[str], new: Sequence[str], properties: dict[str, str]) -> None:
    leaving = _data_files(table, going)
    with table.transaction() as transaction:
        producer = _Replacement(Operation.OVERWRITE, transaction, table.io, snapshot_properties=properties)
        for file in leaving:
            producer.delete_data_file(file)
        for url in new:
            producer.append_data_file(parquet_file_to_data_file(table.io, transaction.table_metadata, url))
        producer.commit()


def _data_files(table: Table, going: Collection[str]) -> list[DataFile]:
    snapshot = table.current_snapshot()
    with reading_metadata():
        found = [
            entry.data_file
            for manifest in ([] if snapshot is None else snapshot.manifests(table.io))
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            if entry.data_file.file_path in going
        ]
    missing = set(going) - {file.file_path for file in found}
    if missing:
        raise Conflict(
            f"the table does not have {min(missing)} any more", hint="somebody else has changed it: run it again"
        )
    return found


class _Replacement(_OverwriteFiles):
    """PyIceberg's overwrite, which looks at all manifests and keeps nothing of what the files that leave contained."""

    def _build_delete_files_partition_predicate(self) -> None:
        # A condition for each partition would be nested as deeply as there are partitions.
        return

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        return lambda manifest: True

    def _deleted_entries(self) -> list[ManifestEntry]:
        return [_without_content(entry) for entry in super()._deleted_entries()]


def _without_content(entry: ManifestEntry) -> ManifestEntry:
    file = entry.data_file
    kept: dict[str, Any] = {
        name: getattr(file, name)
        for name in ("content", "file_path", "partition", "record_count", "file_size_in_bytes")
    }
    bare = DataFile.from_args(**kept, file_format=file.file_format)
    bare.spec_id = file.spec_id
    return ManifestEntry.from_args(
        status=entry.status,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=bare,
    )
