"""Reads results of any size through a cursor in the server, a few rows at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from .database import Connection, answering

ROWS_PER_FETCH = 100
"""Few, because a row may hold a body of 1 MiB."""

_numbers = itertools.count(1)


def stream(
    conn: Connection, statement: bytes, parameters: Mapping[str, Any], *, rows_per_fetch: int = ROWS_PER_FETCH
) -> Iterator[tuple[Any, ...]]:
    """The rows of a query, inside a transaction that ends with the iteration (or within the one that is open).

    Streams on one connection may be nested, not interleaved.
    """
    with answering(), conn.transaction(), conn.cursor(f"stratalog_{next(_numbers)}", binary=True) as cursor:
        cursor.itersize = rows_per_fetch
        cursor.execute(statement, parameters)
        yield from cursor
