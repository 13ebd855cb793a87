"""Opening a log: find its end, prove that nothing acknowledged is missing, rebuild the heads.

After a crash the log may end in a torn record or hold events that were not acknowledged; both are fine. What is not
fine refuses to open (`OpenRefused`): damage before the end of the write-ahead log, a hole in the LSNs, a chain that
does not fit, an end before HEAD or REPLICATED.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from stratalog.schemas.chain import START, Link, check_link
from stratalog.schemas.codec import decode_body
from stratalog.schemas.envelope import Envelope, decode_record
from stratalog.schemas.errors import Corrupt, OpenRefused
from stratalog.schemas.protocols import Store

from . import keys
from .files import write_durably
from .heads import Heads
from .keys import Head, Position
from .marks import MarkFile
from .walscan import scan_wal, torn_at


class Recovered(msgspec.Struct):
    """What `recover` found out."""

    last: Position
    pruned: Position
    heads: Heads
    scanned: int


def check_wal(database: Path) -> None:
    """Raise `OpenRefused` where a write-ahead log is damaged before its end; cut off a torn tail.

    RocksDB refuses a last record whose bytes are wrong, and may read a garbled one for ever. Nothing valid follows
    there, so it is moved into a file of its own before RocksDB sees it.
    """
    for path in sorted(database.glob("*.log")):
        report = scan_wal(path)
        if report.bad_at is None:
            continue
        if report.verdict == "damaged":
            raise OpenRefused(f"{path} is damaged at byte {report.bad_at}, and valid records follow")
        _cut(path, report.bad_at)


def mend_manifest(database: Path) -> None:
    """Cut off a last record of RocksDB's manifest that a power loss has torn: nothing rests on what was not synced."""
    try:
        name = (database / "CURRENT").read_text("ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return
    path = database / name
    if name.startswith("MANIFEST-") and "/" not in name and path.exists() and (offset := torn_at(path)) is not None:
        _cut(path, offset)


def check_database(database: Path) -> None:
    """Raise `OpenRefused` where RocksDB would take the remains of a database for a new one, and remove them."""
    if (database / "CURRENT").exists():
        return
    remains = [path for path in database.glob("*") if path.suffix in (".log", ".sst", ".blob")]
    if remains:
        raise OpenRefused(f"{database / 'CURRENT'} is missing, but there is {remains[0].name}")


def _cut(path: Path, size: int) -> None:
    """Shorten a log; what is cut off is kept beside the database."""
    with path.open("r+b") as file:
        file.seek(size)
        write_durably(path.parent.parent / f"TORN-{path.stem}-{size}", file.read())
        file.truncate(size)
        os.fsync(file.fileno())


def recover(store: Store, marks: tuple[MarkFile, ...]) -> Recovered:
    """Check the end of the log and rebuild the heads; raises `OpenRefused` with what is wrong."""
    stored = store.get("meta", keys.META_PRUNED)
    pruned = keys.decode_position(stored) if stored else Position()
    heads = Heads(store)
    try:
        last, scanned = _scan_tail(store, heads, pruned)
    except Corrupt as error:
        raise OpenRefused(f"{error.message}") from error
    durable = store.get("meta", keys.META_DURABLE)
    if durable is not None and keys.decode_position(durable).lsn > last.lsn:
        raise OpenRefused(f"the log ends at LSN {last.lsn}, but {keys.decode_position(durable).lsn} was durable")
    for file in marks:
        mark = file.read()
        if mark is None:
            continue
        if mark.lsn > last.lsn:
            raise OpenRefused(f"the log ends at LSN {last.lsn}, but {file.path.name} says that {mark.lsn} was durable")
        known = position_at(store, mark.lsn, pruned)
        if known is not None and known.hash.hex() != mark.hash:
            raise OpenRefused(f"the event at LSN {mark.lsn} is not the one that {file.path.name} was written for")
    return Recovered(last, pruned, heads, scanned)


def position_at(store: Store, lsn: int, pruned: Position) -> Position | None:
    """The position at an LSN, `None` where its event was pruned (unless it is the last one pruned) or is not there."""
    if lsn == pruned.lsn:
        return pruned
    value = store.get("events", keys.lsn_key(lsn))
    return None if value is None else Position(lsn, decode_record(lsn, value).hash)


def _scan_tail(store: Store, heads: Heads, pruned: Position) -> tuple[Position, int]:
    """Walk the events after the saved heads; returns the last position and how many there were."""
    start = max(heads.saved_lsn, pruned.lsn)
    position = position_at(store, start, pruned) if start else Position()
    if position is None:
        raise Corrupt(f"the event at LSN {start} is missing")
    scanned = 0
    for key, value in store.scan("events", keys.lsn_key(start + 1)):
        lsn = keys.lsn_of(key)
        if lsn != position.lsn + 1:
            raise Corrupt(f"the event at LSN {position.lsn + 1} is missing, the next one is {lsn}")
        envelope = decode_record(lsn, value)
        follow(heads, envelope)
        position = Position(lsn, envelope.hash)
        scanned += 1
    return position, scanned


def follow(heads: Heads, envelope: Envelope) -> Head:
    """Take an event from the log into the heads, checking that it continues its trajectory."""
    header = envelope.header
    head = heads.get(header.trajectory_id)
    imported = ended = False
    if envelope.previous_lsn == 0:
        if envelope.secret is None and not envelope.erased:
            raise Corrupt(f"the segment that starts at LSN {envelope.lsn} has no secret")
        after = START if header.sequence_number == 0 else Link(header.sequence_number - 1, header.previous_hash)
        secret, first_lsn, first_sequence = envelope.secret or b"", envelope.lsn, header.sequence_number
    else:
        if head is None or head.lsn != envelope.previous_lsn:
            raise Corrupt(f"the event at LSN {envelope.lsn} follows LSN {envelope.previous_lsn}, which is not its head")
        after = Link(head.sequence_number, head.hash)
        secret, first_lsn, first_sequence = head.secret, head.first_lsn, head.first_sequence
        imported, ended = head.imported, head.ended
    check_link(after, envelope)
    return heads.set(
        Head(
            header.tenant,
            header.trajectory_id,
            envelope.lsn,
            header.sequence_number,
            envelope.hash,
            header.epoch,
            secret,
            first_lsn,
            first_sequence,
            imported,
            ended,
        ),
        decode_body(header.kind, envelope.body),
    )
