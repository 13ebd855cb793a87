"""Which events become the one history of a trajectory, and why the others do not. Pure: no database, no clock.

Guarantee: whatever arrives, from however many logs, in whatever order and however often, the admitted events of a
trajectory form one chain from its first event on, and every event is admitted, a duplicate of an admitted one, or
refused with a reason. Nothing is decided by arrival alone:

- the same hash at the same place is a duplicate;
- an event that extends the head is admitted if its log and its epoch own the place. A *seal* says from which event on
  a fencing token owns a trajectory. Before the first seal it belongs to the log of its first event; an import belongs
  to any log, because its bytes, and so its hashes, are the same wherever it is imported;
- everything else is a divergent history and refused, with all that follows it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Literal

import msgspec

from stratalog.schemas.chain import START, Link
from stratalog.schemas.codec import Event
from stratalog.schemas.envelope import Envelope, check_body, hash_header
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.summary import Summary

Reason = Literal["divergent", "gap", "stale_epoch", "unknown_epoch", "foreign_log", "erased", "damaged", "unstorable"]

GAP: Reason = "gap"
"""The only reason that heals by itself: the events before may still arrive from another log."""

TIME_US_MAX = 253_402_300_799_999_999
"""The last µs of the year 9999: later ones have no date in Python."""
BIGINT_MAX = (1 << 63) - 1


class Seal(msgspec.Struct, frozen=True):
    """From `first_sequence` on, after `previous_hash`, a trajectory belongs to `token` in `log_id` (None: any log)."""

    token: int
    log_id: uuid.UUID | None
    first_sequence: int
    previous_hash: bytes


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of an event; `reason` is empty unless it is refused."""

    outcome: Literal["admitted", "duplicate", "refused"]
    reason: Reason | Literal[""] = ""
    detail: str = ""


ADMITTED = Verdict("admitted")
DUPLICATE = Verdict("duplicate")


