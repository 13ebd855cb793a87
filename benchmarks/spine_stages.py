"""The stages of the spine, each run in a process of its own by `spine.py`. Times are in seconds, sizes in bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness.driven import Driven
from harness.measure import Stage, Stopwatch
from harness.plain_file import PlainFile

from stratalog.hot import HotLog
from stratalog.hot.home import Home
from stratalog.schemas.blobs import references
from stratalog.schemas.envelope import encode_record
from stratalog.schemas.events import ToolResult

OUTPUT = "src/jobs/retry.py::test_flush_batch[17] PASSED\n" * 16
"""Makes a body of about 800 bytes."""
SEED = 7
SLICES = 5
WARM_UP_S = 0.1
QUERY_ROUNDS = 5
QUERIES = {
    "count of all events": "SELECT count(*) FROM events",
    "calls by tool and status": "SELECT tool, status, count(*) FROM tool_calls GROUP BY ALL",
    "tokens by model": "SELECT model, sum(output_tokens) FROM trajectories GROUP BY ALL",
    "all messages of one trajectory": (
        "SELECT * FROM messages WHERE trajectory_id = (SELECT max(trajectory_id) FROM trajectories)"
    ),
}


def import_files(home: str, paths: Sequence[str]) -> dict[str, Any]:
    """`stratalog import` without the start of Python."""
    from stratalog.cli.importing import run_import
    from stratalog.cli.output import Output
    from stratalog.cold.installation import Installation

    installation = Installation(Home.open(home, create=True))
    with Stopwatch() as watch:
        report = run_import(installation, [Path(path) for path in paths], "auto", "default", Output(json_mode=True))
    return {"events": report.appended, "seconds": watch.seconds}


def append(home: str, plain: str, appenders: int, seconds: float) -> dict[str, Any]:
    """Coroutines that each append one event after the other, each to a trajectory of its own; and the same number of
    bytes to a plain file. Both by turns, so that a busy disk is busy for both.
    """

    async def work() -> tuple[Driven, Driven]:
        ours, least = Driven(), Driven()
        async with HotLog.open(home, serve=False) as log:
            body = ToolResult(tool_call_id="c1", tool="run_command", output=OUTPUT, duration_ms=12.5, exit_code=0)
            ids = [await log.start(tenant="default", task="bench") for _ in range(appenders)]
            appends = [partial(log.append, trajectory_id, body) for trajectory_id in ids]
            await ours.drive(appends, WARM_UP_S)
            stored = log.engine.envelope(log.durable_lsn)
            assert stored is not None
            record = bytes(len(encode_record(1, stored.header.encode(), stored.body)))
            ours = Driven()
            with PlainFile(Path(plain)) as file:
                for _ in range(SLICES):
                    await ours.drive(appends, seconds / SLICES)
                    await least.drive([partial(file.append, record)] * appenders, seconds / SLICES)
        return ours, least

    ours, least = asyncio.run(work())
    return ours.result() | {"plain": least.result()}


def fill(home: str, trajectories: int) -> dict[str, Any]:
    """Generated trajectories into a hot log, by one thread in groups; then what they take there."""
    from stratalog.testing import workload, write

    made = list(workload(SEED, trajectories, "mixed"))
    with HotLog.open(home, serve=False) as log:
        with Stopwatch() as watch:
            events = write(log, made)
        envelopes = list(log.engine.scan(1))
        bodies = sum(len(envelope.body) for envelope in envelopes)
        contents = sum(ref.size for envelope in envelopes for ref in references(envelope.body))
        stored = log.engine.store.disk_bytes()
    return {
        "events": events,
        "seconds": watch.seconds,
        "body_bytes": bodies,
        "content_bytes": contents,
        "stored_bytes": stored,
    }


def replicate(home: str) -> dict[str, Any]:
    """`stratalog sidecar --once`, with a Postgres that runs; then what the tables take, indexes included."""
    from stratalog.cold.installation import Installation
    from stratalog.warm import queries
    from stratalog.warm.sidecar import Sidecar

    installation = Installation(Home.open(home))
    with installation.server() as server:
        with Stopwatch() as watch:
            result = Sidecar(installation.home, server, installation.content_store()).run_once()
        with installation.connection() as conn:
            stored = queries.counts(conn).bytes
    contents = sum(file.stat().st_size for file in (installation.home.path / "cas").rglob("*") if file.is_file())
    return {"events": result["events"], "seconds": watch.seconds, "stored_bytes": stored, "content_bytes": contents}


def consolidate(home: str) -> dict[str, Any]:
    """`stratalog consolidate --older-than 0d`, with a Postgres that runs."""
    from stratalog.cold.installation import Installation

    with Installation(Home.open(home)).tiers() as tiers, Stopwatch() as watch:
        done = tiers.consolidate("0d")
    return {"events": done.events, "seconds": watch.seconds, "stored_bytes": done.bytes}


def verify(home: str) -> dict[str, Any]:
    """`stratalog verify`; `events` counts an event once for each tier that has it."""
    from stratalog.cold.installation import Installation
    from stratalog.cold.verification import verify_all

    with Stopwatch() as watch:
        report = verify_all(Installation(Home.open(home)))
    if not report["ok"]:
        raise SystemExit(f"verify found damage: {report}")
    return {"events": sum(tier["events"] for tier in report["tiers"].values()), "seconds": watch.seconds}


def query(home: str) -> dict[str, Any]:
    """Questions to DuckDB, each several times over one connection; the medians."""
    from stratalog.cold.query import connect, run_sql

    seconds = {}
    connect(home).close()  # loads the modules
    with Stopwatch() as opening, connect(home):
        pass
    with connect(home) as connection:
        for title, text in QUERIES.items():
            samples = []
            for _ in range(QUERY_ROUNDS):
                with Stopwatch() as watch:
                    run_sql(connection, text)
                samples.append(watch.seconds)
            seconds[title] = median(samples)
    return {"open_seconds": opening.seconds, "query_seconds": seconds}


STAGES: dict[str, Stage] = {
    stage.__name__: stage for stage in (import_files, append, fill, replicate, consolidate, verify, query)
}
