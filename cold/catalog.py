"""The table catalog: which files are the cold table. Apache Iceberg, by PyIceberg in the Postgres of the warm tier.

A consolidation run becomes visible by one commit, whole or not at all; its snapshot carries the run's id, so whoever
comes after a crash can tell whether it happened, and no run is committed twice: a commit that lost a race, or whose
outcome is unknown, looks for the run id before it tries again. Iceberg's own tables lie in a Postgres schema of their
own (`stratalog_catalog`), its metadata files in the lake under `iceberg/`. They name files by absolute URLs; when a
home was moved, those of the old place are read as those of the new one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import msgspec
import psycopg
import stamina
from psycopg.conninfo import conninfo_to_dict
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
    UUIDType,
)
from sqlalchemy import URL
from sqlalchemy.exc import OperationalError

from stratalog.schemas.arrow import COLUMNS, PARTITION_COLUMNS
from stratalog.schemas.errors import Corrupt, Unavailable
from stratalog.schemas.statements import statements

from .iceberg_io import ACTUAL_ROOT, RECORDED_ROOT, STORAGE_OPTIONS, moved
from .lake import Lake
from .storage import translated

CATALOG_SCHEMA = "stratalog_catalog"
TABLE = ("stratalog", "events")
RUN_ID = "stratalog.run-id"
"""Key of the run id in a snapshot's summary."""
COMMIT_ATTEMPTS = 20

_TYPES: dict[str, IcebergType] = {
    "extension<arrow.uuid>": UUIDType(),
    "string": StringType(),
    "int64": LongType(),
    "int32": IntegerType(),
    "double": DoubleType(),
    "bool": BooleanType(),
    "binary": BinaryType(),
    "date32[day]": DateType(),
    "timestamp[us, tz=UTC]": TimestamptzType(),
    "fixed_size_binary[32]": FixedType(32),
}


class RunTotals(msgspec.Struct, frozen=True):
    """What one committed run added to the table."""

    files: int
    events: int
    bytes: int


class RunFile(msgspec.Struct, frozen=True):
    """A committed data file: its absolute URL, rows and bytes as the catalog has them."""

    url: str
    rows: int
    bytes: int


def iceberg_schema() -> Schema:
    """The table's schema; the field ids are the places of the columns, from 1, and must never change."""
    return Schema(
        *(
            NestedField(number, column.name, _TYPES[str(column.type)], not column.nullable, column.description)
            for number, column in enumerate(COLUMNS, start=1)
        )
    )


def _partition_spec(schema: Schema) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(schema.find_field(name).field_id, 1000 + index, IdentityTransform(), name)
            for index, name in enumerate(PARTITION_COLUMNS)
        )
    )


def _properties(schema: Schema) -> dict[str, str]:
    counted = {f"write.metadata.metrics.column.{column.name}": "none" for column in COLUMNS if not column.statistics}
    return {
        "format-version": "2",
        # A retry of PyIceberg's own would not look for the run id.
        "commit.retry.num-retries": "0",
        "commit.manifest-merge.enabled": "true",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "20",
        "schema.name-mapping.default": schema.name_mapping.model_dump_json(),
        **counted,
    }


def sqlalchemy_url(dsn: str) -> str:
    """The SQLAlchemy URL of a libpq connection string or URL, with the catalog's schema as the search path."""
    known = conninfo_to_dict(dsn)
    options = f"{known.pop('options', None) or ''} -c search_path={CATALOG_SCHEMA}".strip()
    query = {name: str(value) for name, value in known.items() if value is not None}
    return URL.create("postgresql+psycopg", query={**query, "options": options}).render_as_string(hide_password=False)


