"""The tail service: the owner of a log lets the sidecar read what is durable, and readers ask it what is here.

Only durable events leave. A read waits at the durable watermark, so an event reaches the sidecar right after its sync.
The sidecar's cursor is proven by its hash or refused (`hello`), so a log restored from an old copy is not mistaken for
the one that was replicated.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
import weakref
from pathlib import Path
from typing import Any

import msgspec

from stratalog.schemas.blobs import BlobRef, references
from stratalog.schemas.envelope import Envelope, encode_record
from stratalog.schemas.errors import Corrupt, CursorMismatch, Invalid, NotFound, StratalogError

from . import frames
from .engine import Engine
from .erasure import ErasedHere
from .frames import Reply, Request
from .keys import Cursor

WAIT_S_MAX = 10.0
BACKLOG = 16
ACCEPT_PAUSE_S = 0.1
LAG_EVENTS_MAX = 2_000


PackedEvent = tuple[int, bytes, list[tuple[bytes, bytes]]]
WholeEvent = tuple[Envelope, list[tuple[BlobRef, bytes]]]
"""An event and the content that it refers to."""


class TailServer:
    """Serves one engine on a unix socket, one thread per connection, until `close`."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._path = path
        self._closing = False
        self._connections: set[socket.socket] = set()
        self._mutex = threading.Lock()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # left by an owner that was killed: we hold the log's lock
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(os.fspath(path))
        path.chmod(0o600)
        self._listener.listen(BACKLOG)
        _servers.add(self)
        threading.Thread(target=self._accept, name="stratalog-serve", daemon=True).start()

    def close(self) -> None:
        """Stop listening and cut the connections."""
        with self._mutex:
            self._closing = True
            connections = list(self._connections)
        self._path.unlink(missing_ok=True)
        _shut(self._listener)
        for connection in connections:
            _shut(connection)

    def forget(self) -> None:
        """In a forked child: close the inherited sockets, so that they end with their owner."""
        for connection in (self._listener, *list(self._connections)):
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closing:
                    return
                time.sleep(ACCEPT_PAUSE_S)  # out of descriptors, for example
                continue
            with self._mutex:
                if self._closing:
                    connection.close()
                    return
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="stratalog-tail", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while (request := frames.receive_request(connection)) is not None:
                frames.send(connection, answer(self._engine, request))
        except (OSError, StratalogError, msgspec.MsgspecError):
            return  # the peer has gone, or does not speak our language
        finally:
            with self._mutex:
                self._connections.discard(connection)
            _shut(connection)


_servers: weakref.WeakSet[TailServer] = weakref.WeakSet()


def _forget_inherited() -> None:
    for server in list(_servers):
        server.forget()


os.register_at_fork(after_in_child=_forget_inherited)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def answer(engine: Engine, request: Request) -> Reply:
    """What the owner of a log replies to a request."""
    handler = _OPERATIONS.get(request.operation)
    try:
        if handler is None:
            raise Invalid(f"unknown operation {request.operation!r}")
        return Reply(handler(engine, request.arguments))
    except StratalogError as error:
        return Reply(None, error.code, error.message)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        return Reply(None, Invalid.code, f"{request.operation}: {error}")


def pack_event(event: WholeEvent) -> PackedEvent:
    """An event for the wire: LSN, stored record, and (reference as JSON, content) of all it refers to."""
    envelope, contents = event
    return envelope.lsn, _record(envelope), [(msgspec.json.encode(ref), content) for ref, content in contents]


def whole_event(engine: Engine, envelope: Envelope) -> WholeEvent:
    """An event with all that it refers to; raises `NotFound`, `Corrupt`."""
    refs = {ref.sha256: ref for ref in references(envelope.body)}
    return envelope, [(ref, engine.contents.get(envelope.lsn, sha256)) for sha256, ref in refs.items()]


def _record(envelope: Envelope) -> bytes:
    return encode_record(
        envelope.previous_lsn,
        envelope.header.encode(),
        envelope.body,
        secret=envelope.secret,
        erased=envelope.erased,
    )


def read_batch(engine: Engine, after_lsn: int, events_max: int, bytes_max: int) -> list[WholeEvent]:
    """Durable events after an LSN without a hole, at least one if there is one, within the limits.

    After LSN 0 they begin with the first that is not pruned; raises `CursorMismatch` where later ones are pruned.
    """
    start = after_lsn or engine.pruned_lsn
    batch: list[WholeEvent] = []
    size = 0
    for envelope in engine.scan(start + 1, start + events_max):
        size += len(envelope.body) + sum(ref.size for ref in references(envelope.body))
        if envelope.lsn != start + 1 or (batch and size > bytes_max):
            break
        event = whole_now(engine, envelope)
        if event is None:
            break
        batch.append(event)
        start = envelope.lsn
    if start < engine.pruned_lsn and not batch:  # pruned, before or while we looked
        if after_lsn:
            raise CursorMismatch(f"events after LSN {after_lsn} of {engine.log_id} are pruned")
        return read_batch(engine, 0, events_max, bytes_max)
    return batch


