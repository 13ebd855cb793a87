"""`stratalog sql`: questions to the cold tier."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from cyclopts import Parameter

from .options import DEFAULT, Common
from .output import counted
from .usage import Usage

ROWS_SHOWN = 200


def sql(
    query: str | None = None,
    /,
    *,
    init: Annotated[bool, Parameter(negative="")] = False,
    untrusted: Annotated[bool, Parameter(negative="")] = False,
    tenant: str | None = None,
    seconds: float = 30.0,
    memory_mb: int = 1024,
    rows: int = 10_000,
    no_pin: Annotated[bool, Parameter(negative="")] = False,
    common: Common = DEFAULT,
) -> int:
    """Ask the cold tier in SQL (DuckDB): the views are trajectories, messages, tool_calls and events.

    Example: `stratalog sql "select tool, count(*) n from tool_calls group by tool order by n desc"`

    Parameters
    ----------
    query
        One SQL query.
    init
        Print the views as SQL, for any DuckDB shell.
    untrusted
        The query is somebody else's: one SELECT over the views, no other files, within the limits below.
    tenant
        With --untrusted: only what belongs to this tenant is there.
    seconds
        With --untrusted: how long the query may take.
    memory_mb
        With --untrusted: how much memory it may use.
    rows
        With --untrusted: how many rows it may give.
    no_pin
        Do not keep the files of the snapshot from being replaced meanwhile; for roles that may only read.
    """
    from stratalog.cold.installation import require_cold

    require_cold()
    if tenant is not None and not untrusted:
        raise Usage("--tenant goes with --untrusted", hint="or write it into the query: WHERE tenant = '…'")
    if init:
        return _init(common)
    if query is None:
        raise Usage("there is no query", hint='write one: stratalog sql "select count(*) from trajectories"')
    if untrusted:
        limits = {"seconds": seconds, "memory_mb": memory_mb, "rows_max": rows}
        found = _ask_untrusted(common, query, tenant, limits, pin=not no_pin)
    else:
        found = _ask(common, query, pin=not no_pin)
    return _show(common, found)


def _ask(common: Common, query: str, *, pin: bool) -> list[dict[str, Any]]:
    from stratalog.cold.pins import PIN_S_MAX
    from stratalog.cold.query import connect, run_sql

    with connect(common.open_home(), pin_s=PIN_S_MAX if pin else 0) as connection:
        return run_sql(connection, query)


def _init(common: Common) -> int:
    from stratalog.cold.pins import pinned_snapshot
    from stratalog.cold.query import init_script

    home = common.open_home()
    with pinned_snapshot(home, "stratalog sql --init", 0) as snapshot:
        script = init_script(snapshot.files, home.settings.cold.storage_options, snapshot.masked)
    if common.json:
        common.output.document({"sql": script})
    else:
        sys.stdout.write(script)
    return 0


def _ask_untrusted(
    common: Common, query: str, tenant: str | None, limits: dict[str, Any], *, pin: bool
) -> list[dict[str, Any]]:
    from stratalog.cold.pins import PIN_S_MAX, pinned_snapshot
    from stratalog.cold.untrusted import START_S, Limits, ask_untrusted

    home = common.open_home()
    allowed = Limits(**limits)
    options = home.settings.cold.storage_options
    seconds = min(PIN_S_MAX, allowed.seconds + START_S) if pin else 0
    with pinned_snapshot(home, "stratalog sql --untrusted", seconds) as snapshot:
        return ask_untrusted(
            snapshot.files,
            query,
            tenant=tenant,
            masked=snapshot.masked,
            limits=allowed,
            storage_options=options,
        )


def _show(common: Common, found: list[dict[str, Any]]) -> int:
    if common.json:
        common.output.document(found)
        return 0
    output = common.output
    columns = list(found[0]) if found else []
    output.table(columns, [list(row.values()) for row in found[:ROWS_SHOWN]])
    shown = f", {ROWS_SHOWN} shown; see all with --json" if len(found) > ROWS_SHOWN else ""
    output.note(f"{counted(len(found), 'row')}{shown}")
    return 0
