"""How many bytes lie in which tier: measured where they lie, not taken from what was once written.

Tiers: `hot` (the logs of this home), `warm` (Postgres: rows, TOAST, indexes, all of the database), `cold` (data files
of the current snapshot, the table's metadata, and files that no snapshot names), `content` (content-addressed storage).
Nothing is changed. Each number is exact for the moment at which it was read; they are not of one moment.
"""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering

from .cas import FsContentStore
from .catalog import RunFile
from .forecast import Day, Growth, growth
from .installation import Installation, Tiers
from .owner import NAME as OWNER
from .packs import table_of

METADATA_FOLDER = "iceberg"
DAYS = 7
_SQL = statements("storage")


class Part(msgspec.Struct, frozen=True):
    """Bytes of one kind in one tier; files and events where they can be counted."""

    tier: str
    part: str
    bytes: int
    files: int | None = None
    events: int | None = None


class OfTenant(msgspec.Struct, frozen=True):
    """What a tenant has where. `warm_bytes` are stored bodies and projections, without other columns and indexes."""

    tenant: str
    warm_events: int = 0
    warm_bytes: int = 0
    cold_events: int = 0
    cold_bytes: int = 0
    cold_files: int = 0
    content_bytes: int = 0
    content_files: int = 0
    """Loose pieces and packs."""


class OfKind(msgspec.Struct, frozen=True):
    """Events of a kind; `warm_bytes` as in `OfTenant`."""

    kind: str
    warm_events: int = 0
    warm_bytes: int = 0
    cold_events: int = 0


class InPacks(msgspec.Struct, frozen=True):
    """Content in packs: how many there are, the bytes of their files and of the content in them, how much is needed."""

    packs: int = 0
    pieces: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    needed_bytes: int = 0


class Usage(msgspec.Struct, frozen=True):
    """What lies where."""

    parts: tuple[Part, ...]
    tenants: tuple[OfTenant, ...] = ()
    kinds: tuple[OfKind, ...] = ()
    days: tuple[Day, ...] = ()
    growth: tuple[Growth, ...] = ()
    packs: InPacks = InPacks()

    def bytes_of(self, tier: str) -> int:
        """All bytes of a tier."""
        return sum(part.bytes for part in self.parts if part.tier == tier)

    def events_of(self, tier: str) -> int | None:
        """The events of a tier, `None` where they are not counted."""
        counts = [part.events for part in self.parts if part.tier == tier and part.events is not None]
        return sum(counts) if counts else None


def measure(installation: Installation, *, days: int = DAYS, now: dt.datetime | None = None) -> Usage:
    """Measure everything; `days` are the last ones, today included, that growth is taken from.

    Raises `Unavailable` where Postgres or the storage do not answer, `Corrupt` where the table's metadata is damaged.
    """
    hot = tuple(_hot(installation.home.path / "hot"))
    if not installation.has_postgres:
        return Usage(hot)
    now = now or dt.datetime.now(dt.UTC)
    with installation.tiers() as tiers, closing(tiers.connect()) as conn:
        files = tiers.catalog.files()
        pieces = _Content(tiers.store)
        with answering(), conn.transaction():
            conn.execute(_SQL["unlimited"])
            warm_kinds = conn.execute(_SQL["warm_kinds"]).fetchall()
            warm_parts = tuple(_warm(conn, sum(row[2] for row in warm_kinds)))
            written = conn.execute(_SQL["written"], {"today": now.date(), "days": days}).fetchall()
        parts = (*hot, *warm_parts, *_cold(tiers, files), *pieces.parts())
        history = tuple(Day(day, warm, cold, pieces.by_day[day]) for day, warm, cold in written)
        return Usage(
            parts,
            _tenants(warm_kinds, files, pieces),
            _kinds(warm_kinds, _cold_kinds(tiers, files)),
            history,
            growth(history, now, {tier: Usage(parts).bytes_of(tier) for tier in ("warm", "cold", "content")}),
            pieces.packs,
        )


def _hot(folder: Path) -> Iterator[Part]:
    sizes = [
        size for path, _, names in os.walk(folder) for name in names if (size := _size(Path(path) / name)) is not None
    ]
    yield Part("hot", "logs", sum(sizes), len(sizes))


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return None  # an open log removes files of its own all the time


