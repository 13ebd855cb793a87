"""Deletes bulky content of which the policies in force say so, while the events that refer to it stay.

    plan ─▶ given up ─▶ references read ─▶ condemned ─▶ those who are putting waited for ─▶ read again ─▶ noted ─▶ gone

A piece goes where only events refer to it that have given it up; one that any other event of the tenant refers to, in
any tier or in quarantine, stays. A hold wins until the very transaction that deletes: it is looked up there again, with
holds kept out, for everybody who refers to the piece. Whoever is just putting the same content wins, too: either the
event that refers to it is seen, or the row of the condemned piece is taken away before it can be locked, or the writer
waits and puts it again. What an import of the same source puts again later is found by the next run and goes again.

What is gone is noted in `dropped_content` before it goes, so that readers and `verify` say which policy it was. A crash
leaves pieces that are condemned, or noted and still there; the next run goes on.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby

import msgspec

from stratalog.schemas.arrow import INDEX
from stratalog.schemas.blobs import references
from stratalog.schemas.statements import statements
from stratalog.warm import deletion_lower as lower
from stratalog.warm.condemned import spare
from stratalog.warm.database import Connection, answering
from stratalog.warm.deletion import Share, Tally, lock_out_holds
from stratalog.warm.streaming import stream

from .cas import FsContentStore
from .columns import body_of
from .installation import Tiers
from .roots import Roots, referring_rows, whole_partitions

BATCH_PIECES = 1_000
"""Whoever puts one of them waits until all are deleted; a pack is written again once for all of them."""

_SQL = statements("deletions_lower")
_SWEEP = statements("sweep")
Piece = tuple[str, bytes]
"""Tenant and SHA-256."""


class BulkyDeletions(msgspec.Struct, frozen=True):
    """What was done: pieces of content that have gone, and their bytes before compression; damage that was met."""

    planned: int = 0
    shares: tuple[Share, ...] = ()
    pieces: int = 0
    bytes: int = 0
    problems: tuple[str, ...] = ()

    @property
    def trajectories(self) -> int:
        """Those of whose content nothing is left that only they referred to."""
        return sum(share.trajectories for share in self.shares if share.outcome == "done")


class _Given(msgspec.Struct):
    """A piece that was given up: its length, and by whom."""

    size: int
    trajectory_ids: set[uuid.UUID]


class _References:
    """Who refers to what: needed pieces, and those that were given up (which may be needed by others)."""

    def __init__(self, given_up: dict[uuid.UUID, int]) -> None:
        self.needed = Roots()
        self.given: dict[Piece, _Given] = {}
        self._given_up = given_up

    def add(self, tenant: str, trajectory_id: uuid.UUID, sequence: int, pieces: Iterable[tuple[str, int]]) -> None:
        """Take in what an event refers to: digests in hex, with lengths."""
        given = sequence <= self._given_up.get(trajectory_id, -1)
        for sha256, size in pieces:
            if not given:
                self.needed.add(tenant, sha256)
                continue
            try:
                piece = (tenant, bytes.fromhex(sha256))
            except ValueError:
                continue  # refers to nothing that could be stored
            entry = self.given.setdefault(piece, _Given(0, set()))
            entry.size = max(entry.size, size)
            entry.trajectory_ids.add(trajectory_id)


def delete_content(tiers: Tiers, now: dt.datetime) -> BulkyDeletions:
    """Delete what is due at `now` and nothing keeps; first finishes what an earlier call has begun.

    Raises `Locked` while a consolidation runs, `Conflict` while a partition is being dropped, `Corrupt` where
    references cannot be read (nothing is deleted then), `Unavailable`: the same call goes on from there.
    """
    tally = Tally()
    with tiers.consolidation(), closing(tiers.connect()) as conn:
        conn.rollback()
        lower.cancel_held(conn, tally)
        planned = lower.plan(conn, "bulky", now)
        _give_up(conn, now, tally)
        given_up = lower.given_up(conn)
        started = any(one.state == "started" for one in lower.open_deletions(conn, "bulky"))
        if not given_up or not (started or _put_again(conn, tiers.store)):
            return BulkyDeletions(planned, tally.shares())
        found = _References(given_up)
        _read_cold(tiers, found)
        _read_warm(conn, found)
        going = _going(tiers.store, found)
        _condemn(conn, going)
        # Who put content before it was condemned has committed the event then; whoever comes later takes the row.
        _read_warm(conn, found)
        going = {piece: given for piece, given in going.items() if piece not in found.needed}
        gone, problems = _delete_all(conn, tiers.store, going)
        _forget_needed(conn, found.needed)
        left = {id_ for piece in going.keys() - gone.keys() for id_ in going[piece].trajectory_ids}
        lower.finish_bulky(conn, left, tally)
        return BulkyDeletions(planned, tally.shares(), len(gone), sum(gone.values()), tuple(problems))


def _give_up(conn: Connection, now: dt.datetime, tally: Tally) -> None:
    while batch := [one for one in lower.open_deletions(conn, "bulky") if one.state == "planned"]:
        for refused in lower.start(conn, "bulky", batch, now):
            tally.add(refused.tenant, refused.policy, str(refused.refusal))


def _put_again(conn: Connection, store: FsContentStore) -> bool:
    """Whether any content that was dropped is there."""
    by_tenant = groupby(lower.dropped_content(conn), key=lambda piece: piece[0])
    return any(
        not {digest.hex() for _, digest in pieces}.isdisjoint(store.digests(tenant)) for tenant, pieces in by_tenant
    )


def _read_cold(tiers: Tiers, found: _References) -> None:
    for file in tiers.catalog.files():
        for row in referring_rows(tiers.lake, file.url):
            pieces = {ref.sha256: ref.size for ref in references(body_of(row))}
            pieces.setdefault(row[INDEX["blob"]], 0)
            id_ = uuid.UUID(bytes=row[INDEX["trajectory_id"]])
            found.add(row[INDEX["tenant"]], id_, row[INDEX["sequence_number"]], pieces.items())


def _read_warm(conn: Connection, found: _References) -> None:
    """Read what Postgres has, after everybody who is putting content now has committed the events."""
    with whole_partitions(conn):
        with answering(), conn.transaction():
            conn.execute(_SWEEP["unlimited"])
            conn.execute(_SWEEP["wait_for_putting"])
        with answering(), conn.transaction():
            conn.execute(_SWEEP["unlimited"])
            for tenant, id_, sequence, body in stream(conn, _SQL["warm_references"], {}):
                found.add(tenant, id_, sequence, ((ref.sha256, ref.size) for ref in references(bytes(body))))
            for tenant, body in stream(conn, _SWEEP["quarantined_references"], {}):
                for ref in references(bytes(body)):
                    found.needed.add(tenant, ref.sha256)


def _going(store: FsContentStore, found: _References) -> dict[Piece, _Given]:
    """What only those refer to that gave it up, and is there."""
    candidates = {piece: given for piece, given in found.given.items() if piece not in found.needed}
    there = {tenant: set(store.digests(tenant)) for tenant in {tenant for tenant, _ in candidates}}
    return {piece: given for piece, given in candidates.items() if piece[1].hex() in there[piece[0]]}


def _condemn(conn: Connection, going: Iterable[Piece]) -> None:
    for batch in _batches(going):
        with answering(), conn.transaction():
            conn.execute(_SWEEP["condemn"], _values(batch))


def _delete_all(
    conn: Connection, store: FsContentStore, going: dict[Piece, _Given]
) -> tuple[dict[Piece, int], list[str]]:
    gone: dict[Piece, int] = {}
    problems: list[str] = []
    for batch in _batches(going):
        chosen = {piece: going[piece] for piece in batch}
        noted = _note(conn, chosen)
        deleted, damage = _delete(conn, store, noted)
        problems += damage
        gone |= {piece: going[piece].size for piece in deleted}
        kept = sorted(noted.keys() - set(deleted))
        with answering(), conn.transaction():
            conn.execute(_SQL["forget_dropped"], _values(kept))
        spare(conn, ((tenant, digest.hex()) for tenant, digest in chosen.keys() - set(deleted)))
    return gone, problems


def _note(conn: Connection, chosen: dict[Piece, _Given]) -> dict[Piece, _Given]:
    """Note that these go, but for what is held by now; returns what was noted."""
    with answering(), conn.transaction():
        conn.execute(statements("retention")["read_committed"])
        lock_out_holds(conn)
        free = _unheld(conn, chosen)
        conn.execute(_SQL["note_dropped"], {**_values(list(free)), **_owners(free)})
    return free


def _delete(conn: Connection, store: FsContentStore, noted: dict[Piece, _Given]) -> tuple[list[Piece], tuple[str, ...]]:
    """Delete those whose row still stands, holding it, but for what is held by now; the rows go with the end of it."""
    with answering(), conn.transaction():
        conn.execute(statements("retention")["read_committed"])
        conn.execute(_SWEEP["unlimited"])
        lock_out_holds(conn)
        free = _unheld(conn, noted)
        rows = conn.execute(_SQL["lock_condemned"], _values(sorted(free))).fetchall()
        pieces = sorted((tenant, bytes(digest)) for tenant, digest in rows)
        problems: list[str] = []
        for tenant, own in groupby(pieces, key=lambda piece: piece[0]):
            problems += store.erase_content(tenant, (digest.hex() for _, digest in own)).problems
        conn.execute(_SWEEP["spare"], _values(pieces))
        conn.execute(_SQL["count_bytes"], _owners({piece: free[piece] for piece in pieces}))
    return pieces, tuple(problems)


def _unheld(conn: Connection, pieces: dict[Piece, _Given]) -> dict[Piece, _Given]:
    ids = {id_ for given in pieces.values() for id_ in given.trajectory_ids}
    held = {id_ for (id_,) in conn.execute(_SQL["held_among"], {"trajectory_ids": sorted(ids)})}
    return {piece: given for piece, given in pieces.items() if held.isdisjoint(given.trajectory_ids)}


def _forget_needed(conn: Connection, needed: Roots) -> None:
    """What others need again was put again: if it is missing later, no policy has done that."""
    back = [piece for piece in lower.dropped_content(conn) if piece in needed]
    for batch in _batches(back):
        with answering(), conn.transaction():
            conn.execute(_SQL["forget_dropped"], _values(batch))


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    ordered = sorted(pieces)
    for start in range(0, len(ordered), BATCH_PIECES):
        yield ordered[start : start + BATCH_PIECES]


def _values(pieces: Sequence[Piece]) -> dict[str, list[str] | list[bytes]]:
    return {"tenants": [tenant for tenant, _ in pieces], "digests": [digest for _, digest in pieces]}


def _owners(pieces: dict[Piece, _Given]) -> dict[str, list[uuid.UUID] | list[int]]:
    """One of those that gave each piece up, and its length."""
    return {
        "trajectory_ids": [min(given.trajectory_ids) for given in pieces.values()],
        "sizes": [given.size for given in pieces.values()],
    }
