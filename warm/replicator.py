"""Replicates one hot log: blobs first, then the events with the cursor in one transaction, then the acknowledgement.

The cursor lies in Postgres alone. After anything that may have gone wrong (a killed connection, a COMMIT whose reply
was lost, a kill -9 of this process) it is read again, proven against the log by its hash, and acknowledged again; from
there replication goes on. So nothing is stored twice and nothing is acknowledged that Postgres does not have.

What may pass by itself (no server, no owner, a log that another process just opens) is tried again after a pause that
grows and is never the same twice; what cannot pass (a log that is not the one that was replicated, damage) is raised.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from stratalog.hot.home import Home
from stratalog.hot.source import Cursor, LogEvent, LogSource, has_more, open_source
from stratalog.schemas import ids
from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.codec import decode_body
from stratalog.schemas.errors import (
    Conflict,
    CursorMismatch,
    DiskBudgetExceeded,
    Fenced,
    Locked,
    Retryable,
    Unavailable,
)
from stratalog.schemas.events import TaskStarted
from stratalog.schemas.protocols import ContentStore
from stratalog.schemas.settings import WarmSettings

from . import erasure, erasure_ledger
from .condemned import putting
from .database import Connection, connect
from .ingest import Ingested, ingest, inherit_cursor, read_cursor
from .quarantine import open_lsns
from .queries import publish_import_key
from .sidecar_status import LogStatus

PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 5.0
PATIENCE_S = 60.0
"""How long a single run waits for a server or a log that does not answer."""
IDLE_WAIT_S = 1.0
"""How long an owner is asked to wait for the next event; also bounds how long a stop takes."""
LEDGER_POLL_S = 2.0
"""How often the ledger of erasures is looked at while a log is followed."""
LEDGER_RETRY_S = 60.0
"""How long after an erasure that was not possible it is tried again."""
UNACKNOWLEDGED_LSNS = 1 << 14
"""How far behind the cursor an acknowledgement can have been lost: far more than one batch."""


_Pieces = dict[tuple[str, str], tuple[BlobRef, bytes]]
"""Content by tenant and digest."""


class Replicator:
    """One log of a home; for one thread."""

    def __init__(
        self,
        home: Home,
        log_id: uuid.UUID,
        dsn: Callable[[], str],
        contents: ContentStore,
        status: LogStatus,
        *,
        uploads: Executor,
        stop: threading.Event,
    ) -> None:
        """`dsn` is asked before each connection; `stop` ends the work at the next batch."""
        self.status = status
        self.trajectories: set[uuid.UUID] = set()
        """Whose head `drain` has moved."""
        self._home = home
        self._log_id = log_id
        self._dsn = dsn
        self._contents = contents
        self._uploads = uploads
        self._stop = stop
        self._settings: WarmSettings = home.settings.warm
        self._conn: Connection | None = None
        self._failures = 0
        self._published: set[str] = set()
        self._remember = False
        self._ledger_due = 0.0

    def close(self) -> None:
        """Close the connection."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def drain(self) -> None:
        """Replicate what is durable now; raises what does not pass within a minute."""
        self._remember = True
        deadline = time.monotonic() + PATIENCE_S
        while not self._stop.is_set():
            before = self.status.lsn
            try:
                self._replicate(idle_wait_s=0.0)
                return
            except (Retryable, Conflict) as error:
                if self.status.lsn > before:
                    deadline = time.monotonic() + PATIENCE_S
                if time.monotonic() > deadline or not self._pause(error):
                    raise

    def follow(self) -> None:
        """Replicate until `stop`; raises only what needs a person."""
        poll_s = self._settings.poll_ms / 1000
        while not self._stop.is_set():
            try:
                self._replicate(idle_wait_s=IDLE_WAIT_S)
                self._stop.wait(poll_s)
            except (Retryable, Conflict) as error:
                if not self._pause(error):
                    raise

    def _pause(self, error: Retryable | Conflict) -> bool:
        """Wait before trying again; false for an error that does not pass."""
        if isinstance(error, (CursorMismatch, Fenced)):
            return False
        self.close()
        self.status.fail(error, "retrying")
        longest = min(PAUSE_S_MAX, PAUSE_S_MIN * 2**self._failures)
        if not isinstance(error, Locked):
            # A log that is in use is free again soon; a server that is down may take long.
            self._failures = min(self._failures + 1, 16)
        self._stop.wait(random.uniform(longest / 2, longest))
        return True

    def _replicate(self, *, idle_wait_s: float) -> None:
        """Open the log and replicate until there is nothing more for `idle_wait_s`."""
        conn = self._connected()
        cursor = read_cursor(conn, self._log_id)
        if cursor is not None:
            self.status.advance(cursor.lsn, cursor.lsn)
        source = self._opened(conn, cursor)
        if source is None:
            self._at_rest()
            return
        try:
            self._follow_ledger(conn, source)
            if cursor is not None:
                # The process before may have ended between its COMMIT and this.
                lsns = open_lsns(conn, self._log_id, cursor.lsn - UNACKNOWLEDGED_LSNS)
                source.acknowledge(cursor.lsn, cursor.hash, lsns)
            else:
                cursor = self._inherited(conn, source.start())
            self._copy(conn, source, cursor, idle_wait_s)
        finally:
            source.close()

    def _opened(self, conn: Connection, cursor: Cursor | None) -> LogSource | None:
        """The log after a cursor that it has proven, `None` where it has nothing more and nothing to erase."""
        if has_more(self._home, self._log_id, cursor) or erasure_ledger.pending(conn, self._log_id) is not None:
            return open_source(self._home, self._log_id, cursor)
        return None

    def _follow_ledger(self, conn: Connection, source: LogSource) -> None:
        """Erase in the log what the ledger says and it has not followed yet.

        What is not possible now (no room to write files anew, an owner that cannot erase) does not hold up replication:
        the log stays behind the ledger, visibly, and it is tried again.
        """
        try:
            while (wanted := erasure_ledger.pending(conn, self._log_id)) is not None:
                done = source.erase(wanted.trajectories)
                erasure_ledger.followed(conn, self._log_id, wanted.place, done.events)
        except (Unavailable, DiskBudgetExceeded) as error:
            self.status.fail(error, "retrying")
            self._ledger_due = time.monotonic() + LEDGER_RETRY_S
        else:
            self._ledger_due = time.monotonic() + LEDGER_POLL_S

    def _inherited(self, conn: Connection, start: Cursor) -> Cursor:
        """Where an unknown log begins: at its first event, or where it was pruned before it was given a new id."""
        if start.lsn == 0:
            return Cursor()
        file = next(file for _, file in self._home.logs() if file.log_id == str(self._log_id))
        previous = uuid.UUID(file.previous_log_id) if file.previous_log_id else None
        if previous is None or not inherit_cursor(conn, self._log_id, previous, start):
            raise CursorMismatch(
                f"the log {self._log_id} begins after LSN {start.lsn}, but Postgres has nothing of what came before",
                hint="Postgres is not the one that this log was replicated to, or was restored from an older backup",
            )
        return start

    def _copy(self, conn: Connection, source: LogSource, cursor: Cursor, idle_wait_s: float) -> None:
        target = source.durable_lsn()
        settings = self._settings
        while not self._stop.is_set():
            self.status.advance(cursor.lsn, source.durable_lsn())
            if time.monotonic() >= self._ledger_due:
                self._follow_ledger(conn, source)
            if idle_wait_s == 0 and cursor.lsn >= target:
                # A single run ends here, however fast its log grows.
                self._at_rest()
                return
            events = source.read(cursor.lsn, settings.batch_events_max, settings.batch_bytes_max)
            if events:
                self.status.state = "replicating"
                done = self._publish(conn, cursor, events)
                source.acknowledge(done.cursor.lsn, done.cursor.hash, done.quarantined)
                cursor = done.cursor
                self._failures = 0
                if done.related and erasure.add_related(conn):
                    erasure.proceed(conn)
                    self._ledger_due = 0.0
                if done.brought_back:
                    self._ledger_due = 0.0
            else:
                self._at_rest()
                if not source.wait(cursor.lsn, idle_wait_s):
                    return

    def _publish(self, conn: Connection, cursor: Cursor, events: Sequence[LogEvent]) -> Ingested:
        """Blobs, then events and cursor; whatever is returned is committed."""
        first = events[0].envelope.lsn
        if first != cursor.lsn + 1:
            raise CursorMismatch(
                f"the log {self._log_id} begins at LSN {first}, but Postgres has it only up to {cursor.lsn}",
                hint="Postgres was restored from a backup older than what the log has forgotten",
            )
        pieces = _pieces(events)
        if pieces:
            with putting(conn, pieces):
                self._upload(pieces)
                done = self._ingest(conn, events)
        else:
            done = self._ingest(conn, events)
        status = self.status
        status.events += done.admitted
        status.duplicates += done.duplicates
        status.quarantined += len(done.quarantined)
        status.readmitted += done.readmitted
        status.blobs += len(pieces)
        status.advance(done.cursor.lsn, 0)
        if self._remember:
            self.trajectories |= done.trajectories
        return done

    def _ingest(self, conn: Connection, events: Sequence[LogEvent]) -> Ingested:
        self._publish_import_keys(conn, events)
        return ingest(conn, self._log_id, events)

    def _upload(self, pieces: _Pieces) -> None:
        """Put content where the events will say; all or it raises."""
        calls: list[tuple[Any, ...]] = [(tenant, *piece) for (tenant, _), piece in pieces.items()]
        try:
            list(self._uploads.map(lambda call: self._contents.put(*call), calls))
        except OSError as error:
            raise Unavailable(f"the content store does not answer: {error}", hint="check cold.cas_url") from error

    def _publish_import_keys(self, conn: Connection, events: Sequence[LogEvent]) -> None:
        """Other homes must meet the same trajectory when they import the same source: they need the same key."""
        for event in events:
            envelope = event.envelope
            header = envelope.header
            first = header.sequence_number == 0 and envelope.secret is not None
            if not first or header.kind != TaskStarted.__name__ or header.tenant in self._published:
                continue
            body = decode_body(header.kind, envelope.body)
            if not isinstance(body, TaskStarted) or body.source is None:
                continue
            key = self._home.import_key(header.tenant)
            if ids.imported_secret(key, header.trajectory_id) == envelope.secret:
                publish_import_key(conn, header.tenant, key)
                self._published.add(header.tenant)

    def _connected(self) -> Connection:
        if self._conn is None or self._conn.closed:
            self._conn = connect(self._dsn(), statement_timeout_ms=self._settings.statement_timeout_ms)
        return self._conn

    def _at_rest(self) -> None:
        self.status.state = "waiting"
        self._failures = 0


def _pieces(events: Sequence[LogEvent]) -> _Pieces:
    return {
        (event.envelope.header.tenant, ref.sha256): (ref, content) for event in events for ref, content in event.blobs
    }