class Catalog:
    """The Iceberg catalog with the one table `stratalog.events`. Not shared between processes; close it at the end."""

    def __init__(self, dsn: str, lake: Lake, *, movable: bool = False) -> None:
        """`movable`: the database lies in the home and moves with it, so nobody else has files in this table."""
        self._dsn = dsn
        self._movable = movable
        self._lake = lake
        self._opened: SqlCatalog | None = None
        self._recorded_root = lake.url

    def __enter__(self) -> Catalog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def ensure_schema(self) -> None:
        """Make the catalog's own tables, where they are missing."""
        with self._created():
            pass

    @contextmanager
    def _created(self) -> Iterator[SqlCatalog]:
        """The catalog, with its own tables, while nobody else makes anything in it."""
        with catalog_errors(), psycopg.connect(self._dsn) as conn:
            # Two processes that create at once would both find nothing and then collide.
            conn.execute(statements("catalog")["lock_creation"])
            conn.execute(statements("catalog")["create_schema"])
            conn.commit()
            conn.execute(statements("catalog")["lock_creation"])
            yield self._catalog()

    def ensure(self) -> None:
        """Make the catalog's schema and the table, where they are missing."""
        with self._created() as catalog:
            catalog.create_namespace_if_not_exists(TABLE[0])
            # To create a table that is there already would leave its first metadata file behind, each time.
            if catalog.table_exists(TABLE):
                return
            schema = iceberg_schema()
            catalog.create_table(
                TABLE,
                schema,
                location=f"{self._lake.url}/iceberg/{TABLE[1]}",
                partition_spec=_partition_spec(schema),
                properties=_properties(schema),
            )

    def snapshot_files(self) -> list[str]:
        """The absolute URLs of the data files of the current snapshot, sorted; empty before the first commit."""
        return [file.url for file in self.files()]

    def files(self) -> list[RunFile]:
        """The data files of the current snapshot, sorted by URL."""
        with reading_metadata():
            table = self._table()
            snapshot = table.current_snapshot() if table is not None else None
            return [] if table is None or snapshot is None else self._files_of(table, snapshot)

    def has_run(self, run_id: str) -> bool:
        """Whether the run has been committed."""
        return self.run_totals(run_id) is not None

    def run_totals(self, run_id: str) -> RunTotals | None:
        """What the run added, or `None` if it has not been committed."""
        with reading_metadata():
            table = self._table()
            return None if table is None else _totals(table, run_id)

    def run_files(self, run_id: str) -> list[RunFile]:
        """The files that the run added, sorted by URL; empty if it has not been committed."""
        with reading_metadata():
            table = self._table()
            snapshot = None if table is None else _snapshot_of(table, run_id)
            return [] if table is None or snapshot is None else self._files_of(table, snapshot, added=True)

    def commit(self, files: list[str], run_id: str) -> RunTotals:
        """Add `files` (absolute URLs) in one snapshot that carries `run_id`; does nothing if the run is there already.

        Raises `Unavailable` when others keep committing at the same time, or Postgres or the lake do not answer.
        """
        self.ensure()
        with catalog_errors():
            for attempt in stamina.retry_context(
                on=CommitFailedException, attempts=COMMIT_ATTEMPTS, wait_initial=0.05, wait_max=2.0, timeout=60.0
            ):
                with attempt:
                    table = self._catalog().load_table(TABLE)
                    done = _totals(table, run_id)
                    if done is not None:
                        return done
                    # The names carry run id and digest, and the run is not there, so none of them can be; looking
                    # for duplicates would read every manifest.
                    recorded = [self.recorded(url) for url in files]
                    table.add_files(recorded, {RUN_ID: run_id}, check_duplicate_files=False)
            committed = _totals(self._catalog().load_table(TABLE), run_id)
        if committed is None:
            raise Unavailable(f"the commit of run {run_id} is not in the catalog", hint="run the same command again")
        return committed

    def recorded(self, url: str) -> str:
        """How the metadata names a file of the lake."""
        return moved(url, self._lake.url, self._recorded_root)

    def table(self) -> Table | None:
        """The table as the catalog has it now, for maintenance; `None` before the first commit."""
        with reading_metadata():
            return self._table()

    def path_of(self, recorded: str) -> str:
        """The path in the lake of a file that the metadata names; raises `Invalid` for one that is elsewhere."""
        return self._lake.path_of(moved(recorded, self._recorded_root, self._lake.url))

    def expire(self, table: Table, snapshot_ids: list[int]) -> None:
        """Take snapshots out of the table's history by one commit, which does not remove a single byte.

        Raises `Unavailable` where somebody else has committed since `table` was read.
        """
        with catalog_errors():
            table.maintenance.expire_snapshots().by_ids(snapshot_ids).commit()

    def _table(self) -> Table | None:
        if self._opened is None:
            with psycopg.connect(self._dsn) as conn:
                if conn.execute(statements("catalog")["exists"]).fetchone() != (True,):
                    return None
        catalog = self._catalog()
        return catalog.load_table(TABLE) if catalog.table_exists(TABLE) else None

    def _files_of(self, table: Table, snapshot: Snapshot, *, added: bool = False) -> list[RunFile]:
        """The files of a snapshot where they lie now."""
        return [
            msgspec.structs.replace(file, url=moved(file.url, self._recorded_root, self._lake.url))
            for file in _files_of(table, snapshot, added=added)
        ]

    def _find_recorded_root(self) -> str:
        """The URL of the lake in the table's metadata: where the home was when the table was made."""
        with psycopg.connect(self._dsn) as conn:
            if conn.execute(statements("catalog")["exists"]).fetchone() != (True,):
                return self._lake.url
            names = {"namespace": TABLE[0], "table": TABLE[1]}
            row = conn.execute(statements("catalog")["metadata_place"], names).fetchone()
        root, found, _ = (row[0] if row else "").partition(f"/iceberg/{TABLE[1]}/")
        return root if found else self._lake.url

    def _catalog(self) -> SqlCatalog:
        if self._opened is None:
            self._recorded_root = self._find_recorded_root() if self._movable else self._lake.url
            options = msgspec.json.encode(self._lake.storage_options).decode()
            self._opened = SqlCatalog(
                "stratalog",
                **{
                    "uri": sqlalchemy_url(self._dsn),
                    "warehouse": f"{self._lake.url}/iceberg",
                    "py-io-impl": "stratalog.cold.iceberg_io.LakeFileIO",
                    STORAGE_OPTIONS: options,
                    RECORDED_ROOT: self._recorded_root,
                    ACTUAL_ROOT: self._lake.url,
                    # A server may have restarted since the last call.
                    "pool_pre_ping": "true",
                },
            )
        return self._opened


