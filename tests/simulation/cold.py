"""The cold tier's places in memory: content, the lake's files, the catalog. Rows stay rows instead of Parquet.

The product's own code makes the rows, checks them on the way in and again when they are read back, plans, commits and
marks; these classes only keep what they are given, and can be interrupted at every step.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stratalog.cold.catalog import RunFile, RunTotals
from stratalog.cold.spread import NewEvent, spread
from stratalog.cold.storage import Entry
from stratalog.cold.stored import Stored, stored_in
from stratalog.cold.writer import File
from stratalog.schemas import ids
from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.errors import Corrupt, NotFound, Unavailable
from stratalog.warm.copying import Copied
from stratalog.warm.database import answering

if TYPE_CHECKING:
    from .world import World

FILE_ROWS = 8


class SimContents:
    """A content store; what `put` has returned for is durable."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.held: dict[tuple[str, str], bytes] = {}

    def put(self, tenant: str, ref: BlobRef, content: bytes) -> None:
        self._world.point("upload")
        self.held[tenant, ref.sha256] = content

    def get(self, tenant: str, sha256: str) -> bytes:
        content = self.held.get((tenant, sha256))
        if content is None:
            raise NotFound(f"content {sha256} is not here")
        return content

    def has(self, tenant: str, sha256: str) -> bool:
        return (tenant, sha256) in self.held

    def digests(self, tenant: str) -> Iterator[str]:
        return (sha256 for owner, sha256 in self.held if owner == tenant)

    def tenants(self) -> Iterator[str]:
        return iter(sorted({owner for owner, _ in self.held}))


class SimLake:
    """Published files by their path."""

    url = "sim://lake"

    def __init__(self, world: World) -> None:
        self._world = world
        self.held: dict[str, tuple[NewEvent, ...]] = {}

    def publish(self, path: str, rows: tuple[NewEvent, ...]) -> str:
        self._world.point("publish a file")
        self.held[path] = rows
        return f"{self.url}/{path}"

    def path_of(self, place: str) -> str:
        return place.removeprefix(f"{self.url}/")

    def files(self, folder: str) -> Iterator[Entry]:
        return iter([Entry(path, len(self.held[path])) for path in sorted(self.held) if path.startswith(f"{folder}/")])

    def delete(self, place: str) -> None:
        self._world.point("delete a file")
        self.held.pop(self.path_of(place), None)
        self._world.oracle.deleted(f"{self.url}/{self.path_of(place)}")

    def clean_partial(self) -> int:
        self._world.point("clean the scratch folder")
        return 0


def read_events(lake: SimLake, url: str) -> Iterator[Stored]:
    """In place of `readback.read_events`."""
    lake._world.point("read a file")
    rows = lake.held.get(lake.path_of(url))
    if rows is None:
        raise Corrupt("the file is gone")
    yield from stored_in(spread(rows))


class SimWriter:
    """In place of `writer.EventsWriter`: the same names for the same rows."""

    def __init__(self, lake: SimLake, folder: str, run_id: str, settings: object, *, to_batch: object) -> None:
        self._lake, self._folder, self._run_id = lake, folder, run_id
        self._rows: list[NewEvent] = []

    def __enter__(self) -> SimWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows = []

    def add(self, row: NewEvent, body_bytes: int) -> None:
        self._rows.append(row)

    def finish(self) -> list[File]:
        files = []
        for start in range(0, len(self._rows), FILE_ROWS):
            rows = tuple(self._rows[start : start + FILE_ROWS])
            digest = hashlib.sha256(repr(rows).encode()).hexdigest()
            path = f"{self._folder}/{self._run_id}-{len(files):05d}-{digest[:16]}.parquet"
            files.append(File(self._lake.publish(path, rows), len(rows), len(rows), digest))
        return files


class SimCatalog:
    """A table whose commits succeed only from the state that was read, as Iceberg's do."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.snapshots: list[tuple[str, tuple[str, ...]]] = []

    def has_run(self, run_id: str) -> bool:
        return self.run_totals(run_id) is not None

    def run_totals(self, run_id: str) -> RunTotals | None:
        self._reach()
        files = self._files(run_id)
        return None if files is None else RunTotals(len(files), sum(file.rows for file in files), 0)

    def run_files(self, run_id: str) -> list[RunFile]:
        self._reach()
        return self._files(run_id) or []

    def commit(self, urls: Sequence[str], run_id: str) -> RunTotals:
        world = self._world
        while True:
            base = len(self.snapshots)
            done = self.run_totals(run_id)
            if done is not None:
                return done
            world.point("commit to the catalog")
            self._reach()
            if len(self.snapshots) == base:
                break
        self.snapshots.append((run_id, tuple(urls)))
        world.oracle.cold_committed(run_id, urls)
        if world.chance(world.profile.lost_reply):
            raise Unavailable("the reply of the catalog is lost")
        world.point("reply of the catalog")
        done = self.run_totals(run_id)
        assert done is not None
        return done

    def _reach(self) -> None:
        if not self._world.postgres.up or not self._world.running.reachable():
            raise Unavailable("Postgres did not answer")

    def _files(self, run_id: str) -> list[RunFile] | None:
        found = [urls for known, urls in self.snapshots if known == run_id]
        if not found:
            return None
        rows = self._world.lake.held
        lengths = self._world.oracle.rows_of_file
        return sorted(
            (RunFile(url, lengths.get(url, len(rows.get(url, ()))), 0) for url in found[0]), key=lambda file: file.url
        )


def copy_events(conn: Any, batch: Sequence[Any]) -> Iterator[Copied]:
    """In place of `warm_events._copy`: the events of some segments in order."""
    conn.postgres.world.point("copy events")
    with answering(), conn.transaction():
        for part in batch:
            id_: uuid.UUID = part.item.trajectory_id
            for sequence in conn.postgres.events_of.get(id_, ()):
                if part.first <= sequence <= part.last:
                    yield _warm_event(id_, conn.postgres.tables["event"][id_, sequence])


def _warm_event(id_: uuid.UUID, row: dict[str, Any]) -> Copied:
    names = ("sequences", "epochs", "times", "versions", "turns", "hashes", "digests", "erased", "kinds")
    values = [ids.to_us(row[name]) if name == "times" else row[name] for name in names]
    return Copied(id_.bytes, *values, row["tenants"], row["bodies"])
