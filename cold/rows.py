"""Rows to Arrow batches and back, column by column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from stratalog.schemas.arrow import EVENTS, NAMES

from .columns import Row


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """The Arrow batch of `rows` (at least one), in the order of `schemas.arrow.COLUMNS`."""
    arrays = [_array(values, field.type) for values, field in zip(zip(*rows, strict=True), EVENTS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of an Arrow batch; columns that the file lacks are null."""
    columns = [_values(batch, name) for name in NAMES]
    return map(list, zip(*columns, strict=True))


def _values(batch: pa.RecordBatch, name: str) -> Iterable[Any]:
    index = batch.schema.get_field_index(name)
    if index < 0:
        return [None] * batch.num_rows
    array = batch.column(index)
    if array.null_count == len(array):
        return [None] * len(array)
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    elif pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    elif pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    values: list[Any] = array.to_pylist()
    return values
