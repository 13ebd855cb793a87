"""One simulated run: a seed, the processes, and who goes on next.

Nothing here has threads. Product code runs as it is; wherever it touches the world (a write, a sync, a statement, a
COMMIT, a request, an upload) it comes to `point`. There the seed decides: it goes on; its process dies on the spot; or
others go first, *within* this call, as many steps as the seed says. That is how two processes, or two threads of one,
interleave: the one that waits lies lower on the stack. A process that was killed meanwhile is unwound by `Killed` as
soon as it would go on, and everything that it held in the world (connections, locks) was released when it died.
"""

from __future__ import annotations

import hashlib
import random
import uuid
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .clock import SimClock
from .cold import SimCatalog, SimContents, SimLake
from .oracle import Oracle
from .postgres import SimPostgres
from .profile import Profile

if TYPE_CHECKING:
    from .hosts import Host
    from .postgres import SimConnection

TRACE_LINES = 60
DEPTH_MAX = 3


class Killed(BaseException):
    """Unwinds a process that was killed; not an Exception, so that no code on the way may handle it."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.name)
        self.process = process


class Violation(BaseException):
    """An invariant does not hold; like `Killed`, nothing on the way may handle it."""


class Process:
    """Something that can be killed. `threads` holds the names of its threads that are on the stack."""

    def __init__(self, world: World, name: str, host: Host | None = None) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.alive = True
        self.frozen_until = 0
        self.threads: set[str] = set()
        self.connections: list[SimConnection] = []

    def reachable(self) -> bool:
        """Whether its packets arrive."""
        return self.host is None or not self.host.cut

    def is_frozen(self) -> bool:
        """Whether it is stopped (SIGSTOP, a paused virtual machine) and does not know it."""
        return self.frozen_until > self.world.steps

    def die(self) -> None:
        """What the world notices at once when the process ends, however it ends."""
        self.alive = False
        for connection in self.connections:
            connection.abandon()
        self.connections.clear()
        for folder in self.host.folders if self.host is not None else ():
            if folder.owner is self:
                folder.owner = None


class World:
    """A run; see the module. `bug` is the name of a planted one, which others must have installed."""

    def __init__(self, seed: int, bug: str = "") -> None:
        self.seed = seed
        self.bug = bug
        self.rng = random.Random(seed)
        self.profile = Profile.drawn(self.rng)
        self.clock = SimClock()
        self.oracle = Oracle(self)
        self.postgres = SimPostgres(self)
        self.lake = SimLake(self)
        self.catalog = SimCatalog(self)
        self.contents = SimContents(self)
        self.hosts: list[Host] = []
        self.crashes = 0
        self.steps = 0
        self.calm = False
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self.on_line: Callable[[str], None] | None = None
        self._stack: list[tuple[Process, str]] = []
        self._digest = hashlib.blake2b(digest_size=16)
        self._ids = 0
        self.choose: Callable[[], None] = lambda: None
        """Takes one step of somebody; set by the scheduler."""

    # --- what the seed decides ---------------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        """True in `share` of the cases; never while the world is calm."""
        return not self.calm and share > 0 and self.rng.random() < share

    def new_uuid(self) -> uuid.UUID:
        """A random id."""
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)

    def new_trajectory_id(self) -> uuid.UUID:
        """A UUIDv7 that starts now."""
        value = (self.clock.now_us // 1000) << 80 | self.rng.getrandbits(80)
        value &= ~(0xF << 76) & ~(0x3 << 62)
        return uuid.UUID(int=value | (0x7 << 76) | (0x2 << 62))

    def bytes(self, count: int) -> bytes:
        """Random bytes."""
        return self.rng.getrandbits(8 * count).to_bytes(count, "big")

    # --- telling -----------------------------------------------------------------------------------------------------

    def tell(self, who: str, what: str) -> None:
        """Add a line to the trace, and to its digest."""
        line = f"{self.steps:>5} {'  ' * max(0, len(self._stack) - 1)}{who}: {what}"
        self._digest.update(line.encode())
        self.trace.append(line)
        if self.on_line is not None:
            self.on_line(line)

    def digest(self) -> str:
        """A hash of the whole trace so far."""
        return self._digest.hexdigest()

    def fail(self, what: str) -> None:
        """Raise a violation."""
        raise Violation(what)

    # --- running -----------------------------------------------------------------------------------------------------

    def act(self, process: Process, thread: str, work: Callable[[], Any]) -> None:
        """Let a thread of a process do something; returns when it is done or its process is dead."""
        process.threads.add(thread)
        self._stack.append((process, thread))
        try:
            work()
        except Killed as killed:
            if killed.process is not process:
                raise
        finally:
            self._stack.pop()
            process.threads.discard(thread)

    @property
    def running(self) -> Process:
        """The process whose code runs now."""
        return self._stack[-1][0]

    def point(self, what: str, *, others: bool = True) -> None:
        """A place where anything can happen to the running process, and to the others while it waits."""
        if self.calm:
            return
        process = self._stack[-1][0]
        self._unwind_if_dead(process)
        profile = self.profile
        drawn = self.rng.random()
        if drawn < profile.kill_at_point:
            self.tell(process.name, f"killed at: {what}")
            self.kill(process)
        elif others and drawn < profile.kill_at_point + profile.others_at_point and len(self._stack) < DEPTH_MAX:
            count = self.rng.choice((1, 1, 2, 3, 5, 12))
            self.tell(process.name, f"waits at: {what}")
            for _ in range(count):
                self.choose()
        self._unwind_if_dead(process)

    def _unwind_if_dead(self, process: Process) -> None:
        if not process.alive:
            raise Killed(process)

    def kill(self, process: Process) -> None:
        """kill -9."""
        if process.alive:
            self.crashes += 1
            process.die()
