"""A machine: its logs, the workers that append to them, the sidecar that follows them, its clock and its network."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratalog.hot.engine import Engine
from stratalog.hot.home import LogFile
from stratalog.hot.log import HotLog
from stratalog.schemas.settings import HotSettings, Settings, WarmSettings

from .disks import LogFolder
from .world import Process, World

if TYPE_CHECKING:
    from .sidecar import SimSidecar
    from .worker import Worker

LOGS_PER_HOST = (1, 1, 2)


class Host:
    """One machine with one home."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.cut = False
        self.clock_offset_us = 0
        self.folders = [LogFolder(world, f"{name}{index}") for index in range(world.rng.choice(LOGS_PER_HOST))]
        self.workers: dict[LogFolder, Worker | None] = dict.fromkeys(self.folders)
        self.sidecar: SimSidecar | None = None
        profile = world.profile
        self.settings = Settings(
            hot=HotSettings(
                group_events_max=profile.group_events_max,
                prune_lag_events=profile.prune_lag_events,
                hot_bytes_max=profile.hot_bytes_max,
            ),
            warm=WarmSettings(batch_events_max=profile.batch_events_max),
        )

    def now_us(self) -> int:
        """This machine's idea of the time."""
        return self.world.clock.now_us + self.clock_offset_us

    def processes(self) -> list[Process]:
        """Those that live."""
        found: list[Process | None] = [*self.workers.values(), self.sidecar]
        return [process for process in found if process is not None and process.alive]

    def owner(self, folder: LogFolder) -> Worker | None:
        """The worker that has this log open and answers on its socket."""
        worker = self.workers[folder]
        return worker if worker is not None and worker.alive and worker.engine is not None else None

    def lose_power(self) -> None:
        """All processes end at once, and of the disks only what was synced is certain."""
        self.world.crashes += 1
        for process in self.processes():
            process.die()
        for folder in self.folders:
            folder.lose_power()


def open_engine(folder: LogFolder, host: Host) -> Engine:
    """Open a log for the running process; the caller has made sure that nobody owns it."""
    world = folder.world
    folder.owner = world.running
    world.point(f"open {folder.name}")
    engine = Engine(folder.log_id, folder.open_store(), host.settings.hot, marks=folder.marks(), threaded=False)
    world.oracle.opened(folder)
    return engine


def log_on(engine: Engine, host: Host) -> HotLog:
    """The public interface on an engine."""
    return HotLog.on(engine, host.now_us).__enter__()


class SimHome:
    """What the replicator asks of a home."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.settings = host.settings

    def logs(self) -> list[tuple[None, LogFile]]:
        return [(None, folder.file()) for folder in self._host.folders]

    def import_key(self, tenant: str) -> bytes:
        return bytes(32)

    def folder_of(self, log_id: uuid.UUID) -> LogFolder | None:
        return next((folder for folder in self._host.folders if folder.log_id == log_id), None)

    def socket_path(self, log_id: uuid.UUID) -> Any:
        folder = self.folder_of(log_id)
        return _SimPath(lambda: b"" if folder is not None and self._host.owner(folder) is not None else None)

    def log_folder(self, log_id: uuid.UUID) -> Any:
        return _SimFolder(self.folder_of(log_id))


class _SimFolder:
    def __init__(self, folder: LogFolder | None) -> None:
        self._folder = folder

    def __truediv__(self, name: str) -> _SimPath:
        folder = self._folder
        if folder is None:
            return _SimPath(lambda: None)
        if name == "db":
            return _SimPath(lambda: b"" if folder.disk.batches else None)
        return _SimPath(lambda: folder.written.get(name))


class _SimPath:
    def __init__(self, content: Callable[[], bytes | None]) -> None:
        self._content = content

    def exists(self) -> bool:
        return self._content() is not None

    def read_bytes(self) -> bytes:
        content = self._content()
        if content is None:
            raise FileNotFoundError(Path("simulated"))
        return content
