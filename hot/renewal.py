"""A new identity for a log: after a home was restored from an older copy, or after a loss that was accepted.

Positions of the old identity mean nothing any more: other events may have been replicated under them. Under a new log
id everything that is here is offered to Postgres again; what it has is dropped by its hash, what contradicts it is
quarantined.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from stratalog.schemas import ids

from .files import FileLock, sync_folder
from .home import Home
from .logfile import LogFile


def renew_log(home: Home, log_id: uuid.UUID) -> uuid.UUID:
    """Give a log that nobody owns a new id; returns it. Raises `Locked`. A crash leaves it for the next call."""
    folder = home.log_folder(log_id)
    lock = FileLock(folder / "OWNER")
    lock.acquire()
    try:
        new_id = _written_id(folder, log_id) or ids.new_log_id()
        old = LogFile.read(folder)
        if old.log_id != str(new_id):
            LogFile(str(new_id), old.role, old.created_at, replicated_id(folder, old)).write(folder)
        for mark in ("HEAD", "REPLICATED"):
            (folder / mark).unlink(missing_ok=True)
        folder.rename(home.log_folder(new_id))
        sync_folder(folder.parent)
        return new_id
    finally:
        lock.release()


def replicated_id(folder: Path, file: LogFile) -> str:
    """The id under which Postgres knows a log: its own, or the one before while nothing was replicated under it."""
    return file.log_id if (folder / "REPLICATED").exists() else file.previous_log_id or file.log_id


def _written_id(folder: Path, log_id: uuid.UUID) -> uuid.UUID | None:
    """The id that an interrupted renewal has written."""
    written = uuid.UUID(LogFile.read(folder).log_id)
    return None if written == log_id else written
