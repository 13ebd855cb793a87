"""Planted bugs: each replaces a piece of the product by a version that many would have written.

They are what shows that the simulation can fail: every one is found within `seeds` seeds, counted from 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import msgspec

from stratalog.cold.consolidate import Consolidation
from stratalog.hot import engine as engines
from stratalog.hot import keys
from stratalog.hot.committer import Committer, Staged, ThreadWaiter, _release
from stratalog.hot.engine import Engine
from stratalog.hot.events import Events
from stratalog.hot.openings import Openings
from stratalog.hot.recovery import recover
from stratalog.schemas.envelope import decode_record
from stratalog.schemas.errors import Unavailable
from stratalog.schemas.protocols import Put
from stratalog.schemas.statements import statements
from stratalog.warm import ingest as ingests
from stratalog.warm import replicator as replicators
from stratalog.warm.admission import Standing
from stratalog.warm.ingest import Ingested, ingest
from stratalog.warm.readmission import Readmitted
from stratalog.warm.replicator import Replicator

from . import takeover
from .cold import SimCatalog, SimContents

Patches = list[tuple[Any, str, Any]]


class Bug(msgspec.Struct, frozen=True):
    """What is wrong in it, where it is put, and within how many seeds it must be found.

    `profile` replaces settings of the drawn profile, for what happens too rarely otherwise.
    """

    what: str
    patches: Callable[[], Patches]
    seeds: int
    profile: dict[str, Any] = {}


# --- hot -------------------------------------------------------------------------------------------------------------


def _ack_before_flush() -> Patches:
    def commit_next(self: Committer) -> bool:
        group, puts = self._next_group()
        if not group:
            return False
        for entry in group:
            puts += entry.puts
        _release(group)
        self._store.commit(puts)
        self._end_group(group[-1])
        with self.lock:
            self._group = []
        return True

    return [(Committer, "_commit_next", commit_next)]


def _watermark_before_sync() -> Patches:
    def commit_next(self: Committer) -> bool:
        group, puts = self._next_group()
        if not group:
            return False
        for entry in group:
            puts += entry.puts
        self._end_group(group[-1])
        self._store.commit(puts)
        with self.lock:
            self._group = []
        _release(group)
        return True

    return [(Committer, "_commit_next", commit_next)]


def _read_past_watermark() -> Patches:
    def scan(self: Events, from_lsn: int, to_lsn: int) -> Iterator[Any]:
        for key, value in self._store.scan("events", keys.lsn_key(max(from_lsn, self._pruned() + 1))):
            if keys.lsn_of(key) <= to_lsn:
                yield decode_record(keys.lsn_of(key), value)

    return [(Events, "scan", scan)]


def _lsn_used_twice() -> Patches:
    def forgetful(store: Any, marks: Any) -> Any:
        found = recover(store, marks)
        stored = store.get("meta", keys.META_DURABLE)
        if stored is not None and keys.decode_position(stored).lsn > found.pruned.lsn:
            found.last = keys.decode_position(stored)
        return found

    return [(engines, "recover", forgetful)]


def _heads_ahead() -> Patches:
    def begin_group(self: Engine, group: Sequence[Staged], drained: bool) -> list[Put]:
        puts = (
            [Put("meta", keys.META_DURABLE, keys.encode(self._durable_position))] if self._durable_position.lsn else []
        )
        if self._save_due():
            puts += self._heads.save(self.stager.last)
            self._save_asked = False
        return puts

    return [
        (Engine, "_begin_group", begin_group),
        (Engine, "_save_due", lambda self: self._heads.due(self.stager.last.lsn)),
    ]


def _head_file_ahead() -> Patches:
    def mark_head(self: Engine) -> float | None:
        last = self.stager.last
        if self._head is not None and last.lsn != self._head.written_lsn:
            self._head.write(last.lsn, last.hash, durable=False)
        return None

    return [(Engine, "_mark_head", mark_head)]


def _pruned_after_delete() -> Patches:
    def prune(self: Engine) -> int:
        bound = self.prune_bound()
        position = engines.position_at(self.store, bound, self._pruned)
        if bound <= self._pruned.lsn or position is None:
            return self._pruned.lsn
        self._remove(bound)
        waiter = ThreadWaiter()
        with self._committer.lock:
            self._save_asked = True
            put = Put("meta", keys.META_PRUNED, keys.encode(position))
            self._committer.stage(Staged([put], 0, self.stager.last, 0, waiter, None))
        self._committer.wait(waiter)
        self._pruned = position
        return bound

    return [(Engine, "prune", prune)]


def _heads_not_saved_at_prune() -> Patches:
    real = Engine.prune

    def prune(self: Engine) -> int:
        saved, self._heads.save = self._heads.save, lambda position: []  # type: ignore[method-assign]
        try:
            return real(self)
        finally:
            self._heads.save = saved  # type: ignore[method-assign]

    return [(Engine, "prune", prune)]


def _foreign_cursor() -> Patches:
    # The opening is the other proof.
    return [(engines, "check_position", lambda *arguments: None), (Openings, "check", lambda self, cursor: None)]


def _opening_not_compared() -> Patches:
    return [(Openings, "check", lambda self, cursor: None)]


def _quarantine_answered_as_durable() -> Patches:
    return [(Engine, "is_quarantined", lambda self, lsn: False)]


# --- on the way to Postgres ------------------------------------------------------------------------------------------


def _prune_before_commit() -> Patches:
    def copy(self: Replicator, conn: Any, source: Any, cursor: Any, idle_wait_s: float) -> None:
        while events := source.read(cursor.lsn, 64, 1 << 20):
            last = events[-1].envelope
            source.acknowledge(last.lsn, last.hash)
            cursor = self._publish(conn, cursor, events).cursor

    return [(Replicator, "_copy", copy)]


def _lost_commit_reply() -> Patches:
    def naive(conn: Any, log_id: Any, events: Any) -> Ingested:
        try:
            return ingest(conn, log_id, events)
        except Unavailable:
            last = events[-1].envelope
            cursor = replicators.Cursor(last.lsn, last.hash)
            return Ingested(cursor, len(events), 0, (), (), 0, frozenset())

    return [(replicators, "ingest", naive)]


def _quarantine_dropped() -> Patches:
    return [(ingests, "_quarantine", lambda conn, log_id, refused: None)]


def _gap_forgotten() -> Patches:
    return [(ingests, "readmit", lambda *arguments, **named: Readmitted())]


def _quarantine_not_told_again() -> Patches:
    return [(replicators, "open_lsns", lambda *arguments: [])]


def _blob_after_event() -> Patches:
    def publish(self: Replicator, conn: Any, cursor: Any, events: Any) -> Ingested:
        done = ingest(conn, self._log_id, events)
        self._upload(conn, events)
        return done

    return [(Replicator, "_publish", publish)]


def _blob_swept_under_a_writer() -> Patches:
    real = SimContents.put

    def put(self: SimContents, tenant: str, ref: Any, content: bytes) -> None:
        bodies = b"".join(row["bodies"] for row in self._world.postgres.tables["event"].values())
        for key in [key for key in self.held if key[1].encode() not in bodies]:
            del self.held[key]
        real(self, tenant, ref, content)

    return [(SimContents, "put", put)]


# --- admission and leases --------------------------------------------------------------------------------------------


def _stale_lease() -> Patches:
    return [(Standing, "_owned", lambda self, log_id, envelope: None)]


def _divergent_admitted() -> Patches:
    def fits(self: Standing, envelope: Any) -> Any:
        return None if envelope.header.sequence_number == self.head.sequence_number + 1 else self._not_next(envelope)

    real = Standing._owned

    def owned(self: Standing, log_id: Any, envelope: Any) -> Any:
        verdict = real(self, log_id, envelope)
        if verdict is None or verdict.reason not in ("foreign_log", "divergent"):
            return verdict
        del self.refused[envelope.hash]
        return None

    # That another log wrote it is the other reason to refuse such an event: one alone would still be enough.
    return [(Standing, "_fits", fits), (Standing, "_owned", owned)]


def _seal_forgotten() -> Patches:
    real = takeover.seal

    def forgetful(tx: Any, given: Any) -> Any:
        rows = real(tx, given)
        tx.wrote.pop("seals", None)
        return rows

    return [(takeover, "seal", forgetful)]


# --- cold ------------------------------------------------------------------------------------------------------------


def _consolidation_replayed() -> Patches:
    def commit(self: SimCatalog, urls: Any, run_id: str) -> Any:
        self._reach()
        self.snapshots.append((run_id, tuple(urls)))
        self._world.oracle.cold_committed(run_id, urls)
        self._world.point("reply of the catalog")
        return self.run_totals(run_id)

    return [(SimCatalog, "has_run", lambda self, run_id: False), (SimCatalog, "commit", commit)]


def _marks_before_commit() -> Patches:
    real = Consolidation.complete

    def complete(self: Consolidation, run: Any) -> Any:
        with self._conn.transaction():
            self._conn.execute(statements("consolidate")["mark_trajectories"], {"run_id": run.run_id})
        return real(self, run)

    return [(Consolidation, "complete", complete)]


_TAKEOVERS: dict[str, Any] = {"hosts": 3, "steps": 400, "takeovers": 12.0, "replicated": 0.4, "kill": 2.0}
_RESTORES: dict[str, Any] = {"hosts": 2, "steps": 400, "restores": True, "takeovers": 12.0}
_COPIES: dict[str, Any] = {"hosts": 1, "steps": 400, "restores": True, "imports_mostly": True, "kill": 2.0}

BUGS: dict[str, Bug] = {
    "ack-before-flush": Bug("waiters are released before the group is synced", _ack_before_flush, 20),
    "watermark-before-sync": Bug("the durable watermark moves before the sync", _watermark_before_sync, 100),
    "read-past-watermark": Bug("the tail service reads what is written but not synced", _read_past_watermark, 200),
    "lsn-used-twice": Bug("after a crash the log goes on behind its last known LSN", _lsn_used_twice, 20),
    "heads-ahead": Bug("heads of events that are still queued are saved with a group", _heads_ahead, 200),
    "head-file-ahead": Bug("HEAD names an event that is only staged", _head_file_ahead, 60),
    "pruned-after-delete": Bug("events are removed before META_PRUNED is durable", _pruned_after_delete, 300),
    "heads-not-saved-at-prune": Bug("a prune forgets to save the heads", _heads_not_saved_at_prune, 200),
    "foreign-cursor": Bug("the tail's handshake compares neither hash nor opening", _foreign_cursor, 200, _RESTORES),
    "opening-not-compared": Bug("a copy with the same event at the cursor passes", _opening_not_compared, 800, _COPIES),
    "quarantine-as-durable": Bug(
        "a barrier passes for a quarantined event", _quarantine_answered_as_durable, 40, _TAKEOVERS
    ),
    "prune-before-commit": Bug("the log is acknowledged before Postgres has committed", _prune_before_commit, 20),
    "lost-commit-reply": Bug("no reply to COMMIT is taken for success", _lost_commit_reply, 60),
    "quarantine-dropped": Bug("refused events are not kept", _quarantine_dropped, 100),
    "gap-forgotten": Bug("events that waited for earlier ones are not offered again", _gap_forgotten, 200, _TAKEOVERS),
    "quarantine-not-told-again": Bug(
        "a new sidecar does not tell what was refused",
        _quarantine_not_told_again,
        400,
        {**_TAKEOVERS, "lost_reply": 0.2},
    ),
    "blob-after-event": Bug("content is uploaded after its event is committed", _blob_after_event, 40),
    "blob-swept": Bug("content that no event refers to yet is swept under its writer", _blob_swept_under_a_writer, 100),
    "stale-lease": Bug("admission does not look at seals and owners", _stale_lease, 200),
    "divergent-admitted": Bug("admission compares neither hashes nor logs", _divergent_admitted, 200, _RESTORES),
    "seal-forgotten": Bug("a takeover does not write its seal", _seal_forgotten, 200),
    "consolidation-replayed": Bug("a run is committed without looking for its id", _consolidation_replayed, 200),
    "marks-before-commit": Bug("trajectories are marked before the commit", _marks_before_commit, 40),
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """The product with this bug in it; without a name, as it is."""
    with contextlib.ExitStack() as stack:
        for owner, attribute, value in BUGS[name].patches() if name else []:
            stack.enter_context(mock.patch.object(owner, attribute, value))
        yield
