"""The canonical histories that one transaction touches: lock them, judge events against them, store what is admitted.

The caller owns the transaction. All locks on leases and heads are taken by `lock`, each kind sorted by id, before
anything is written, so transactions that share trajectories wait for each other in line and never in a circle.
Everything that `offer` admits is stored by `store`, with the head it makes, or the transaction fails.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from stratalog.schemas import ids
from stratalog.schemas.blobs import digests
from stratalog.schemas.chain import Link
from stratalog.schemas.codec import Event, decode_event
from stratalog.schemas.envelope import GENESIS_HASH, Envelope, hash_header
from stratalog.schemas.errors import Conflict, Corrupt
from stratalog.schemas.statements import statements
from stratalog.schemas.summary import Summary

from . import lineage, partitions, projection
from .admission import BIGINT_MAX, Reason, Seal, Standing, Verdict
from .database import Connection

Offered = tuple[uuid.UUID, Envelope]
"""The log that an event comes from, and the event."""

# fmt: off
# The parameters of the statements, in the order of the rows that are made here.
_EVENT_COLUMNS = (
    "ids", "sequences", "tenants", "kinds", "epochs", "versions", "times", "turns", "tools", "statuses",
    "hashes", "digests", "bodies", "erased", "payloads",
)
_HEAD_COLUMNS = (
    "ids", "tenants", "secrets", "logs", "sequences", "hashes", "strays", "statuses", "models", "agents",
    "started", "last", "finished", "turns", "events", "input_tokens", "output_tokens", "costs", "imported",
    "labels", "sources", "summaries",
)
# fmt: on
_Row = tuple[Any, ...]


class Ledger:
    """Histories under lock, for the length of one transaction."""

    def __init__(self, conn: Connection, *, project: bool = True) -> None:
        """`project=False` stores events without their jsonb projection."""
        self._conn = conn
        self._sql = statements("ledger")
        self._project = project
        self._standings: dict[uuid.UUID, Standing] = {}
        self._refused: dict[bytes, Reason] = {}
        self._rows: list[_Row] = []
        self._erased: dict[uuid.UUID, int] = {}
        self._links: list[lineage.Link] = []
        self._subjects: list[tuple[str, bytes, uuid.UUID]] = []
        self.moved: set[uuid.UUID] = set()
        """The trajectories whose head has moved."""
        self.related = False
        """Whether an event told of a descent or of a subject: an erasure may cover its trajectory."""

    def lock(self, offered: Iterable[Offered]) -> None:
        """Lock the leases and heads of these events' trajectories; heads that are missing are made."""
        first: dict[uuid.UUID, Offered] = {}
        for log_id, envelope in offered:
            first.setdefault(envelope.header.trajectory_id, (log_id, envelope))
        wanted = sorted(first)
        self._conn.execute(self._sql["lock_leases"], {"ids": wanted})
        parameters = {
            "ids": wanted,
            "tenants": [projection.storable(first[id_][1].header.tenant) for id_ in wanted],
            "logs": [first[id_][0] for id_ in wanted],
            "genesis": GENESIS_HASH,
        }
        self._conn.execute(self._sql["insert_missing_heads"], parameters)
        for row in self._conn.execute(self._sql["lock_heads"], {"ids": wanted}):
            self._standings[row[0]] = self._standing(row)
        seals: dict[uuid.UUID, list[Seal]] = {}
        for id_, *seal in self._conn.execute(self._sql["read_seals"], {"ids": wanted}):
            seals.setdefault(id_, []).append(Seal(*seal))
        for id_, found in seals.items():
            self._standings[id_].seals = found
        if len(self._standings) != len(wanted):
            raise Conflict("heads vanished while they were locked", hint="try again")
        self._erased = dict(self._conn.execute(self._sql["read_erased"], {"ids": wanted}).fetchall())

    def strip(self, offered: Sequence[Offered]) -> tuple[list[Offered], frozenset[uuid.UUID]]:
        """The same events, those of erased trajectories without body and secret; and whose bodies were taken away.

        Content that these referred to is noted, because it may have been stored before they came here.
        """
        stripped: list[Offered] = []
        content: set[tuple[str, bytes, int]] = set()
        brought: set[uuid.UUID] = set()
        for log_id, envelope in offered:
            erasure = self._erased.get(envelope.header.trajectory_id)
            if erasure is not None and not (envelope.erased and envelope.secret is None):
                brought.add(envelope.header.trajectory_id)
                content.update((envelope.header.tenant, digest, erasure) for digest in digests(envelope.body))
                envelope = msgspec.structs.replace(envelope, body=b"", erased=True, secret=None)
            stripped.append((log_id, envelope))
        if content:
            tenants, pieces, erasures = (list(values) for values in zip(*sorted(content), strict=True))
            parameters = {"tenants": tenants, "digests": pieces, "erasures": erasures}
            self._conn.execute(self._sql["note_erased_content"], parameters)
        return stripped, frozenset(brought)

    def offer(self, offered: Sequence[Offered]) -> list[Verdict]:
        """Judge events in the order given (that of their log); the admitted ones wait for `store`."""
        standings = [self._standings[envelope.header.trajectory_id] for _, envelope in offered]
        envelopes = [envelope for _, envelope in offered]
        self._load_placed(standings, envelopes)
        self._load_refused(standings, envelopes)
        return [
            self._judge(standing, log_id, envelope)
            for standing, (log_id, envelope) in zip(standings, offered, strict=True)
        ]

    def store(self) -> None:
        """Write what was admitted since the last call, and the heads."""
        if not self._rows:
            return
        rows = sorted(self._rows, key=lambda row: (row[0].int, row[1]))
        moved = sorted({row[0] for row in rows})
        self._place(moved)
        for stray, name in ((False, "insert_events"), (True, "insert_stray_events")):
            part = [row for row in rows if self._standings[row[0]].stray is stray]
            if part:
                self._write(name, _EVENT_COLUMNS, part)
        self._write("update_heads", _HEAD_COLUMNS, [_head_row(id_, self._standings[id_]) for id_ in moved])
        self._store_relations()
        self._rows.clear()
        self.moved.update(moved)

    def close(self) -> None:
        """Remove the heads that were made for locking alone."""
        empty = sorted(id_ for id_, standing in self._standings.items() if not standing.begun)
        if empty:
            self._conn.execute(self._sql["remove_empty_heads"], {"ids": empty})

    def _standing(self, row: _Row) -> Standing:
        id_, tenant, secret, origin_log, sequence, head_hash, stray, summary, through, through_hash = row
        try:
            decoded = msgspec.msgpack.decode(summary, type=Summary) if summary else Summary()
        except msgspec.MsgspecError as error:
            raise Corrupt(f"the summary of trajectory {id_} is damaged: {error}") from error
        return Standing(
            origin_log=origin_log,
            tenant=tenant,
            head=Link(sequence, head_hash),
            secret=secret,
            summary=decoded,
            consolidated=Link(through, through_hash or GENESIS_HASH),
            stray=stray,
            refused=self._refused,
        )

    def _load_placed(self, standings: Sequence[Standing], envelopes: Sequence[Envelope]) -> None:
        places = []
        for standing, envelope in zip(standings, envelopes, strict=True):
            sequence = envelope.header.sequence_number
            if sequence <= standing.head.sequence_number and sequence not in standing.placed:
                places.append((envelope.header.trajectory_id, sequence))
        if places:
            for id_, sequence, digest in self._conn.execute(self._sql["read_stored_hashes"], _places(places)):
                if digest is not None:
                    self._standings[id_].placed[sequence] = digest

    def _load_refused(self, standings: Sequence[Standing], envelopes: Sequence[Envelope]) -> None:
        known = {envelope.hash for envelope in envelopes} | self._refused.keys()
        places = []
        for standing, envelope in zip(standings, envelopes, strict=True):
            header, head = envelope.header, standing.head
            beyond = head.sequence_number < header.sequence_number <= BIGINT_MAX
            if beyond and header.previous_hash != head.hash and header.previous_hash not in known:
                places.append((header.trajectory_id, header.sequence_number - 1))
        if places:
            for reason, header_bytes in self._conn.execute(self._sql["read_refused"], _places(places)):
                self._refused[hash_header(header_bytes)] = reason

    def _judge(self, standing: Standing, log_id: uuid.UUID, envelope: Envelope) -> Verdict:
        header = envelope.header
        verdict = standing.judge(log_id, envelope)
        if verdict.outcome == "admitted":
            event = decode_event(envelope)
            turn = standing.take(log_id, envelope, event)
            self._note_relations(event)
            self._rows.append(
                (
                    header.trajectory_id,
                    header.sequence_number,
                    header.tenant,
                    header.kind,
                    header.epoch,
                    header.schema_version,
                    ids.from_us(header.created_at),
                    turn,
                    projection.tool_name(event.body),
                    projection.event_status(event.body),
                    envelope.hash,
                    header.body_digest,
                    envelope.body,
                    envelope.erased,
                    projection.project(envelope.body) if self._project else None,
                )
            )
        return verdict

    def _note_relations(self, event: Event) -> None:
        self._links += lineage.links(event)
        header = event.header
        self._subjects += ((header.tenant, found, header.trajectory_id) for found in lineage.subject_hashes(event))

    def _store_relations(self) -> None:
        if self._links:
            children, parents, kinds = zip(*((link.child, link.parent, link.kind) for link in self._links), strict=True)
            links = {"children": list(children), "parents": list(parents), "kinds": list(kinds)}
            self._conn.execute(self._sql["insert_links"], links)
        if self._subjects:
            tenants, subjects, about = (list(values) for values in zip(*self._subjects, strict=True))
            named = {"tenants": tenants, "subjects": subjects, "ids": about}
            self._conn.execute(self._sql["insert_subjects"], named)
        self.related = self.related or bool(self._links or self._subjects)
        self._links.clear()
        self._subjects.clear()

    def _place(self, moved: Sequence[uuid.UUID]) -> None:
        """Make the partitions that these trajectories need, or mark them as stray."""
        days: dict[dt.date, list[uuid.UUID]] = {}
        for id_ in moved:
            day = None if self._standings[id_].stray else partitions.start_day(id_)
            if day is None:
                self._standings[id_].stray = True
            else:
                days.setdefault(day, []).append(id_)
        if not days:
            return
        found = self._conn.execute(self._sql["missing_partitions"], {"days": list(days)}).fetchone()
        assert found is not None
        today, existing, missing = found
        made = partitions.makeable(missing, existing, today)
        if made:
            self._conn.execute(self._sql["ensure_partitions"], {"days": made, "ahead": partitions.DAYS_AHEAD})
        for day in set(missing) - set(made):
            for id_ in days[day]:
                self._standings[id_].stray = True

    def _write(self, name: str, columns: Sequence[str], rows: Sequence[_Row]) -> None:
        parameters = {column: list(values) for column, values in zip(columns, zip(*rows, strict=True), strict=True)}
        written = self._conn.execute(self._sql[name], parameters).rowcount
        if written != len(rows):
            raise Conflict(
                f"{name} wrote {written} of {len(rows)} rows: the heads and the events in Postgres do not agree",
                hint="find the extent with: stratalog verify",
            )


