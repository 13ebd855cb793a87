"""Looks for residue of what was erased, in everything that this installation holds.

Two ways, because neither is enough by itself. By meaning: every event of an erased trajectory, in each hot log, in
Postgres and in each Parquet file, must be an erased one, without body, secret and labels. By bytes: the caller's texts
are searched for in every column of Postgres and of every Parquet file, in every piece of content, and in the raw bytes
of every file of the home, whatever it is. What is compressed (Parquet, packs, rows of Postgres) is decoded first.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.hot.home import Home
from stratalog.hot.residue import search_files
from stratalog.hot.source import open_reader
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.errors import Corrupt, NotFound, StratalogError
from stratalog.schemas.statements import statements
from stratalog.warm import erasure_bytes, erasure_ledger
from stratalog.warm.database import Connection, answering
from stratalog.warm.residue import rows_with

from .cas import FsContentStore
from .erased_copies import with_content
from .installation import Installation, Tiers
from .lake import Lake
from .rewrite_files import open_parquet

Step = Callable[[str], None]


class Residue(msgspec.Struct):
    """What was looked at, what was found, and what could not be looked at."""

    trajectories: int = 0
    events: int = 0
    logs: int = 0
    files: int = 0
    bytes: int = 0
    """Of files that were searched as they are."""
    problems: list[str] = []
    not_looked_at: list[str] = []


def look_for_residue(
    installation: Installation, needles: Sequence[bytes], *, step: Step = lambda what: None
) -> Residue:
    """Look everywhere; raises `Unavailable` where a tier does not answer."""
    report = Residue()
    with installation.tiers() as tiers, closing(tiers.connect()) as conn:
        erased = [entry.trajectory_id for entry in erasure_ledger.entries(conn)]
        report.trajectories = len(erased)
        step("hot logs")
        _hot(installation.home, erased, report)
        step("Postgres")
        _warm(conn, erased, needles, report)
        step("cold tier")
        _cold(tiers, erased, needles, report)
        step("bulky content")
        if needles:
            with closing(installation.content_store()) as store:
                report.problems += _content(store, needles)
    step("files")
    if needles:
        report.problems += _files(installation.home, needles, report)
    if not installation.embedded:
        report.not_looked_at.append("files, write-ahead log, replicas and backups of a Postgres that is not ours")
    report.not_looked_at += _damaged(installation.home)
    report.not_looked_at += ["backups and exports outside the home", "homes on other machines"]
    return report


def _hot(home: Home, erased: Sequence[uuid.UUID], report: Residue) -> None:
    for log_id in home.log_ids():
        try:
            with closing(open_reader(home, log_id)) as reader:
                here = {head.trajectory_id for head in reader.heads()}
                for trajectory_id in erased:
                    if trajectory_id in here:
                        _log_events(reader.envelopes(trajectory_id), log_id, report)
        except StratalogError as error:
            report.not_looked_at.append(f"log {log_id}: {error.message}")
        else:
            report.logs += 1


def _damaged(home: Home) -> Iterator[str]:
    for path in sorted((home.path / "hot").glob("*.damaged*")):
        yield f"hot/{path.name}: kept as it was when it was damaged; texts are searched in its bytes, or remove it"


def _log_events(envelopes: Iterator[Envelope], log_id: uuid.UUID, report: Residue) -> None:
    try:
        for envelope in envelopes:
            report.events += 1
            if not envelope.erased or envelope.secret is not None:
                report.problems.append(f"log {log_id}, LSN {envelope.lsn}: an event with its body")
    except NotFound:
        return  # all of it is pruned


def _warm(conn: Connection, erased: Sequence[uuid.UUID], needles: Sequence[bytes], report: Residue) -> None:
    with answering(), conn.transaction():
        conn.execute(statements("retention")["unlimited"])
        row = conn.execute(statements("residue")["events_of"], {"ids": list(erased)}).fetchone()
    report.events += row[0] if row else 0
    found = erasure_bytes.unerased(conn, erased)
    report.problems += (f"Postgres, trajectory {id_}: its {what} is readable" for what, id_ in found)
    if needles:
        report.problems += rows_with(conn, needles)


def _cold(tiers: Tiers, erased: Sequence[uuid.UUID], needles: Sequence[bytes], report: Residue) -> None:
    for entry in tiers.lake.files():
        if not entry.path.endswith(".parquet"):
            continue
        report.files += 1
        try:
            if with_content(tiers.lake, [entry.path], erased):
                report.problems.append(f"{entry.path}: it has content of erased trajectories")
            report.problems += _parquet(tiers.lake, entry.path, needles)
        except Corrupt as error:
            report.not_looked_at.append(f"{entry.path}: {error.message}")


def _parquet(lake: Lake, path: str, needles: Sequence[bytes]) -> Iterator[str]:
    if not needles:
        return
    with lake.open(path) as stream, open_parquet(stream, path) as file:
        found: set[str] = set()
        for group in range(file.num_row_groups):
            found.update(_columns_with(file.read_row_group(group, use_threads=False), needles))
        yield from (f"{path}, column {name}: it has a text that must not be there" for name in sorted(found))


def _columns_with(table: pa.Table, needles: Sequence[bytes]) -> Iterator[str]:
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            as_bytes = column.cast(pa.binary())
            if any(pc.any(pc.match_substring(as_bytes, needle)).as_py() for needle in needles):
                yield name


def _content(store: FsContentStore, needles: Sequence[bytes]) -> Iterator[str]:
    for tenant in store.tenants():
        for sha256 in store.digests(tenant):
            try:
                content = store.get(tenant, sha256)
            except (NotFound, Corrupt):
                continue
            if any(needle in content for needle in needles):
                yield f"content {sha256} of {tenant}: it has a text that must not be there"


def _files(home: Home, needles: Sequence[bytes], report: Residue) -> Iterator[str]:
    seen: set[str] = set()
    report.bytes = sum(
        path.lstat().st_size for path in home.path.rglob("*") if path.is_file() and not path.is_symlink()
    )
    for found in search_files(home.path, needles):
        place = str(found.path.relative_to(home.path))
        if place not in seen:
            seen.add(place)
            yield f"{place}, byte {found.offset:,}: a text that must not be there"
