"""`stratalog dagster`: Dagster's UI and daemon over this home."""

from __future__ import annotations

import os
import sys

from stratalog.schemas.extras import require

from .options import DEFAULT, Common
from .sanitise import sanitise


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
    url = f"http://{host}:{port}"
    common.output.note(sanitise(f"opening Dagster on {home.path}; the UI will be at {url}, stop with Ctrl-C"))
    if common.json:
        common.output.document({"home": str(home.path), "url": url})
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Dagster says is not part of the document
    arguments = ["dev", "-m", "stratalog.pipelines.definitions", "-h", host, "-p", str(port)]
    # Dagster 1.13 recommends another package for development at every start.
    quiet = ["-W", "ignore:Function `dev_command` is superseded"]
    # This process becomes Dagster, so that signals reach it and nothing is left behind.
    os.execve(sys.executable, [sys.executable, *quiet, "-m", "dagster", *arguments], environment)
