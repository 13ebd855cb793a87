"""Verifying a hot log from its stored bytes: density of LSNs, every chain, every body, every content."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Mapping

import msgspec

from stratalog.schemas.blobs import references
from stratalog.schemas.chain import START, ChainCheck, Link, check_link
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.errors import Corrupt, CursorMismatch, Retryable, StratalogError, Unavailable

from .source import LogEvent, LogSource

BATCH_EVENTS = 512
BATCH_BYTES = 16 << 20


class Span(msgspec.Struct, frozen=True):
    """What a tier has of a trajectory: its last event here, by number and hash."""

    last_sequence: int
    last_hash: bytes


class Replicated(msgspec.Struct, frozen=True):
    """What the warm tier says of a log. `heads` must not be older than the rest, or what just arrived looks lost."""

    lsn: int = 0
    """The cursor: everything up to here has arrived."""
    quarantined: Collection[int] = ()
    """LSNs of events that have arrived and are not part of a history."""
    heads: Mapping[uuid.UUID, Link] = {}
    """The last event of every trajectory."""


class HotReport(msgspec.Struct):
    """What was read, what is wrong, and where each trajectory ends."""

    events: int = 0
    problems: list[str] = []
    spans: dict[uuid.UUID, Span] = {}
    blobs: int = 0
    blob_problems: list[str] = []
    refused: set[uuid.UUID] = set()
    """Trajectories of which events lie here that the warm tier has put into quarantine."""
    lost: set[uuid.UUID] = set()
    """Trajectories of which events were replicated that the warm tier does not have; each is reported once."""

    def add(self, other: HotReport) -> None:
        """Take in what was found in another log."""
        self.events += other.events
        self.problems += other.problems
        self.spans |= other.spans
        self.blobs += other.blobs
        self.blob_problems += other.blob_problems
        self.refused |= other.refused
        self.lost |= other.lost


def verify_log(
    source: LogSource,
    report: HotReport,
    *,
    secrets: Mapping[uuid.UUID, bytes],
    replicated: Replicated,
) -> HotReport:
    """Read a whole log and add what was found to `report`. Damage ends the reading of this log, and is reported.

    Raises `Locked` or `Unavailable` where the log must be given up: start again, with a fresh report.

    `secrets` are those of trajectories whose beginning was pruned here (from the heads). Events that `replicated` says
    have arrived must be in their histories there, unless they are in quarantine.
    """
    chains: dict[uuid.UUID, ChainCheck | None] = {}
    after = 0
    while True:
        try:
            after = _check_events(source, after, chains, report, secrets, replicated)
            break
        except CursorMismatch:
            # The log was pruned behind us while we read: go on with what is still there, each chain from where it is.
            _note_spans(chains, report)
            chains.clear()
            after = 0
        except Retryable:
            raise  # somebody else wants the log, or its owner has gone: no damage
        except StratalogError as error:
            report.problems.append(f"log {source.log_id}: {error.message}")
            break
    _note_spans(chains, report)
    return report


def _check_events(
    source: LogSource,
    after: int,
    chains: dict[uuid.UUID, ChainCheck | None],
    report: HotReport,
    secrets: Mapping[uuid.UUID, bytes],
    replicated: Replicated,
) -> int:
    while events := source.read(after, BATCH_EVENTS, BATCH_BYTES):
        for event in events:
            if after and event.envelope.lsn != after + 1:
                raise Corrupt(f"the event at LSN {after + 1} is missing")
            after = event.envelope.lsn
            report.events += 1
            _check_event(source, event, chains, secrets, report)
            if after in replicated.quarantined:
                report.refused.add(event.envelope.header.trajectory_id)
            else:
                _check_history(event, replicated, report)
    if after < source.durable_lsn() and after:
        raise Corrupt(f"the log ends at LSN {after}, {source.durable_lsn()} was durable")
    return after


def _note_spans(chains: Mapping[uuid.UUID, ChainCheck | None], report: HotReport) -> None:
    for trajectory_id, chain in chains.items():
        if chain is not None:
            report.spans[trajectory_id] = Span(chain.position.sequence_number, chain.position.hash)


def _check_event(
    source: LogSource,
    event: LogEvent,
    chains: dict[uuid.UUID, ChainCheck | None],
    secrets: Mapping[uuid.UUID, bytes],
    report: HotReport,
) -> None:
    envelope = event.envelope
    header = envelope.header
    trajectory_id = header.trajectory_id
    if envelope.previous_lsn == 0:
        after = START if header.sequence_number == 0 else Link(header.sequence_number - 1, header.previous_hash)
        chains[trajectory_id] = ChainCheck(envelope.secret, after)
    elif trajectory_id not in chains:
        after = Link(header.sequence_number - 1, header.previous_hash)  # what came before was pruned
        secret = secrets.get(trajectory_id) or None
        unchecked = secret is None and not envelope.erased and _is_being_erased(source, trajectory_id)
        chains[trajectory_id] = (LinkCheck if unchecked else ChainCheck)(secret, after)
    chain = chains[trajectory_id]
    if chain is None:
        return  # already reported
    try:
        chain.feed(envelope)
    except Corrupt as error:
        report.problems.append(f"LSN {envelope.lsn}: {error.message}")
        chains[trajectory_id] = None
    _check_blobs(event, report)


class LinkCheck(ChainCheck):
    """A chain of which the first events were pruned and the others are being erased: nobody has its secret."""

    def feed(self, envelope: Envelope) -> None:
        """Check the next event: place and link."""
        self.position = check_link(self.position, envelope)


def _is_being_erased(source: LogSource, trajectory_id: uuid.UUID) -> bool:
    try:
        return trajectory_id in source.erased()
    except Unavailable:
        return False  # its owner cannot erase


def _check_history(event: LogEvent, replicated: Replicated, report: HotReport) -> None:
    header, lsn = event.envelope.header, event.envelope.lsn
    head = replicated.heads.get(header.trajectory_id)
    last = head.sequence_number if head is not None else START.sequence_number
    if last < header.sequence_number and lsn <= replicated.lsn and header.trajectory_id not in report.lost:
        report.lost.add(header.trajectory_id)
        report.problems.append(
            f"LSN {lsn}: event {header.sequence_number} of {header.trajectory_id} was replicated "
            "and is not in the warm tier"
        )
    if head is not None and last == header.sequence_number and head.hash != event.envelope.hash:
        report.problems.append(
            f"LSN {lsn}: event {header.sequence_number} of {header.trajectory_id} is another one in the warm tier"
        )


def _check_blobs(event: LogEvent, report: HotReport) -> None:
    contents = {ref.sha256: content for ref, content in event.blobs}
    for ref in references(event.envelope.body):
        report.blobs += 1
        content = contents.get(ref.sha256)
        if content is None or hashlib.sha256(content).hexdigest() != ref.sha256:
            report.blob_problems.append(f"LSN {event.envelope.lsn}: content {ref.sha256} is missing or damaged")