def whole_now(engine: Engine, envelope: Envelope) -> WholeEvent | None:
    """An event that was just read, as it is now if it was erased meanwhile; `None` where it was pruned meanwhile."""
    try:
        return whole_event(engine, envelope)
    except (NotFound, Corrupt) as error:
        now = engine.envelope(envelope.lsn)
        if now is None or now.erased:
            return None if now is None else whole_event(engine, now)
        raise Corrupt(error.message) from error


def _hello(engine: Engine, arguments: dict[str, Any]) -> dict[str, Any]:
    if arguments["log_id"] != str(engine.log_id):
        raise Invalid(f"this is the log {engine.log_id}")
    cursor = Cursor(arguments["lsn"], arguments["hash"], arguments.get("opening", b""))
    engine.check_cursor(cursor)
    start = engine.pruned_position
    openings = engine.openings.since(cursor.lsn + 1)
    return {"durable": engine.durable.value, "start": (start.lsn, start.hash), "openings": openings}


def _read(engine: Engine, arguments: dict[str, Any]) -> dict[str, Any]:
    after = arguments["after"]
    engine.durable.wait(after + 1, min(arguments.get("wait_s", 0.0), WAIT_S_MAX))
    batch = read_batch(engine, after, arguments["events_max"], arguments["bytes_max"])
    return {"durable": engine.durable.value, "events": list(map(pack_event, batch))}


def _acknowledge(engine: Engine, arguments: dict[str, Any]) -> None:
    engine.acknowledge(arguments["lsn"], arguments["hash"], arguments["quarantined"])


def lag_bytes(engine: Engine) -> int:
    """Bytes of the events that are not replicated; beyond `LAG_EVENTS_MAX` of them, extrapolated."""
    start, durable = engine.replicated.value, engine.durable.value
    counted = min(durable, start + LAG_EVENTS_MAX)
    size = sum(len(envelope.body) for envelope in engine.scan(start + 1, counted)) if counted > start else 0
    return size if counted == durable else size * (durable - start) // (counted - start)


def status_of(engine: Engine) -> dict[str, Any]:
    """Positions of a log, for `stratalog status`."""
    return {
        "log_id": str(engine.log_id),
        "head_lsn": engine.stager.last.lsn,
        "durable_lsn": engine.durable.value,
        "replicated_lsn": engine.replicated.value,
        "pruned_lsn": engine.pruned_lsn,
        "lag_events": engine.durable.value - engine.replicated.value,
        "lag_bytes": lag_bytes(engine),
        "lag_seconds": round(engine.lag_s, 3),
        "disk_bytes": engine.store.disk_bytes(),
        "trajectories": len(engine.all_heads()),
    }


def _heads(engine: Engine, arguments: dict[str, Any]) -> list[Any]:
    return [msgspec.to_builtins(head, builtin_types=(bytes, uuid.UUID)) for head in engine.all_heads()]


def _envelopes(engine: Engine, arguments: dict[str, Any]) -> list[Any]:
    events_max = arguments["events_max"]
    found = []
    for envelope in engine.envelopes(uuid.UUID(arguments["trajectory_id"]), arguments["from_sequence"]):
        found.append((envelope.lsn, _record(envelope)))
        if len(found) >= events_max:
            break
    return found


def _blob(engine: Engine, arguments: dict[str, Any]) -> bytes:
    return engine.content(arguments["lsn"], arguments["sha256"])


def _erase(engine: Engine, arguments: dict[str, Any]) -> ErasedHere | None:
    wait_s = min(arguments.get("wait_s", 0.0), WAIT_S_MAX)
    return engine.erasing.ask([uuid.UUID(text) for text in arguments["trajectory_ids"]], wait_s)


def _erased(engine: Engine, arguments: dict[str, Any]) -> list[tuple[str, bool]]:
    return [(str(trajectory_id), gone) for trajectory_id, gone in engine.erased().items()]


_OPERATIONS = {
    "hello": _hello,
    "read": _read,
    "acknowledge": _acknowledge,
    "status": lambda engine, arguments: status_of(engine),
    "heads": _heads,
    "envelopes": _envelopes,
    "blob": _blob,
    "erase": _erase,
    "erased": _erased,
}
