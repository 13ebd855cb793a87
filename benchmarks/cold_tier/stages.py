"""The stages of the cold benchmark, each run in a process of its own by `cold.py`. Seconds, bytes, events."""

from __future__ import annotations

import base64
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from harness.measure import Stage, Stopwatch

from stratalog.cold.installation import Installation, Tiers
from stratalog.hot.home import Home

from .questions import JSON_VIEW, QUESTIONS

SEED = 11
MB = 1e6


def fill(home: str, trajectories: int, profile: str) -> dict[str, Any]:
    """Generated trajectories of one tenant and day into a hot log."""
    from stratalog.hot import HotLog
    from stratalog.testing import workload, write

    Home.open(home, create=True)
    with HotLog.open(home, serve=False) as log:
        events = write(log, workload(SEED, trajectories, profile, days=1, tenants=("acme",)))
        bodies = sum(len(envelope.body) for envelope in log.engine.scan(1))
    return {"events": events, "body_bytes": bodies}


def import_real(home: str, folder: str) -> dict[str, Any]:
    """The files of the shared test data, into hot logs."""
    from stratalog.cli.importing import run_import
    from stratalog.cli.output import Output

    installation = Installation(Home.open(home, create=True))
    report = run_import(installation, [Path(folder)], "auto", "default", Output(json_mode=True))
    return {"events": report.appended}


def verify_hot(home: str) -> dict[str, Any]:
    """Verifying the hot logs alone, before anything is replicated."""
    from stratalog.cold import verification

    installation = Installation(Home.open(home))
    verification.verify_hot(installation, {})  # opens the log for the first time
    with Stopwatch() as watch:
        report = verification.verify_hot(installation, {})
    _require(not report.problems, report.problems)
    return {"events": report.events, "seconds": watch.seconds}


def replicate(home: str) -> dict[str, Any]:
    """`stratalog sidecar --once`."""
    from stratalog.warm.sidecar import Sidecar

    installation = Installation(Home.open(home))
    with installation.server() as server, Stopwatch() as watch:
        result = Sidecar(installation.home, server, installation.content_store()).run_once()
    return {"events": result["events"], "seconds": watch.seconds}


def verify_warm(home: str) -> dict[str, Any]:
    """Verifying the warm tier alone, by one worker."""
    from stratalog.warm.check import verify_warm as verify

    with Installation(Home.open(home)).connection() as conn, Stopwatch() as watch:
        found = verify(conn)
    _require(not found.problems, found.problems)
    return {"events": found.events, "body_bytes": found.bytes, "seconds": watch.seconds}


def consolidate(home: str) -> dict[str, Any]:
    """`stratalog consolidate --older-than 0d --idle-after 0d`, step by step: what reads Postgres and writes files, and
    all of it.
    """
    with Installation(Home.open(home)).tiers() as tiers, tiers.consolidation() as work, Stopwatch() as whole:
        run, _ = work.plan("0d")
        _require(run is not None, "nothing to do")
        assert run is not None
        with Stopwatch() as writing:
            written = work.write_files(run)
        with Stopwatch() as reading:
            _require(work.read_back(run, written.files).good, "not read back")
        work.commit(run, written.files)
        done = work.mark(run)
    return {
        "events": done.events,
        "files": done.files,
        "stored_bytes": done.bytes,
        "seconds": whole.seconds,
        "write_seconds": writing.seconds,
        "read_back_seconds": reading.seconds,
    }


def verify_cold(home: str) -> dict[str, Any]:
    """Verifying the cold tier alone, by one worker."""
    from stratalog.cold.check import verify_cold as verify

    with _tiers(home) as tiers, Stopwatch() as watch:
        found = verify(tiers.lake, tiers.catalog, tiers.store)
    _require(not found.problems, found.problems)
    return {"events": found.events, "seconds": watch.seconds}


