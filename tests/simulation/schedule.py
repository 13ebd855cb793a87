"""Who goes on next, and what goes wrong: one random step at a time, and at the end the way back to rest."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import psycopg

from stratalog.cold.consolidate import consolidate
from stratalog.schemas.errors import Conflict, Retryable, Unavailable
from stratalog.schemas.settings import ColdSettings
from stratalog.warm.quarantine import retry

from .disks import LogFolder
from .hosts import Host
from .sidecar import SimSidecar
from .takeover import LEASE_US, Takeover, renew
from .worker import Import, Worker
from .world import Process, World

IMPORTS = 4
STEP_US_MAX = 80_000
JUMP_US_MAX = 3_600_000_000
SETTLE_ROUNDS_MAX = 60
FROZEN_STEPS_MAX = 120
COLD = ColdSettings()


class Schedule:
    """Drives one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.choose = self.step
        world.postgres.processes = self._living
        world.hosts += [Host(world, name) for name in "ABC"[: world.profile.hosts]]
        self._imports = [Import.drawn(world, number) for number in range(IMPORTS)]
        self._database_users: list[Process] = []
        profile = world.profile
        restores = 2.0 if profile.restores else 0.0
        weighted: list[tuple[Callable[[], None], float]] = [
            (self._append, 3 if profile.imports_mostly else 40),
            (self._commit, 25),
            (self._follow, 20),
            (self._start, 12),
            (self._import, 40 if profile.imports_mostly else 5),
            (self._barriers, 4),
            (self._prune, 4),
            (self._close, 1),
            (self._take_over, profile.takeovers),
            (self._renew_lease, profile.takeovers / 4),
            (self._consolidate, profile.cold),
            (self._retry, 1),
            (self._kill, profile.kill),
            (self._lose_power, profile.kill / 2),
            (self._crash_postgres, profile.network / 2),
            (self._cut, profile.network),
            (self._freeze, profile.network),
            (self._jump, 1),
            (self._back_up, restores),
            (self._restore, restores / 2),
            (self._renew_log, 3),
        ]
        self._kinds = [kind for kind, weight in weighted if weight]
        self._weights: list[float] = []
        total = 0.0
        for _, weight in weighted:
            if weight:
                total += weight
                self._weights.append(total)

    def run(self) -> None:
        """The whole run; raises `Violation`, or whatever the product should not have raised."""
        for _ in range(self.world.profile.steps):
            self.step()
        self.settle()
        self.world.oracle.conclude()

    def step(self) -> None:
        """Somebody does something, or something happens to them."""
        world = self.world
        world.steps += 1
        world.clock.now_us += world.rng.randint(1, STEP_US_MAX)
        world.rng.choices(self._kinds, cum_weights=self._weights)[0]()

    def _living(self) -> list[Process]:
        self._database_users = [process for process in self._database_users if process.alive]
        return [process for host in self.world.hosts for process in host.processes()] + self._database_users

    # --- picking -----------------------------------------------------------------------------------------------------

    def _host(self) -> Host:
        return self.world.rng.choice(self.world.hosts)

    def _folder(self) -> tuple[Host, LogFolder]:
        host = self._host()
        return host, self.world.rng.choice(host.folders)

    def _worker(self, thread: str, *blocking: str) -> Worker | None:
        """A worker that has its log open, and neither this thread nor those that block it on the stack."""
        host, folder = self._folder()
        worker = host.owner(folder)
        if worker is None or worker.is_frozen() or not worker.threads.isdisjoint((thread, *blocking)):
            return None
        return worker

    def _act(self, worker: Worker | None, thread: str, work: Callable[[Worker], None]) -> None:
        if worker is not None:
            self.world.act(worker, thread, lambda: work(worker))

    # --- what processes do -------------------------------------------------------------------------------------------

    def _start(self) -> None:
        host, folder = self._folder()
        sidecar = host.sidecar
        if sidecar is None or not sidecar.alive:
            host.sidecar = SimSidecar(self.world, host)
        worker = host.workers[folder]
        if worker is None or not worker.alive:
            worker = host.workers[folder] = Worker(self.world, host, folder)
        if worker.engine is None and not worker.threads and not worker.is_frozen():
            self.world.act(worker, "main", worker.open)

    def _append(self) -> None:
        self._act(self._worker("agent"), "agent", Worker.append)

    def _import(self) -> None:
        source = self.world.rng.choice(self._imports)
        self._act(self._worker("import"), "import", lambda worker: worker.import_some(source))

    def _commit(self) -> None:
        self._act(self._worker("commit", "prune", "main"), "commit", Worker.commit)

    def _prune(self) -> None:
        self._act(self._worker("prune", "commit", "main"), "prune", Worker.prune)

    def _close(self) -> None:
        worker = self._worker("main")
        if worker is None or worker.threads:
            return
        sidecar = worker.home_of.sidecar
        if sidecar is None or not sidecar.threads:  # whom it serves goes on below us on the stack
            self._act(worker, "main", Worker.close)

    def _barriers(self) -> None:
        self._act(self._worker("barrier"), "barrier", Worker.look_at_barriers)

    def _follow(self) -> None:
        host, folder = self._folder()
        sidecar = host.sidecar
        # Each log has a thread of its own; what a thread is in the middle of goes on below us on the stack.
        if sidecar is not None and sidecar.alive and not sidecar.is_frozen() and folder.name not in sidecar.threads:
            self.world.act(sidecar, folder.name, lambda: sidecar.follow(folder))

    # --- leases ------------------------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        worker = self._worker("claim")
        if worker is None:
            return
        if worker.takeover is None or worker.takeover.done:
            worker.takeover = self._wanted(worker)
        takeover = worker.takeover
        # Mostly several steps at once: a holder that dies half way is the exception.
        for _ in range(self.world.rng.choice((1, 3, 6))):
            if takeover is None or takeover.done or not worker.alive:
                return
            self._act(worker, "claim", lambda _: takeover.go_on())

    def _wanted(self, worker: Worker) -> Takeover | None:
        """A trajectory that lies in another log, or came back from one."""
        host, folder = self._folder()
        other = host.workers[folder]
        if folder is worker.folder or other is None:
            return None
        heads = self.world.postgres.tables["head"]
        known = [id_ for id_ in other.held if id_ in heads]
        return Takeover(worker, self.world.rng.choice(known), folder) if known else None

    def _renew_lease(self) -> None:
        worker = self._worker("lease")
        if worker is not None and worker.held:
            id_ = self.world.rng.choice(worker.held)
            self._act(worker, "lease", lambda worker: self._in_database(worker, id_, renew, worker.folder.log_id))

    def _in_database(self, process: Process, id_: Any, handler: Any, log_id: Any) -> None:
        try:
            connection = self.world.postgres.connect(process)
            with connection.transaction():
                connection.execute(handler, {"id": id_, "log_id": log_id})
            connection.close()
        except (Unavailable, psycopg.OperationalError):
            return

    # --- people and the nightly run ----------------------------------------------------------------------------------

    def _operator(self, name: str) -> Process | None:
        """A process beside the hosts, unless two of its kind are at it already."""
        running = [process for process in self._living() if process.name.startswith(name)]
        if len(running) > 1:
            return None
        process = Process(self.world, f"{name} {len(running) + 1}")
        self._database_users.append(process)
        return process

    def _consolidate(self) -> None:
        process = self._operator("consolidation")
        if process is None:
            return

        def work() -> None:
            try:
                done = consolidate_all(self.world, process)
                self.world.tell(process.name, f"moved {done.events} events in {done.files} files")
                for problem in done.problems:
                    if "quarantine" not in problem:
                        self.world.fail(f"consolidation found damage: {problem}")
            except (Retryable, Conflict) as error:
                self.world.tell(process.name, f"stops: {error.message}")

        self.world.act(process, "main", work)
        process.die()

    def _retry(self) -> None:
        process = self._operator("operator")
        if process is None:
            return

        def work() -> None:
            try:
                connection: Any = self.world.postgres.connect(process)
                done = retry(connection)
                if done != type(done)():
                    self.world.tell(process.name, f"offers what is in quarantine again: {done}")
            except (Retryable, Conflict) as error:
                self.world.tell(process.name, f"stops: {error.message}")

        self.world.act(process, "main", work)
        process.die()

    def _renew_log(self) -> None:
        """`stratalog doctor --renew-logs`, where the sidecar has refused a log."""
        host, folder = self._folder()
        worker = host.workers[folder]
        if not folder.refused or folder.owner is not None or (worker is not None and worker.alive):
            if folder.refused and worker is not None and worker.alive and not worker.threads and worker.engine:
                self._act(worker, "main", Worker.close)
            return
        folder.renew()
        self.world.tell(folder.name, "is given a new id")

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        living = self._living()
        if living:
            process = self.world.rng.choice(living)
            self.world.tell(process.name, "is killed")
            self.world.kill(process)

    def _lose_power(self) -> None:
        host = self._host()
        self.world.tell(f"host {host.name}", "loses power")
        host.lose_power()

    def _crash_postgres(self) -> None:
        postgres = self.world.postgres
        if postgres.up:
            self.world.crashes += 1
            self.world.tell("Postgres", "crashes")
            postgres.stop()
        if not postgres.up and self.world.rng.random() < 0.7:
            postgres.start(LEASE_US)

    def _cut(self) -> None:
        host = self._host()
        host.cut = not host.cut
        if not self.world.postgres.up:
            self.world.postgres.start(LEASE_US)
        self.world.tell(f"host {host.name}", "is cut off" if host.cut else "is connected again")

    def _freeze(self) -> None:
        living = self._living()
        if living:
            process = self.world.rng.choice(living)
            process.frozen_until = self.world.steps + self.world.rng.randint(1, FROZEN_STEPS_MAX)
            self.world.tell(process.name, f"is frozen until step {process.frozen_until}")

    def _jump(self) -> None:
        host = self._host()
        host.clock_offset_us = self.world.rng.randint(-JUMP_US_MAX, JUMP_US_MAX)
        self.world.tell(f"host {host.name}", f"has its clock set by {host.clock_offset_us} us")

    def _back_up(self) -> None:
        _, folder = self._folder()
        folder.back_up()

    def _restore(self) -> None:
        host, folder = self._folder()
        if folder.copy is not None:
            self.world.tell(folder.name, "is replaced by an older copy")
            host.lose_power()
            folder.restore()

    # --- the end -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Heal everything, and let everybody work until nothing is left to do."""
        world = self.world
        world.tell("world", "heals")
        world.calm = True
        if not world.postgres.up:
            world.postgres.start(0)
        world.postgres.no_claims_before_us = 0
        for host in world.hosts:
            host.cut = False
        for process in self._living():
            process.frozen_until = 0
        for _ in range(SETTLE_ROUNDS_MAX):
            self._round()
            if all(self._at_rest(host, folder) for host in world.hosts for folder in host.folders):
                break
        else:
            world.fail("the logs are not replicated though nothing is in the way")
        world.oracle.healed()
        self._retry()
        self._settle_cold()

    def _round(self) -> None:
        for host in self.world.hosts:
            if host.sidecar is None or not host.sidecar.alive:
                host.sidecar = SimSidecar(self.world, host)
            for folder in host.folders:
                self._round_of(host, folder, host.sidecar)

    def _round_of(self, host: Host, folder: LogFolder, sidecar: SimSidecar) -> None:
        world = self.world
        worker = host.workers[folder]
        if folder.refused:
            if worker is not None and worker.alive:
                world.act(worker, "main", worker.close)
                worker.alive = False
            if folder.owner is None:
                folder.renew()
                world.tell(folder.name, "is given a new id")
        if worker is None or not worker.alive:
            worker = host.workers[folder] = Worker(world, host, folder)
        if worker.engine is None:
            world.act(worker, "main", worker.open)
        while worker.engine is not None and worker.engine.step():
            pass
        world.act(sidecar, folder.name, lambda: sidecar.follow(folder))
        world.act(worker, "barrier", worker.look_at_barriers)
        world.act(worker, "prune", worker.prune)

    def _at_rest(self, host: Host, folder: LogFolder) -> bool:
        worker = host.owner(folder)
        if worker is None or worker.engine is None or folder.refused:
            return False
        return self.world.oracle.cursors.get(folder.log_id, 0) >= worker.engine.durable.value

    def _settle_cold(self) -> None:
        self.world.clock.now_us += 10 * 366 * 86_400 * 1_000_000
        self._consolidate()


def consolidate_all(world: World, process: Process) -> Any:
    """The product's consolidation of everything that has ended."""
    connect: Any = lambda: world.postgres.connect(process)  # noqa: E731
    now: dt.datetime = world.clock.now()
    places: tuple[Any, Any, Any] = world.lake, world.catalog, world.contents
    return consolidate(connect, *places, COLD, "0d", now)
