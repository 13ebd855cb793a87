"""The invariants, checked from what the disks, the database and the lake really hold, never from what the code says.

Every check fails the run by `Violation`. Hashes identify events: an event that was acknowledged must be found by its
hash for as long as the run lasts, on its disk or in Postgres.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stratalog.cold.readback import BlobCheck, check_files
from stratalog.cold.segments import Problem
from stratalog.hot.source import LogEvent
from stratalog.hot.staging import Receipt
from stratalog.schemas import ids
from stratalog.schemas.blobs import references
from stratalog.schemas.envelope import GENESIS_HASH, Header, hash_header
from stratalog.warm.admission import Seal

if TYPE_CHECKING:
    from .disks import LogFolder
    from .postgres import Transaction
    from .world import World

Place = tuple[uuid.UUID, int]


class Oracle:
    """What is known for sure."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.acked: dict[bytes, str] = {}
        self.excused: set[bytes] = set()
        """Acknowledged, but then the home was replaced by an older copy before anybody had replicated them."""
        self.delivered: dict[uuid.UUID, dict[int, bytes]] = {}
        self.origins: dict[bytes, set[uuid.UUID]] = {}
        self.replicated: dict[uuid.UUID, dict[int, bytes]] = {}
        self.cursors: dict[uuid.UUID, int] = {}
        self.canonical: dict[Place, bytes] = {}
        self.canonical_hashes: set[bytes] = set()
        self.quarantined: dict[bytes, int] = {}
        """Hash to how many rows of the quarantine hold the event."""
        self.seals: dict[uuid.UUID, list[Seal]] = {}
        self.imported: set[uuid.UUID] = set()
        self.cold: dict[Place, str] = {}
        self.rows_of_file: dict[str, int] = {}
        self._runs: set[str] = set()
        self.checks = 0

    def in_warm(self, digest: bytes) -> bool:
        """Whether Postgres has committed an event, as history or in quarantine."""
        return digest in self.canonical_hashes or digest in self.quarantined

    def _fail(self, what: str) -> None:
        self._world.fail(what)

    # --- hot ---------------------------------------------------------------------------------------------------------

    def acknowledge_append(self, folder: LogFolder, receipts: Sequence[Receipt]) -> None:
        """Somebody was told that these events are durable."""
        on_device = folder.durable_events()
        replicated = self.replicated.get(folder.log_id, {})
        for receipt in receipts:
            if on_device.get(receipt.lsn) != receipt.hash:
                self._fail(f"LSN {receipt.lsn} of {folder.name} was acknowledged but is not on the device")
            if not folder.restored and replicated.get(receipt.lsn, receipt.hash) != receipt.hash:
                self._fail(f"LSN {receipt.lsn} of {folder.name} was replicated for another event")
            self.acked[receipt.hash] = folder.name
            folder.acked[receipt.hash] = receipt.lsn

    def opened(self, folder: LogFolder) -> None:
        """A log was opened: everything acknowledged must be there or in Postgres."""
        on_device = folder.durable_events()
        for digest, lsn in list(folder.acked.items()):
            if self.in_warm(digest):
                del folder.acked[digest]
            elif on_device.get(lsn) != digest:
                self._fail(f"LSN {lsn} of {folder.name} was acknowledged and is gone")

    def replaced(self, folder: LogFolder) -> None:
        """A log was replaced by an older copy: what only the newer one held is lost, and nobody promised otherwise."""
        on_device = folder.durable_events()
        for digest, lsn in list(folder.acked.items()):
            if on_device.get(lsn) != digest:
                del folder.acked[digest]
                if not self.in_warm(digest):
                    self.excused.add(digest)

    def pruned(self, folder: LogFolder, lsn: int, digest: bytes) -> None:
        """An event was removed from a disk."""
        if not self.in_warm(digest):
            self._fail(f"LSN {lsn} of {folder.name} was pruned, but Postgres does not have it")

    # --- on the way --------------------------------------------------------------------------------------------------

    def deliver(self, folder: LogFolder, events: Sequence[LogEvent]) -> None:
        """A sidecar was given these events."""
        on_device = folder.durable_events()
        delivered = self.delivered.setdefault(folder.log_id, {})
        replicated = self.replicated.get(folder.log_id, {})
        for event in events:
            lsn, digest = event.envelope.lsn, event.envelope.hash
            if on_device.get(lsn) != digest:
                self._fail(f"LSN {lsn} of {folder.name} was read before it was on the device")
            if replicated.get(lsn, digest) != digest:
                self._fail(f"LSN {lsn} of {folder.name} means two events")
            delivered[lsn] = digest
            self.origins.setdefault(digest, set()).add(folder.log_id)

    def acknowledge_log(self, folder: LogFolder, lsn: int) -> None:
        """A log was told that Postgres has everything up to `lsn`."""
        for at, digest in folder.durable_events().items():
            if folder.acknowledged < at <= lsn and not self.in_warm(digest):
                self._fail(f"{folder.name} was told that LSN {lsn} is in Postgres, but LSN {at} is not")
        folder.acknowledged = max(folder.acknowledged, lsn)

    def barrier_passed(self, receipt: Receipt) -> None:
        """A `replicated` barrier was answered with success."""
        if receipt.hash not in self.canonical_hashes:
            self._fail(f"the replicated barrier passed for LSN {receipt.lsn}, which is not in the canonical history")

    # --- warm --------------------------------------------------------------------------------------------------------

    def sealed(self, trajectory_id: uuid.UUID, seal: Seal) -> None:
        """A takeover is complete: from here on only its token may add to the history."""
        self.seals.setdefault(trajectory_id, []).append(seal)

    def inherited(self, log_id: uuid.UUID, lsn: int) -> None:
        """A renewed log begins at an LSN that its old id has replicated."""
        self.cursors[log_id] = lsn

    def committing(self, transaction: Transaction) -> None:
        """A transaction becomes visible."""
        self.checks += 1
        wrote = transaction.wrote
        for place in sorted(wrote.get("event", ())):
            self._admit(place, wrote["event"][place])
        for row in wrote.get("quarantine", {}).values():
            digest = hash_header(row["header"])
            self.quarantined[digest] = self.quarantined.get(digest, 0) + 1
        for id_, head in wrote.get("head", {}).items():
            if head is not None:
                self._check_head(id_, head)
        if not transaction.after_commit:
            for log_id, (lsn, digest, _) in wrote.get("cursor", {}).items():
                self._move_cursor(log_id, lsn, digest)

    def _admit(self, place: Place, row: dict[str, Any]) -> None:
        id_, sequence = place
        if place in self.canonical:
            self._fail(f"event {sequence} of {id_} was written twice")
        before = GENESIS_HASH if sequence == 0 else self.canonical.get((id_, sequence - 1))
        if before is None:
            self._fail(f"event {sequence} of {id_} was stored, the one before it was not")
            return
        at, digest = ids.to_us(row["times"]), row["digests"]
        header = Header(row["tenants"], id_, sequence, row["epochs"], at, row["kinds"], row["versions"], before, digest)
        if hash_header(header.encode()) != row["hashes"]:
            self._fail(f"event {sequence} of {id_} does not extend the history")
        self._check_owner(place, row)
        for ref in references(row["bodies"]):
            if not self._world.contents.has(row["tenants"], ref.sha256):
                self._fail(f"event {sequence} of {id_} is committed, its content {ref.sha256[:12]} is missing")
        self.canonical[place] = row["hashes"]
        self.canonical_hashes.add(row["hashes"])

    def _check_owner(self, place: Place, row: dict[str, Any]) -> None:
        id_, sequence = place
        seals = [seal for seal in self.seals.get(id_, ()) if seal.first_sequence <= sequence]
        if seals:
            token = max(seal.token for seal in seals)
            if row["epochs"] != token:
                self._fail(f"event {sequence} of {id_} has token {row['epochs']}, but {token} owns it")
        elif sequence and id_ not in self.imported:
            first = self.origins.get(self.canonical[id_, 0], set())
            if not first & self.origins.get(row["hashes"], set()):
                self._fail(f"event {sequence} of {id_} comes from a log that does not own it")

    def _check_head(self, id_: uuid.UUID, head: dict[str, Any]) -> None:
        sequence = head["sequence"]
        if sequence >= 0 and self.canonical.get((id_, sequence)) != head["hash"]:
            self._fail(f"the head of {id_} at {sequence} is not an event of its history")
        for below in range(head["through"], -1, -1):
            if (id_, below) not in self.cold:
                self._fail(f"{id_} is marked up to {head['through']}, but event {below} is not in the cold table")

    def _move_cursor(self, log_id: uuid.UUID, lsn: int, digest: bytes) -> None:
        delivered = self.delivered.get(log_id, {})
        replicated = self.replicated.setdefault(log_id, {})
        for at in range(self.cursors.get(log_id, 0) + 1, lsn + 1):
            if at not in delivered or not self.in_warm(delivered[at]):
                self._fail(f"the cursor of a log passes LSN {at}, which Postgres does not have")
            replicated[at] = delivered[at]
        if delivered.get(lsn) != digest:
            self._fail(f"the cursor at LSN {lsn} has the hash of another event")
        self.cursors[log_id] = lsn

    # --- cold --------------------------------------------------------------------------------------------------------

    def cold_committed(self, run_id: str, urls: Iterable[str]) -> None:
        """Files became part of the cold table."""
        if run_id in self._runs:
            self._fail(f"run {run_id} was committed twice")
        self._runs.add(run_id)
        lake = self._world.lake
        for url in urls:
            rows = lake.held.get(lake.path_of(url))
            if rows is None:
                self._fail(f"{url} was committed, but there is no such file")
                continue
            self.rows_of_file[url] = len(rows)
            for row in rows:
                place = uuid.UUID(bytes=row.trajectory), row.sequence_number
                if place in self.cold:
                    self._fail(f"event {place[1]} of {place[0]} is in the cold table twice")
                self.cold[place] = url

    def deleted(self, url: str) -> None:
        """A file of the lake was removed."""
        if url in self.rows_of_file:
            self._fail(f"{url} was removed, but the cold table has it")

    # --- at the end --------------------------------------------------------------------------------------------------

    def healed(self) -> None:
        """All logs are replicated: nothing may wait in quarantine for an event that is there."""
        tables = self._world.postgres.tables
        for row in tables["quarantine"].values():
            head = tables["head"].get(row["trajectory_id"])
            if row["admitted_at"] is None and row["reason"] == "gap" and head is not None:
                header = Header.decode(row["header"])
                if header.previous_hash == head["hash"]:
                    self._fail(f"event {header.sequence_number} of {header.trajectory_id} waits for nothing")

    def conclude(self) -> None:
        """Everything was healed and has come to rest: nothing may be missing anywhere."""
        world = self._world
        for digest, name in self.acked.items():
            if not self.in_warm(digest) and digest not in self.excused:
                self._fail(f"an event acknowledged by {name} is neither in a history nor in quarantine")
        for host in world.hosts:
            for folder in host.folders:
                self._conclude_log(folder)
        tables = world.postgres.tables
        stored = {place: row["hashes"] for place, row in tables["event"].items()}
        if stored != self.canonical:
            self._fail("Postgres does not hold what was committed")
        for row in tables["quarantine"].values():
            if row["admitted_at"] is None and hash_header(row["header"]) in self.canonical_hashes:
                self._fail(f"LSN {row['lsn']} is in quarantine and in the history")
        for id_, head in tables["head"].items():
            last = max(sequence for owner, sequence in self.canonical if owner == id_)
            if last != head["sequence"]:
                self._fail(f"the head of {id_} is at {head['sequence']}, its last event is {last}")
        self._conclude_cold()

    def _conclude_log(self, folder: LogFolder) -> None:
        on_device = folder.durable_events()
        cursor = self.cursors.get(folder.log_id, 0)
        if max(on_device, default=0) > cursor:
            self._fail(f"{folder.name} ends at LSN {max(on_device)}, but was replicated only up to {cursor}")
        for lsn, digest in on_device.items():
            if not self.in_warm(digest):
                self._fail(f"LSN {lsn} of {folder.name} is neither in a history nor in quarantine")

    def _conclude_cold(self) -> None:
        world = self._world
        tables = world.postgres.tables
        urls = sorted(self.rows_of_file, key=lambda url: (url.rpartition("/")[0], url))
        ends: dict[uuid.UUID, list[tuple[int, int, bytes]]] = {}
        for found in check_files(world.lake, urls, BlobCheck(world.contents)):  # type: ignore[arg-type]
            if isinstance(found, Problem):
                self._fail(f"the cold table is damaged: {found}")
                continue
            ends.setdefault(found.trajectory_id, []).append(
                (found.first_sequence, found.last_sequence, found.last_hash)
            )
            if self.canonical.get((found.trajectory_id, found.last_sequence)) != found.last_hash:
                self._fail(f"the cold history of {found.trajectory_id} is another one")
        open_ids = {row["trajectory_id"] for row in tables["quarantine"].values() if row["admitted_at"] is None}
        for id_, head in tables["head"].items():
            ended = head["finished"] is not None or head["imported"]
            last = max((last for _, last, _ in ends.get(id_, ())), default=-1)
            if last != head["through"]:
                self._fail(f"{id_} is marked up to {head['through']}, the cold table ends at {last}")
            if ended and id_ not in open_ids and last != head["sequence"]:
                self._fail(f"{id_} has ended at {head['sequence']}, but the cold table has it only up to {last}")
