"""`stratalog dagster`: Dagster's UI and daemon over this home."""

from __future__ import annotations

import os
import sys

from stratalog.schemas.extras import require

from .options import DEFAULT, Common


def dagster(*, port: int = 3000, host: str = "127.0.0.1", common: Common = DEFAULT) -> int:
    """Open Dagster on this home: its UI in a browser, and the nightly consolidation. Runs until stopped with Ctrl-C.

    Example: `stratalog dagster --port 3000`

    Parameters
    ----------
    port
        Where the UI listens.
    host
        The address that it listens on. It has no login: keep it local, or put a proxy with one before it.
    """
    for module in ("dagster", "dagster_webserver"):
        require(module, "pipelines")
    from stratalog.pipelines.instance import prepare

    home = common.open_home(create=True)
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(prepare(home)),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "STRATALOG_HOME": str(home.path),
    }
    if common.dsn:
        environment["STRATALOG_WARM__DSN"] = common.dsn
    common.output.note(f"opening Dagster on {home.path}; the UI will be at http://{host}:{port}, stop with Ctrl-C")
    arguments = ["dev", "-m", "stratalog.pipelines.definitions", "-h", host, "-p", str(port)]
    # This process becomes Dagster, so that signals reach it and nothing is left behind.
    os.execve(sys.executable, [sys.executable, "-m", "dagster", *arguments], environment)
