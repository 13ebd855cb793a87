"""Questions to the cold tier in SQL, by DuckDB inside this process.

`connect` gives a DuckDB connection with the views of one snapshot; `rows` and `run_sql` give rows that are plain JSON
values. Nothing is ever downloaded on the way: extensions of DuckDB are used only where they are installed. Local files
are read by DuckDB itself, object stores through `filesystem.py`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
import re
import tempfile
import uuid
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from stratalog.hot.home import Home
from stratalog.schemas.errors import Corrupt, Invalid, MissingExtra, NotFound, StratalogError, Unavailable

from .bucket import open_filesystem
from .erased_readers import noticing_erasure
from .filesystem import StatelessFileSystem
from .pins import PIN_S_MAX, pinned_snapshot
from .storage import LOCAL_SCHEMES, STORE_HINT, split_url
from .views import VIEWS, literal, view_statements

ROWS_MAX = 100_000
"""The most rows that `run_sql` returns at once."""
READER = "stratalog.cold.connect"
"""How a connection is called in the list of pins."""
_FETCH_ROWS = 1_000
_READING: weakref.WeakKeyDictionary[duckdb.DuckDBPyConnection, tuple[Home, Sequence[str]]] = weakref.WeakKeyDictionary()
"""What the connections read that `connect` has made of a home."""
_STORAGE_ERRORS = {kind.__name__: kind for kind in (Unavailable, NotFound, Invalid)}
_FROM_STORAGE = re.compile(rf"^({'|'.join(_STORAGE_ERRORS)}): (.+)$", re.MULTILINE)
_MISSING_MODULE = re.compile(r"Required module '(\w+)' failed to import")
"""DuckDB 1.5 needs pytz for times, which its own package does not bring along."""
_FILE_TROUBLES: dict[str, type[StratalogError]] = {"No files found": NotFound, "No magic bytes": Corrupt}
_FILES_HINT = "a file of a view may have been replaced since: connect again; if it stays, see: stratalog verify"
_VIEWS_HINT = f"the views are {', '.join(VIEWS)}; see the columns of one with: DESCRIBE {VIEWS[1]}"


def connect(
    home: Home | str | os.PathLike[str] | None = None,
    *,
    files: Sequence[str] | None = None,
    masked: Collection[uuid.UUID] = (),
    storage_options: Mapping[str, str] | None = None,
    pin_s: float = PIN_S_MAX,
) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with the views over the current snapshot of `home`, or over `files` (URLs).

    Without `home` it is `STRATALOG_HOME`, or `./.stratalog`. The snapshot of a home is pinned (see `pins.py`) while the
    connection object is there, for `pin_s` at most; 0 does without. What was erased before shows no content; of
    `files`, the trajectories `masked` show none. `storage_options` are for `files` in an object store.

    Raises `HomeMissing`, `Unavailable`, `MissingExtra`, and `Invalid` where the role may not pin, or read the ledger.
    """
    spill = Path(tempfile.gettempdir()) / f"stratalog-duckdb-{os.getuid()}-{os.getpid()}"
    config = {"temp_directory": str(spill)}
    if files is not None:
        return open_views(files, storage_options or {}, config=config, masked=masked)
    if not isinstance(home, Home):
        home = Home.open(home or os.environ.get("STRATALOG_HOME") or ".stratalog")
    with contextlib.ExitStack() as pinned:
        snapshot = pinned.enter_context(pinned_snapshot(home, READER, pin_s))
        options = home.settings.cold.storage_options
        connection = open_views(snapshot.files, options, config=config, masked=snapshot.masked)
        _READING[connection] = (home, snapshot.files)
        weakref.finalize(connection, _release, pinned.pop_all(), os.getpid())
    return connection


def _release(pinned: contextlib.ExitStack, owner: int) -> None:
    if os.getpid() == owner:  # a fork has a copy of the object, but neither the session nor the server
        pinned.close()


