"""`stratalog quarantine`: events that were not admitted into the canonical history."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
from cyclopts import App

from stratalog.schemas.extras import require

from .options import DEFAULT, Common
from .output import counted, human_us
from .sanitise import escape_json, sanitise

quarantine_app = App(name="quarantine", help="Events that were not admitted: list, show, retry, export.")


@quarantine_app.command(name="list")
def list_(trajectory_id: uuid.UUID | None = None, /, *, all: bool = False, common: Common = DEFAULT) -> int:
    """List quarantined events; those of one trajectory, or of all.

    Example: `stratalog quarantine list`

    Parameters
    ----------
    all
        Also those that were admitted since.
    """
    require("psycopg", "warm")
    from stratalog.warm import quarantine

    with common.installation().connection() as conn:
        entries = quarantine.entries(conn, trajectory_id, everything=all)
    if common.json:
        common.output.document(entries)
        return 0
    rows = [
        [entry.quarantine_id, str(entry.trajectory_id), entry.sequence_number, entry.kind, entry.reason, entry.detail]
        for entry in entries
    ]
    common.output.table(["id", "trajectory", "event", "kind", "reason", "detail"], rows)
    common.output.note(f"{counted(len(entries), 'event')} in quarantine")
    return 0


@quarantine_app.command
def show(quarantine_id: int, /, *, common: Common = DEFAULT) -> int:
    """Show one quarantined event, whole.

    Example: `stratalog quarantine show 17`
    """
    require("psycopg", "warm")
    from stratalog.warm import quarantine

    with common.installation().connection() as conn:
        entry, envelope = quarantine.show(conn, quarantine_id)
    body = envelope.body.decode("utf-8", "replace")
    if common.json:
        common.output.document({"entry": entry, "header": envelope.header, "body": body})
        return 0
    known = {name: value for name, value in msgspec.to_builtins(entry).items() if value is not None}
    for name, value in known.items():
        common.output.line(f"{name:<16} {sanitise(str(value))}".rstrip())
    common.output.line(f"{'created_at':<16} {human_us(envelope.header.created_at)} UTC")
    common.output.line()
    common.output.line(sanitise(body, newlines=True))
    return 0


@quarantine_app.command
def retry(trajectory_id: uuid.UUID | None = None, /, *, common: Common = DEFAULT) -> int:
    """Offer quarantined events to their histories again; they go through the same admission as before.

    Example: `stratalog quarantine retry`
    """
    require("psycopg", "warm")
    from stratalog.warm import quarantine

    with common.installation().connection() as conn:
        done = quarantine.retry(conn, trajectory_id)
    common.output.line(
        f"{done.admitted:,} admitted, {done.duplicates:,} were already there, {done.still_open:,} remain in quarantine"
    )
    if common.json:
        common.output.document(done)
    return 0


@quarantine_app.command
def export(trajectory_id: uuid.UUID | None = None, /, *, output: Path | None = None, common: Common = DEFAULT) -> int:
    """Write quarantined events as JSON lines, with their exact bytes in base64.

    Example: `stratalog quarantine export --output evidence.jsonl`

    Parameters
    ----------
    output
        The file to write; standard output by default.
    """
    require("psycopg", "warm")
    from stratalog.warm import quarantine

    count = 0
    with common.installation().connection() as conn:
        lines = quarantine.export(conn, trajectory_id, everything=True)
        if output is None:
            _print(lines, common)
            return 0
        with output.open("xb") as file:
            for line in lines:
                file.write(line)
                count += 1
    common.output.line(f"{counted(count, 'event')} written to {sanitise(str(output))}")
    if common.json:
        common.output.document({"events": count, "file": str(output)})
    return 0


def _print(lines: Iterator[bytes], common: Common) -> None:
    """JSON lines, or one JSON list with --json."""
    if common.json:
        common.output.document([msgspec.json.decode(line) for line in lines])
        return
    for line in lines:
        sys.stdout.write(escape_json(line.decode()))
    sys.stdout.flush()
