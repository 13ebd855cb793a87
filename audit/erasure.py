"""Erasure from end to end: unreadable, the ledger outside the database, bytes gone, a signed receipt for each tier.

    proceed ─▶ ledger published ─▶ hot logs ─▶ Postgres ─▶ cold tier ─▶ bulky content ─▶ receipts

The ledger is kept outside the database, too, because a database that is restored from an older backup does not know
what was erased after it: a file of the home and one beside the signed heads. Whoever restores replays it. A receipt is
given only for what a tier has shown to be gone; it stays open as long as a log is behind.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import msgspec

from stratalog.cold.erasure import Gone, Step, make_bytes_go
from stratalog.cold.erasure_file import publish_ledger
from stratalog.cold.installation import Installation, Tiers
from stratalog.warm import erasure, erasure_ledger
from stratalog.warm.database import Connection
from stratalog.warm.erasure import Proceeded, Selection
from stratalog.warm.erasure_ledger import Item, LogBehind, Request

from . import receipts
from .keys import KeyProvider
from .receipts import TIERS, Document, Receipt

ANY_PLACE = 1 << 62
"""Beyond the end of every ledger: all logs are behind it."""


class Erased(msgspec.Struct, frozen=True):
    """What a run did: what became unreadable, what went from where, the receipts given, and what is still open."""

    proceeded: Proceeded
    gone: Gone | None
    receipts: tuple[Receipt, ...]
    requests: tuple[Request, ...]
    behind: tuple[LogBehind, ...]
    """Logs that have not followed the ledger: the receipts of the hot tier wait for them."""

    @property
    def finished(self) -> bool:
        """Whether every request has all its receipts."""
        return not any(open_tiers(request) for request in self.requests) and not self.proceeded.held


def open_tiers(request: Request) -> tuple[str, ...]:
    """The tiers of a request that have not given a receipt."""
    return tuple(tier for tier in TIERS if tier not in request.receipts) if request.unreadable else ()


def erase(
    installation: Installation,
    keys: KeyProvider,
    selection: Selection | None,
    *,
    by: str = "",
    reason: str = "",
    bytes_too: bool = True,
    step: Step = lambda what: None,
    on_unreadable: Callable[[Proceeded], None] = lambda done: None,
) -> Erased:
    """Erase what `selection` names; without one, go on with all requests that are open.

    `on_unreadable` is told when nothing of it can be read any more; `bytes_too=False` ends there. Raises what
    `erasure.request`, `erasure.proceed` and `make_bytes_go` raise: what was done until then stays done.
    """
    with installation.tiers() as tiers, closing(tiers.connect()) as conn:
        erasure_id = None
        if selection is not None:
            erasure_id = erasure.request(conn, selection, by=by, reason=reason)
        step("unreadable")
        done = erasure.proceed(conn, erasure_id)
        publish_ledger(conn, installation, tiers)
        on_unreadable(done)
        gone = make_bytes_go(installation, tiers, step) if bytes_too else None
        given = tuple(give_receipts(conn, installation, tiers, keys)) if bytes_too else ()
        requests = erasure_ledger.requests(conn, erasure_id)
        place = max((request.place for request in requests), default=0)
        return Erased(done, gone, given, tuple(requests), tuple(erasure_ledger.logs_behind(conn, place)))


def give_receipts(conn: Connection, installation: Installation, tiers: Tiers, keys: KeyProvider) -> Iterator[Receipt]:
    """Give the receipts that can be given now; each is stored before it is handed on."""
    for request in erasure_ledger.requests(conn):
        given = receipts.receipts_of(conn, request.erasure_id)
        items = [item for item in erasure_ledger.items(conn, request.erasure_id) if item.state == "erased"]
        for tier in TIERS:
            known = receipts.covered(given, tier)
            new = [item for item in items if item.trajectory_id not in known]
            if new and _is_gone(conn, tier, request, new):
                document = _document(conn, installation, tiers, request, tier, new)
                receipt = receipts.sign(keys, document)
                receipts.store(conn, request.erasure_id, receipt)
                yield receipt


def _is_gone(conn: Connection, tier: str, request: Request, items: Sequence[Item]) -> bool:
    if tier == "hot":
        return not erasure_ledger.logs_behind(conn, request.place)
    if tier == "warm":
        return all(item.warm_gone_at is not None for item in items)
    if tier == "cold":
        return all(item.cold_gone_at is not None for item in items)
    # What bodies referred to is known only once all places that have bodies were read.
    everywhere = all(item.warm_gone_at is not None and item.cold_gone_at is not None for item in items)
    return everywhere and erasure_ledger.content_counts(conn, request.erasure_id)[0] == 0


def _document(
    conn: Connection, installation: Installation, tiers: Tiers, request: Request, tier: str, items: Sequence[Item]
) -> Document:
    looked_at, outside = _scope(conn, installation, tiers, request, tier, [item.trajectory_id for item in items])
    return Document(
        erasure_id=request.erasure_id,
        tier=tier,
        requested_at=request.requested_at,
        requested_by=request.requested_by,
        reason=request.reason,
        made_at=dt.datetime.now(dt.UTC),
        trajectories=[_entry(item, tier) for item in items],
        looked_at=looked_at,
        outside_reach=[*outside, *_outside_everything(installation)],
    )


def _entry(item: Item, tier: str) -> dict[str, str]:
    entry = {"trajectory_id": str(item.trajectory_id), "tenant": item.tenant, "unreadable_at": _time(item.erased_at)}
    at = {"warm": item.warm_gone_at, "cold": item.cold_gone_at}.get(tier)
    return entry if at is None else {**entry, "gone_at": _time(at)}


def _time(at: dt.datetime | None) -> str:
    return "" if at is None else at.astimezone(dt.UTC).isoformat()


def _scope(
    conn: Connection,
    installation: Installation,
    tiers: Tiers,
    request: Request,
    tier: str,
    ids: Sequence[uuid.UUID],
) -> tuple[list[str], list[str]]:
    """What was looked at in a tier, and what in it is out of reach."""
    if tier == "hot":
        logs, abandoned = erasure_ledger.logs_behind(conn, ANY_PLACE), erasure_ledger.abandoned(conn)
        return [f"log {log.log_id}: followed the ledger up to place {log.place}" for log in logs], [
            *(f"log {log_id}: not waited for: {why}" for log_id, why in sorted(abandoned.items())),
            "logs that were never replicated to this database; their events are stored without bodies when they come",
            "copies of a log's folder",
        ]
    if tier == "warm":
        tables = "events, strays, quarantine, heads, plans, subjects, statistics: written anew, then read"
        if installation.embedded:
            return [tables, "the write-ahead log: no file is left that was written before"], ["copies of pg/"]
        return [tables], ["the write-ahead log, replicas, archives and backups of this server, which is not ours"]
    if tier == "cold":
        files = len(tiers.catalog.files())
        looked = f"{files} data files of the current snapshot, older snapshots, other files and object versions of"
        return [f"{looked} {tiers.lake.url}"], ["copies that readers have made; versions that Object Lock retains"]
    needed = erasure_ledger.content_counts(conn, request.erasure_id)[1]
    kept = [f"{needed} pieces to which other trajectories of the tenant refer, too; they stay"] if needed else []
    return ["every piece that the bodies referred to, loose and in packs", *kept], ["copies that readers have made"]


def _outside_everything(installation: Installation) -> list[str]:
    expire = installation.settings.erasure.backups_expire
    backups = f"they expire after {expire}" if expire else "when they expire is not set (erasure.backups_expire)"
    return [
        f"backups made before: {backups}; whoever restores one replays the ledger of erasures",
        "exports and evidence bundles that were handed out",
        "blocks that a file system or a disk has freed and not written again",
        "of imports: who has the tenant's import key can confirm a guess of a body, for the secret is made from it",
    ]
