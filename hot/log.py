"""The hot log: durable appends, group commit, reads, prune. One process owns a log; any of its threads may use it.

An append returns after fdatasync. Nothing is ever read or replicated past the durable watermark: an event that was
written but not synced can be gone after a power loss, and its LSN given to another event. An exception from an append
does not mean that the event was not written: it is in doubt until the log is opened again.

    async with HotLog.open("./home") as log:
        trajectory_id = await log.start(tenant="default", task="say hello")
        receipt = await log.append(trajectory_id, ToolIntent(tool_call_id="1", tool="greet"))
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from stratalog.schemas import ids
from stratalog.schemas.chain import Link
from stratalog.schemas.codec import Event, decode_event
from stratalog.schemas.envelope import SECRET_BYTES, Envelope
from stratalog.schemas.errors import Fenced, Invalid, Unavailable
from stratalog.schemas.events import EventBody, TaskStarted

from . import keys
from .committer import ThreadWaiter
from .engine import Engine
from .erasure import ErasedHere
from .home import Home
from .intake import NO_NOTES, Addition
from .keys import Head
from .opening import open_engine
from .serving import TailServer
from .staging import NewEvent, Receipt, contents_of

__all__ = ["HotLog", "NewEvent", "Receipt"]

REPLICATED_TIMEOUT_S = 30.0
Barrier = str
"""`local` (fdatasync here) or `replicated` (also committed in Postgres, under this very hash)."""


def now_us() -> int:
    """µs since 1970."""
    return time.time_ns() // 1000


class _Forks:
    """How often this process was forked from one that knew of it: cheaper than to ask for the process id."""

    count = 0

    @classmethod
    def in_child(cls) -> None:
        cls.count += 1


os.register_at_fork(after_in_child=_Forks.in_child)


class HotLog:
    """A hot log; see the module. Create with `HotLog.open`, use as a context, synchronous or asynchronous."""

    def __init__(self, connect: Callable[[], tuple[Engine, TailServer | None]], clock: Callable[[], int]) -> None:
        self._connect = connect
        self._clock = clock
        self._engine: Engine | None = None
        self._server: TailServer | None = None
        self._forks = 0

    @classmethod
    def open(
        cls,
        home: str | os.PathLike[str] | Home,
        *,
        role: str = "worker",
        log_id: uuid.UUID | None = None,
        create: bool = True,
        accept_loss: bool = False,
        serve: bool = True,
        clock: Callable[[], int] = now_us,
    ) -> Self:
        """A log of `home`: the one with `log_id`, else a free one of this role, else a new one.

        Entering it raises `HomeMissing`, `Locked`, or `OpenRefused` where acknowledged events are gone
        (`accept_loss` then goes on with what is left, under a new log id).
        """

        def connect() -> tuple[Engine, TailServer | None]:
            opened = home if isinstance(home, Home) else Home.open(Path(home), create=create)
            engine = open_engine(opened, role=role, log_id=log_id, accept_loss=accept_loss)
            try:
                return engine, TailServer(engine, opened.socket_path(engine.log_id)) if serve else None
            except BaseException:
                engine.close()
                raise

        return cls(connect, clock)

    @classmethod
    def on(cls, engine: Engine, clock: Callable[[], int] = now_us) -> Self:
        """A log on an engine that is already open (for tests and the simulator)."""
        return cls(lambda: (engine, None), clock)

    def __enter__(self) -> Self:
        if self._engine is not None:
            raise Invalid("this log is already open", hint="open another one, or close it first")
        self._engine, self._server = self._connect()
        self._forks = _Forks.count
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        opening = asyncio.ensure_future(asyncio.to_thread(self.__enter__))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread cannot be stopped: a log that nobody will use must not stay open.
            opening.add_done_callback(self._close_unused)
            raise

    def _close_unused(self, opening: asyncio.Future[Self]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._engine is not None:
            self._engine.intake.stage_noted(asyncio.get_running_loop())  # what was appended before is committed
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Commit what is staged, stop serving, release the log. Harmless when already closed, and in a forked child."""
        server, engine = self._server, self._engine
        if self._forks != _Forks.count:
            return  # the parent's: its threads are not here, and its files are in use
        self._server = self._engine = None
        if server is not None:
            server.close()
        if engine is not None:
            engine.close()

    @property
    def engine(self) -> Engine:
        """The open engine; raises `Invalid` after close and in a forked child, whose threads do not exist."""
        engine = self._engine
        if engine is None:
            raise Invalid("this log is not open", hint="use it inside: with HotLog.open(home) as log")
        if self._forks != _Forks.count:
            raise Invalid("this log was opened before a fork", hint="open a log of its own in each process")
        return engine

    @property
    def log_id(self) -> uuid.UUID:
        """The id of this log."""
        return self.engine.log_id

    @property
    def durable_lsn(self) -> int:
        """The LSN up to which everything is on disk."""
        return self.engine.durable.value

    @property
    def replicated_lsn(self) -> int:
        """The LSN up to which Postgres has committed and compared."""
        return self.engine.replicated.value

    # --- appending ---------------------------------------------------------------------------------------------------

    async def start(
        self,
        *,
        tenant: str,
        task: str = "",
        body: TaskStarted | None = None,
        trajectory_id: uuid.UUID | None = None,
        secret: bytes | None = None,
        created_at: int | None = None,
        notes: Mapping[bytes, bytes] | None = None,
    ) -> uuid.UUID:
        """Start a trajectory with its TaskStarted event; returns its id once that is durable."""
        starting = self._starting(tenant, body or TaskStarted(task=task), trajectory_id, secret, created_at, notes)
        return (await self._staged(starting))[0].trajectory_id

    def start_blocking(
        self,
        *,
        tenant: str,
        task: str = "",
        body: TaskStarted | None = None,
        trajectory_id: uuid.UUID | None = None,
        secret: bytes | None = None,
        created_at: int | None = None,
        notes: Mapping[bytes, bytes] | None = None,
    ) -> uuid.UUID:
        """`start`, for threads."""
        starting = self._starting(tenant, body or TaskStarted(task=task), trajectory_id, secret, created_at, notes)
        return self._staged_blocking(starting)[0].trajectory_id

    async def append(
        self,
        trajectory_id: uuid.UUID,
        body: EventBody,
        blobs: Sequence[bytes] = (),
        barrier: Barrier = "local",
        *,
        created_at: int | None = None,
        timeout_s: float = REPLICATED_TIMEOUT_S,
    ) -> Receipt:
        """Append one event; returns when it is durable. Cancelling the call does not withdraw the event.

        With `barrier="replicated"` also waits for Postgres: raises `Fenced` where the event was quarantined there,
        `Unavailable` after `timeout_s` seconds (the event is durable here in both cases).
        """
        engine = self.engine
        event = NewEvent(body, created_at, contents_of(blobs) if blobs else ())
        (receipt,) = await engine.intake.note(Addition(trajectory_id, (event,)), self._clock())
        if barrier == "replicated":
            reached = await engine.replicated.reached(receipt.lsn, timeout_s)
            self._check_replicated(receipt, reached, timeout_s)
        return receipt

    def append_blocking(
        self,
        trajectory_id: uuid.UUID,
        body: EventBody,
        blobs: Sequence[bytes] = (),
        barrier: Barrier = "local",
        *,
        created_at: int | None = None,
        timeout_s: float = REPLICATED_TIMEOUT_S,
    ) -> Receipt:
        """`append`, for threads."""
        engine = self.engine
        event = NewEvent(body, created_at, contents_of(blobs) if blobs else ())
        (receipt,) = self._staged_blocking(Addition(trajectory_id, (event,)))
        if barrier == "replicated":
            reached = engine.replicated.wait(receipt.lsn, timeout_s)
            self._check_replicated(receipt, reached, timeout_s)
        return receipt

    async def append_many(
        self, trajectory_id: uuid.UUID, events: Sequence[NewEvent], *, notes: Mapping[bytes, bytes] | None = None
    ) -> list[Receipt]:
        """Append events of one trajectory, all or none; `notes` are small values committed with them."""
        return await self._staged(Addition(trajectory_id, events, notes or NO_NOTES))

    def append_many_blocking(
        self, trajectory_id: uuid.UUID, events: Sequence[NewEvent], *, notes: Mapping[bytes, bytes] | None = None
    ) -> list[Receipt]:
        """`append_many`, for threads."""
        return self._staged_blocking(Addition(trajectory_id, events, notes or NO_NOTES))

    async def resume(
        self, tenant: str, trajectory_id: uuid.UUID, after: Link, *, epoch: int, secret: bytes, body: EventBody
    ) -> Receipt:
        """Go on here with a trajectory that was elsewhere; `body` is the first event of its segment in this log."""
        head = partial(self.engine.stager.resume, tenant, trajectory_id, after, epoch, secret)
        return (await self._staged(Addition(head, (NewEvent(body),))))[0]

    def _starting(
        self,
        tenant: str,
        body: TaskStarted,
        trajectory_id: uuid.UUID | None,
        secret: bytes | None,
        created_at: int | None,
        notes: Mapping[bytes, bytes] | None,
    ) -> Addition:
        ids.check_tenant(tenant)
        identity = trajectory_id or ids.new_trajectory_id()
        key = secret or secrets.token_bytes(SECRET_BYTES)
        if len(key) != SECRET_BYTES:
            raise Invalid(f"a trajectory's secret has {SECRET_BYTES} bytes, not {len(key)}")
        head = partial(self.engine.stager.start, tenant, identity, key)
        return Addition(head, (NewEvent(body, created_at),), notes or NO_NOTES)

    async def _staged(self, addition: Addition) -> list[Receipt]:
        if not addition.events and not addition.notes:
            return []
        return await self.engine.intake.note(addition, self._clock())

    def _staged_blocking(self, addition: Addition) -> list[Receipt]:
        if not addition.events and not addition.notes:
            return []
        engine = self.engine
        waiter = ThreadWaiter()
        engine.intake.stage(addition, waiter, self._clock())
        receipts: list[Receipt] = engine.wait(waiter)
        return receipts

    def _check_replicated(self, receipt: Receipt, reached: bool, timeout_s: float) -> None:
        if self.engine.is_quarantined(receipt.lsn):
            raise Fenced(f"event {receipt.sequence_number} of {receipt.trajectory_id} was quarantined in Postgres")
        if not reached:
            raise Unavailable(
                f"event {receipt.sequence_number} of {receipt.trajectory_id} is durable here "
                f"but was not replicated within {timeout_s:g} s",
                hint="is the sidecar running, and Postgres reachable? see: stratalog status",
            )

    # --- reading -----------------------------------------------------------------------------------------------------

    def get(self, lsn: int) -> Event | None:
        """The event at an LSN; `None` beyond the durable watermark and where it was pruned."""
        envelope = self.engine.envelope(lsn)
        return None if envelope is None else decode_event(envelope)

    def read(self, trajectory_id: uuid.UUID, from_sequence: int = 0) -> Iterator[Event]:
        """The durable events of a trajectory that lie in this log, in order, from a sequence number on."""
        for envelope in self.envelopes(trajectory_id, from_sequence):
            yield decode_event(envelope)

    def envelopes(self, trajectory_id: uuid.UUID, from_sequence: int = 0) -> Iterator[Envelope]:
        """`read`, as stored."""
        return self.engine.envelopes(trajectory_id, from_sequence)

    def scan(self, from_lsn: int = 1) -> Iterator[tuple[int, Event]]:
        """(LSN, event) in the order of the log, up to the durable watermark at the time of the call."""
        for envelope in self.engine.scan(from_lsn):
            yield envelope.lsn, decode_event(envelope)

    def head(self, trajectory_id: uuid.UUID) -> Head | None:
        """The last event of a trajectory here (staged ones included), `None` where it is not in this log."""
        return self.engine.head(trajectory_id)

    def heads(self) -> list[Head]:
        """The heads of all trajectories in this log."""
        return self.engine.all_heads()

    def blob(self, lsn: int, sha256: str) -> bytes:
        """Content that the event at `lsn` refers to, verified; raises `NotFound` or `Corrupt`."""
        return self.engine.content(lsn, sha256)

    def note(self, key: bytes) -> bytes | None:
        """A small value that was committed with `notes`."""
        return self.engine.store.get("meta", keys.NOTE_PREFIX + key)

    # --- replication and pruning -------------------------------------------------------------------------------------

    def acknowledge(self, lsn: int, digest: bytes, quarantined: Sequence[int] = ()) -> None:
        """Postgres has committed everything up to `lsn`, compared by hash; lets prune go on."""
        self.engine.acknowledge(lsn, digest, quarantined)

    async def erase(self, trajectory_ids: Sequence[uuid.UUID]) -> ErasedHere:
        """Erase trajectories from this log, whether they are here or not; returns when no file of it has a byte of
        them. Their headers and hashes stay; nothing can be added to them any more (`Erased`).

        Takes seconds for each GB of the log, while appends of others go on. The same call goes on after a crash.
        """
        return await asyncio.to_thread(self.engine.erase, trajectory_ids)

    def erase_blocking(self, trajectory_ids: Sequence[uuid.UUID]) -> ErasedHere:
        """`erase`, for threads."""
        return self.engine.erase(trajectory_ids)

    def erased(self) -> dict[uuid.UUID, bool]:
        """The trajectories that were erased here or must not come here, and whether their bytes are gone."""
        return self.engine.erased()

    def prune(self) -> int:
        """Forget what is replicated and not needed; returns the LSN up to which the log is pruned."""
        return self.engine.prune()