def _places(places: Iterable[tuple[uuid.UUID, int]]) -> dict[str, list[Any]]:
    distinct = sorted(set(places))
    return {"ids": [id_ for id_, _ in distinct], "sequences": [sequence for _, sequence in distinct]}


def _head_row(id_: uuid.UUID, standing: Standing) -> _Row:
    summary = _bounded(standing.summary)
    standing.summary = summary
    source = None if summary.source is None else projection.project(msgspec.json.encode(summary.source))
    return (
        id_,
        standing.tenant,
        standing.secret,
        standing.origin_log,
        standing.head.sequence_number,
        standing.head.hash,
        standing.stray,
        summary.status,
        projection.storable(summary.model),
        projection.storable(summary.agent),
        _moment(summary.started_at),
        _moment(summary.last_event_at),
        _moment(summary.finished_at),
        summary.turn,
        summary.events,
        summary.input_tokens,
        summary.output_tokens,
        summary.cost_usd,
        standing.imported,
        projection.project(msgspec.json.encode(summary.labels)) or "{}",
        source,
        msgspec.msgpack.encode(summary),
    )


def _bounded(summary: Summary) -> Summary:
    """The summary with sums that fit into the database: foreign numbers may be of any size."""
    return msgspec.structs.replace(
        summary,
        input_tokens=max(-BIGINT_MAX, min(BIGINT_MAX, summary.input_tokens)),
        output_tokens=max(-BIGINT_MAX, min(BIGINT_MAX, summary.output_tokens)),
    )


def _moment(microseconds: int | None) -> dt.datetime | None:
    return None if microseconds is None else ids.from_us(microseconds)
