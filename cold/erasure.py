"""The bytes of erased trajectories go: from the hot logs of this home, Postgres, the Parquet files, bulky content.

Everything here may be repeated, is interrupted by nothing but an error, and goes on from where it was. What a place
needs to know is read before that place is cleared, and kept in the ledger: which content the bodies in the cold tier
referred to is noted before their rows are written anew.

A log of another home follows the ledger through the sidecar there; until it has, it is named as behind.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import groupby, islice

import msgspec

from stratalog.hot.home import Home
from stratalog.hot.source import open_source
from stratalog.schemas.arrow import INDEX
from stratalog.schemas.errors import StratalogError
from stratalog.schemas.statements import statements
from stratalog.warm import erasure, erasure_bytes, erasure_ledger
from stratalog.warm.database import Connection, answering
from stratalog.warm.erasure_bytes import WarmGone

from .cas import FsContentStore
from .erased import ErasedInCold, erase_in_cold
from .installation import Installation, Tiers
from .rewrite_files import files_holding
from .roots import Roots, digests_in, find_roots, referring_rows

ROUNDS_MAX = 3
"""How often content is looked at that somebody keeps putting."""
BATCH_PIECES = 50
"""Few: whoever puts one of them waits until all are deleted."""

Step = Callable[[str], None]
Piece = tuple[str, str]
"""Tenant and SHA-256 in hex."""


class LogGone(msgspec.Struct, frozen=True):
    """What went from a hot log of this home: bodies, and why it could not be finished, if so."""

    log_id: uuid.UUID
    events: int = 0
    problem: str = ""


class ContentGone(msgspec.Struct, frozen=True):
    """Pieces of content that went, and those that others refer to; pieces that are still being put; damage met."""

    deleted: int = 0
    needed: int = 0
    open: int = 0
    problems: tuple[str, ...] = ()


class Gone(msgspec.Struct, frozen=True):
    """What one run has removed, tier by tier."""

    logs: tuple[LogGone, ...] = ()
    warm: WarmGone = WarmGone()
    cold: ErasedInCold | None = None
    content: ContentGone = ContentGone()

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be finished, and why."""
        logs = tuple(f"log {log.log_id}: {log.problem}" for log in self.logs if log.problem)
        cold = () if self.cold is None else self.cold.left
        return (*logs, *cold, *self.content.problems)


def make_bytes_go(installation: Installation, tiers: Tiers, step: Step = lambda what: None) -> Gone:
    """Remove the bytes of everything in the ledger from all places that can be reached from here.

    Raises what the tiers raise (`Unavailable`, `Locked` while a consolidation or another rewrite runs, `Corrupt` for a
    file that cannot be read); the same call goes on. A log that cannot be opened now is a problem of the report.
    """
    with closing(tiers.connect()) as conn:
        step("hot logs")
        logs = tuple(follow_ledger(conn, installation.home))
        step("Postgres")
        warm = erasure_bytes.remove_bytes(conn, embedded=installation.embedded)
        step("cold tier")
        erased = erasure_ledger.cold_left(conn)
        cold = None
        if erased:
            note_cold_content(conn, tiers, erased)
            cold = erase_in_cold(tiers, erased)
        step("bulky content")
        content = erase_content(conn, tiers)
    return Gone(logs, warm, cold, content)


def follow_ledger(conn: Connection, home: Home) -> Iterator[LogGone]:
    """Let each log of a home follow the ledger, as far as it can be reached now."""
    for log_id in home.log_ids():
        events = 0
        try:
            while (wanted := erasure_ledger.pending(conn, log_id)) is not None:
                with closing(open_source(home, log_id)) as source:
                    done = source.erase(wanted.trajectories).events
                events += done
                erasure_ledger.followed(conn, log_id, wanted.place, done)
        except StratalogError as error:
            yield LogGone(log_id, events, error.message)
        else:
            yield LogGone(log_id, events)


