"""Looking for what must be gone: in every column of every table of a database, and in the files of a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fix_history import MemoryLog, Story, copy, message
from psycopg import sql

from stratalog.schemas import events as ev
from stratalog.warm import erasure
from stratalog.warm.database import Connection

BY = {"by": "tester", "reason": "article 17"}


def tables_with(conn: Connection, needle: bytes) -> list[str]:
    """The columns, of any table in any schema, where a row has these bytes; text is compared as UTF-8."""
    found = []
    columns = conn.execute(
        "SELECT c.table_schema, c.table_name, c.column_name FROM information_schema.columns c "
        "JOIN information_schema.tables t USING (table_schema, table_name) "
        "WHERE t.table_type = 'BASE TABLE' AND c.table_schema NOT IN ('pg_catalog', 'information_schema')"
    ).fetchall()
    for schema, table, column in columns:
        name = sql.Identifier(column)
        # Escaped, the bytes of a bytea and of a text are the same printable text for a printable needle.
        as_bytes = sql.SQL("CASE WHEN pg_typeof({0}) = 'bytea'::regtype THEN {0}::text ELSE '' END").format(name)
        query = sql.SQL(
            "SELECT count(*) FROM {0} WHERE position({1} IN {2}::text) > 0 OR position({3} IN {4}) > 0"
        ).format(sql.Identifier(schema, table), needle.decode(), name, needle.hex(), as_bytes)
        row = conn.execute(query).fetchone()
        if row is not None and row[0]:
            found.append(f"{table}.{column}")
    conn.rollback()
    return sorted(found)


def files_with(folder: Path, needle: bytes) -> list[str]:
    """The files below a folder that have these bytes."""
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes()
    )


def erase(conn: Connection, *stories: Story, **selection: object) -> erasure.Proceeded:
    """Ask for trajectories and make them unreadable."""
    chosen = erasure.Selection(tuple(story.trajectory_id for story in stories), **selection)  # type: ignore[arg-type]
    return erasure.proceed(conn, erasure.request(conn, chosen, **BY))


def canary_story(canary: str, *, tenant: str = "default", parent: str = "", finish: bool = True) -> Story:
    """A trajectory that has the canary wherever an event can carry a text."""
    story = Story(tenant=tenant)
    story.write(
        ev.TaskStarted(
            task=f"task {canary}", agent=f"agent-{canary}", labels={"customer": canary}, parent=parent,
            model=ev.Model(name="m-1"), source=ev.Source(format="test", run_id=canary),
        )
    )  # fmt: skip
    story.write(message(f"please call {canary}"))
    story.write(ev.ToolIntent(tool_call_id="c1", tool=f"tool-{canary}", arguments=ev.raw_json({"to": canary})))
    story.write(ev.ToolResult(tool_call_id="c1", tool=f"tool-{canary}", status="ok", output=canary))
    story.write(ev.LabelsSet(labels={"second": canary}))
    if finish:
        story.write(ev.TaskFinished(status="completed", result=canary))
    return story


def arrive(conn: Connection, *stories: Story, log: MemoryLog | None = None) -> MemoryLog:
    """Replicate stories, whole."""
    log = log or MemoryLog()
    for story in stories:
        log.append(story, story.events)
    copy(conn, log)
    return log


@pytest.fixture
def others(warm: Connection) -> Iterator[list[Story]]:
    """Trajectories that nobody erases: they must be as they were in the end."""
    stories = [Story(at_us=1_790_000_000_000_000 + number).tell(4, finish=True, text="keep me") for number in range(3)]
    arrive(warm, *stories)
    yield stories
    for story in stories:
        rows = warm.execute(
            "SELECT body FROM all_events WHERE trajectory_id = %s ORDER BY sequence_number", (story.trajectory_id,)
        ).fetchall()
        assert [bytes(body) for (body,) in rows] == [event.body for event in story.events]
    warm.rollback()
