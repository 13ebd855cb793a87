"""Foreign trajectories into the hot log: any files and folders, any number of times.

Importing the same bytes again adds nothing, a file that has grown adds its growth, and a process that is killed at any
moment is completed by the next run, because the cursor is committed together with the events. What is wrong with one
file is reported and stops no other; only the log's own errors (no disk, a failed commit) end the import.

Copies of one source may differ (cut, grown, changed). Whatever their order, and however they were imported before:

- Once each of them has been imported, importing them again, in any order, appends nothing.
- Everything that a copy says is in one trajectory of its source, whose events are never changed, only added to.
- Copies that end between two things become as many trajectories as there are copies that are not the beginning of
  another, in any order. Which of them is the first generation, and has the id of an only copy, depends on the order.
- A copy that ends in the middle of something (a half line, a reply whose end does not show) has events that say so. If
  it is imported before the file that it is the beginning of, both are one trajectory; if after, it is another one.

This holds as long as only imports append to these trajectories, a file is not changed while it is read, and cursors
were stored with the digests of `ending`; those of older versions are read as well as those versions could. Where
somebody else has appended, growth becomes another generation, once.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from stratalog.schemas.errors import Erased, Invalid
from stratalog.schemas.ids import check_tenant

from .detect import AUTO, READERS, detect
from .head import Head
from .imported_file import ImportedFile
from .tracks import ImportLog, Place

_COMPANION = ".meta.json"
_COMPANION_KEYS = {"agentType", "description", "worktreePath", "spawnDepth"}

# Imports of one process take turns, file by file: two of one file would otherwise interleave their events.
_turn = threading.Lock()

Progress = Callable[[Path, int, int], None]
"""Called before each file: its path, how many are done, how many there are."""


class FileProblem(msgspec.Struct, frozen=True):
    """Something that could not be read, and where; `line` counts from 1."""

    file: str
    line: int | None
    reason: str


class ImportReport(msgspec.Struct):
    """What an import did; `trajectories` and `events` count what now stands for these files, `appended` the new."""

    files: int = 0
    trajectories: int = 0
    events: int = 0
    appended: int = 0
    opaque_events: int = 0
    problems: list[FileProblem] = []

    @property
    def partial(self) -> bool:
        """Whether something could not be read (the exit code of the command line is 3)."""
        return bool(self.problems)

    def to_json(self) -> dict[str, Any]:
        """The report as `import --json` prints it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def import_files(
    log: ImportLog,
    paths: Iterable[str | os.PathLike[str]],
    *,
    tenant: str,
    import_key: Callable[[str], bytes],
    format: str = AUTO,
    progress: Progress | None = None,
) -> ImportReport:
    """Import files, and every file of the folders among `paths`; blocking.

    `import_key` gives the tenant's key (`Home.import_key`). Raises `Invalid` for a bad tenant or format name, and what
    the log raises when it cannot take events.
    """
    check_tenant(tenant)
    if format != AUTO and format not in READERS:
        raise Invalid(f"{format!r} is not a format", hint=f"one of: {AUTO}, {', '.join(sorted(READERS))}")
    place = Place(log, tenant, import_key(tenant))
    files = list(dict.fromkeys(_files(paths)))
    report = ImportReport(files=len(files))
    stands: dict[uuid.UUID, tuple[int, int]] = {}
    for done, path in enumerate(files):
        if progress is not None:
            progress(path, done, len(files))
        if _is_companion(path):
            continue
        with _turn:
            _import_file(place, path, format, report, stands)
    report.trajectories = len(stands)
    report.events = sum(events for events, _ in stands.values())
    report.opaque_events = sum(opaque for _, opaque in stands.values())
    return report


def _files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """The files to import: those named, and those of folders in the order of their paths."""
    for given in paths:
        path = Path(given)
        if path.is_dir():
            for folder, folders, names in os.walk(path):
                folders.sort()
                yield from (Path(folder, name) for name in sorted(names))
        else:
            yield path


def _is_companion(path: Path) -> bool:
    """Whether this only describes the sub-agent session beside it."""
    if not path.name.endswith(_COMPANION) or not path.is_file():
        return False
    try:
        keys = Head(path).keys.keys()
    except OSError:
        return False
    return bool(keys) and keys <= _COMPANION_KEYS


def _import_file(
    place: Place, path: Path, format_name: str, report: ImportReport, stands: dict[uuid.UUID, tuple[int, int]]
) -> None:
    try:
        reader = detect(path, format_name)
        file = ImportedFile(place, reader, path)
        try:
            file.run()
        finally:
            report.appended += file.appended
            for identity, (events, opaque) in file.stands.items():
                known = stands.get(identity, (0, 0))
                stands[identity] = (max(known[0], events), max(known[1], opaque))
            report.problems += [FileProblem(str(path), problem.line, problem.reason) for problem in file.problems]
    except (Invalid, Erased) as error:
        report.problems.append(FileProblem(str(path), None, error.message))
    except OSError as error:
        report.problems.append(FileProblem(str(path), None, f"cannot be read: {error.strerror or error}"))
