"""A process that appends to one log, on the product's engine: agents, imports, group commit, barriers, prune."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from stratalog.hot.engine import Engine
from stratalog.hot.intake import Addition
from stratalog.hot.keys import Head
from stratalog.hot.log import HotLog
from stratalog.hot.staging import NewEvent, Receipt, contents_of
from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.errors import Fenced, InDoubt, NotFound, StratalogError, Unavailable
from stratalog.schemas.events import (
    Annotation,
    Checkpoint,
    EventBody,
    Source,
    TaskFinished,
    TaskStarted,
    ToolResult,
    TrajectoryReopened,
)

from .disks import LogFolder
from .hosts import Host, log_on, open_engine
from .world import Process, World

if TYPE_CHECKING:
    from .takeover import Takeover

TENANTS = ("acme", "beta")
TRAJECTORIES_MAX = 5
BARRIER_PATIENCE_STEPS = 60


class Import(msgspec.Struct, frozen=True):
    """A source that any host may import: the same events, and so the same hashes, everywhere."""

    trajectory_id: uuid.UUID
    tenant: str
    secret: bytes
    bodies: tuple[EventBody, ...]
    started_at: int

    @classmethod
    def drawn(cls, world: World, number: int) -> Import:
        """A source of some events."""
        count = world.rng.choice((2, 3, 3, 8))
        first = TaskStarted(task=f"import {number}", source=Source(format="sim", run_id=str(number)))
        rest = [Annotation(name=f"import {number} event {index}") for index in range(1, count)]
        id_ = world.new_trajectory_id()
        world.oracle.imported.add(id_)
        return cls(id_, TENANTS[number % 2], world.bytes(32), (first, *rest), world.clock.now_us)


class SimWaiter:
    """Hears what becomes of an append."""

    def __init__(self, worker: Worker, label: str, then: Callable[[list[Receipt]], None] | None = None) -> None:
        self._worker, self._label, self._then = worker, label, then

    def released(self, result: list[Receipt]) -> None:
        world = self._worker.world
        world.oracle.acknowledge_append(self._worker.folder, result)
        if result:
            world.tell(self._worker.name, f"{self._label} is durable at LSN {result[-1].lsn}")
        if self._then is not None:
            self._then(result)

    def failed(self, error: StratalogError) -> None:
        self._worker.world.tell(self._worker.name, f"{self._label} is in doubt")


class Worker(Process):
    """See the module; `held` are the trajectories that its agents work on."""

    def __init__(self, world: World, host: Host, folder: LogFolder) -> None:
        super().__init__(world, f"worker {folder.name}", host)
        self.home_of = host
        self.folder = folder
        self.engine: Engine | None = None
        self.log: HotLog | None = None
        self.held: list[uuid.UUID] = []
        self.takeover: Takeover | None = None
        self._barriers: list[tuple[Receipt, int]] = []
        self._number = 0

    def die(self) -> None:
        super().die()
        self.engine = self.log = None

    def _exit(self, error: StratalogError) -> None:
        """The log has failed; whoever supervises this process will start another one."""
        self.world.tell(self.name, f"exits: {error.message}")
        if not self.folder.broken:
            self.world.fail(f"{self.folder.name} failed on a disk that works: {error.message}")
        self.die()
        self.world.point("exit")

    def open(self) -> None:
        """Open the log and take up what is in it."""
        if self.folder.owner is not None:
            self.folder.wanted = True
            return
        try:
            engine = open_engine(self.folder, self.home_of)
        except InDoubt as error:
            self._exit(error)
            return
        self.folder.wanted = False
        self.engine, self.log = engine, log_on(engine, self.home_of)
        heads = [head for head in engine.all_heads() if not (head.ended or head.imported)]
        self.held = [head.trajectory_id for head in heads]
        self.world.tell(self.name, f"opens at LSN {engine.durable.value}, pruned to {engine.pruned_lsn}")

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(self) -> None:
        """An agent appends something to a trajectory of its own, or starts one."""
        rng, profile = self.world.rng, self.world.profile
        engine = self.engine
        if engine is None:
            return
        self._number += 1
        if len(self.held) < TRAJECTORIES_MAX and (not self.held or rng.random() < 0.1):
            self._start(engine)
            return
        id_ = rng.choice(self.held)
        bodies, blobs = self._bodies(rng.random() < profile.finish)
        wants_barrier = self.world.chance(profile.replicated)

        def then(receipts: list[Receipt]) -> None:
            if wants_barrier:
                self._barriers.append((receipts[-1], self.world.steps))

        self.stage(lambda: engine.stager.known(id_), bodies, blobs, f"event {self._number}", then)

    def _start(self, engine: Engine) -> None:
        id_, secret = self.world.new_trajectory_id(), self.world.bytes(32)
        tenant = self.world.rng.choice(TENANTS)
        body = TaskStarted(task=f"task {self._number}")
        self.stage(lambda: engine.stager.start(tenant, id_, secret), [body], (), f"start {self._number}", None)
        self.held.append(id_)

    def _bodies(self, finish: bool) -> tuple[list[EventBody], tuple[bytes, ...]]:
        """What an agent appends at once: mostly one event, sometimes several, one with bulky output, or the end."""
        rng = self.world.rng
        name = f"{self.name} {self.folder.log_id.hex[:6]} {self._number} {self.world.steps}"
        if finish:
            bodies: list[EventBody] = [TaskFinished(status="completed", reason=name)]
            if rng.random() < 0.2:
                bodies.append(TrajectoryReopened(reason=name))
            return bodies, ()
        drawn = rng.random()
        if drawn < 0.15:
            content = name.encode() * rng.choice((1, 1, 5))
            output = Blob(BlobRef.of(content))
            return [ToolResult(tool_call_id=name, status="ok", output=output)], (content,)
        if drawn < 0.25:
            return [Checkpoint(covers=0, reason=name)], ()
        return [Annotation(name=f"{name} {index}") for index in range(rng.choice((1, 1, 1, 2, 3)))], ()

    def stage(
        self,
        head: Callable[[], Head],
        bodies: Sequence[EventBody],
        blobs: tuple[bytes, ...],
        label: str,
        then: Callable[[list[Receipt]], None] | None,
        created_at: int | None = None,
    ) -> None:
        """As `HotLog` does it; who waits is told by the commit."""
        engine = self.engine
        assert engine is not None
        events = [
            NewEvent(body, created_at, contents_of(blobs if index == 0 else ())) for index, body in enumerate(bodies)
        ]
        try:
            engine.intake.stage(Addition(head, events), SimWaiter(self, label, then), self.home_of.now_us())
        except InDoubt as error:
            self._exit(error)
            return
        self.world.tell(self.name, f"stages {label}")

    def import_some(self, source: Import) -> None:
        """Go on with an import where this log stands."""
        engine = self.engine
        if engine is None:
            return
        head = engine.head(source.trajectory_id)
        done = 0 if head is None else head.sequence_number + 1
        bodies = source.bodies[done : done + self.world.rng.randint(1, 3)]

        def place() -> Head:
            try:
                return engine.stager.known(source.trajectory_id)
            except NotFound:
                return engine.stager.start(source.tenant, source.trajectory_id, source.secret)

        if bodies:
            self.stage(place, bodies, (), f"import from {done}", None, source.started_at)

    # --- the engine's other threads ----------------------------------------------------------------------------------

    def commit(self) -> None:
        """The commit thread takes one group."""
        engine = self.engine
        if engine is not None and not engine.step():
            self._look_for_failure(engine)

    def _look_for_failure(self, engine: Engine) -> None:
        failure = engine._committer.failure
        if failure is not None:
            self._exit(failure)

    def prune(self) -> None:
        """Forget what is replicated."""
        engine = self.engine
        if engine is None:
            return
        before = engine.pruned_lsn
        try:
            after = engine.prune()
        except InDoubt as error:
            self._exit(error)
            return
        if after != before:
            self.world.tell(self.name, f"pruned to LSN {after}")

    def close(self) -> None:
        """Stop in order."""
        engine = self.engine
        if engine is None:
            return
        self.engine = self.log = None
        engine.close()
        self.world.tell(self.name, f"closed at LSN {engine.durable.value}")
        if self.alive:
            self.die()

    def look_at_barriers(self) -> None:
        """Answer who waits for Postgres, as `HotLog.append(barrier="replicated")` does."""
        waiting, self._barriers = self._barriers, []
        for receipt, since in waiting:
            engine, log = self.engine, self.log
            if engine is None or log is None:
                return
            try:
                log._check_replicated(receipt, engine.replicated.value >= receipt.lsn, 30.0)
            except Fenced:
                self.world.tell(self.name, f"the barrier of LSN {receipt.lsn} says: fenced")
                if receipt.trajectory_id in self.held:
                    self.held.remove(receipt.trajectory_id)
            except Unavailable:
                if self.world.steps - since < BARRIER_PATIENCE_STEPS:
                    self._barriers.append((receipt, since))
            else:
                self.world.oracle.barrier_passed(receipt)
