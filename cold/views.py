"""The views `events`, `trajectories`, `messages` and `tool_calls` over the files of one snapshot, for DuckDB.

The file list is written into the view: whoever queries sees exactly one snapshot, however long the query takes and
whatever is committed meanwhile. Of trajectories that were erased, and whose bytes the files may still have, nothing is
shown that came from a body or a head. The statements are in `schemas/sql/views/`; names, types and order of their
columns are stable, also where there are no files yet.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Sequence
from importlib.resources import files as resources

from stratalog.schemas.arrow import CLEARED, COLUMNS, PARTITION_COLUMNS, REDUCED

VIEWS = ("events", "trajectories", "messages", "tool_calls")
"""In the order in which they must be made: the others read from the first."""

_DUCKDB_TYPES = {
    "extension<arrow.uuid>": "UUID",
    "string": "VARCHAR",
    "int64": "BIGINT",
    "int32": "INTEGER",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "date32[day]": "DATE",
    "timestamp[us, tz=UTC]": "TIMESTAMP WITH TIME ZONE",
    "binary": "BLOB",
    "fixed_size_binary[32]": "BLOB",
}
_PARTITIONED = re.compile("[^=]*" + "".join(f"/{name}=[^=/]+" for name in PARTITION_COLUMNS) + "/[^=/]+")


def view_statements(files: Sequence[str], masked: Collection[uuid.UUID] = ()) -> list[str]:
    """The CREATE VIEW statements over `files` (URLs or paths), one per view, in the order of `VIEWS`.

    The trajectories `masked` show no content.
    """
    folder = resources("stratalog.schemas") / "sql" / "views"
    statements = [(folder / f"{name}.sql").read_text(encoding="utf-8") for name in VIEWS]
    return [statement.strip().replace("FROM $source", f"FROM {source(files, masked)}") for statement in statements]


def source(files: Sequence[str], masked: Collection[uuid.UUID] = ()) -> str:
    """What follows FROM: the Parquet files, or a relation without rows that has their columns."""
    if masked and files:
        # Whether a row is masked is found out once, whatever columns a query needs.
        ids = ", ".join(f"'{id_}'::UUID" for id_ in sorted(masked))
        hidden = ", ".join(f"CASE WHEN masked THEN NULL ELSE {name} END AS {name}" for name in (*CLEARED, *REDUCED))
        marked = f"(SELECT *, trajectory_id IN ({ids}) AS masked FROM {source(files)})"
        return f"(SELECT * REPLACE ({hidden}, masked OR erased AS erased) FROM {marked})"
    if not files:
        columns = ", ".join(f"NULL::{_DUCKDB_TYPES[str(column.type)]} AS {column.name}" for column in COLUMNS)
        return f"(SELECT {columns} WHERE false)"
    listed = ",\n  ".join(literal(duckdb_path(file)) for file in files)
    return f"read_parquet([\n  {listed}\n], {_partitioning(files)})"


def _partitioning(files: Sequence[str]) -> str:
    # From the paths DuckDB knows which files a condition on tenant or date can touch, without opening any. A root with
    # a `=` of its own would add columns; then the columns in the files must do.
    if all(map(_PARTITIONED.fullmatch, files)):
        types = ", ".join(f"'{name}': {_DUCKDB_TYPES[str(_type_of(name))]}" for name in PARTITION_COLUMNS)
        return f"hive_partitioning = true, hive_types = {{{types}}}"
    return "hive_partitioning = false"


def _type_of(name: str) -> object:
    return next(column.type for column in COLUMNS if column.name == name)


def duckdb_path(file: str) -> str:
    """How DuckDB names a file: a local one by its path, and pattern characters in brackets, for they are meant."""
    path = file.removeprefix("file://") if file.startswith("file:///") else file
    return re.sub(r"[*?\[]", r"[\g<0>]", path)


def literal(text: str) -> str:
    """`text` as an SQL string."""
    return "'" + text.replace("'", "''") + "'"
