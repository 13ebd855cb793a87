"""Which log a process gets, and what happens when it is damaged.

A log has one owner at a time, by a lock that the kernel releases with the process. Whoever only reads or drains an
ownerless log writes `yielding` into the lock file and gives it up within a second once somebody asks for it by
touching `WANTED`.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from pathlib import Path

import msgspec

from stratalog.schemas import ids
from stratalog.schemas.envelope import Envelope, decode_record
from stratalog.schemas.errors import Corrupt, InDoubt, Locked, NotFound, OpenRefused
from stratalog.schemas.settings import HotSettings

from . import keys
from .engine import Engine
from .files import FileLock, sync_folder, write_durably
from .heads import Heads
from .home import Home, LogFile
from .keys import Head, Position
from .recovery import check_wal, follow
from .rocks import RocksStore

YIELD_WAIT_S = 3.0
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
    if log_id is not None:
        folder = home.log_folder(log_id)
        if not (folder / "log.json").exists():
            raise NotFound(f"there is no log {log_id} in {home.path}")
        return _open(home, folder, log_id, accept_loss, yielding)
    for folder, file in home.logs():
        if file.role != role:
            continue
        try:
            return _open(home, folder, uuid.UUID(folder.name), accept_loss, yielding)
        except Locked:
            continue
    folder = create_log(home, role)
    return _open(home, folder, uuid.UUID(folder.name), accept_loss, yielding)


def create_log(home: Home, role: str, previous_log_id: str = "") -> Path:
    """Make a new, empty log; it exists for others only when it is whole."""
    log_id = ids.new_log_id()
    hot = home.folder("hot")
    draft = hot / f".new-{log_id}"
    draft.mkdir(mode=0o700)
    file = LogFile(str(log_id), role, time.time_ns() // 1000, previous_log_id)
    write_durably(draft / "log.json", msgspec.json.encode(file))
    draft.rename(hot / str(log_id))
    sync_folder(hot)
    return hot / str(log_id)


def wanted(folder: Path) -> bool:
    """Whether somebody waits for this log."""
    return (folder / "WANTED").exists()


def _open(home: Home, folder: Path, log_id: uuid.UUID, accept_loss: bool, yielding: bool) -> Engine:
    lock = _acquire(folder, yielding)
    try:
        _check_identity(folder)
        try:
            check_wal(folder / "db")
            store = _open_store(folder / "db", home.settings.hot)
            sync_folder(folder)  # RocksDB syncs what is in its folder, not the folder's name
        except (OpenRefused, Corrupt):
            if not accept_loss:
                raise
            return _accept_loss(home, folder, lock)
        try:
            return Engine(log_id, store, home.settings.hot, folder=folder, lock=lock)
        except (OpenRefused, Corrupt) as error:
            store.close()
            if not accept_loss:
                raise OpenRefused(error.message) from error
            return _accept_loss(home, folder, lock)
        except BaseException:
            store.close()
            raise
    except BaseException:
        lock.release()
        raise


def _check_identity(folder: Path) -> None:
    file = msgspec.json.decode((folder / "log.json").read_bytes(), type=LogFile)
    if file.log_id != folder.name:
        raise OpenRefused(
            f"{folder} says that it is the log {file.log_id}: its renewal was interrupted",
            hint="finish it with: stratalog doctor --renew-logs",
        )


def _acquire(folder: Path, yielding: bool) -> FileLock:
    lock = FileLock(folder / "OWNER")
    note = f"{YIELDING_NOTE + ' ' if yielding else ''}process {os.getpid()}\n".encode()
    deadline = time.monotonic() + YIELD_WAIT_S
    while True:
        try:
            lock.acquire(note=note)
        except Locked as error:
            if yielding or YIELDING_NOTE not in error.message or time.monotonic() > deadline:
                raise Locked(f"the log {folder.name} is in use: {error.message}") from error
            (folder / "WANTED").touch()
            time.sleep(0.02)
            continue
        (folder / "WANTED").unlink(missing_ok=True)
        return lock


def _open_store(database: Path, settings: HotSettings) -> RocksStore:
    try:
        return RocksStore(database, settings)
    except (Corrupt, InDoubt) as error:
        raise OpenRefused(error.message) from error


def _accept_loss(home: Home, folder: Path, lock: FileLock) -> Engine:
    """Go on with what is left: the readable beginning becomes a new log, the damaged one is kept beside it."""
    old = msgspec.json.decode((folder / "log.json").read_bytes(), type=LogFile)
    fresh = create_log(home, old.role, old.log_id)
    fresh_lock = _acquire(fresh, False)
    try:
        shutil.copytree(folder / "db", fresh / "db.salvage", ignore_dangling_symlinks=True)
        try:
            store = RocksStore(fresh / "db.salvage", home.settings.hot, salvage=True)
        except (Corrupt, InDoubt):
            shutil.rmtree(fresh / "db.salvage")
            store = RocksStore(fresh / "db.salvage", home.settings.hot)
        _keep_readable(store)
        store.close()
        os.sync()  # the copy must be on disk before the damaged log steps aside
        (fresh / "db.salvage").rename(fresh / "db")
        sync_folder(fresh)
        folder.rename(folder.with_name(f"{folder.name}.damaged"))
        sync_folder(folder.parent)
        lock.release()
        engine_store = _open_store(fresh / "db", home.settings.hot)
        return Engine(uuid.UUID(fresh.name), engine_store, home.settings.hot, folder=fresh, lock=fresh_lock)
    except BaseException:
        fresh_lock.release()
        raise


def _keep_readable(store: RocksStore) -> None:
    """Cut the log at the first event that is damaged, missing or does not continue its trajectory."""
    stored = store.get("meta", keys.META_PRUNED)
    position = keys.decode_position(stored) if stored else Position()
    pruned_lsn = position.lsn
    newer = _forget_newer_heads(store, pruned_lsn)
    heads = Heads(store)
    try:
        for key, value in store.scan("events", keys.lsn_key(position.lsn + 1)):
            envelope = decode_record(keys.lsn_of(key), value)
            if envelope.lsn != position.lsn + 1:
                break
            before = newer.get(envelope.header.trajectory_id)
            if before is not None and 0 < envelope.previous_lsn <= pruned_lsn:
                heads.adopt(_head_at(before, envelope))
            follow(heads, envelope)
            position = Position(envelope.lsn, envelope.hash)
    except Corrupt:
        pass  # what follows the first damage cannot be trusted; it stays in the damaged copy
    store.delete_range("events", keys.lsn_key(position.lsn + 1), keys.lsn_key(keys.LSN_MAX))
    store.commit(heads.save(position))


def _forget_newer_heads(store: RocksStore, pruned_lsn: int) -> dict[uuid.UUID, Head]:
    """Drop saved heads that the events after the pruned part will give again; returns them for their secrets."""
    for key in (keys.META_HEADS, keys.META_DURABLE):
        store.delete_range("meta", key, key + b"\0")
    newer = {}
    for key, value in list(store.scan("meta", keys.HEAD_PREFIX, keys.prefix_end(keys.HEAD_PREFIX))):
        head = keys.decode_head(value)
        if head.lsn > pruned_lsn:
            newer[head.trajectory_id] = head
            store.delete_range("meta", key, key + b"\0")
    return newer


def _head_at(saved: Head, following: Envelope) -> Head:
    """The head just before an event whose predecessor was pruned."""
    header = following.header
    return msgspec.structs.replace(
        saved,
        lsn=following.previous_lsn,
        sequence_number=header.sequence_number - 1,
        hash=header.previous_hash,
        epoch=header.epoch,
        ended=False,
    )
