"""Reopening after a crash: a process is killed with a large write-ahead log, and the next one goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from harness.measure import stage_command

from stratalog.hot import HotLog, NewEvent

from . import bodies

WAL_BYTES = 64 << 20
BATCH = 256


def reopen(home: str) -> dict[str, Any]:
    """The time until the log is open, and until the first append after that is durable. The page cache is warm."""
    command = stage_command(Path(sys.argv[0]).resolve(), "fill_and_die", home=home)
    killed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if killed.returncode != -signal.SIGKILL:
        raise SystemExit(f"the process to be killed ended with exit code {killed.returncode}")
    trajectory_id, acknowledged = killed.stdout.split()
    started = time.perf_counter()
    with HotLog.open(home, serve=False, create=False) as log:
        opened = time.perf_counter()
        found = log.durable_lsn
        log.append_blocking(uuid.UUID(trajectory_id), bodies.result())
        appended = time.perf_counter()
    if found < int(acknowledged):
        raise SystemExit(f"{acknowledged} events were acknowledged, {found} are there")
    return {"events": found, "open_s": opened - started, "first_append_s": appended - started}


def fill_and_die(home: str) -> dict[str, Any]:
    """Append until the write-ahead log is large enough, then be killed."""
    log = HotLog.open(home, serve=False).__enter__()
    trajectory_id = log.start_blocking(tenant="default", task="bench")
    events = [NewEvent(bodies.result())] * BATCH
    written = 0
    while written < WAL_BYTES:
        log.append_many_blocking(trajectory_id, events)
        written = sum(file.stat().st_size for file in Path(home).glob("hot/*/**/*.log"))
    print(trajectory_id, log.durable_lsn, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return {}
