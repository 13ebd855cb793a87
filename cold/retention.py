"""Deletes from the cold tier what the policies in force say: whole trajectories, by a rewrite of their files.

    plan ─▶ new files without them ─▶ read-back ─▶ judged with holds kept out, started ─▶ commit ─▶ heads ─▶ bytes gone

Nothing leaves the cold tier before it has left Postgres, and a trajectory leaves with all that descends from it, or
after it. A hold wins until the deletion is started; then the rewrite, whose files are ready, is committed at once. If
it turns out that it was not committed (a crash), the deletion is judged again, so a hold wins even then. Readers that
have pinned an older snapshot are waited for, `wait_s` seconds at most; what they keep goes with the next call. The head
stays in `trajectories`: an event that is sent again is known, and `verify` knows what has left.

A crash at any step leaves deletions that are planned, or started with a rewrite; the next call finds out from the table
whether that was committed, and finishes it either way.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence

import msgspec

from stratalog.schemas.arrow import INDEX
from stratalog.schemas.errors import Conflict, Corrupt
from stratalog.warm import deletion_lower as lower
from stratalog.warm.database import Connection
from stratalog.warm.deletion import Judged, Share, Tally
from stratalog.warm.deletion_lower import Open

from .columns import Row
from .installation import Tiers
from .lake import EVENTS_FOLDER
from .readback import read_rows
from .retention_content import BulkyDeletions, delete_content
from .rewrite import Rewriting, Rewritten
from .rewrite_files import files_holding
from .rewrite_settle import settle_open

WAIT_S = 60.0
"""How long readers of older snapshots are waited for."""
NOT_FOUND = "its events are not as they should be in the cold tier, see: stratalog verify"
DAMAGED = "a file of its day in the cold tier cannot be read, see: stratalog verify"

_ID = INDEX["trajectory_id"]


class ColdDeletions(msgspec.Struct, frozen=True):
    """What was done. `bytes` are those of the files that went, less those of the files that came."""

    planned: int = 0
    shares: tuple[Share, ...] = ()
    bytes: int = 0
    readers: tuple[str, ...] = ()
    """Who still reads old files; what has left the table goes from the storage with the next call."""

    @property
    def trajectories(self) -> int:
        """How many are gone, to the last byte."""
        return sum(share.trajectories for share in self.shares if share.outcome == "done")

    @property
    def events(self) -> int:
        """How many events are gone."""
        return sum(share.events for share in self.shares if share.outcome == "done")


class LowerTiers(msgspec.Struct, frozen=True):
    """What was done below the warm tier."""

    cold: ColdDeletions
    bulky: BulkyDeletions


class _Refused(Conflict):
    """A deletion that was planned may not be executed any more, so the files that were written are of no use."""

    def __init__(self, judged: Sequence[Judged]) -> None:
        super().__init__(f"{len(judged)} deletions were refused")
        self.judged = judged


def apply_lower(tiers: Tiers, now: dt.datetime, *, wait_s: float = WAIT_S) -> LowerTiers:
    """Bring the cold tier, then bulky content, to what the policies say at `now`, after the warm tier.

    Raises what `delete_from_cold` and `delete_content` raise.
    """
    return LowerTiers(delete_from_cold(tiers, now, wait_s=wait_s), delete_content(tiers, now))


def delete_from_cold(tiers: Tiers, now: dt.datetime, *, wait_s: float = WAIT_S) -> ColdDeletions:
    """Delete what is due at `now` and nothing keeps; first finishes what an earlier call has begun.

    What lies in files that cannot be read stays, with the reason; it keeps nothing else from going. Raises `Locked`
    while a consolidation runs, `Unavailable` where Postgres or the storage do not answer: the same call goes on.
    """
    tally = Tally()
    with Rewriting(tiers) as work:
        conn = work.connection
        settled = settle_open(conn, tiers.lake, tiers.catalog, wait_s=wait_s)
        readers = {reader for one in settled for reader in one.readers}
        _finish(conn, tally)
        planned = lower.plan(conn, "cold", now)
        size = 0
        while batch := [one for one in lower.open_deletions(conn, "cold") if not one.committed]:
            done = _delete(work, batch, now, wait_s, tally)
            if done is not None:
                size += done.bytes - done.new_bytes
                readers |= set(done.settled.readers if done.settled is not None else ())
        _finish(conn, tally)
    return ColdDeletions(planned, tally.shares(), size, tuple(sorted(readers)))


def _delete(work: Rewriting, batch: Sequence[Open], now: dt.datetime, wait_s: float, tally: Tally) -> Rewritten | None:
    """Delete a batch in one rewrite; `None` where some of it is refused, for the caller to try without it."""
    conn = work.connection
    urls, lost = _files_of(work.tiers, batch)
    if lost:
        _refuse(conn, lost, tally)
        return None
    going = {one.trajectory_id.bytes for one in batch}

    def committing(rewrite_id: uuid.UUID) -> None:
        """The point of no return."""
        refused = lower.start(conn, "cold", batch, now, rewrite_id)
        if refused:
            raise _Refused(refused)

    def change(row: Row) -> Row | None:
        return None if row[_ID] in going else row

    try:
        return work.rewrite(urls, change, "retention", wait_s=wait_s, committing=committing)
    except _Refused as error:
        for judged in error.judged:
            tally.add(judged.tenant, judged.policy, str(judged.refusal))
        return None
    except Corrupt:
        bad = _unreadable(work.tiers, urls)
        damaged = {one: DAMAGED for one in batch if any(_folder_of(work.tiers, one) in url for url in bad)}
        if not damaged:
            raise
        _refuse(conn, damaged, tally)
        return None


def _refuse(conn: Connection, reasons: Mapping[Open, str], tally: Tally) -> None:
    for reason in sorted(set(reasons.values())):
        batch = [one for one, why in reasons.items() if why == reason]
        lower.refuse(conn, batch, reason)
        for one in batch:
            tally.add(one.tenant, one.policy, reason)


def _files_of(tiers: Tiers, batch: Sequence[Open]) -> tuple[list[str], dict[Open, str]]:
    """The files that hold a batch; and those of the batch of which the files say something else than they should."""
    table = [file.url for file in tiers.catalog.files()]
    by_folder: dict[str, list[Open]] = {}
    for one in batch:
        by_folder.setdefault(_folder_of(tiers, one), []).append(one)
    urls: list[str] = []
    lost: dict[Open, str] = {}
    for folder, members in by_folder.items():
        near = [url for url in table if url.startswith(folder)]
        try:
            found = files_holding(tiers.lake, near, [one.trajectory_id for one in members])
            if sum(found.values()) != sum(one.events for one in members):
                lost |= {one: NOT_FOUND for one in members if _events_in(tiers, list(found), one) != one.events}
        except Corrupt:
            lost |= dict.fromkeys(members, DAMAGED)
            continue
        urls += found
    return urls, dict.fromkeys(batch, NOT_FOUND) if not urls and not lost else lost


def _folder_of(tiers: Tiers, one: Open) -> str:
    """The URL that all files begin with in which a trajectory may be."""
    return f"{tiers.lake.url}/{EVENTS_FOLDER}/tenant={one.tenant}/date={one.day}/"


def _events_in(tiers: Tiers, urls: Sequence[str], one: Open) -> int:
    return sum(files_holding(tiers.lake, urls, [one.trajectory_id]).values())


def _unreadable(tiers: Tiers, urls: Sequence[str]) -> list[str]:
    """Those of some files that cannot be read to their end."""
    bad = []
    for url in urls:
        try:
            for _ in read_rows(tiers.lake, url):
                pass
        except Corrupt:
            bad.append(url)
    return bad


def _finish(conn: Connection, tally: Tally) -> None:
    """Mark the heads of what has left the table, and end the deletions whose files are gone, too."""
    rewrites = {one.rewrite_id: one.rewrite for one in lower.open_deletions(conn, "cold") if one.committed}
    for rewrite_id, state in rewrites.items():
        assert rewrite_id is not None
        lower.mark_cold(conn, rewrite_id)
        if state == "done":
            lower.finish_cold(conn, rewrite_id, tally)
