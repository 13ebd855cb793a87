"""The sidecar: replicates all hot logs of a home into Postgres, in a process beside those that append.

Appends never wait for it. It can be killed at any line: what it has committed stands in Postgres with the cursor, and
the next one goes on from there. One log that cannot go on (it is not the one that was replicated, it is damaged) stops
with an alarm in the status file, the others go on.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from typing import Any, Protocol

from stratalog.hot.files import FileLock
from stratalog.hot.home import Home
from stratalog.schemas.errors import Locked, StratalogError
from stratalog.schemas.protocols import ContentStore

from .database import connect
from .replicator import Replicator
from .sidecar_status import LogStatus, SidecarStatus, status_of, write_status

LOCK_FILE = "sidecar.lock"
UPLOAD_THREADS = 4


class Startable(Protocol):
    """An embedded server. `start` also brings back one that died; one thread at a time."""

    @property
    def dsn(self) -> str:
        """Where it listens now."""

    def start(self) -> object:
        """Start it unless it runs."""


class Sidecar:
    """Replicates the logs of one home. `contents` is called from several threads."""

    def __init__(self, home: Home, server: str | Startable, contents: ContentStore) -> None:
        """`server` is a DSN, or an embedded server, which is started again when it has died."""
        self._home = home
        self._server = server
        self._server_lock = threading.Lock()
        self._contents = contents
        self._started_at = time.time()
        self._replicators: dict[uuid.UUID, Replicator] = {}
        self._threads: dict[uuid.UUID, threading.Thread] = {}
        self._last_error = ""

    def run_once(self) -> dict[str, int]:
        """Replicate all that is durable now; returns the counts of what was new (less what a lost COMMIT reply hid).

        They are `events`, `trajectories`, `blobs` and `quarantined`. Raises `Locked` while another sidecar runs,
        `Unavailable`, `MigrationNeeded`; an error of one log only after the other logs are done.
        """
        stop = threading.Event()
        self._guarded(lambda uploads: self._drain_all(uploads, stop))
        return self._totals()

    def run(self, stop: threading.Event) -> None:
        """Follow all logs, also those that appear, until `stop` is set; raises as `run_once` when it cannot begin."""
        self._guarded(lambda uploads: self._follow_all(uploads, stop))

    def status(self, *, ended: bool = False) -> SidecarStatus:
        """What it is doing."""
        logs = [replicator.status for replicator in list(self._replicators.values())]
        return SidecarStatus(os.getpid(), self._started_at, time.time(), logs, self._last_error, ended)

    def _guarded(self, work: Callable[[Executor], None]) -> None:
        lock = FileLock(self._home.folder("run") / LOCK_FILE)
        try:
            lock.acquire()
        except Locked as error:
            raise Locked(
                f"another sidecar follows this home: {error.message}", hint="one is enough: stratalog status"
            ) from error
        self._replicators.clear()
        try:
            # A server that is missing or too old is told at once, not retried in the background.
            connect(self._dsn()).close()
            with ThreadPoolExecutor(UPLOAD_THREADS, "stratalog-upload") as uploads:
                work(uploads)
        finally:
            write_status(self._home, self.status(ended=True))
            lock.release()

    def _drain_all(self, uploads: Executor, stop: threading.Event) -> None:
        errors: list[StratalogError] = []
        for log_id in self._home.log_ids():
            replicator = self._add(log_id, uploads, stop)
            with closing(replicator):
                try:
                    replicator.drain()
                except StratalogError as error:
                    replicator.status.fail(error, "stopped")
                    errors.append(error)
            write_status(self._home, self.status())
        if errors:
            raise errors[0]

    def _follow_all(self, uploads: Executor, stop: threading.Event) -> None:
        poll_s = self._home.settings.warm.poll_ms / 1000
        try:
            while not stop.is_set():
                self._find_logs(uploads, stop)
                write_status(self._home, self.status())
                stop.wait(poll_s)
        finally:
            stop.set()
            for thread in self._threads.values():
                thread.join()
            self._threads.clear()

    def _find_logs(self, uploads: Executor, stop: threading.Event) -> None:
        try:
            found = self._home.log_ids()
        except StratalogError as error:
            self._last_error = error.message
            return
        for log_id in found:
            if log_id not in self._replicators:
                replicator = self._add(log_id, uploads, stop)
                thread = threading.Thread(target=_follow, args=(replicator,), name=f"stratalog-{log_id}", daemon=True)
                self._threads[log_id] = thread
                thread.start()

    def _add(self, log_id: uuid.UUID, uploads: Executor, stop: threading.Event) -> Replicator:
        replicator = Replicator(
            self._home, log_id, self._dsn, self._contents, status_of(log_id), uploads=uploads, stop=stop
        )
        self._replicators[log_id] = replicator
        return replicator

    def _dsn(self) -> str:
        if isinstance(self._server, str):
            return self._server
        with self._server_lock:
            self._server.start()
            return self._server.dsn

    def _totals(self) -> dict[str, int]:
        statuses: list[LogStatus] = [replicator.status for replicator in self._replicators.values()]
        readmitted = sum(status.readmitted for status in statuses)
        moved: set[Any] = set().union(*(replicator.trajectories for replicator in self._replicators.values()))
        return {
            "events": sum(status.events for status in statuses) + readmitted,
            "trajectories": len(moved),
            "blobs": sum(status.blobs for status in statuses),
            "quarantined": max(0, sum(status.quarantined for status in statuses) - readmitted),
        }


def _follow(replicator: Replicator) -> None:
    """The life of a log's thread: an error that needs a person stops this log alone."""
    with closing(replicator):
        try:
            replicator.follow()
        except StratalogError as error:
            replicator.status.fail(error, "stopped")
        except Exception as error:
            # A bug of ours: told in the status and, by the thread's end, on stderr.
            replicator.status.fail(error, "stopped")
            raise
