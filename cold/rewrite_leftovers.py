"""What still names data files that have left the table: old snapshots, and metadata that nothing names any more.

A manifest holds the names of data files and the bounds of their columns, so it is read to find out whether it names one
of them; that finds also what an earlier process has taken out of the history and not deleted. Metadata that something
still names, and that of other tables in the same folder, is never taken for a leftover.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from pyiceberg.manifest import ManifestContent, ManifestFile, read_manifest_list
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from stratalog.schemas.errors import Corrupt, Invalid

from .catalog import TABLE, Catalog, reading_metadata
from .lake import Lake

METADATA_FOLDER = f"iceberg/{TABLE[1]}"


def snapshots_naming(catalog: Catalog, table: Table, paths: Collection[str]) -> list[Snapshot]:
    """The snapshots of the table that reach one of the data files `paths` (in the lake), the oldest first."""
    names: dict[str, bool] = {}

    def reaches(manifest: ManifestFile) -> bool:
        if manifest.manifest_path not in names:
            names[manifest.manifest_path] = _names(catalog, table, manifest, paths.__contains__, deleted=False)
        return names[manifest.manifest_path]

    with reading_metadata():
        return [
            snapshot
            for snapshot in sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
            if any(map(reaches, snapshot.manifests(table.io)))
        ]


def stale_metadata(
    lake: Lake, catalog: Catalog, table: Table, named: Collection[str], gone: Callable[[str], bool]
) -> list[str]:
    """Metadata files that are not among `named` and belong to snapshots that reached data files which are `gone`.

    They can be deleted in the order given: what a crash leaves is found again, manifests that say something of these
    files by what they say, then the lists that name them, and by the lists all other manifests of the same snapshots.
    """
    unnamed = [entry.path for entry in lake.files(METADATA_FOLDER) if entry.path not in named]
    lists = [path for path in unnamed if path.endswith(".avro") and path.rpartition("/")[2].startswith("snap-")]
    manifests = [path for path in unnamed if path.endswith(".avro") and path not in lists]
    saying = {path for path in manifests if _names(catalog, table, _manifest(lake, catalog, path), gone, deleted=True)}
    listed = {path: set(_listed(lake, catalog, table, path)) for path in lists}
    listing = [path for path in lists if not saying.isdisjoint(listed[path])]
    beside = {path for name in listing for path in listed[name]}.intersection(manifests) - saying
    return [*sorted(beside), *listing, *sorted(saying)]


def _manifest(lake: Lake, catalog: Catalog, path: str) -> ManifestFile:
    """A manifest of which only the place is known."""
    return ManifestFile.from_args(
        manifest_path=catalog.recorded(lake.url_of(path)),
        manifest_length=0,
        partition_spec_id=0,
        content=ManifestContent.DATA,
        sequence_number=0,
        min_sequence_number=0,
    )


def _names(
    catalog: Catalog, table: Table, manifest: ManifestFile, wanted: Callable[[str], bool], *, deleted: bool
) -> bool:
    """Whether a manifest has one of the files; one that was never completed, and nothing names, has none."""
    try:
        with reading_metadata():
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=not deleted)
    except Corrupt:
        if deleted:
            return False
        raise
    return any(wanted(_path(catalog, entry.data_file.file_path)) for entry in entries)


def _listed(lake: Lake, catalog: Catalog, table: Table, path: str) -> Iterable[str]:
    try:
        with reading_metadata():
            found = list(read_manifest_list(table.io.new_input(catalog.recorded(lake.url_of(path)))))
    except Corrupt:
        return []
    return [_path(catalog, manifest.manifest_path) for manifest in found]


def _path(catalog: Catalog, recorded: str) -> str:
    """The path in the lake; of another table's files in other places, what it names."""
    try:
        return catalog.path_of(recorded)
    except Invalid:
        return recorded
