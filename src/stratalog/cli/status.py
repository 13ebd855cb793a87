"""`stratalog status`: how far each log is, and how the other tiers do."""

from __future__ import annotations

import os
import uuid
from typing import Any

import msgspec

from stratalog.cold.installation import Installation
from stratalog.hot.source import open_reader
from stratalog.schemas.errors import StratalogError

from .options import DEFAULT, Common
from .output import human_bytes
from .sanitise import sanitise


def status(*, common: Common = DEFAULT) -> int:
    """Show each log's positions and lag, the disk, Postgres, the sidecar, the last consolidation, the quarantine.

    Example: `stratalog status --json`
    """
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
    output.line(f"home {sanitise(report['home'])}, {human_bytes(report['disk']['free_bytes'])} of disk free")
    rows = [
        [
            log["log_id"][:8],
            log["role"],
            "error" if "error" in log else "open" if log["owned"] else "idle",
            *(log.get(name) for name in ("durable_lsn", "replicated_lsn", "pruned_lsn", "lag_events", "lag_seconds")),
            human_bytes(log.get("disk_bytes", 0)),
        ]
        for log in report["logs"]
    ]
    output.table(["log", "role", "state", "durable", "replicated", "pruned", "lag", "lag s", "disk"], rows)
    for log in report["logs"]:
        if "error" in log:
            output.line(f"log {log['log_id'][:8]}: {sanitise(log['error']['message'])}", style="red")
    postgres = report["postgres"]
    detail = (
        f"version {postgres['version']}, {postgres['events']:,} events of {postgres['trajectories']:,} trajectories"
        if postgres["state"] == "ok"
        else sanitise(postgres.get("message", ""))
    )
    output.line(f"Postgres {postgres['state']} {detail}".rstrip())
    sidecar = report["sidecar"]
    output.line(f"sidecar {'never ran' if sidecar is None else 'running' if sidecar['running'] else 'not running'}")
    last = report["consolidation"]
    output.line(
        "nothing consolidated yet"
        if last is None
        else f"last consolidation {last['finished_at']}: "
        f"{last['events']:,} events of {last['trajectories']:,} trajectories"
    )
    output.line(f"quarantine {report['quarantine']:,} events", style="red" if report["quarantine"] else "")
