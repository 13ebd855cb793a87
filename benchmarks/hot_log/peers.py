"""Others that make a step durable: each a script in `benchmarks/peers/`, run by an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from . import bodies

BENCHMARKS = Path(__file__).resolve().parents[1]
SCRIPTS = BENCHMARKS / "peers"
PYTHON = BENCHMARKS.parent / ".venv-peers" / "bin" / "python"
WITHOUT_POSTGRES = {"raw write + fdatasync": "raw_file.py", "SQLite (WAL, FULL)": "sqlite_wal.py"}
WITH_POSTGRES = {
    "DBOS": "dbos_steps.py",
    "LangGraph checkpointer": "langgraph_steps.py",
    "LangGraph, a checkpointer for each trajectory": "langgraph_each.py",
}
ALL = WITHOUT_POSTGRES | WITH_POSTGRES
TIMEOUT_S = 300


def run_peer(
    name: str, *, folder: Path, dsn: str, appenders: int, seconds: float, record_bytes: list[int]
) -> dict[str, Any]:
    """Durable steps of one peer; `dsn` is an empty database where it needs one.

    The files get as many bytes as our records have, the others the same intent and result as JSON.
    """
    intent, result = (msgspec.json.encode(body).decode() for body in (bodies.intent(), bodies.result()))
    arguments = {
        "folder": str(folder),
        "dsn": dsn,
        "appenders": appenders,
        "seconds": seconds,
        "intent": intent,
        "result": result,
        "record_bytes": record_bytes,
    }
    if not PYTHON.exists():
        raise SystemExit("the environment of the peers is missing; make it with: make .venv-peers/installed")
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    command = [str(PYTHON), str(SCRIPTS / ALL[name]), json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{name} ended with exit code {done.returncode}: {done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
