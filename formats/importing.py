"""Foreign trajectories into the hot log: any files and folders, any number of times.

Importing the same bytes again adds nothing, a file that has grown adds its growth, and a process that is killed at any
moment is completed by the next run, because the cursor is committed together with the events. What is wrong with one
file is reported and stops no other; only the log's own errors (no disk, a failed commit) end the import.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stratalog.schemas.errors import Invalid
from stratalog.schemas.ids import check_tenant

from .detect import AUTO, READERS, detect
from .head import Head
from .source import Begin, Cut, Entry, Problem, Reader
from .tracks import ImportLog, Place, Target, Track

WAITING_BYTES_MAX = 16 << 20
"""What the trajectories of one file may together keep waiting for a commit."""
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
        file = _File(place, reader, path)
        try:
            file.run()
        finally:
            report.appended += file.appended
            for identity, (events, opaque) in file.stands.items():
                known = stands.get(identity, (0, 0))
                stands[identity] = (max(known[0], events), max(known[1], opaque))
            report.problems += [FileProblem(str(path), problem.line, problem.reason) for problem in file.problems]
    except Invalid as error:
        report.problems.append(FileProblem(str(path), None, error.message))
    except OSError as error:
        report.problems.append(FileProblem(str(path), None, f"cannot be read: {error.strerror or error}"))


class _File:
    """One file on its way into the log."""

    def __init__(self, place: Place, reader: Reader, path: Path) -> None:
        self._place = place
        self._reader = reader
        self._path = path
        self.problems: list[Problem] = []
        self.stands: dict[uuid.UUID, tuple[int, int]] = {}
        self.appended = 0
        self._ids: dict[str, uuid.UUID] = {}
        """Key to the id that a trajectory had when it was first imported, which its sub-agents name."""

    def run(self) -> None:
        """Write what is new at once; what was imported before is compared, then written where that is needed."""
        tracks = self._pass(None, ())
        differing = {key: None for key, track in tracks.items() if track.differs}
        cuts = _cuts(tracks[key] for key in differing)
        resumed = self._pass(differing, cuts) if cuts else {}
        resumed = {key: track for key, track in resumed.items() if not track.differs}
        tracks |= resumed
        targets = {key: target for key, track in tracks.items() if (target := track.decide()) is not None}
        for some, at in (
            ({key: target for key, target in targets.items() if key in resumed}, cuts),
            ({key: target for key, target in targets.items() if key not in resumed}, ()),
        ):
            if some:
                tracks |= self._pass(some, at)
        if any(track.changed for track in tracks.values()):
            self.problems.append(Problem(None, "the file changed while it was imported; import it again"))
        for track in tracks.values():
            identity, events = track.stands()
            self.stands[identity] = (events, track.opaque)

    def _pass(self, wanted: Mapping[str, Target | None] | None, cuts: Sequence[int]) -> dict[str, Track]:
        """Read the file: all of it, and report what is wrong; or some trajectories, for a target or to compare."""
        tracks: dict[str, Track] = {}
        cut: int | None = None
        try:
            for item in self._reader.read(self._path, cuts):
                if isinstance(item, Problem):
                    if wanted is None:
                        self.problems.append(item)
                elif isinstance(item, Cut):
                    cut = item.offset
                    for track in tracks.values():
                        track.cut(cut)
                elif isinstance(item, Begin):
                    if wanted is None or item.key in wanted:
                        tracks[item.key] = self._track(item, (wanted or {}).get(item.key), tracks, cut)
                elif item.key in tracks:
                    self._add(item, tracks)
            for track in tracks.values():
                track.flush()
        finally:
            self.appended += sum(track.appended for track in tracks.values())
        return tracks

    def _track(self, begin: Begin, target: Target | None, tracks: dict[str, Track], cut: int | None) -> Track:
        # Two documents of one file may be the same run: the second must find what the first has written.
        for track in tracks.values():
            track.flush()
        parent = self._ids.get(begin.parent_key)
        track = Track(self._place, self._reader.name, begin, str(parent) if parent else "", target, cut)
        self._ids[begin.key] = track.base_id
        return track

    def _add(self, entry: Entry, tracks: dict[str, Track]) -> None:
        tracks[entry.key].add(entry.body, entry.created_at)
        if sum(track.batch_bytes for track in tracks.values()) > WAITING_BYTES_MAX:
            for track in tracks.values():
                track.flush()


def _cuts(tracks: Iterable[Track]) -> list[int]:
    """Where the file ended at earlier imports of these trajectories."""
    return sorted({cut for track in tracks for written in track.generations for cut in written.progress.cuts})
