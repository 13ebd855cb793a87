"""What has gone on purpose: deleted by retention, or erased. Whatever else is missing was tampered with.

Retention leaves a row in `deletions` that names the policy, in a version that somebody put into force, and the head of
the trajectory; an erasure leaves a line in the ledger. Both are histories: rows are only added. Somebody who may write
everything in the database can forge them, as everything in it; what was erased stays provable, because its events keep
their places and hashes.
"""

from __future__ import annotations

import uuid

import msgspec

from stratalog.schemas.ids import to_us
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering
from stratalog.warm.streaming import stream

SHOWN_MAX = 1000


class Deletion(msgspec.Struct, frozen=True):
    """Events up to `through_sequence` were deleted in every tier; `at` is µs since 1970."""

    trajectory_id: str
    through_sequence: int
    policy: str
    version: int
    loaded_by: str
    at: int


class Erasure(msgspec.Struct, frozen=True):
    """The bodies of a trajectory were erased; `at` is µs since 1970."""

    trajectory_id: str
    at: int
    requested_by: str
    reason: str


class Gone:
    """What has gone of one tenant, as the database says."""

    def __init__(self, conn: Connection, tenant: str) -> None:
        values = {"tenant": tenant}
        self._deletions: dict[uuid.UUID, Deletion] = {}
        for id_, through, policy, version, loaded_by, at in stream(conn, statements("audit")["deletions"], values):
            self._deletions[id_] = Deletion(str(id_), through, policy, version, loaded_by, to_us(at))
        self.erasures = [
            Erasure(str(id_), to_us(at), by, reason)
            for id_, at, by, reason in stream(conn, statements("audit")["erasures"], values)
        ]

    def deletion(self, trajectory_id: uuid.UUID, sequence_number: int) -> Deletion | None:
        """The deletion by which an event has left every tier."""
        found = self._deletions.get(trajectory_id)
        return found if found is not None and found.through_sequence >= sequence_number else None


def erasure_of(conn: Connection, trajectory_id: uuid.UUID) -> Erasure | None:
    """The erasure of a trajectory, if it was erased."""
    with answering(), conn.transaction():
        row = conn.execute(statements("audit")["erasure"], {"trajectory_id": trajectory_id}).fetchone()
    return None if row is None else Erasure(str(trajectory_id), to_us(row[0]), row[1], row[2])
