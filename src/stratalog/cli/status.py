"""`stratalog status`: how far each log is, and how the other tiers do."""

from __future__ import annotations

import os
import uuid
from typing import Any

import msgspec

from stratalog.cold.installation import Installation
from stratalog.hot.source import open_reader
from stratalog.schemas.errors import StratalogError
from stratalog.schemas.extras import require

from .options import DEFAULT, Common
from .output import Output, counted, human_bytes
from .sanitise import sanitise


def status(*, common: Common = DEFAULT) -> int:
    """Show each log's positions and lag, the disk, Postgres, the sidecar, the last consolidation, the quarantine.

    Example: `stratalog status --json`
    """
    require("psycopg", "warm")
    report = gather(common.installation())
    if common.json:
        common.output.document(report)
        return 0
    _show(report, common)
    return 0


def gather(installation: Installation) -> dict[str, Any]:
    """The whole status as a JSON object; what cannot be read says why."""
    home = installation.home
    disk = os.statvfs(home.path)
    return {
        "home": str(home.path),
        "logs": [_log(installation, file.log_id, file.role) for _, file in home.logs()],
        "disk": {
            "free_bytes": disk.f_bavail * disk.f_frsize,
            "free": round(disk.f_bavail / disk.f_blocks, 4) if disk.f_blocks else None,
        },
        "sidecar": _sidecar(installation),
        **_warm(installation),
    }


def _log(installation: Installation, log_id: str, role: str) -> dict[str, Any]:
    try:
        reader = open_reader(installation.home, uuid.UUID(log_id))
    except StratalogError as error:
        return {"log_id": log_id, "role": role, "error": {"code": error.code, "message": error.message}}
    try:
        return {**reader.status(), "role": role}
    finally:
        reader.close()


def _sidecar(installation: Installation) -> dict[str, Any] | None:
    from stratalog.warm.sidecar_status import read_status

    found = read_status(installation.home)
    if found is None:
        return None
    described: dict[str, Any] = msgspec.to_builtins(found)
    return {**described, "running": found.alive}


def _warm(installation: Installation) -> dict[str, Any]:
    nothing = {"consolidation": None, "quarantine": 0}
    if not installation.has_postgres:
        return {"postgres": {"state": "not yet created", "embedded": True}, **nothing}
    try:
        with installation.connection() as conn:
            from stratalog.warm import queries

            counts = queries.counts(conn)
            last = queries.last_consolidation(conn)
            version = conn.info.server_version // 10000
    except StratalogError as error:
        state = {"state": error.code, "message": error.message, "embedded": installation.embedded}
        return {"postgres": state, **nothing}
    postgres = {"state": "ok", "embedded": installation.embedded, "version": version, **msgspec.to_builtins(counts)}
    return {"postgres": postgres, "consolidation": msgspec.to_builtins(last), "quarantine": counts.quarantined}


def _show(report: dict[str, Any], common: Common) -> None:
    output = common.output
    disk = report["disk"]
    output.line(f"home        {sanitise(report['home'])}, {human_bytes(disk['free_bytes'])} of disk free")
    output.line(f"Postgres    {_postgres_line(report['postgres'])}")
    sidecar = report["sidecar"]
    output.line(f"sidecar     {'never ran' if sidecar is None else 'running' if sidecar['running'] else 'not running'}")
    output.line(f"cold        {_consolidation_line(report['consolidation'])}")
    quarantined = report["quarantine"]
    waiting = f"{counted(quarantined, 'event')}; see: stratalog quarantine list"
    output.line(f"quarantine  {waiting if quarantined else 'empty'}", style="red" if quarantined else "")
    _show_logs(report["logs"], output)
    for log in (sidecar or {}).get("logs", ()):
        if log["state"] in ("retrying", "stopped"):
            output.line(
                f"log {log['log_id'][:8]} {log['state']}: {sanitise(log['last_error'])}",
                style="red" if log["state"] == "stopped" else "yellow",
            )


def _show_logs(logs: list[dict[str, Any]], output: Output) -> None:
    if not logs:
        output.line("hot logs    none yet")
        return
    rows = [
        [
            log["log_id"][:8],
            log["role"],
            "error" if "error" in log else "open" if log["owned"] else "idle",
            *(log.get(name) for name in ("durable_lsn", "replicated_lsn", "pruned_lsn", "lag_events")),
            f"{log['lag_seconds']:,.0f} s" if log.get("lag_events") else "",
            human_bytes(log["disk_bytes"]) if "disk_bytes" in log else "",
        ]
        for log in logs
    ]
    output.line()
    output.table(["log", "role", "state", "durable", "replicated", "pruned", "behind", "for", "disk"], rows)
    for log in logs:
        if "error" in log:
            output.line(f"log {log['log_id'][:8]}: {sanitise(log['error']['message'])}", style="red")


def _postgres_line(postgres: dict[str, Any]) -> str:
    kind = "embedded" if postgres["embedded"] else "yours"
    if postgres["state"] == "ok":
        held = f"{counted(postgres['events'], 'event')} of {counted(postgres['trajectories'], 'trajectory')}"
        return f"ok, version {postgres['version']} ({kind}), {held}"
    return f"{postgres['state']} ({kind}) {sanitise(postgres.get('message', ''))}".rstrip()


def _consolidation_line(last: dict[str, Any] | None) -> str:
    if last is None:
        return "nothing consolidated yet"
    moment = str(last["finished_at"])[:16].replace("T", " ")
    moved = f"{counted(last['events'], 'event')} of {counted(last['trajectories'], 'trajectory')}"
    return f"last consolidation {moment} UTC, {moved}"
