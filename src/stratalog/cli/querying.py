"""`stratalog sql`: questions to the cold tier."""

from __future__ import annotations

import sys
from typing import Annotated

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
    """
    from stratalog.cold.installation import require_cold

    require_cold()
    from stratalog.cold.query import connect, init_script, run_sql
    from stratalog.cold.snapshot import snapshot_files

    home = common.open_home()
    if init:
        script = init_script(snapshot_files(home), home.settings.cold.storage_options)
        if common.json:
            common.output.document({"sql": script})
        else:
            sys.stdout.write(script)
        return 0
    if query is None:
        raise Usage("there is no query", hint='write one: stratalog sql "select count(*) from trajectories"')
    with connect(home) as connection:
        rows = run_sql(connection, query)
    if common.json:
        common.output.document(rows)
        return 0
    output = common.output
    columns = list(rows[0]) if rows else []
    output.table(columns, [list(row.values()) for row in rows[:ROWS_SHOWN]])
    shown = f", {ROWS_SHOWN} shown; see all with --json" if len(rows) > ROWS_SHOWN else ""
    output.note(f"{counted(len(rows), 'row')}{shown}")
    return 0