def _warm(conn: Connection, events: int) -> Iterator[Part]:
    for part, rows, toast, indexes in conn.execute(_SQL["warm_parts"]).fetchall():
        yield Part("warm", part, rows, None, events if part == "events" else None)
        if toast:
            yield Part("warm", f"{part}: TOAST", toast)
        if indexes:
            yield Part("warm", f"{part}: indexes", indexes)


def _cold(tiers: Tiers, files: list[RunFile]) -> Iterator[Part]:
    yield Part("cold", "data", sum(file.bytes for file in files), len(files), sum(file.rows for file in files))
    metadata = [entry.size for entry in tiers.lake.files(METADATA_FOLDER)]
    metadata += [entry.size for entry in (tiers.lake.entry(OWNER),) if entry is not None]
    yield Part("cold", "metadata", sum(metadata), len(metadata))
    named = {tiers.lake.path_of(file.url) for file in files}
    others = [entry.size for entry in tiers.lake.files() if entry.path not in named]
    if others:
        yield Part("cold", "not in the snapshot", sum(others), len(others))


class _Content:
    """Content-addressed storage, walked once; by the day on which a piece was last put or a pack was written."""

    def __init__(self, store: FsContentStore) -> None:
        self.bytes: Counter[str] = Counter()
        self.files: Counter[str] = Counter()
        self.by_day: Counter[dt.date] = Counter()
        self._parts: dict[str, Counter[str]] = {"pieces": Counter(), "packs": Counter()}
        for tenant in store.tenants():
            for part, entries in (("pieces", store.entries(tenant)), ("packs", store.shelf.entries(tenant))):
                for entry in entries:
                    self.bytes[tenant] += entry.size
                    self.files[tenant] += 1
                    self.by_day[dt.datetime.fromtimestamp(entry.modified_s, dt.UTC).date()] += entry.size
                    self._parts[part].update(bytes=entry.size, files=1)
        known = [row for row in table_of(store).packs() if not row.replaced]
        self.packs = InPacks(
            len(known),
            sum(row.live_pieces for row in known),
            sum(row.bytes for row in known),
            sum(row.raw_bytes for row in known),
            sum(row.live_bytes for row in known),
        )

    def parts(self) -> Iterator[Part]:
        for part, counted in self._parts.items():
            if part == "pieces" or counted:
                yield Part("content", part, counted["bytes"], counted["files"])


def _cold_kinds(tiers: Tiers, files: list[RunFile]) -> list[tuple[str, int]]:
    if not files:
        return []
    from .query import connect

    options = tiers.settings.storage_options
    with closing(connect(files=[file.url for file in files], storage_options=options)) as duckdb:
        return duckdb.execute(_SQL["cold_kinds"].decode()).fetchall()


def _tenants(
    warm: Iterable[tuple[str, str, int, int]], files: Iterable[RunFile], content: _Content
) -> tuple[OfTenant, ...]:
    found: dict[str, Counter[str]] = {}
    for tenant, _, events, size in warm:
        found.setdefault(tenant, Counter()).update(warm_events=events, warm_bytes=size)
    for file in files:
        tenant = file.url.rpartition("/tenant=")[2].partition("/")[0]
        found.setdefault(tenant, Counter()).update(cold_events=file.rows, cold_bytes=file.bytes, cold_files=1)
    for tenant, size in content.bytes.items():
        found.setdefault(tenant, Counter()).update(content_bytes=size, content_files=content.files[tenant])
    return tuple(OfTenant(tenant, **counts) for tenant, counts in sorted(found.items()))


def _kinds(warm: Iterable[tuple[str, str, int, int]], cold: Iterable[tuple[str, int]]) -> tuple[OfKind, ...]:
    found: dict[str, Counter[str]] = {}
    for _, kind, events, size in warm:
        found.setdefault(kind, Counter()).update(warm_events=events, warm_bytes=size)
    for kind, events in cold:
        found.setdefault(kind, Counter()).update(cold_events=events)
    return tuple(OfKind(kind, **counts) for kind, counts in sorted(found.items()))