def _snapshot_of(table: Table, run_id: str) -> Snapshot | None:
    for snapshot in reversed(table.metadata.snapshots):
        if snapshot.summary is not None and snapshot.summary.additional_properties.get(RUN_ID) == run_id:
            return snapshot
    return None


def _files_of(table: Table, snapshot: Snapshot, *, added: bool = False) -> list[RunFile]:
    found = []
    for manifest in snapshot.manifests(table.io):
        if added and manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            # A merged manifest also holds what earlier commits have added.
            if not added or entry.snapshot_id == snapshot.snapshot_id:
                file = entry.data_file
                found.append(RunFile(file.file_path, file.record_count, file.file_size_in_bytes))
    return sorted(found, key=lambda file: file.url)


def _totals(table: Table, run_id: str) -> RunTotals | None:
    snapshot = _snapshot_of(table, run_id)
    if snapshot is None or snapshot.summary is None:
        return None
    added = snapshot.summary.additional_properties
    return RunTotals(
        int(added.get("added-data-files", 0)),
        int(added.get("added-records", 0)),
        int(added.get("added-files-size", 0)),
    )


@contextmanager
def reading_metadata() -> Iterator[None]:
    """Metadata that cannot be understood is damaged: PyIceberg has no error of its own for that."""
    try:
        with catalog_errors():
            yield
    except (
        ValidationError,
        ValueError,
        EOFError,
        LookupError,
        TypeError,
        AssertionError,
        struct.error,
        zlib.error,
    ) as error:
        line = str(error).partition("\n")[0]
        raise Corrupt(
            f"the table's metadata is damaged ({type(error).__name__}: {line})",
            hint="put iceberg/ back from a backup; the events are in the Parquet files as they were",
        ) from error


@contextmanager
def catalog_errors() -> Iterator[None]:
    """One place that turns what the libraries raise into our errors."""
    try:
        with translated("read or write", "the table's metadata"):
            yield
    except (psycopg.OperationalError, OperationalError) as error:
        raise Unavailable(f"Postgres did not answer: {error}") from error
    except CommitFailedException as error:
        raise Unavailable(
            f"the table kept changing while this run was committed: {error}", hint="run the same command again"
        ) from error