def open_views(
    files: Sequence[str],
    storage_options: Mapping[str, str],
    *,
    config: Mapping[str, str],
    tenant: str | None = None,
    masked: Collection[uuid.UUID] = (),
) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with the views over `files`, of one tenant or of all; `config` goes to DuckDB.

    The trajectories `masked` show no content.
    """
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false", **config})
    try:
        connection.execute("SET TimeZone = 'UTC'")
        # Files never change under their names: the footers of many are read once, not for each question.
        connection.execute("SET parquet_metadata_cache = true")
        for scheme in _object_schemes(files):
            connection.register_filesystem(StatelessFileSystem(open_filesystem(scheme, storage_options)))
        events, *others = view_statements(files, masked)
        # The first view ends with its source, and all others read from it.
        for statement in (events if tenant is None else f"{events} WHERE tenant = {literal(tenant)}", *others):
            _execute(connection, statement)
    except BaseException:
        connection.close()
        raise
    return connection


def init_script(
    files: Sequence[str],
    storage_options: Mapping[str, str] | None = None,
    masked: Collection[uuid.UUID] = (),
) -> str:
    """SQL that makes the views in any DuckDB shell; credentials are never written into it."""
    script = ["-- The views of stratalog over one snapshot.", "SET TimeZone = 'UTC';"]
    if "s3" in _object_schemes(files):
        script += _s3_secret(storage_options or {})
    return "\n".join(script + [f"{statement};" for statement in view_statements(files, masked)]) + "\n"


def run_sql(connection: duckdb.DuckDBPyConnection, text: str, *, rows_max: int = ROWS_MAX) -> list[dict[str, Any]]:
    """The rows of a query as JSON values; raises `Invalid` for wrong SQL and for more than `rows_max` rows."""
    found: list[dict[str, Any]] = []
    for row in rows(connection, text):
        if len(found) == rows_max:
            raise Invalid(
                f"the query has more than {rows_max} rows",
                hint="add a LIMIT, or write the result to a file: COPY (…) TO 'result.parquet'",
            )
        found.append(row)
    return found


def rows(connection: duckdb.DuckDBPyConnection, text: str) -> Iterator[dict[str, Any]]:
    """The rows of a query as JSON values, a thousand in memory at a time; raises `Invalid` for wrong SQL.

    Ids and times become text (ISO 8601), JSON columns their values, bytes hexadecimal, NaN and infinity null. Columns
    of the same name get `_1`, `_2`, … at their end. Raises `SnapshotErased` where files were erased since `connect`.
    """
    if not text.strip():
        raise Invalid("there is no SQL", hint=_VIEWS_HINT)
    with noticing_erasure(*_READING.get(connection, (None, ()))):
        yield from _rows(connection, text)


def _rows(connection: duckdb.DuckDBPyConnection, text: str) -> Iterator[dict[str, Any]]:
    _execute(connection, text)
    names = _distinct([column[0] for column in connection.description or ()])
    parsed = [str(column[1]) == "JSON" for column in connection.description or ()]
    while names:
        with _translated():
            chunk = connection.fetchmany(_FETCH_ROWS)
        if not chunk:
            return
        for row in chunk:
            values = (
                _parse(value) if is_json else json_value(value) for value, is_json in zip(row, parsed, strict=True)
            )
            yield dict(zip(names, values, strict=True))


def _parse(text: Any) -> Any:
    """The value of a JSON column; text that is none stays text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, TypeError):
        return json_value(text)


def json_value(value: Any) -> Any:
    """A value of DuckDB as one that JSON has."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return _number(value)
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case dict():
            return {
                name if isinstance(name, str) else str(json_value(name)): json_value(v) for name, v in value.items()
            }
        case list() | tuple():
            return [json_value(item) for item in value]
        case uuid.UUID() | dt.timedelta():
            return str(value)
    return str(value)


def _number(value: Decimal) -> int | float | str | None:
    """A decimal as a number where one has its exact value, else as text."""
    if not value.is_finite():
        return None
    if value == value.to_integral_value():
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else str(value)


def _distinct(names: Sequence[str]) -> list[str]:
    distinct: list[str] = []
    for name in names:
        number, candidate = 0, name
        while candidate in distinct:
            number += 1
            candidate = f"{name}_{number}"
        distinct.append(candidate)
    return distinct


def _execute(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    with _translated():
        connection.execute(text)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except duckdb.InterruptException as error:
        raise KeyboardInterrupt from error
    except duckdb.OutOfMemoryException as error:
        raise Invalid(f"DuckDB: {error}", hint="ask for less at once, or first: SET memory_limit = '…GB'") from error
    except duckdb.Error as error:
        # DuckDB keeps only the text of what a file system raised, 2.0 below a traceback.
        if found := _FROM_STORAGE.search(str(error)):
            hint = _FILES_HINT if found[1] == "NotFound" else STORE_HINT
            raise _STORAGE_ERRORS[found[1]](found[2], hint=hint) from error
        if module := _MISSING_MODULE.search(str(error)):
            raise MissingExtra(module[1], "cold") from error
        for sign, kind in _FILE_TROUBLES.items():
            if sign in str(error):
                raise kind(f"DuckDB: {error}", hint=_FILES_HINT) from error
        raise Invalid(f"DuckDB: {error}", hint=_VIEWS_HINT) from error


def _object_schemes(files: Sequence[str]) -> list[str]:
    return sorted({split_url(file)[0] for file in files} - set(LOCAL_SCHEMES))


def _s3_secret(options: Mapping[str, str]) -> list[str]:
    endpoint, settings = options.get("endpoint_url", ""), ["TYPE s3", "PROVIDER credential_chain"]
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        settings += [f"ENDPOINT {literal(host.rstrip('/'))}", f"USE_SSL {str(scheme != 'http').lower()}"]
        settings.append(
            f"URL_STYLE {literal('path' if options.get('addressing_style', 'path') == 'path' else 'vhost')}"
        )
    if "region" in options:
        settings.append(f"REGION {literal(options['region'])}")
    return [
        "-- Credentials come from the AWS_ variables or ~/.aws.",
        "INSTALL httpfs; LOAD httpfs; INSTALL aws; LOAD aws;",
        f"CREATE OR REPLACE TEMPORARY SECRET stratalog ({', '.join(settings)});",
    ]
