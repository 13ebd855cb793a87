"""Events as they lie in a file: what their hashes cover, and the exact body, from many rows at once."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.schemas.arrow import INDEX, NAMES
from stratalog.schemas.errors import Corrupt

from .columns import Row, body_of
from .rebuild import bodies_of
from .rows import column, rows_of, values_of

SMALL_ROWS = 200
"""Fewer rows are faster one by one: taking a batch apart by kinds costs the same for few of them as for many."""


class Start(msgspec.Struct, frozen=True):
    """What the first row of a segment says of it: where it ends, what it follows, and the secret of its bodies."""

    last_sequence: int
    previous_hash: bytes | None
    last_hash: bytes | None
    secret: bytes | None


class Stored(msgspec.Struct, frozen=True):
    """One event. `trajectory` is the 16 bytes of the id, `created_at` in µs since 1970; a body may be `Corrupt`.

    `start` is there on the first event of a segment, `body_digest` where the event was erased.
    """

    trajectory: bytes
    sequence_number: int
    tenant: str
    kind: str
    epoch: int
    schema_version: int
    created_at: int
    erased: bool
    body_digest: bytes | None
    start: Start | None
    body: bytes | Corrupt


_COLUMNS = (
    "trajectory_id",
    "sequence_number",
    "tenant",
    "kind",
    "epoch",
    "schema_version",
    "created_at",
    "erased",
    "body_digest",
)
_START = tuple(INDEX[f"segment_{name}"] for name in ("last_sequence", "previous_hash", "last_hash", "secret"))


def stored_in(batch: pa.RecordBatch) -> list[Stored]:
    """The events of a batch of rows, in order."""
    if batch.num_rows < SMALL_ROWS:
        return list(map(stored_of, rows_of(batch)))
    columns = [values_of(column(batch, name)) for name in _COLUMNS]
    return list(map(Stored, *columns, _starts(batch), bodies_of(batch)))


def stored_of(row: Row) -> Stored:
    """The event of one row."""
    last, previous_hash, last_hash, secret = (row[index] for index in _START)
    start = None if last is None else Start(last, previous_hash, last_hash, secret)
    body: bytes | Corrupt
    try:
        body = body_of(row)
    except Corrupt as error:
        body = error
    values = [*(row[INDEX[name]] for name in _COLUMNS), start, body]
    return Stored(*values)


def _starts(batch: pa.RecordBatch) -> list[Start | None]:
    starts: list[Start | None] = [None] * batch.num_rows
    last = column(batch, "segment_last_sequence")
    if last.null_count == len(last):
        return starts
    places = pc.indices_nonzero(pc.is_valid(last))
    columns = (values_of(column(batch, NAMES[index]).take(places)) for index in _START)
    for index, values in zip(places.to_pylist(), zip(*columns, strict=True), strict=True):
        starts[index] = Start(*values)
    return starts
