"""Going on after acknowledged events were lost: the readable beginning of a damaged log becomes a log of its own.

It gets a new id, because positions of the old one may have been replicated for events that are gone. It is made whole
in a draft folder and steps in by one rename; the damaged log is kept beside it (`<log_id>.damaged`). A crash leaves a
draft, which the next new log removes, or both logs; then asking again finishes the last step.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import msgspec
from rocksdict import DBRecoveryMode

from stratalog.schemas.blobs import references
from stratalog.schemas.envelope import Envelope, decode_record
from stratalog.schemas.errors import Corrupt, InDoubt, NotFound
from stratalog.schemas.protocols import Put
from stratalog.schemas.settings import HotSettings

from . import keys
from .contents import Contents
from .faults import translate
from .files import FileLock, sync_folder
from .heads import Heads
from .home import Home
from .keys import Head, Position
from .logfile import LogFile
from .newlog import Draft
from .recovery import check_database, follow
from .renewal import replicated_id
from .rocks import RocksStore
from .walscan import scan_wal

DAMAGED_SUFFIX = ".damaged"


def accept_loss(home: Home, folder: Path) -> tuple[Path, FileLock]:
    """Make a log of what is readable in `folder`, whose lock the caller holds; returns it locked."""
    finished = [path for path, file in home.logs() if file.salvaged_from == folder.name]
    if finished:
        _set_aside(folder)
        lock = FileLock(finished[0] / "OWNER")
        lock.acquire()
        return finished[0], lock
    old = LogFile.read(folder)
    draft = Draft(home, old.role, replicated_id(folder, old), folder.name)
    try:
        _salvage(folder / "db", draft.path / "db", home.settings.hot)
        os.sync()  # the copy must be on disk before the damaged log steps aside
        made = draft.finish()
        _set_aside(folder)
    except OSError as error:
        draft.lock.release()
        raise translate(error, f"salvaging {folder}") from error
    except BaseException:
        draft.lock.release()
        raise
    return made, draft.lock


def _set_aside(folder: Path) -> None:
    folder.rename(folder.with_name(folder.name + DAMAGED_SUFFIX))
    sync_folder(folder.parent)


def _salvage(damaged: Path, database: Path, settings: HotSettings) -> None:
    """Make `database` of the beginning that can be read; empty where nothing can."""
    for mode in (None, DBRecoveryMode.skip_any_corrupted_record()):
        shutil.rmtree(database, ignore_errors=True)
        if damaged.is_dir():
            shutil.copytree(damaged, database)
            _cut_logs(database)
        try:
            check_database(database)
            store = RocksStore(database, settings, mode=mode)
        except (Corrupt, InDoubt):
            continue
        try:
            _keep_readable(store)
            return
        except Corrupt:
            continue
        finally:
            store.close()
    shutil.rmtree(database, ignore_errors=True)
    RocksStore(database, settings).close()


def _cut_logs(database: Path) -> None:
    """End the write-ahead logs at the first record that is damaged."""
    cut = False
    for path in sorted(database.glob("*.log")):
        if cut:
            path.unlink()
            continue
        bad_at = scan_wal(path).bad_at
        if bad_at is not None:
            os.truncate(path, bad_at)
            cut = True


def _keep_readable(store: RocksStore) -> None:
    """Cut the log at the first event that is damaged, missing, without its content, or not the next of its trajectory.

    What is cut off stays in the damaged log.
    """
    stored = store.get("meta", keys.META_PRUNED)
    pruned = position = keys.decode_position(stored) if stored else Position()
    newer = _forget_newer_heads(store, pruned.lsn)
    heads = Heads(store)
    contents = Contents(store)
    try:
        for key, value in store.scan("events", keys.lsn_key(position.lsn + 1)):
            envelope = decode_record(keys.lsn_of(key), value)
            if envelope.lsn != position.lsn + 1:
                break
            for ref in references(envelope.body):
                contents.get(envelope.lsn, ref.sha256)
            before = newer.get(envelope.header.trajectory_id)
            if before is not None and 0 < envelope.previous_lsn <= pruned.lsn:
                heads.adopt(_head_at(before, envelope))
            follow(heads, envelope)
            position = Position(envelope.lsn, envelope.hash)
    except (Corrupt, NotFound):
        pass  # what follows the first damage cannot be trusted
    contents.forget(position.lsn + 1, keys.LSN_MAX)
    store.delete_range("events", keys.lsn_key(position.lsn + 1), keys.lsn_key(keys.LSN_MAX))
    store.delete_range("meta", keys.OPENING_PREFIX + keys.lsn_key(position.lsn), keys.prefix_end(keys.OPENING_PREFIX))
    for key, _ in store.scan("meta", keys.ERASED_PREFIX, keys.prefix_end(keys.ERASED_PREFIX)):
        heads.erase(uuid.UUID(bytes=key[len(keys.ERASED_PREFIX) :]))  # it may have been interrupted
    # An erasure must know that the files have what was cut off.
    store.commit([*heads.save(position), Put("meta", keys.META_LEFTOVERS, position.hash)])


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
