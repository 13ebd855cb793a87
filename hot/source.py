"""Where the sidecar gets the events of a log from: its owner over the socket, or the log itself when nobody owns it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.envelope import Envelope, decode_record
from stratalog.schemas.errors import (
    Conflict,
    Corrupt,
    CursorMismatch,
    DiskBudgetExceeded,
    InDoubt,
    Invalid,
    Locked,
    NotFound,
    StratalogError,
    Unavailable,
)

from . import frames, serving
from .erasure import ErasedHere
from .frames import Reply, Request
from .home import Home
from .keys import Cursor, Head
from .marks import peek
from .opening import open_engine, wanted
from .openings import Opening, opening_at

__all__ = ["Cursor", "LogEvent", "LogReader", "LogSource", "has_more", "open_source"]

CONNECT_TIMEOUT_S = 2.0
REPLY_TIMEOUT_S = 60.0
ERASE_TOGETHER_MAX = 10_000
_ERRORS: dict[str, type[StratalogError]] = {
    error.code: error
    for error in (Conflict, Corrupt, CursorMismatch, DiskBudgetExceeded, InDoubt, Invalid, Locked, NotFound)
}


class LogEvent(msgspec.Struct, frozen=True):
    """Everything needed to replicate one event: its envelope, and the content it refers to."""

    envelope: Envelope
    blobs: tuple[tuple[BlobRef, bytes], ...] = ()
    opening: bytes = b""
    """The id of the opening of the log that wrote it; see `openings.py`."""


class LogSource(Protocol):
    """The durable events of one log, in order. Closing it releases the log."""

    log_id: uuid.UUID

    def start(self) -> Cursor:
        """The position before the first event that still lies in the log; LSN 0 where nothing was pruned."""

    def durable_lsn(self) -> int:
        """The LSN up to which events can be read."""

    def read(self, after_lsn: int, events_max: int, bytes_max: int) -> list[LogEvent]:
        """Events after an LSN, without a hole; at least one if there is one. After 0 they begin with the first that is
        still there, else `CursorMismatch` says that later ones are pruned. Raises `Locked` to ask for a break: close
        the source and open it again later."""

    def wait(self, after_lsn: int, timeout_s: float) -> bool:
        """Until something after an LSN is durable; whether it is. Raises `Locked` like `read`."""

    def acknowledge(self, lsn: int, digest: bytes, quarantined: Sequence[int] = ()) -> None:
        """Say what Postgres has committed and compared."""

    def erase(self, trajectory_ids: Sequence[uuid.UUID]) -> ErasedHere:
        """Erase trajectories from this log, whether they are here or not; returns when their bytes are gone.

        Takes seconds for each GB of the log; the same call goes on after whatever ended it. Raises `Locked` like
        `read`, `DiskBudgetExceeded`, `Unavailable` (also where the owner is a version that cannot erase).
        """

    def erased(self) -> dict[uuid.UUID, bool]:
        """The trajectories that were erased here or must not come here, and whether their bytes are gone.

        Raises `Unavailable` where the owner is a version that cannot erase.
        """

    def close(self) -> None:
        """Release the log."""


class LogReader(Protocol):
    """What read commands ask of a log, whoever owns it."""

    log_id: uuid.UUID

    def status(self) -> dict[str, Any]:
        """Positions and sizes."""

    def heads(self) -> list[Head]:
        """The heads of all trajectories."""

    def envelopes(self, trajectory_id: uuid.UUID, from_sequence: int = 0) -> Iterator[Envelope]:
        """The events of a trajectory that lie here."""

    def blob(self, lsn: int, sha256: str) -> bytes:
        """Content of an event."""

    def close(self) -> None:
        """Release the log."""


def open_source(home: Home, log_id: uuid.UUID, cursor: Cursor | None = None) -> LogSource:
    """The events of a log after `cursor`; raises `CursorMismatch`, `Locked`, `OpenRefused`."""
    source = _open(home, log_id)
    try:
        source.hello(cursor or Cursor())
    except BaseException:
        source.close()
        raise
    return source


def open_reader(home: Home, log_id: uuid.UUID) -> LogReader:
    """A log for reading; raises `Locked`, `OpenRefused`."""
    return _open(home, log_id)


def has_more(home: Home, log_id: uuid.UUID, cursor: Cursor | None) -> bool:
    """Whether a log must be opened to go on after `cursor`: false only for one that was closed in order, right there.

    One that ends before the cursor, or there with another event, is not the one that was replicated: opening it tells.
    """
    if home.socket_path(log_id).exists():
        return True
    mark = peek(home.log_folder(log_id) / "HEAD")
    if mark is None:
        return (home.log_folder(log_id) / "db").exists()
    at = cursor or Cursor()
    same_opening = not (at.opening and mark.opening) or at.opening == bytes.fromhex(mark.opening)
    return not (mark.closed and (mark.lsn, bytes.fromhex(mark.hash)) == (at.lsn, at.hash) and same_opening)


def _open(home: Home, log_id: uuid.UUID) -> SocketSource | LocalSource:
    path = home.socket_path(log_id)
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        connection = _connect(path)
        if connection is not None:
            return SocketSource(log_id, connection)
        try:
            return LocalSource(home, log_id)
        except Locked:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)  # the owner is just opening or closing it


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(REPLY_TIMEOUT_S)
    try:
        connection.connect(os.fspath(path))
    except OSError:
        connection.close()
        return None
    return connection


def unpack_events(packed: Sequence[Any], opening_of: Callable[[int], bytes]) -> list[LogEvent]:
    """The events of a reply; `opening_of` tells by LSN in which opening of the log they were written."""
    return [
        LogEvent(
            decode_record(lsn, record),
            tuple((msgspec.json.decode(ref, type=BlobRef), content) for ref, content in contents),
            opening_of(lsn),
        )
        for lsn, record, contents in packed
    ]


class SocketSource:
    """A log that another process owns."""

    def __init__(self, log_id: uuid.UUID, connection: socket.socket) -> None:
        self.log_id = log_id
        self._connection = connection
        self._durable = 0
        self._start = Cursor()
        self._openings: list[Opening] = []

    def _ask(self, operation: str, **arguments: Any) -> Any:
        try:
            reply = self._exchange(Request(operation, arguments))
        except (OSError, msgspec.MsgspecError) as error:
            self.close()  # a late answer must not be taken for that of the next question
            raise Unavailable(f"the owner of the log {self.log_id} does not answer: {error}", hint="") from error
        if reply.error:
            raise _ERRORS.get(reply.error, Unavailable)(reply.message)
        return reply.result

    def _exchange(self, request: Request) -> Reply:
        frames.send(self._connection, request)
        return frames.receive_reply(self._connection)

    def hello(self, cursor: Cursor) -> None:
        """Prove the cursor; raises `CursorMismatch`."""
        where = {"lsn": cursor.lsn, "hash": cursor.hash, "opening": cursor.opening}
        reply = self._ask("hello", log_id=str(self.log_id), **where)
        self._durable, self._start = reply["durable"], Cursor(*reply["start"])
        self._openings = [(lsn, opening) for lsn, opening in reply["openings"]]

    def start(self) -> Cursor:
        """See `LogSource`."""
        return self._start

    def durable_lsn(self) -> int:
        """See `LogSource`."""
        return self._durable

    def read(self, after_lsn: int, events_max: int, bytes_max: int) -> list[LogEvent]:
        """See `LogSource`."""
        return self._read(after_lsn, events_max, bytes_max, 0.0)

    def _read(self, after_lsn: int, events_max: int, bytes_max: int, wait_s: float) -> list[LogEvent]:
        result = self._ask("read", after=after_lsn, events_max=events_max, bytes_max=bytes_max, wait_s=wait_s)
        self._durable = result["durable"]
        return unpack_events(result["events"], lambda lsn: opening_at(self._openings, lsn))

    def wait(self, after_lsn: int, timeout_s: float) -> bool:
        """See `LogSource`."""
        self._durable = self._ask("read", after=after_lsn, events_max=0, bytes_max=0, wait_s=timeout_s)["durable"]
        return self._durable > after_lsn

    def acknowledge(self, lsn: int, digest: bytes, quarantined: Sequence[int] = ()) -> None:
        """See `LogSource`."""
        self._ask("acknowledge", lsn=lsn, hash=digest, quarantined=list(quarantined))

    def erase(self, trajectory_ids: Sequence[uuid.UUID]) -> ErasedHere:
        """See `LogSource`. More than one request carries are erased one part after the other."""
        done = ErasedHere()
        for first in range(0, len(trajectory_ids), ERASE_TOGETHER_MAX):
            part = [str(trajectory_id) for trajectory_id in trajectory_ids[first : first + ERASE_TOGETHER_MAX]]
            result = None
            while result is None:
                result = self._ask_to_erase("erase", trajectory_ids=part, wait_s=serving.WAIT_S_MAX)
            events, contents, size = result
            done = ErasedHere(done.events + events, done.contents + contents, done.bytes + size)
        return done

    def erased(self) -> dict[uuid.UUID, bool]:
        """See `LogSource`."""
        return {uuid.UUID(text): gone for text, gone in self._ask_to_erase("erased")}

    def _ask_to_erase(self, operation: str, **arguments: Any) -> Any:
        try:
            return self._ask(operation, **arguments)
        except Invalid as error:
            if "unknown operation" not in error.message:
                raise
            raise Unavailable(
                f"the owner of the log {self.log_id} runs a version of stratalog that cannot erase",
                hint="start that process again with this version; it is asked again then",
            ) from error

    def status(self) -> dict[str, Any]:
        """See `LogReader`."""
        result: dict[str, Any] = self._ask("status")
        return {**result, "owned": True}

    def heads(self) -> list[Head]:
        """See `LogReader`."""
        return [msgspec.convert(head, Head) for head in self._ask("heads")]

    def envelopes(self, trajectory_id: uuid.UUID, from_sequence: int = 0) -> Iterator[Envelope]:
        """See `LogReader`."""
        events_max = 256
        while True:
            packed = self._ask(
                "envelopes", trajectory_id=str(trajectory_id), from_sequence=from_sequence, events_max=events_max
            )
            for lsn, record in packed:
                envelope = decode_record(lsn, record)
                from_sequence = envelope.header.sequence_number + 1
                yield envelope
            if len(packed) < events_max:
                return

    def blob(self, lsn: int, sha256: str) -> bytes:
        """See `LogReader`."""
        content: bytes = self._ask("blob", lsn=lsn, sha256=sha256)
        return content

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._connection.close()


class LocalSource:
    """A log that nobody owns, opened here; given up soon after somebody asks for it."""

    def __init__(self, home: Home, log_id: uuid.UUID) -> None:
        self.log_id = log_id
        self._folder = home.log_folder(log_id)
        self._engine = open_engine(home, log_id=log_id, yielding=True)

    def hello(self, cursor: Cursor) -> None:
        """Prove the cursor; raises `CursorMismatch`."""
        self._engine.check_cursor(cursor)

    def start(self) -> Cursor:
        """See `LogSource`."""
        position = self._engine.pruned_position
        return Cursor(position.lsn, position.hash)

    def _yield(self) -> None:
        if wanted(self._folder):
            raise Locked(f"another process wants the log {self.log_id}")

    def durable_lsn(self) -> int:
        """See `LogSource`."""
        return self._engine.durable.value

    def read(self, after_lsn: int, events_max: int, bytes_max: int) -> list[LogEvent]:
        """See `LogSource`."""
        self._yield()
        opening_of = self._engine.openings.at
        return [
            LogEvent(envelope, tuple(contents), opening_of(envelope.lsn))
            for envelope, contents in serving.read_batch(self._engine, after_lsn, events_max, bytes_max)
        ]

    def wait(self, after_lsn: int, timeout_s: float) -> bool:
        """Nobody appends to an ownerless log, so this never waits."""
        self._yield()
        return self._engine.durable.value > after_lsn

    def acknowledge(self, lsn: int, digest: bytes, quarantined: Sequence[int] = ()) -> None:
        """See `LogSource`."""
        self._engine.acknowledge(lsn, digest, quarantined)

    def erase(self, trajectory_ids: Sequence[uuid.UUID]) -> ErasedHere:
        """See `LogSource`."""
        return self._engine.erase(trajectory_ids, self._yield)

    def erased(self) -> dict[uuid.UUID, bool]:
        """See `LogSource`."""
        return self._engine.erased()

    def status(self) -> dict[str, Any]:
        """See `LogReader`."""
        return {**serving.status_of(self._engine), "owned": False}

    def heads(self) -> list[Head]:
        """See `LogReader`."""
        return self._engine.all_heads()

    def envelopes(self, trajectory_id: uuid.UUID, from_sequence: int = 0) -> Iterator[Envelope]:
        """See `LogReader`."""
        return self._engine.envelopes(trajectory_id, from_sequence)

    def blob(self, lsn: int, sha256: str) -> bytes:
        """See `LogReader`."""
        return self._engine.content(lsn, sha256)

    def close(self) -> None:
        """Release the log."""
        self._engine.close()