class Standing(msgspec.Struct):
    """What is known of a trajectory; moves on with each admitted event.

    `placed` holds the hashes of stored events that are compared with arriving ones, by sequence number; `refused` the
    hashes of refused events with their reason, so that their successors share it.
    """

    origin_log: uuid.UUID
    tenant: str
    head: Link = START
    secret: bytes | None = None
    summary: Summary = msgspec.field(default_factory=Summary)
    consolidated: Link = START
    seals: Sequence[Seal] = ()
    stray: bool = False
    placed: dict[int, bytes] = msgspec.field(default_factory=dict)
    refused: dict[bytes, Reason] = msgspec.field(default_factory=dict)

    @property
    def imported(self) -> bool:
        """Whether the first event names a source."""
        return self.summary.source is not None

    @property
    def begun(self) -> bool:
        """Whether any event was admitted."""
        return self.head.sequence_number >= 0

    def judge(self, log_id: uuid.UUID, envelope: Envelope) -> Verdict:
        """Judge the next event of a log; if its place is taken, `placed` must have the hash that is stored there.

        Raises `Corrupt` where the place is below the head and neither stored nor consolidated.
        """
        header = envelope.header
        if header.sequence_number <= self.head.sequence_number:
            return self._compare(envelope)
        return self._fits(envelope) or self._owned(log_id, envelope) or self._sound(envelope) or ADMITTED

    def take(self, log_id: uuid.UUID, envelope: Envelope, event: Event) -> int:
        """Move on over an admitted event; returns its turn."""
        if not self.begun:
            self.origin_log = log_id
            self.tenant = envelope.header.tenant
        if self.secret is None:
            self.secret = envelope.secret
        self.head = Link(envelope.header.sequence_number, envelope.hash)
        self.placed[self.head.sequence_number] = envelope.hash
        return self.summary.advance(event)

    def _compare(self, envelope: Envelope) -> Verdict:
        sequence = envelope.header.sequence_number
        stored_hash = self.placed.get(sequence)
        if sequence == self.consolidated.sequence_number:
            stored_hash = self.consolidated.hash
        if stored_hash == envelope.hash:
            return DUPLICATE
        if stored_hash is not None:
            return self._refuse(
                envelope, "divergent", f"event {sequence} is {_short(stored_hash)}, not {_short(envelope.hash)}"
            )
        if sequence < self.consolidated.sequence_number:
            return DUPLICATE
        raise Corrupt(
            f"event {sequence} of trajectory {envelope.header.trajectory_id} is missing in the warm tier",
            hint="find the extent with: stratalog verify; restore Postgres from a backup",
        )

    def _fits(self, envelope: Envelope) -> Verdict | None:
        """Whether the event extends the head, in a form that can be stored."""
        header = envelope.header
        if header.created_at > TIME_US_MAX or header.epoch > BIGINT_MAX or "\0" in header.kind + header.tenant:
            return self._refuse(envelope, "unstorable", f"created_at {header.created_at}, epoch {header.epoch}")
        if header.previous_hash != self.head.hash or header.sequence_number != self.head.sequence_number + 1:
            return self._not_next(envelope)
        if self.begun and header.tenant != self.tenant:
            return self._refuse(envelope, "divergent", f"belongs to tenant {header.tenant}, not {self.tenant}")
        if envelope.secret is not None and self.secret is not None and envelope.secret != self.secret:
            return self._refuse(envelope, "divergent", "brings another secret than the trajectory has")
        if self.begun and self.secret is None and not envelope.erased:
            return self._refuse(envelope, "erased", "the trajectory was erased, its secret is gone")
        if not self.begun and envelope.secret is None and not envelope.erased:
            return self._refuse(envelope, "divergent", "the first event brings no secret")
        return None

    def _not_next(self, envelope: Envelope) -> Verdict:
        header, head = envelope.header, self.head
        inherited = self.refused.get(header.previous_hash)
        if inherited is not None and inherited != GAP:
            return self._refuse(envelope, inherited, f"follows event {header.sequence_number - 1}, which was refused")
        if header.sequence_number == head.sequence_number + 1:
            detail = f"follows {_short(header.previous_hash)}, but event {head.sequence_number} is {_short(head.hash)}"
            return self._refuse(envelope, "divergent", detail)
        missing = f"events {head.sequence_number + 1} to {header.sequence_number - 1} have not arrived"
        return self._refuse(envelope, GAP, missing)

    def _owned(self, log_id: uuid.UUID, envelope: Envelope) -> Verdict | None:
        """Whether the log and the epoch own the place."""
        header = envelope.header
        sequence, epoch = header.sequence_number, header.epoch
        seals = [seal for seal in self.seals if seal.first_sequence <= sequence]
        seal = max(seals, key=lambda seal: seal.token) if seals else None
        if seal is None:
            if self.begun and not self.imported and log_id != self.origin_log:
                return self._refuse(envelope, "foreign_log", f"the trajectory belongs to log {self.origin_log}")
            return None
        if epoch != seal.token:
            reason: Reason = "stale_epoch" if epoch < seal.token else "unknown_epoch"
            return self._refuse(
                envelope, reason, f"epoch {epoch}, but from event {seal.first_sequence} on epoch {seal.token} owns it"
            )
        if seal.log_id is not None and seal.log_id != log_id:
            return self._refuse(envelope, "foreign_log", f"epoch {epoch} belongs to log {seal.log_id}")
        if sequence == seal.first_sequence and header.previous_hash != seal.previous_hash:
            return self._refuse(envelope, "divergent", f"epoch {epoch} was sealed after {_short(seal.previous_hash)}")
        return None

    def _sound(self, envelope: Envelope) -> Verdict | None:
        """Whether the bytes are those that the hashes cover."""
        if hash_header(envelope.header.encode()) != envelope.hash:
            return self._refuse(envelope, "damaged", "the header does not match its hash")
        secret = envelope.secret if self.secret is None else self.secret
        if secret is not None:
            try:
                check_body(envelope, secret)
            except Corrupt as error:
                return self._refuse(envelope, "damaged", error.message)
        return None

    def _refuse(self, envelope: Envelope, reason: Reason, detail: str) -> Verdict:
        self.refused[envelope.hash] = reason
        return Verdict("refused", reason, detail)


def _short(digest: bytes) -> str:
    return digest.hex()[:12]
