"""Merges small data files of a folder (tenant, day, model) into files of the target size.

A consolidation writes a file for each folder it has something for; where it runs often, or trajectories come in late,
they become many, and each costs a query a request and a footer. Small is what has less than half the target. Files that
share a segment with a large one stay as they are. What is merged goes by `rewrite.py`: no row changes, readers see the
table before or after, a crash is ended by whatever job comes next.

Pinned readers are waited for, without the lock, before the old files go. Where one stays longer they are left, and the
next compaction, consolidation or expiry takes them away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import msgspec

from stratalog.schemas.errors import Corrupt, Invalid, Locked
from stratalog.schemas.settings import ColdSettings

from . import pins
from .catalog import RunFile
from .installation import Tiers
from .rewrite import Rewriting, Rewritten, settle_rewrites
from .rewrite_files import Unit, closed_units

MIN_FILES = 4
"""The fewest small files of a folder that are worth it."""
SMALL = 0.5
"""A file is small below this share of the target."""
MERGED_MAX = 64
"""The most files that are merged at once: of each a batch of rows is in memory."""
WAIT_S = 60.0


class Compacted(msgspec.Struct, frozen=True):
    """What was merged, or would be; what could not be; and who still reads files that have been replaced."""

    folders: int = 0
    files: int = 0
    new_files: int = 0
    bytes: int = 0
    new_bytes: int = 0
    events: int = 0
    waiting_files: int = 0
    """Replaced files that are left for the next job."""
    readers: tuple[str, ...] = ()
    """Because of whom."""
    problems: tuple[str, ...] = ()


def compact(
    tiers: Tiers,
    *,
    min_files: int = MIN_FILES,
    target_bytes: int | None = None,
    wait_s: float = WAIT_S,
    dry_run: bool = False,
) -> Compacted:
    """Merge the small files of every folder that has `min_files` of them; `target_bytes` is by default the setting.

    Readers of the old files are waited for `wait_s` seconds at most. A folder with a damaged file is reported as a
    problem and stays. Raises `Locked` while a consolidation or another compaction runs, `Invalid` for a bad number,
    `Unavailable` where Postgres or the storage do not answer: the same call goes on from there.
    """
    target = tiers.settings.file_bytes_max if target_bytes is None else target_bytes
    if min_files < 2 or target < 1:
        raise Invalid("there must be at least two files and one byte", hint="leave the options out for good values")
    if dry_run:
        return _planned(tiers, min_files, target)
    settings = msgspec.structs.replace(tiers.settings, file_bytes_max=target)
    problems: list[str] = []
    with Rewriting(tiers) as work:
        done = [
            merged
            for folder in _folders(tiers, min_files, target, problems)
            for merged in _merge(work, folder, settings, problems)
        ]
    waiting, readers = _wait(tiers, done, wait_s)
    return Compacted(
        len({url.rpartition("/")[0] for merged in done for url in merged.files}),
        sum(len(merged.files) for merged in done),
        sum(len(merged.new_files) for merged in done),
        sum(merged.bytes for merged in done),
        sum(merged.new_bytes for merged in done),
        sum(merged.rows for merged in done),
        waiting,
        readers,
        tuple(problems),
    )


def _planned(tiers: Tiers, min_files: int, target: int) -> Compacted:
    problems: list[str] = []
    folders = [list(_files(units)) for units in _folders(tiers, min_files, target, problems)]
    size = [sum(file.bytes for file in files) for files in folders]
    return Compacted(
        len(folders),
        sum(map(len, folders)),
        sum(-(-bytes_ // target) for bytes_ in size),
        sum(size),
        sum(size),
        sum(file.rows for files in folders for file in files),
        problems=tuple(problems),
    )


def _folders(tiers: Tiers, min_files: int, target: int, problems: list[str]) -> Iterator[list[Unit]]:
    """What is small, folder by folder, where it is worth it."""
    by_folder: dict[str, list[RunFile]] = {}
    for file in tiers.catalog.files():
        by_folder.setdefault(file.url.rpartition("/")[0], []).append(file)
    for folder, files in sorted(by_folder.items()):
        small = [file.url for file in files if file.bytes < SMALL * target]
        if len(small) < min_files:
            continue
        try:
            units = closed_units(tiers.lake, files, small)
        except Corrupt as error:
            problems.append(f"{folder}: {error.message}")
            continue
        units = [unit for unit in units if sum(file.bytes for file in unit.files) < SMALL * target]
        if sum(len(unit.files) for unit in units) >= min_files:
            yield units


def _files(units: Sequence[Unit]) -> Iterator[RunFile]:
    for unit in units:
        yield from unit.files


def _merge(work: Rewriting, units: list[Unit], settings: ColdSettings, problems: list[str]) -> Iterator[Rewritten]:
    """Merge the units of a folder, some at a time, each by a commit of its own."""
    for start in range(0, len(units), MERGED_MAX):
        part = [file.url for file in _files(units[start : start + MERGED_MAX])]
        if len(part) < 2:
            continue
        try:
            yield work.rewrite(part, lambda row: row, "compaction", settings=settings)
        except Corrupt as error:
            problems.append(f"{part[0].rpartition('/')[0]}: {error.message}")


def _wait(tiers: Tiers, done: Sequence[Rewritten], wait_s: float) -> tuple[int, tuple[str, ...]]:
    """Wait for who reads replaced files, then take these away; how many are left, and because of whom."""
    if all(merged.over for merged in done):
        return 0, ()
    table = tiers.catalog.table()
    current = None if table is None else table.current_snapshot()
    with closing(tiers.connect()) as conn:
        pins.wait_for(conn, seconds_max=wait_s, reading=set() if current is None else {current.snapshot_id})
    try:
        settled = [found for found in settle_rewrites(tiers) if not found.over]
    except Locked:
        return sum(len(merged.files) for merged in done if not merged.over), ()
    readers = dict.fromkeys(reader for found in settled for reader in found.readers)
    return sum(len(found.plan.old) for found in settled), tuple(readers)
