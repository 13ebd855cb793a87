"""A trajectory moves to another log: claim (token + 1), drain the old log, seal, and go on from the seal.

The product has the tables, the admission rules and `Stager.resume`; the statements of claim and seal are written here,
as section 4 of the design has them. All of it is lost with its process; the next claim has a greater token.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import psycopg

from stratalog.schemas.chain import Link
from stratalog.schemas.errors import StratalogError, Unavailable
from stratalog.schemas.events import TrajectoryClaimed
from stratalog.warm.admission import Seal

from .disks import LogFolder
from .postgres import Handler, SimConnection, Transaction
from .sidecar import SimLocalSource

if TYPE_CHECKING:
    from .worker import Worker

LEASE_US = 2_000_000
DRAIN_PATIENCE = 6


class Takeover:
    """One attempt of one worker to get one trajectory."""

    def __init__(self, worker: Worker, trajectory_id: uuid.UUID, old: LogFolder) -> None:
        self.worker = worker
        self.id = trajectory_id
        self.old = old
        self.token = 0
        self.done = False
        self._target = max(old.durable_events(), default=0)
        self._old_log_id = old.log_id
        self._patience = DRAIN_PATIENCE
        self._end: Link | None = None
        self._step = self._claim

    def go_on(self) -> None:
        """The next step of the protocol; what cannot be reached is tried again or given up."""
        try:
            self._step()
        except (Unavailable, psycopg.OperationalError):
            self._give_up("Postgres does not answer")
        except StratalogError as error:
            self._give_up(error.message)

    def _give_up(self, why: str) -> None:
        self.worker.world.tell(self.worker.name, f"gives up the takeover: {why}")
        self.done = True

    def _run(self, handler: Handler, **parameters: Any) -> list[tuple[Any, ...]]:
        connection: SimConnection = self.worker.world.postgres.connect(self.worker)
        try:
            with connection.transaction():
                return connection.execute(handler, {"id": self.id, **parameters}).fetchall()
        finally:
            connection.close()
            if connection in self.worker.connections:
                self.worker.connections.remove(connection)

    def _claim(self) -> None:
        granted = self._run(claim, log_id=self.worker.folder.log_id)
        if not granted:
            self._give_up("somebody else holds the lease, or nobody knows the trajectory")
            return
        (self.token,) = granted[0]
        self.worker.world.tell(self.worker.name, f"claims {self.id.hex[-6:]} with token {self.token}")
        self._step = self._drain

    def _drain(self) -> None:
        """Wait until the old log is in Postgres, unless its end is known: its holder hands over, or nobody owns it."""
        here = self.old in self.worker.home_of.folders
        if self._end is None and self.worker.world.rng.random() < 0.5:
            if here and self.old.owner is None:
                self._read_end()
            else:
                self._ask_holder()
        rows = self._run(lambda tx, given: [tx.get("cursor", self._old_log_id) or (0, b"", b"")])
        self._patience -= 1
        if self._end is not None or rows[0][0] >= self._target or self._patience <= 0:
            self._step = self._seal

    def _ask_holder(self) -> None:
        """The old holder stops, and tells where the trajectory ends in its log; Postgres may hear of that later."""
        for host in self.worker.world.hosts:
            holder = host.workers.get(self.old)
            if holder is None or holder.engine is None or holder.is_frozen() or not holder.reachable():
                continue
            head, durable = holder.engine.head(self.id), holder.engine.durable.value
            if head is not None and head.lsn <= durable and self.id in holder.held:
                holder.held.remove(self.id)
                self._end = Link(head.sequence_number, head.hash)

    def _read_end(self) -> None:
        host = self.worker.home_of
        source = SimLocalSource(host, self.old)
        try:
            head = source._engine.head(self.id)
            if head is not None:
                self._end = Link(head.sequence_number, head.hash)
        finally:
            source.close()

    def _seal(self) -> None:
        rows = self._run(seal, token=self.token, log_id=self.worker.folder.log_id, end=self._end)
        if not rows:
            self._give_up("fenced before the seal")
            return
        self._after, self._tenant, self._secret = rows[0]
        self.worker.world.tell(self.worker.name, f"sealed after event {self._after.sequence_number}")
        self._step = self._resume

    def _resume(self) -> None:
        worker = self.worker
        engine = worker.engine
        assert engine is not None
        self.done = True
        body = TrajectoryClaimed(holder=worker.name, token=self.token, log_id=str(worker.folder.log_id))
        after, token = self._after, self.token
        worker.stage(
            lambda: engine.stager.resume(self._tenant, self.id, after, token, self._secret),
            [body],
            (),
            f"claim with token {token}",
            None,
        )
        if worker.alive and self.id not in worker.held:
            worker.held.append(self.id)


def claim(tx: Transaction, given: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Take the lease if it is free or has run out; the token is above all that were ever seen."""
    id_, now_us = given["id"], tx.postgres.world.clock.now_us
    tx.lock("lease", id_)
    lease, head = tx.get("lease", id_), tx.get("head", id_)
    if head is None or head["secret"] is None or head["imported"] or now_us < tx.postgres.no_claims_before_us:
        return []
    if lease is not None and lease["expires_us"] > now_us:
        return []
    last = tx.get("event", (id_, head["sequence"]))
    token = max(lease["token"] if lease else 0, last["epochs"] if last else 0) + 1
    tx.put("lease", id_, {"token": token, "log_id": given["log_id"], "expires_us": now_us + LEASE_US})
    return [(token,)]


def renew(tx: Transaction, given: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Prolong a lease that is still ours."""
    tx.lock("lease", given["id"])
    lease = tx.get("lease", given["id"])
    if lease is None or lease["log_id"] != given["log_id"]:
        return []
    expires_us = tx.postgres.world.clock.now_us + LEASE_US
    tx.put("lease", given["id"], {**lease, "expires_us": expires_us})
    return [(lease["token"],)]


def seal(tx: Transaction, given: dict[str, Any]) -> list[tuple[Any, ...]]:
    """From the head on, or from the end that was read from the old log, the trajectory belongs to this token."""
    id_, token, end = given["id"], given["token"], given["end"]
    tx.lock("lease", id_)
    lease = tx.get("lease", id_)
    if lease["token"] != token:
        return []
    tx.lock("head", id_)
    head = tx.get("head", id_)
    seals = tx.get("seals", id_) or ()
    known = [row for row in seals if row[0] == token]
    after = Link(head["sequence"], head["hash"])
    if end is not None and end.sequence_number > after.sequence_number:
        after = end
    if known:
        after = Link(known[0][2] - 1, known[0][3])
    else:
        row = (token, given["log_id"], after.sequence_number + 1, after.hash)
        tx.put("seals", id_, (*seals, row))
        tx.after_commit.append(lambda: tx.postgres.world.oracle.sealed(id_, Seal(*row)))
    return [(after, head["tenant"], head["secret"])]
