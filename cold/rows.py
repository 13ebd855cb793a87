"""Rows to Arrow batches and back, column by column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from stratalog.schemas.arrow import EVENTS, NAMES

from .columns import Row


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """The Arrow batch of `rows` (at least one), in the order of `schemas.arrow.COLUMNS`."""
    arrays = [array_of(values, field.type) for values, field in zip(zip(*rows, strict=True), EVENTS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column of these values."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of an Arrow batch; columns that the file lacks are null."""
    columns = [values_of(column(batch, name)) for name in NAMES]
    return map(list, zip(*columns, strict=True))


def column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column as its plain storage (ids as 16 bytes, times as integers); nulls where the file lacks it."""
    index, plain = batch.schema.get_field_index(name), PLAIN[name]
    if index < 0:
        return pa.nulls(batch.num_rows, plain)
    array = batch.column(index)
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return array if array.type == plain else array.cast(plain)


def values_of(array: pa.Array) -> list[Any]:
    """The values of a plain column; far faster than `to_pylist` for text, bytes, and columns without nulls."""
    if array.null_count == len(array):
        return [None] * len(array)
    kind = array.type
    texts = pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
    if texts or array.null_count == 0:
        found: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return found
    listed: list[Any] = array.to_pylist()
    return listed


def _plain(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind


PLAIN = {field.name: _plain(field.type) for field in EVENTS}
"""The type of each column that `column` gives."""
