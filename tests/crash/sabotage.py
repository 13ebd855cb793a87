"""The product with one of its guards taken out, for the negative controls: each must fail the check that needs it.

A sabotage is applied inside the child that writes, or that checks; the code of the product stays as it is.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rocksdict import DBRecoveryMode, WriteBatch

from stratalog.hot import committer, engine, erasure, marks, opening, rocks
from stratalog.schemas.errors import DiskBudgetExceeded
from stratalog.schemas.protocols import Put


def apply(name: str) -> None:
    """Take out the guard with this name; none where it is empty."""
    if name:
        SABOTAGES[name]()


def _write_unsynced(store: Any, puts: Sequence[Put]) -> None:
    batch = WriteBatch(raw_mode=True)
    for put in puts:
        batch.put(put.key, put.value, store._handles[put.space])
    store._db.write(batch)


def no_sync() -> None:
    """Acknowledge what is written and not synced."""
    rocks.RocksStore.commit = _write_unsynced  # type: ignore[method-assign]


def sync_first() -> None:
    """Sync, and then write what is acknowledged."""

    def commit(store: rocks.RocksStore, puts: Sequence[Put]) -> None:
        store._db.flush_wal(True)
        _write_unsynced(store, puts)

    rocks.RocksStore.commit = commit  # type: ignore[method-assign]


def marks_in_place() -> None:
    """Write HEAD and REPLICATED over what they were, instead of beside it."""

    def write(path: Path, content: bytes) -> None:
        path.write_bytes(content)

    marks.write_durably = marks.write_quickly = write  # type: ignore[assignment]


def acknowledge_early() -> None:
    """Acknowledge a group before it is written: it is written with the next one."""
    really = rocks.RocksStore.commit
    late: list[Put] = []

    def commit(store: rocks.RocksStore, puts: Sequence[Put]) -> None:
        before, late[:] = list(late), puts
        really(store, before)

    rocks.RocksStore.commit = commit  # type: ignore[method-assign]


def prune_before_commit() -> None:
    """Remove events a moment before the commit that says that they are pruned."""
    really, position_at = engine.Engine.prune, engine.position_at

    def prune(self: engine.Engine) -> int:
        bound = self.prune_bound()
        last = position_at(self.store, bound, self.pruned_position) if bound > self.pruned_lsn else None
        if last is not None:
            self._remove(bound)
            self.store.commit([])
            time.sleep(0.01)
            engine.position_at = lambda store, lsn, pruned: last if lsn == bound else position_at(store, lsn, pruned)
        return really(self)

    engine.Engine.prune = prune  # type: ignore[method-assign]


def swallow_errors() -> None:
    """Go on after a commit has failed, as if it had not."""
    really = rocks.RocksStore.commit

    def commit(store: rocks.RocksStore, puts: Sequence[Put]) -> None:
        with contextlib.suppress(Exception):
            really(store, puts)
        store._failed = None

    rocks.RocksStore.commit = commit  # type: ignore[method-assign]


def doubt_as_refusal() -> None:
    """Answer an append that failed with the error of one that was not tried."""
    committer.InDoubt = DiskBudgetExceeded  # type: ignore[misc,assignment]


def no_marks() -> None:
    """Open without a look at HEAD and REPLICATED."""
    marks.MarkFile.read = lambda self: None  # type: ignore[method-assign]


def no_wal_check() -> None:
    """Open without the check of the write-ahead log, in RocksDB's default recovery mode, and without the marks."""
    no_marks()
    opening.check_wal = lambda database: None  # type: ignore[assignment]
    really = rocks.RocksStore.__init__

    def init(self: rocks.RocksStore, path: Path, settings: Any, *, mode: Any = None) -> None:
        really(self, path, settings, mode=mode or DBRecoveryMode.point_in_time())

    rocks.RocksStore.__init__ = init  # type: ignore[method-assign]


def content_before_event() -> None:
    """Remove the content of an event that is erased before the commit that erases it."""
    really = erasure.Erasure._erase_batch

    def erase_batch(self: Any, lsns: Sequence[int], work: Any, pause: Any) -> None:
        for lsn in lsns:
            work.bulk |= bool(self._contents.erase(lsn))
            self._store.commit([])
            time.sleep(0.01)
        really(self, lsns, work, pause)

    erasure.Erasure._erase_batch = erase_batch  # type: ignore[method-assign]


def done_before_purge() -> None:
    """Say that the bytes are gone before they are."""
    really = rocks.RocksStore.purge

    def erase(self: Any, ids: Sequence[Any], pause: Any = lambda: None) -> Any:
        store, purge = self._store, []
        store.purge = lambda *arguments: purge.append(arguments)
        done = first(self, ids, pause)
        for arguments in purge:
            really(store, *arguments)
        return done

    first = erasure.Erasure.erase
    erasure.Erasure.erase = erase  # type: ignore[method-assign]


SABOTAGES: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        no_sync,
        sync_first,
        marks_in_place,
        acknowledge_early,
        prune_before_commit,
        swallow_errors,
        doubt_as_refusal,
        no_marks,
        no_wal_check,
        content_before_event,
        done_before_purge,
    )
}
