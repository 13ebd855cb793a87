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
import uuid
from pathlib import Path
from typing import Any

import msgspec

from stratalog.schemas.blobs import references
from stratalog.schemas.envelope import Envelope, encode_record
from stratalog.schemas.errors import Invalid, StratalogError

from . import frames
from .engine import Engine
from .frames import Reply, Request
from .keys import Position

WAIT_S_MAX = 10.0
BACKLOG = 16
LAG_EVENTS_MAX = 2_000


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
        threading.Thread(target=self._accept, name="stratalog-serve", daemon=True).start()

    def close(self) -> None:
        """Stop listening and cut the connections."""
        self._closing = True
        self._path.unlink(missing_ok=True)
        _shut(self._listener)
        with self._mutex:
            connections = list(self._connections)
        for connection in connections:
            _shut(connection)

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            with self._mutex:
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="stratalog-tail", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while (request := frames.receive_request(connection)) is not None:
                frames.send(connection, self._answer(request))
        except (OSError, msgspec.MsgspecError):
            return  # the peer has gone, or does not speak our language
        finally:
            with self._mutex:
                self._connections.discard(connection)
            _shut(connection)

    def _answer(self, request: Request) -> Reply:
        handler = _OPERATIONS.get(request.operation)
        try:
            if handler is None:
                raise Invalid(f"unknown operation {request.operation!r}")
            return Reply(handler(self._engine, request.arguments))
        except StratalogError as error:
            return Reply(None, error.code, error.message)
        except (KeyError, TypeError, ValueError) as error:
            return Reply(None, Invalid.code, f"{request.operation}: {error}")


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def pack_event(engine: Engine, envelope: Envelope) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    """An event for the wire: LSN, stored record, and (reference as JSON, content) of all it refers to."""
    contents = [
        (msgspec.json.encode(ref), engine.contents.get(envelope.lsn, ref.sha256)) for ref in references(envelope.body)
    ]
    record = encode_record(
        envelope.previous_lsn,
        envelope.header.encode(),
        envelope.body,
        secret=envelope.secret,
        erased=envelope.erased,
    )
    return envelope.lsn, record, contents


def read_batch(
    engine: Engine, after_lsn: int, events_max: int, bytes_max: int
) -> list[tuple[int, bytes, list[tuple[bytes, bytes]]]]:
    """Durable events after an LSN, at least one if there is one, within the limits."""
    batch: list[tuple[int, bytes, list[tuple[bytes, bytes]]]] = []
    size = 0
    for envelope in engine.scan(after_lsn + 1, after_lsn + events_max):
        size += len(envelope.body) + sum(ref.size for ref in references(envelope.body))
        if batch and size > bytes_max:
            break
        batch.append(pack_event(engine, envelope))
    return batch


def _hello(engine: Engine, arguments: dict[str, Any]) -> dict[str, Any]:
    if arguments["log_id"] != str(engine.log_id):
        raise Invalid(f"this is the log {engine.log_id}")
    engine.check_cursor(Position(arguments["lsn"], arguments["hash"]))
    return {"durable": engine.durable.value}


def _read(engine: Engine, arguments: dict[str, Any]) -> dict[str, Any]:
    after = arguments["after"]
    engine.durable.wait(after + 1, min(arguments.get("wait_s", 0.0), WAIT_S_MAX))
    batch = read_batch(engine, after, arguments["events_max"], arguments["bytes_max"])
    return {"durable": engine.durable.value, "events": batch}


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
        found.append(pack_event(engine, envelope)[:2])
        if len(found) >= events_max:
            break
    return found


def _blob(engine: Engine, arguments: dict[str, Any]) -> bytes:
    return engine.contents.get(arguments["lsn"], arguments["sha256"])


_OPERATIONS = {
    "hello": _hello,
    "read": _read,
    "acknowledge": _acknowledge,
    "status": lambda engine, arguments: status_of(engine),
    "heads": _heads,
    "envelopes": _envelopes,
    "blob": _blob,
}
