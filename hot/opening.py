"""Which log a process gets, and what happens when it is damaged.

A log has one owner at a time, by a lock that the kernel releases with the process. Whoever only reads or drains an
ownerless log writes `yielding` into the lock file and gives it up within a second once somebody asks for it by
touching `WANTED`.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from stratalog.schemas.errors import Corrupt, InDoubt, Locked, NotFound, OpenRefused

from .engine import Engine
from .faults import translating
from .files import FileLock, sync_folder
from .home import Home
from .logfile import LogFile
from .newlog import Draft
from .recovery import check_database, check_wal, mend_manifest
from .rocks import RocksStore
from .salvage import accept_loss as salvage

YIELD_WAIT_S = 3.0
POLL_S = 0.02
WANTED = "WANTED"
WANTED_LATELY_S = 0.5
YIELDING_NOTE = "yielding"


def open_engine(
    home: Home,
    *,
    role: str = "worker",
    log_id: uuid.UUID | None = None,
    accept_loss: bool = False,
    yielding: bool = False,
) -> Engine:
    """Open the log with `log_id`, else a free one of `role`, else a new one; see `HotLog.open` for the errors."""
    with translating(f"opening a log of {home.path}"):
        return _open_any(home, role, log_id, accept_loss, yielding)


def _open_any(home: Home, role: str, log_id: uuid.UUID | None, accept_loss: bool, yielding: bool) -> Engine:
    if log_id is not None:
        folder = home.log_folder(log_id)
        LogFile.read(folder)
        return _open(home, folder, accept_loss, yielding)
    for folder, file in home.logs():
        if file.role != role:
            continue
        try:
            return _open(home, folder, accept_loss, yielding)
        except (Locked, NotFound):
            continue
    draft = Draft(home, role)
    try:
        return _open_locked(home, draft.finish(), draft.lock, accept_loss)
    except BaseException:
        draft.lock.release()
        raise


def wanted(folder: Path) -> bool:
    """Whether somebody waits for this log."""
    return (folder / WANTED).exists()


def _open(home: Home, folder: Path, accept_loss: bool, yielding: bool) -> Engine:
    lock = _acquire(folder, yielding)
    try:
        _check_identity(folder)
        return _open_locked(home, folder, lock, accept_loss)
    except BaseException:
        lock.release()
        raise


def _open_locked(home: Home, folder: Path, lock: FileLock, accept_loss: bool) -> Engine:
    """Open a log whose lock is held; the engine releases it."""
    try:
        return _start(home, folder, lock)
    except Corrupt as error:
        if not accept_loss:
            raise OpenRefused(error.message, hint=error.hint if isinstance(error, OpenRefused) else None) from error
    made, made_lock = salvage(home, folder)
    try:
        engine = _start(home, made, made_lock)
    except BaseException:
        made_lock.release()
        raise
    lock.release()
    return engine


def _start(home: Home, folder: Path, lock: FileLock) -> Engine:
    settings = home.settings.hot
    database = folder / "db"
    check_database(database)
    mend_manifest(database)
    check_wal(database)
    try:
        store = RocksStore(database, settings)
    except InDoubt as error:
        if "No such file" in error.message:  # a part of the database is gone; anything else may pass
            raise OpenRefused(error.message) from error
        raise
    try:
        sync_folder(folder)  # RocksDB syncs what is in its folder, not the folder's name
        return Engine(uuid.UUID(folder.name), store, settings, folder=folder, lock=lock)
    except BaseException:
        store.close()
        raise


def _check_identity(folder: Path) -> None:
    file = LogFile.read(folder)
    if file.log_id != folder.name:
        raise OpenRefused(
            f"{folder} says that it is the log {file.log_id}: its renewal was interrupted",
            hint="finish it with: stratalog doctor --renew-logs",
        )


def _acquire(folder: Path, yielding: bool) -> FileLock:
    lock = FileLock(folder / "OWNER")
    note = f"{YIELDING_NOTE + ' ' if yielding else ''}process {os.getpid()}\n".encode()
    if yielding and _wanted_lately(folder):
        raise Locked(f"another process wants the log {folder.name}")
    deadline = time.monotonic() + YIELD_WAIT_S
    asked = 0
    while True:
        try:
            lock.acquire(note=note)
        except Locked as error:
            # Whoever has just taken the lock may not have written his note yet: look twice.
            giving_up = YIELDING_NOTE not in error.message and asked > 0
            if yielding or giving_up or time.monotonic() > deadline:
                raise Locked(f"the log {folder.name} is in use: {error.message}") from error
            if YIELDING_NOTE in error.message:
                (folder / WANTED).touch()
            asked += 1
            time.sleep(POLL_S)
        except FileNotFoundError as error:
            raise NotFound(f"the log {folder.name} is gone: it was given another id") from error
        else:
            (folder / WANTED).unlink(missing_ok=True)
            return lock


def _wanted_lately(folder: Path) -> bool:
    """Whether an appender still asks for this log: it touches the file again and again while it waits."""
    try:
        return time.time() - (folder / WANTED).stat().st_mtime < WANTED_LATELY_S
    except FileNotFoundError:
        return False
