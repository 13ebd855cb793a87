"""What a table's metadata names: which files a table needs, and which only its past needed.

A table is a chain: its metadata file names snapshots, a snapshot a list of manifests, a manifest data files. `Named`
are the files that the snapshots of a table reach. `past` finds what expired snapshots reached, from the versions of the
metadata that the table still logs: so a process that comes after a crash knows what the one before it was to delete.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
from pyiceberg.manifest import ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from .catalog import Catalog, reading_metadata
from .lake import Lake


@dataclass(frozen=True, slots=True)
class Named:
    """Paths in the lake that some snapshots of a table reach, its current metadata file included."""

    metadata: frozenset[str]
    data: frozenset[str]


class Version(msgspec.Struct, frozen=True):
    """An earlier version of the table's metadata: its path, and since when it is not the current one."""

    path: str
    superseded_at: dt.datetime


def named_by(catalog: Catalog, table: Table, snapshots: Iterable[Snapshot]) -> Named:
    """Everything that `snapshots` reach; raises `Corrupt` or `NotFound` where that cannot be told."""
    metadata = {catalog.path_of(table.metadata_location)}
    metadata.update(catalog.path_of(file.statistics_path) for file in table.metadata.statistics)
    metadata.update(catalog.path_of(file.statistics_path) for file in table.metadata.partition_statistics)
    manifests: dict[str, ManifestFile] = {}
    data: set[str] = set()
    with reading_metadata():
        for snapshot in snapshots:
            metadata.add(catalog.path_of(snapshot.manifest_list))
            manifests.update((manifest.manifest_path, manifest) for manifest in snapshot.manifests(table.io))
        for manifest in manifests.values():
            metadata.add(catalog.path_of(manifest.manifest_path))
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                data.add(catalog.path_of(entry.data_file.file_path))
    return Named(frozenset(metadata), frozenset(data))


def versions(catalog: Catalog, table: Table) -> list[Version]:
    """The earlier versions that the table logs, the oldest first; their files may be gone."""
    logged = table.metadata.metadata_log
    ends = [entry.timestamp_ms for entry in logged[1:]] + [table.metadata.last_updated_ms]
    return [Version(catalog.path_of(entry.metadata_file), moment(end)) for entry, end in zip(logged, ends, strict=True)]


def read_version(lake: Lake, table: Table, path: str) -> TableMetadata | None:
    """A version of the metadata, `None` where its file is gone."""
    if not lake.exists(path):
        return None
    with reading_metadata():
        return FromInputFile.table_metadata(table.io.new_input(lake.url_of(path)))


def past(lake: Lake, catalog: Catalog, table: Table, gone: Iterable[Snapshot], keep: Named) -> Iterator[str]:
    """The metadata files that only the snapshots `gone` need, manifests before the lists that name them."""
    seen: set[str] = set()
    for snapshot in gone:
        listed = catalog.path_of(snapshot.manifest_list)
        # Without its list, a crash came after everything that the list names was deleted.
        if listed in seen or listed in keep.metadata or not lake.exists(listed):
            continue
        with reading_metadata():
            paths = [catalog.path_of(manifest.manifest_path) for manifest in snapshot.manifests(table.io)]
        for path in (*paths, listed):
            if path not in seen and path not in keep.metadata:
                seen.add(path)
                yield path


def moment(milliseconds: int) -> dt.datetime:
    """A time of Iceberg's."""
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
