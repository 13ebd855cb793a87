"""The SQL that the tiers execute, read from `schemas/sql/queries/*.sql`.

A file holds statements of one subject. Each begins with a line `-- name: insert_events`, then a comment that says what
it does. Statements are handed to psycopg as bytes, with its placeholders (`%(ids)b` is sent in binary).
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from .errors import Invalid

_NAME = re.compile(r"^-- name: ([a-z0-9_]+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)


@cache
def statements(subject: str) -> dict[str, bytes]:
    """The statements of one file by name, without their comments; raises `Invalid` where a name comes twice."""
    file = files("stratalog.schemas") / "sql" / "queries" / f"{subject}.sql"
    _, *pieces = _NAME.split(file.read_text(encoding="utf-8"))
    found: dict[str, bytes] = {}
    for name, text in zip(pieces[::2], pieces[1::2], strict=True):
        if name in found:
            raise Invalid(f"{subject}.sql holds two statements with the name {name}")
        found[name] = _COMMENT.sub("", text).strip().removesuffix(";").encode()
    return found
