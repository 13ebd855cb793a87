"""The sidecar of a host: the product's `Replicator`, on a simulated network, database and content store."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from stratalog.hot import serving
from stratalog.hot.frames import Reply, Request
from stratalog.hot.keys import Cursor
from stratalog.hot.source import LocalSource, LogEvent, LogSource, SocketSource, has_more
from stratalog.schemas.errors import CursorMismatch, InDoubt, Locked, StratalogError
from stratalog.warm.replicator import Replicator
from stratalog.warm.sidecar_status import status_of

from .disks import LogFolder
from .hosts import Host, SimHome, open_engine
from .world import Process, World

_encode = msgspec.msgpack.encode
_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_reply = msgspec.msgpack.Decoder(Reply).decode


class SimSource(SocketSource):
    """A log that a worker owns: each question and each answer passes through the bytes of the real protocol."""

    def __init__(self, host: Host, folder: LogFolder) -> None:
        self.log_id = folder.log_id
        self._durable = 0
        self._start = Cursor()
        self._openings = []
        self._host, self._folder = host, folder
        self._owner = host.owner(folder)

    def _exchange(self, request: Request) -> Reply:
        world = self._host.world
        world.point(f"ask for {request.operation}")
        owner = self._owner
        if owner is None or not owner.alive or owner.engine is None or owner.is_frozen():
            raise OSError("the owner of the log has gone")
        request.arguments.pop("wait_s", None)  # nobody waits here: the seed decides who is next
        reply = serving.answer(owner.engine, _decode_request(_encode(request)))
        if request.operation == "acknowledge" and not reply.error:
            world.oracle.acknowledge_log(self._folder, request.arguments["lsn"])
        world.point(f"answer to {request.operation}")
        return _decode_reply(_encode(reply))

    def read(self, after_lsn: int, events_max: int, bytes_max: int) -> list[LogEvent]:
        events = super().read(after_lsn, events_max, bytes_max)
        self._host.world.oracle.deliver(self._folder, events)
        return events

    def close(self) -> None:
        """Hang up."""
        self._owner = None


class SimLocalSource(LocalSource):
    """A log that nobody owns, opened by the running process."""

    def __init__(self, host: Host, folder: LogFolder) -> None:
        self.log_id = folder.log_id
        self._host, self._simulated, self._opener = host, folder, host.world.running
        try:
            self._engine = open_engine(folder, host)
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        if self._simulated.owner is self._opener:
            self._simulated.owner = None

    def _yield(self) -> None:
        if self._simulated.wanted:
            raise Locked("another process wants the log")

    def read(self, after_lsn: int, events_max: int, bytes_max: int) -> list[LogEvent]:
        events = super().read(after_lsn, events_max, bytes_max)
        self._host.world.oracle.deliver(self._simulated, events)
        return events

    def acknowledge(self, lsn: int, digest: bytes, quarantined: Any = ()) -> None:
        super().acknowledge(lsn, digest, quarantined)
        self._host.world.oracle.acknowledge_log(self._simulated, lsn)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._release()


class SimReplicator(Replicator):
    """Connects, and opens logs, in the simulated world; everything else is the product's."""

    def __init__(self, sidecar: SimSidecar, folder: LogFolder, stop: Any) -> None:
        home: Any = SimHome(sidecar.home_of)
        uploads: Any = _Serial()
        super().__init__(
            home, folder.log_id, str, sidecar.world.contents, status_of(folder.log_id), uploads=uploads, stop=stop
        )
        self._sidecar, self._folder = sidecar, folder

    def _connected(self) -> Any:
        if self._conn is None or self._conn.closed:
            conn: Any = self._sidecar.world.postgres.connect(self._sidecar)
            self._conn = conn
        return self._conn

    def _opened(self, conn: Any, cursor: Cursor | None) -> LogSource | None:
        if not has_more(self._home, self._log_id, cursor):
            return None
        host, folder = self._sidecar.home_of, self._folder
        source: SimSource | SimLocalSource
        if host.owner(folder) is not None:
            source = SimSource(host, folder)
        elif folder.owner is not None or folder.wanted:
            raise Locked("another process has just opened the log")
        else:
            source = SimLocalSource(host, folder)
        try:
            source.hello(cursor or Cursor())
        except BaseException:
            source.close()
            raise
        return source


class _Serial:
    """An executor that does it at once."""

    def map(self, call: Callable[[Any], Any], arguments: Iterable[Any]) -> Iterable[Any]:
        return map(call, arguments)


class _OneTurn:
    """The event that ends `follow` at its first pause."""

    def __init__(self) -> None:
        self.paused = False

    def is_set(self) -> bool:
        return self.paused

    def wait(self, timeout_s: float) -> bool:
        self.paused = True
        return True


class SimSidecar(Process):
    """The process; one replicator for each log, which goes on from turn to turn."""

    def __init__(self, world: World, host: Host) -> None:
        super().__init__(world, f"sidecar {host.name}", host)
        self.home_of = host
        self._replicators: dict[uuid.UUID, tuple[SimReplicator, _OneTurn]] = {}
        self.stopped: set[uuid.UUID] = set()

    def follow(self, folder: LogFolder) -> None:
        """One turn of one log: replicate what is there, or find out why that cannot be."""
        log_id = folder.log_id  # somebody may give the log another one meanwhile
        if log_id in self.stopped:
            return
        if log_id not in self._replicators:
            turn = _OneTurn()
            self._replicators[log_id] = SimReplicator(self, folder, turn), turn
        replicator, turn = self._replicators[log_id]
        turn.paused = False
        before = replicator.status.lsn, replicator.status.quarantined
        try:
            replicator.follow()
        except CursorMismatch as error:
            folder.refused = folder.refused or folder.log_id == log_id
            self.stopped.add(log_id)
            self._stop(folder, log_id, error)
        except InDoubt as error:
            self._stop(folder, log_id, error)  # the disk has failed under a log that it had opened
        after = replicator.status.lsn, replicator.status.quarantined
        if after != before:
            self.world.tell(self.name, f"{folder.name} is replicated up to {after[0]}, {after[1]} in quarantine")

    def _stop(self, folder: LogFolder, log_id: uuid.UUID, error: StratalogError) -> None:
        self.world.tell(self.name, f"{folder.name} stopped: {error.message}")
        if folder.refused:
            self.stopped.add(log_id)
        del self._replicators[log_id]