def note_cold_content(conn: Connection, tiers: Tiers, erased: Iterable[uuid.UUID]) -> int:
    """Note what the bodies of these in the cold tier refer to, before they are gone; returns how many pieces."""
    requests = dict.fromkeys(erased, 0)
    for entry in erasure_ledger.requests_of(conn, requests):
        requests[entry[0]] = entry[1]
    found: dict[int, set[tuple[str, bytes]]] = {}
    urls = [file.url for file in tiers.catalog.files()]
    for url in files_holding(tiers.lake, urls, requests.keys()):
        for row in referring_rows(tiers.lake, url):
            number = requests.get(uuid.UUID(bytes=row[INDEX["trajectory_id"]]))
            if number is not None:
                pieces = found.setdefault(number, set())
                pieces.update((row[INDEX["tenant"]], bytes.fromhex(sha256)) for sha256 in digests_in(row))
    with answering(), conn.transaction():
        for number, pieces in sorted(found.items()):
            erasure.note_content(conn, number, pieces)
    return sum(map(len, found.values()))


def erase_content(conn: Connection, tiers: Tiers) -> ContentGone:
    """Delete the content that erased bodies referred to and nobody else does.

    Who puts content holds a shared lock until the events with it are committed (`warm.condemned.putting`). Order here:
    `look_again`, after which everybody who puts one of these pieces marks it; then those who began before are waited
    for, so their events are seen; then the references are read; then pieces without one that were not marked go, in
    transactions that hold their rows: whoever comes now waits, and puts them again.
    """
    sql = statements("erasure")
    total = ContentGone()
    for _ in range(ROUNDS_MAX):
        with answering(), conn.transaction():
            conn.execute(sql["look_again"])
        with answering(), conn.transaction():
            conn.execute(statements("retention")["unlimited"])
            conn.execute(statements("sweep")["wait_for_putting"])
        left: list[Piece] = [(tenant, sha256) for tenant, sha256, _ in erasure_ledger.content_left(conn)]
        if not left:
            break
        with tiers.consolidation():
            roots = find_roots(conn, tiers.lake, tiers.catalog)
            for batch in _batches(left):
                done = _erase_batch(conn, tiers.store, roots, batch)
                total = ContentGone(
                    total.deleted + done.deleted, total.needed + done.needed, 0, total.problems + done.problems
                )
    return msgspec.structs.replace(total, open=len(erasure_ledger.content_left(conn)))


def _erase_batch(conn: Connection, store: FsContentStore, roots: Roots, batch: list[Piece]) -> ContentGone:
    sql = statements("erasure")
    problems: tuple[str, ...] = ()
    with answering(), conn.transaction():
        conn.execute(statements("retention")["unlimited"])
        rows = conn.execute(sql["lock_content"], _values(batch)).fetchall()
        pieces = [(tenant, bytes(digest)) for tenant, digest in rows]
        needed = [piece for piece in pieces if piece in roots]
        going = [piece for piece in pieces if piece not in roots]
        for tenant, group in groupby(going, key=lambda piece: piece[0]):
            problems += store.erase_content(tenant, [digest.hex() for _, digest in group]).problems
        named = [(tenant, digest.hex()) for tenant, digest in going]
        conn.execute(sql["content_needed"], _values((tenant, digest.hex()) for tenant, digest in needed))
        conn.execute(sql["content_gone"], _values(named))
        conn.execute(statements("sweep")["spare"], _values(named))
    return ContentGone(len(going), len(needed), 0, problems)


def _values(pieces: Iterable[Piece]) -> dict[str, list[str] | list[bytes]]:
    known = sorted(pieces)
    return {"tenants": [tenant for tenant, _ in known], "digests": [bytes.fromhex(sha256) for _, sha256 in known]}


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    source = iter(pieces)
    while batch := list(islice(source, BATCH_PIECES)):
        yield batch