def write_arrow(home: str, folder: str) -> dict[str, Any]:
    """The same events from Arrow into Parquet: by our rules and checks, and the finished rows by pyarrow alone.

    Ours begins with a table of what the warm tier has of each event: it spreads each body over the columns, compares,
    and writes. Both write row groups of the same rows with the same options, in this one thread.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from stratalog.cold.columns import Place
    from stratalog.cold.lake import Lake
    from stratalog.cold.rows import column, values_of
    from stratalog.cold.spread import NewEvent, spread
    from stratalog.cold.stored import stored_in
    from stratalog.cold.writer import FILE_OPTIONS, EventsWriter

    settings = Home.open(home).settings.cold
    batches: list[Any] = []
    sources: list[Any] = []
    for path in sorted((Path(home) / "cold" / "events").rglob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(settings.row_group_rows):
            batches.append(batch)
            stored = stored_in(batch)
            turns = values_of(column(batch, "turn"))
            names = ("trajectory", "sequence_number", "epoch", "created_at", "schema_version", "kind", "body")
            columns = {name: [getattr(event, name) for event in stored] for name in names}
            sources.append(pa.table(columns | {"turn": turns}))
    place = Place(20_000, "model", "model")
    with Stopwatch() as ours, Lake(f"file://{folder}/ours") as lake:  # noqa: SIM117
        with EventsWriter(lake, "events", str(uuid.UUID(int=1)), settings, to_batch=spread) as writer:
            for source in sources:
                ids, sequences, epochs, times, versions, kinds, bodies, turns = (
                    source.column(name).to_numpy(zero_copy_only=False).tolist() for name in source.column_names
                )
                for number, body in enumerate(bodies):
                    event = NewEvent(
                        place,
                        "acme",
                        ids[number],
                        sequences[number],
                        epochs[number],
                        times[number],
                        versions[number],
                        turns[number],
                        b"",
                        False,
                        kinds[number],
                        body,
                    )
                    writer.add(event, len(body))
            writer.finish()
    least_path = Path(folder) / "least.parquet"
    with Stopwatch() as least:
        with pq.ParquetWriter(
            least_path, batches[0].schema, compression_level=settings.zstd_level, **FILE_OPTIONS
        ) as file:
            for batch in batches:
                file.write_batch(batch, row_group_size=batch.num_rows)
        with least_path.open("rb") as stream:
            os.fsync(stream.fileno())
    rows = sum(batch.num_rows for batch in batches)
    return {"events": rows, "seconds": ours.seconds, "pyarrow_seconds": least.seconds}


def query_for_adbc() -> str:
    """The columns that consolidation reads."""
    return (
        "SELECT trajectory_id::text, sequence_number, epoch, created_at, schema_version, turn, cryptographic_hash, "
        "body_digest, erased, event_type, tenant, body FROM stratalog.all_events"
    )


def sizes(home: str) -> dict[str, Any]:
    """Bytes of the cold files, of what only proves in them, and of the same events as JSON lines."""
    import pyarrow.parquet as pq

    total = proof = 0
    for path in (Path(home) / "cold" / "events").rglob("*.parquet"):
        total += path.stat().st_size
        metadata = pq.ParquetFile(path).metadata
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                if column.path_in_schema in PROOF_COLUMNS:
                    proof += column.total_compressed_size
    lines = size = bodies = 0
    for line, body in _json_lines(home):
        lines += 1
        size += len(line) + 1
        bodies += len(body)
    return {"events": lines, "cold_bytes": total, "proof_bytes": proof, "json_bytes": size, "body_bytes": bodies}


PROOF_COLUMNS = ("body_digest", "segment_last_hash", "segment_previous_hash", "segment_secret", "segment_last_sequence")


def _json_lines(home: str) -> Iterator[tuple[bytes, bytes]]:
    """Each event as its whole JSON line would be: header, hashes in hex, body; and the body."""
    import msgspec

    from stratalog.warm import queries

    encode = msgspec.json.Encoder().encode
    with Installation(Home.open(home)).connection() as conn:
        for head in list(queries.trajectories(conn)):
            for envelope in queries.read_events(conn, head.trajectory_id):
                header = envelope.header
                said = {
                    "tenant": header.tenant,
                    "trajectory_id": str(header.trajectory_id),
                    "sequence_number": header.sequence_number,
                    "epoch": header.epoch,
                    "created_at": header.created_at,
                    "kind": header.kind,
                    "schema_version": header.schema_version,
                    "previous_hash": header.previous_hash.hex(),
                    "body_digest": header.body_digest.hex(),
                    "model_name": head.model,
                }
                start = encode(said)[:-1]
                try:
                    body = msgspec.json.format(envelope.body, indent=-1)  # on one line
                except msgspec.MsgspecError:
                    body = encode(base64.b64encode(envelope.body).decode())
                yield b'%b,"body":%b}' % (start, body), envelope.body


def ask(home: str, folder: str, repeats: int) -> dict[str, Any]:
    """The questions, of our views, of one hand-laid Parquet file of the same rows, and of JSON files; by turns."""
    import duckdb

    from stratalog.cold.query import connect

    hand, json_folder = Path(folder) / "hand.parquet", Path(folder) / "json"
    _write_json(home, json_folder)
    with connect(home) as ours, duckdb.connect() as other, duckdb.connect() as raw:
        ours.execute(f"COPY (FROM events ORDER BY trajectory_id, sequence_number) TO '{hand}' (COMPRESSION zstd)")
        other.execute(f"CREATE VIEW events AS FROM read_parquet('{hand}')")
        raw.execute(JSON_VIEW.format(folder=json_folder))
        found = {}
        for title, question in QUESTIONS.items():
            answers = [connection.execute(question).fetchall() for connection in (ours, other, raw)]
            _require(_rounded(answers[0]) == _rounded(answers[1]) == _rounded(answers[2]), f"{title}: {answers}")
            times: dict[str, list[float]] = {"ours": [], "hand": [], "json": []}
            for number in range(repeats):
                for name, connection in (("ours", ours), ("hand", other), ("json", raw)):
                    if name == "json" and number > 1:
                        continue
                    with Stopwatch() as watch:
                        connection.execute(question).fetchall()
                    times[name].append(watch.seconds)
            found[title] = {name: median(samples) for name, samples in times.items()}
    return {"questions": found}


def _rounded(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple(round(value, 3) if isinstance(value, float) else value for value in row) for row in rows]


def _write_json(home: str, folder: Path) -> None:
    import msgspec

    folder.mkdir()
    files: dict[str, Any] = {}
    decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
    for line, _ in _json_lines(home):
        name = bytes(decode(line)["trajectory_id"]).decode().strip('"')
        files.setdefault(name, []).append(line)
    for name, lines in files.items():
        (folder / f"{name}.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def fetch_one(home: str, repeats: int) -> dict[str, Any]:
    """All events of one trajectory, by id, on an open connection: another one each time."""
    from stratalog.cold.query import connect

    with connect(home) as connection:
        ids = [row[0] for row in connection.execute("SELECT trajectory_id FROM trajectories ORDER BY 1").fetchall()]
        times = []
        for number in range(repeats):
            id_ = ids[(number * 7919 + 13) % len(ids)]
            with Stopwatch() as watch:
                rows = connection.execute(
                    "SELECT * FROM events WHERE trajectory_id = ? ORDER BY sequence_number", [id_]
                ).fetchall()
            _require(bool(rows), id_)
            times.append(watch.seconds)
    return {"trajectories": len(ids), "seconds": median(times)}


def erase_one(home: str) -> dict[str, Any]:
    """One trajectory erased, as `stratalog erase` does it: until it is unreadable, and until its bytes are gone."""
    from stratalog.audit.erasure import erase
    from stratalog.audit.keys import FolderKeys
    from stratalog.warm.erasure import Selection

    installation = Installation(Home.open(home))
    keys = FolderKeys(installation.home.path / "keys" / "audit", time.time_ns() // 1_000)
    with installation.connection() as conn:
        ids = [row[0] for row in conn.execute("SELECT trajectory_id FROM trajectories ORDER BY 1").fetchall()]
    unreadable: list[float] = []
    started = time.perf_counter()
    done = erase(
        installation,
        keys,
        Selection(trajectories=(ids[len(ids) // 2],)),
        by="benchmark",
        reason="measured",
        on_unreadable=lambda done: unreadable.append(time.perf_counter() - started),
    )
    seconds = time.perf_counter() - started
    _require(done.finished and len(done.proceeded.trajectories) == 1, done)
    return {"trajectories": len(ids), "unreadable_seconds": unreadable[0], "seconds": seconds}


@contextmanager
def _tiers(home: str) -> Iterator[Tiers]:
    with Installation(Home.open(home)).tiers() as tiers:
        yield tiers


def _require(good: bool, what: object) -> None:
    if not good:
        raise SystemExit(f"the benchmark went wrong: {what}")


STAGES: dict[str, Stage] = {
    stage.__name__: stage
    for stage in (
        fill,
        import_real,
        verify_hot,
        replicate,
        verify_warm,
        consolidate,
        verify_cold,
        write_arrow,
        sizes,
        ask,
        fetch_one,
        erase_one,
    )
}
