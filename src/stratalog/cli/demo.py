"""`stratalog demo`: the main job on real input, from a durable append to a DuckDB query."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from stratalog.cold.installation import Installation
from stratalog.schemas.errors import Invalid, StratalogError
from stratalog.schemas.extras import require

from .importing import run_import, show_summary
from .options import DEFAULT, Common
from .output import Output, counted, human_bytes
from .sanitise import sanitise

SHARED = Path("../shared/data/trajectories")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "trajectories"
QUERIES = {
    "trajectories by source, model and status": """
        SELECT source->>'format' AS format, model, status, count(*) AS trajectories, sum(turns)::BIGINT AS turns,
               sum(output_tokens)::BIGINT AS output_tokens
        FROM trajectories GROUP BY ALL ORDER BY trajectories DESC, format, model LIMIT 8""",
    "the most used tools, and how often they fail": """
        SELECT tool, count(*) AS calls, count(*) FILTER (status = 'error') AS errors,
               count(*) FILTER (status = 'denied') AS denied
        FROM tool_calls GROUP BY tool ORDER BY calls DESC LIMIT 8""",
}


def demo(*paths: Path, common: Common = DEFAULT) -> int:
    """Run the main job: import, replicate, consolidate, verify, query. Running it again adds nothing.

    Example: `stratalog demo examples/trajectories`

    Parameters
    ----------
    paths
        Files or folders to import; by default the sample trajectories.
    """
    for module in ("psycopg", "pyarrow", "duckdb", "fsspec", "dagster"):
        require(module, "all")
    output = common.output
    installation = common.installation(create=True)
    sources = list(paths) or _default_sources()
    report: dict[str, Any] = {}
    started = time.monotonic()
    with installation.postgres():  # one server for all steps
        report["import"] = _import(installation, sources, output)
        report["sidecar"] = _sidecar(common, output)
        report["consolidate"] = _consolidate(installation, output)
        report["verify"] = _verify(installation, output)
        report["sql"] = _sql(installation, output)
    if common.json:
        output.document(report)
    output.line(
        f"\nDone in {time.monotonic() - started:.1f} s. Everything lies in {sanitise(str(installation.home.path))}."
    )
    output.line("Go on with: stratalog sql, stratalog trajectory list, stratalog status (each has --help).")
    return 0 if report["verify"]["ok"] else 20


def _default_sources() -> list[Path]:
    for folder in (SHARED, EXAMPLES):
        if folder.is_dir():
            return [folder]
    raise Invalid("there are no sample trajectories here", hint="name a file or a folder: stratalog demo PATH")


def _title(output: Output, text: str) -> None:
    output.line(f"\n{text}", style="bold")


def _import(installation: Installation, sources: list[Path], output: Output) -> dict[str, Any]:
    _title(output, "1. Import: every event is durable in the hot log before the next step")
    report = run_import(installation, sources, "auto", installation.settings.tenant, output)
    refused = len(report.problems)
    show_summary(report, output)
    if refused:
        output.line(f"{counted(refused, 'problem')} in these files; list them with: stratalog import PATH --json")
    return report.to_json()


def _sidecar(common: Common, output: Output) -> dict[str, Any]:
    _title(output, "2. Replicate: a sidecar process tails the log into partitioned Postgres")
    command = [sys.executable, "-m", "stratalog", "sidecar", "--once", "--json", "--home", str(common.home)]
    if common.dsn:
        command += ["--dsn", common.dsn]
    with output.progress("replicating"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        result: dict[str, Any] = msgspec.json.decode(done.stdout)
    except msgspec.DecodeError:
        raise StratalogError(f"the sidecar ended with exit code {done.returncode}: {done.stderr.strip()}") from None
    if "error" in result:
        raise _same_error(result["error"], done.returncode)
    output.line(
        f"{counted(result['events'], 'event')} of {counted(result['trajectories'], 'trajectory')}, "
        f"{counted(result['blobs'], 'blob')} stored by hash"
    )
    return result


def _same_error(document: dict[str, str], exit_code: int) -> StratalogError:
    """The error of another process as one of this."""
    error = StratalogError(f"the sidecar: {document['message']}", hint=document["hint"])
    error.code, error.exit_code = document["code"], exit_code
    return error


def _consolidate(installation: Installation, output: Output) -> dict[str, Any]:
    _title(output, "3. Consolidate: a Dagster job moves finished trajectories into zstd Parquet")
    from stratalog.pipelines.run import run_consolidation

    with output.progress("consolidating"):
        result = run_consolidation(installation.home, None, "0d")
    output.line(
        f"{counted(result.events, 'event')} of {counted(result.trajectories, 'trajectory')} "
        f"in {counted(result.files, 'file')}, {human_bytes(result.bytes)}"
    )
    return {
        "trajectories": result.trajectories,
        "events": result.events,
        "files": result.files,
        "bytes": result.bytes,
    }


def _verify(installation: Installation, output: Output) -> dict[str, Any]:
    _title(output, "4. Verify: every chain in every tier, from the stored bytes")
    from stratalog.cold.verification import verify_all

    from .verifying import show_verification

    with output.progress("verifying"):
        report = verify_all(installation)
    show_verification(report, output)
    return report


def _sql(installation: Installation, output: Output) -> list[dict[str, Any]]:
    _title(output, "5. Query: DuckDB over the snapshot")
    from stratalog.cold.query import connect, run_sql

    answers = []
    with connect(installation.home) as connection:
        for title, query in QUERIES.items():
            rows = run_sql(connection, query)
            output.table(list(rows[0]) if rows else [], [list(row.values()) for row in rows], title=title)
            answers.append({"question": title, "rows": rows})
    return answers
