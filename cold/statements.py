"""The SQL of the cold tier, read from `schemas/sql/queries/cold/*.sql`.

A file holds statements of one subject; each begins with a line `-- name: open_runs`, then a comment that says what it
does.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: ([a-z0-9_]+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)


@cache
def statements(subject: str) -> dict[str, bytes]:
    """The statements of one file by name, without their comments."""
    file = files("stratalog.schemas") / "sql" / "queries" / "cold" / f"{subject}.sql"
    _, *pieces = _NAME.split(file.read_text(encoding="utf-8"))
    return {
        name: _COMMENT.sub("", text).strip().removesuffix(";").encode()
        for name, text in zip(pieces[::2], pieces[1::2], strict=True)
    }
