"""What a statement that somebody else wrote may be: one SELECT over the views, and nothing that reaches beyond them.

DuckDB's own parser gives the tree (`json_serialize_sql`), so what is judged is what will run. The tree may contain only
kinds of nodes that are known here: a kind that a later DuckDB adds is refused until somebody has looked at it. Tables
may only be the views and the statement's own WITH names, table functions only those that make rows from nothing or from
their arguments. So files (with the trajectories' secrets in them), settings and the catalog have no name to be read by.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import Any

import duckdb
import msgspec

from stratalog.schemas.errors import Invalid

from .views import VIEWS

STATEMENT_BYTES_MAX = 100_000
TABLE_FUNCTIONS = frozenset(("range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"))
"""Table functions that read nothing but their arguments."""
_FORBIDDEN_FUNCTIONS = re.compile(
    r"(?!pg_typeof$)(pg_|read_|write_|duckdb_|current_setting|current_query|getenv|getvariable|set_|nextval|currval|"
    r"parse_duckdb|json_execute|json_serialize_plan|query|which_secret|.*_scan$|add_parquet_key|sleep|has_).*"
)
"""Functions that tell of settings, variables and the catalog, write, or only wait; and whatever is named like one."""
_NODES = frozenset(
    (
        "SELECT_NODE",
        "SET_OPERATION_NODE",
        "RECURSIVE_CTE_NODE",
        "CTE_NODE",
        "BASE_TABLE",
        "EMPTY",
        "EXPRESSION_LIST",
        "JOIN",
        "PIVOT",
        "SHOW_REF",
        "SUBQUERY",
        "TABLE_FUNCTION",
        "DISTINCT_MODIFIER",
        "LIMIT_MODIFIER",
        "LIMIT_PERCENT_MODIFIER",
        "ORDER_MODIFIER",
        "ORDER_DEFAULT",
        "ASCENDING",
        "DESCENDING",
    )
)
_EXPRESSIONS = frozenset(
    (
        "BETWEEN",
        "CASE",
        "CAST",
        "COLLATE",
        "COLUMN_REF",
        "COMPARISON",
        "CONJUNCTION",
        "CONSTANT",
        "FUNCTION",
        "LAMBDA",
        "LAMBDA_REF",
        "OPERATOR",
        "POSITIONAL_REFERENCE",
        "STAR",
        "SUBQUERY",
        "TYPE",
        "WINDOW",
    )
)
_SHOWN = ("DESCRIBE", "SUMMARY")
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_HINT = f"write one SELECT over {', '.join(VIEWS)}"


def check_statement(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    """Raise `Invalid` unless `text` is one statement as described above; `connection` only parses it."""
    if len(text.encode("utf-8", "replace")) > STATEMENT_BYTES_MAX:
        raise Invalid(f"the statement has more than {STATEMENT_BYTES_MAX} bytes", hint=_HINT)
    if "\0" in text:
        raise Invalid("the statement has a NUL byte, where some take it for its end", hint=_HINT)
    statement = _parse(connection, text)
    own = {name.lower() for name in _with_names(statement)}
    known = {row[0].lower() for row in connection.execute("SELECT view_name FROM duckdb_views()").fetchall()}
    # Outside of its scope a WITH name means what the catalog or the disk has under it.
    for name in own - set(VIEWS):
        if name in known or not _NAME.fullmatch(name):
            raise Invalid(f"WITH {name[:80]!r}: this name is not allowed", hint="use another name, of letters and _")
    for node in _nodes(statement):
        _check(node, own | set(VIEWS))


def _parse(connection: duckdb.DuckDBPyConnection, text: str) -> Any:
    row = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
    try:
        tree = msgspec.json.decode(row[0] if row else "null")
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid("the statement is nested too deeply", hint=_HINT) from error
    if tree["error"] and tree.get("error_type") == "not implemented":
        raise Invalid("only SELECT is allowed here", hint=_HINT)
    if tree["error"]:
        raise Invalid(f"DuckDB: {tree.get('error_message', 'this is no SELECT')}", hint=_HINT)
    if len(tree["statements"]) != 1:
        raise Invalid("only one statement is allowed at a time", hint=_HINT)
    return tree["statements"][0]


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object of the tree, except values, which hold no expressions."""
    waiting = [tree]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting += found
        elif isinstance(found, dict):
            yield found
            if found.get("class") != "CONSTANT":
                waiting += found.values()


def _with_names(tree: Any) -> Iterator[str]:
    for node in _nodes(tree):
        entries = node["cte_map"].get("map") or [] if isinstance(node.get("cte_map"), dict) else []
        yield from (entry["key"] for entry in entries)


def _check(node: dict[str, Any], tables: Set[str]) -> None:
    kind = node.get("type")
    if "class" in node:
        if node["class"] not in _EXPRESSIONS:
            raise Invalid(f"{str(node['class']).lower()} is not allowed here", hint=_HINT)
    elif isinstance(kind, str) and kind not in _NODES and not kind.endswith("_TYPE_INFO"):
        raise Invalid(f"{kind.lower()} is not allowed here", hint=_HINT)
    if isinstance(name := node.get("function_name"), str) and _FORBIDDEN_FUNCTIONS.fullmatch(name.lower()):
        raise Invalid(f"the function {name} is not allowed here", hint=_HINT)
    if kind == "BASE_TABLE":
        _check_table(node, tables)
    elif kind == "TABLE_FUNCTION":
        function = str(node["function"].get("function_name"))
        if function.lower() not in TABLE_FUNCTIONS:
            raise Invalid(f"the table function {function} is not allowed here", hint=_HINT)
    elif kind == "SHOW_REF" and (node.get("show_type") not in _SHOWN or node.get("table_name")):
        raise Invalid("only DESCRIBE and SUMMARIZE of a view are allowed here", hint=_HINT)


def _check_table(node: dict[str, Any], tables: Set[str]) -> None:
    name = str(node.get("table_name"))
    path = (node.get("qualified_name") or {}).get("path") or [name]
    if node.get("schema_name") or node.get("catalog_name") or path != [name] or name.lower() not in tables:
        raise Invalid(f"{'.'.join(map(str, path))[:200]!r} is not a view", hint=_HINT)
