"""The folder of one hot log on a simulated disk: the database, HEAD, REPLICATED and log.json, and who owns it.

A kill leaves all that was written; a power loss takes what was not synced, but for some first batches. What is durable
is followed here by reading the disk itself (`durable`), so that no claim of the code under test is taken on trust.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.hot import keys
from stratalog.hot.home import LogFile
from stratalog.hot.marks import MarkFile
from stratalog.hot.sim import Operation, SimDisk, SimStore
from stratalog.schemas.envelope import decode_record
from stratalog.schemas.protocols import Put

if TYPE_CHECKING:
    from .world import Process, World

COMPACT_BATCHES = 60
Copy = tuple[list[tuple[Operation, ...]], dict[str, bytes], uuid.UUID, str]


class SimMark(MarkFile):
    """HEAD or REPLICATED on the simulated disk."""

    def __init__(self, folder: LogFolder, name: str) -> None:
        super().__init__(Path(name), str(folder.log_id))
        self._folder = folder

    def _load(self) -> bytes:
        return self._folder.written.get(self.path.name, b"")

    def _save(self, content: bytes, *, durable: bool) -> None:
        folder, name = self._folder, self.path.name
        folder.world.point(f"write {name}", others=False)
        folder.written[name] = content
        if durable:
            folder.world.point(f"sync {name}", others=False)
            folder.synced[name] = content

    def forget_drafts(self) -> None:
        """There are none."""


class LogFolder:
    """One log; `owner` is the process that has it open."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.log_id = world.new_uuid()
        self.previous_log_id = ""
        self.disk = SimDisk(self._fault)
        self.written: dict[str, bytes] = {}
        self.synced: dict[str, bytes] = {}
        self.owner: Process | None = None
        self.wanted = False
        self.broken = False
        """An operation has failed; what was not synced may be gone although the power stayed on."""
        self.refused = False
        """The sidecar says that this is not the log that was replicated."""
        self.restored = False
        """An older copy has taken the place of this log, and it has not been given a new id since."""
        self.acked: dict[bytes, int] = {}
        """Hash to LSN of what was acknowledged and may not be in Postgres yet."""
        self.acknowledged = 0
        """Up to which LSN this log was told that Postgres has it."""
        self.copy: Copy | None = None
        self.durable: dict[int, bytes] = {}
        """LSN to hash of the events that are on the device now."""
        self._followed = 0

    def file(self) -> LogFile:
        """The content of log.json."""
        return LogFile(str(self.log_id), previous_log_id=self.previous_log_id)

    def marks(self) -> tuple[MarkFile, MarkFile]:
        """HEAD and REPLICATED."""
        return SimMark(self, "HEAD"), SimMark(self, "REPLICATED")

    def _fault(self, step: str) -> None:
        self.world.point(f"{step} {self.name}")
        if self.world.chance(self.world.profile.io_error):
            self.broken = True
            self.world.tell(self.name, f"EIO at {step}")
            raise OSError(5, "Input/output error")

    def open_store(self) -> SimStore:
        """The database, for its owner."""
        disk = self.disk
        if self.broken:
            disk.crash(self.world.rng.randint(0, len(disk.batches) - disk.synced))
            self.broken = False
        store = SimStore(disk)
        if len(disk.batches) > COMPACT_BATCHES:
            self._follow()
            values = store._values
            disk.batches[:] = [
                tuple(Put(space, key, value) for space, pairs in values.items() for key, value in pairs.items())
            ]
            disk.synced = self._followed = 1
        return store

    def lose_power(self) -> None:
        """What was not synced may be gone: the first batches survive, of HEAD the old, the new or nothing."""
        disk, rng = self.disk, self.world.rng
        disk.crash(rng.randint(0, len(disk.batches) - disk.synced))
        for name, content in self.written.items():
            if content != self.synced.get(name):
                left = rng.choice((content, self.synced.get(name, b""), b""))
                self.written[name] = self.synced[name] = left
                if not left:
                    self.synced.pop(name)

    # --- copies ------------------------------------------------------------------------------------------------------

    def back_up(self) -> None:
        """Keep a copy of the folder as it is on the device."""
        self.copy = self.disk.batches[: self.disk.synced], dict(self.synced), self.log_id, self.previous_log_id

    def restore(self) -> None:
        """Put the copy in the folder's place."""
        assert self.copy is not None
        batches, files, self.log_id, self.previous_log_id = self.copy
        self.disk.batches[:] = batches
        self.disk.synced = len(batches)
        self.written, self.synced = dict(files), dict(files)
        self.broken = self.refused = False
        self.durable, self._followed, self.acknowledged = {}, 0, 0
        self.restored = True
        self.world.oracle.replaced(self)

    def renew(self) -> None:
        """A new id, as `hot.renewal` gives it."""
        if "REPLICATED" in self.written or not self.previous_log_id:
            self.previous_log_id = str(self.log_id)
        self.log_id = self.world.new_uuid()
        self.written, self.synced = {}, {}
        self.refused = self.restored = False
        self.acknowledged = 0

    # --- what is really there ----------------------------------------------------------------------------------------

    def durable_events(self) -> dict[int, bytes]:
        """LSN to hash of the events on the device."""
        self._follow()
        return self.durable

    def _follow(self) -> None:
        disk = self.disk
        for index in range(self._followed, disk.synced):
            for operation in disk.batches[index]:
                if isinstance(operation, Put):
                    if operation.space == "events":
                        lsn = keys.lsn_of(operation.key)
                        self.durable[lsn] = decode_record(lsn, operation.value).hash
                elif operation[0] == "events":
                    self._forget(keys.lsn_of(operation[1]), keys.lsn_of(operation[2]))
        self._followed = max(self._followed, disk.synced)

    def _forget(self, start: int, stop: int) -> None:
        for lsn in range(start, stop):
            digest = self.durable.pop(lsn, None)
            if digest is not None:
                self.world.oracle.pruned(self, lsn, digest)
