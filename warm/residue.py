"""Looks for texts that must be nowhere in the warm tier: in every column of every table that this role can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psycopg import sql

from stratalog.schemas.statements import statements

from .database import Connection, answering

_BYTES = sql.SQL("EXISTS (SELECT 1 FROM unnest(%(bytes)s::bytea[]) AS n(x) WHERE position(x IN {}) > 0)")
_TEXT = sql.SQL("EXISTS (SELECT 1 FROM unnest(%(texts)s::text[]) AS n(x) WHERE position(x IN {}::text) > 0)")


def rows_with(conn: Connection, needles: Sequence[bytes]) -> Iterator[str]:
    """Tables, columns and how many rows of them have one of `needles`; text is compared as UTF-8, JSON as it is shown.

    Reads every table whole. A needle that is not UTF-8 is looked for in columns of bytes alone.
    """
    texts = [needle.decode() for needle in needles if _is_text(needle)]
    with answering(), conn.transaction():
        conn.execute(statements("retention")["unlimited"])
        columns = conn.execute(statements("residue")["columns"]).fetchall()
        for schema, table, column, kind in columns:
            name, where = sql.Identifier(column), sql.Identifier(schema, table)
            if kind == "bytea":
                test = sql.SQL("EXISTS (SELECT 1 FROM unnest(%(bytes)s::bytea[]) AS n(x) WHERE position(x IN {}) > 0)")
            else:
                test = sql.SQL(
                    "EXISTS (SELECT 1 FROM unnest(%(texts)s::text[]) AS n(x) WHERE position(x IN {}::text) > 0)"
                )
            query = sql.SQL("SELECT count(*) FROM {} WHERE {}").format(where, test.format(name))
            row = conn.execute(query, {"bytes": list(needles), "texts": texts}).fetchone()
            if row is not None and row[0]:
                yield f"Postgres, {schema}.{table}.{column}: {row[0]} rows"


def _is_text(needle: bytes) -> bool:
    try:
        return "\0" not in needle.decode()
    except UnicodeDecodeError:
        return False
