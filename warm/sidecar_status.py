"""What a sidecar is doing, in a file that `stratalog status` reads: `run/sidecar.json`.

The file is replaced as a whole, so a reader never sees half of one. It is for people and may be lost: what was
replicated stands in Postgres.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Literal

import msgspec

from stratalog.hot.files import write_quickly
from stratalog.hot.home import Home
from stratalog.schemas.errors import StratalogError

STALE_AFTER_S = 30
STATUS_FILE = "sidecar.json"


class LogStatus(msgspec.Struct):
    """One log. `stopped` is an alarm: it needs a person; the other states go on by themselves."""

    log_id: str
    state: Literal["waiting", "replicating", "retrying", "stopped"] = "waiting"
    lsn: int = 0
    """The cursor: everything up to here is in Postgres."""
    durable_lsn: int = 0
    """Known so far; 0 before the log was first opened."""
    events: int = 0
    duplicates: int = 0
    quarantined: int = 0
    readmitted: int = 0
    blobs: int = 0
    caught_up_at: float = 0.0
    last_error: str = ""
    last_error_code: str = ""
    last_error_at: float = 0.0

    @property
    def lag_events(self) -> int:
        """Durable events that Postgres does not have."""
        return max(0, self.durable_lsn - self.lsn)

    def advance(self, lsn: int, durable_lsn: int) -> None:
        """Note the position."""
        self.lsn = max(self.lsn, lsn)
        self.durable_lsn = max(self.durable_lsn, durable_lsn)
        if self.lag_events == 0:
            self.caught_up_at = time.time()

    def fail(self, error: Exception, state: Literal["retrying", "stopped"]) -> None:
        """Note an error, and whether the log goes on."""
        self.state = state
        self.last_error = error.message if isinstance(error, StratalogError) else f"{type(error).__name__}: {error}"
        self.last_error_code = error.code if isinstance(error, StratalogError) else "error"
        self.last_error_at = time.time()


class SidecarStatus(msgspec.Struct):
    """The content of the file; times are seconds since 1970."""

    pid: int
    started_at: float
    updated_at: float
    logs: list[LogStatus]
    last_error: str = ""
    ended: bool = False

    @property
    def alive(self) -> bool:
        """Whether the sidecar still writes this file."""
        if self.ended or time.time() - self.updated_at > STALE_AFTER_S:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    @property
    def alarms(self) -> list[str]:
        """What needs a person."""
        stopped = [
            f"log {log.log_id} is not replicated: {log.last_error}" for log in self.logs if log.state == "stopped"
        ]
        quarantined = [
            f"log {log.log_id}: {log.quarantined - log.readmitted} events are in quarantine"
            for log in self.logs
            if log.quarantined > log.readmitted
        ]
        return stopped + quarantined


def write_status(home: Home, status: SidecarStatus) -> None:
    """Replace the file."""
    write_quickly(home.folder("run") / STATUS_FILE, msgspec.json.encode(status))


def read_status(home: Home) -> SidecarStatus | None:
    """The last status that a sidecar of this home has written, `None` where there is none."""
    try:
        return msgspec.json.decode((home.run / STATUS_FILE).read_bytes(), type=SidecarStatus)
    except (OSError, msgspec.MsgspecError):
        return None


def status_of(log_id: uuid.UUID) -> LogStatus:
    """The status of a log that was just found."""
    return LogStatus(str(log_id), caught_up_at=time.time())
