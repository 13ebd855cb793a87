"""The views `events`, `trajectories`, `messages` and `tool_calls` over the files of one snapshot, for DuckDB.

The file list is written into the view: whoever queries sees exactly one snapshot, however long the query takes and
whatever is committed meanwhile. The statements are in `schemas/sql/views/`; names, types and order of their columns are
stable, also where there are no files yet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files as resources

from stratalog.schemas.arrow import COLUMNS, PARTITION_COLUMNS

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


def view_statements(files: Sequence[str]) -> list[str]:
    """The CREATE VIEW statements over `files` (URLs or paths), one per view, in the order of `VIEWS`."""
    folder = resources("stratalog.schemas") / "sql" / "views"
    statements = [(folder / f"{name}.sql").read_text(encoding="utf-8") for name in VIEWS]
    return [statement.strip().replace("FROM $source", f"FROM {source(files)}") for statement in statements]


def source(files: Sequence[str]) -> str:
    """What follows FROM: the Parquet files, or a relation without rows that has their columns."""
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
