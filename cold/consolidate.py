"""Moves finished trajectories to the cold tier: a plan, files, read-back, one commit, marks.

    complete_open_runs ─▶ plan ─▶ write_files ─▶ read_back ─▶ commit ─▶ mark

Guarantee: every planned event is in the cold table exactly once, and a trajectory is marked (`consolidated_through`)
only after its events were read back from storage, verified from the Parquet alone, compared with the plan, and
committed. A crash at any point leaves an open run, which the next call completes first: if the catalog has its run id,
what was committed is read back again and marked; otherwise the files are written again, the same ones, and those that
differ are removed. Nothing is visible before the one commit, and running again changes nothing.

A damaged trajectory (events missing or changed, content gone) never stops the others: it is left out, reported as a
problem, and stays unmarked, so the next run looks at it again.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from types import TracebackType

import msgspec
import psycopg
import uuid_utils

from stratalog.schemas.errors import Conflict, Corrupt, Invalid, Locked, Unavailable
from stratalog.schemas.protocols import ContentStore
from stratalog.schemas.settings import ColdSettings, duration_us
from stratalog.schemas.statements import statements
from stratalog.warm.database import Connection, answering

from . import plan as plans
from .catalog import Catalog, RunFile, RunTotals
from .group import write_group
from .lake import Lake
from .plan import Group, Item, Run
from .readback import BlobCheck, check_files
from .rewrite_plan import open_plans
from .rewrite_settle import settle
from .segments import Problem, Segment
from .writer import File

REWRITES_MAX = 3
"""How often the files of a run are written again before we say that the storage does not keep them."""
FOREVER = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)

_SQL = statements("consolidate")


class Consolidated(msgspec.Struct, frozen=True):
    """What was moved: segments of trajectories, events, files, bytes; and what could not be."""

    trajectories: int = 0
    events: int = 0
    files: int = 0
    bytes: int = 0
    problems: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    def __add__(self, other: Consolidated) -> Consolidated:
        return Consolidated(
            self.trajectories + other.trajectories,
            self.events + other.events,
            self.files + other.files,
            self.bytes + other.bytes,
            # What an open run has found damaged is found again by the run after it.
            tuple(dict.fromkeys(self.problems + other.problems)),
            self.runs + other.runs,
        )


class Written(msgspec.Struct, frozen=True):
    """The files of a run, in the order of their rows, and what was left out of it."""

    files: tuple[File, ...]
    problems: tuple[str, ...] = ()


class ReadBack(msgspec.Struct, frozen=True):
    """What reading back found: trajectories that are damaged, files that cannot be read. Nothing of both is good."""

    damaged: dict[uuid.UUID, str] = {}
    unreadable: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether everything that was planned is there and right."""
        return not self.damaged and not self.unreadable


class Consolidation:
    """The steps, for one process at a time: entering takes the database's lock, or raises `Locked`."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        lake: Lake,
        catalog: Catalog,
        store: ContentStore,
        settings: ColdSettings,
    ) -> None:
        self._connect = connect
        self._lake = lake
        self._catalog = catalog
        self._store = store
        self._settings = settings
        self._open: Connection | None = None

    def __enter__(self) -> Consolidation:
        conn = self._connect()
        try:
            with answering(), conn.transaction():
                locked = conn.execute(_SQL["lock"]).fetchone()
            if locked != (True,):
                raise Locked(
                    "another consolidation is running on this database",
                    hint="wait for it to end, then run: stratalog consolidate",
                )
        except BaseException:
            conn.close()
            raise
        self._open = conn
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        conn, self._open = self._open, None
        if conn is not None:
            # Closing the session releases the lock, also when the connection is broken, but a moment later: whoever
            # comes next would be refused.
            with closing(conn), contextlib.suppress(psycopg.Error):
                conn.rollback()
                with conn.transaction():
                    conn.execute(_SQL["unlock"])

    @property
    def _conn(self) -> Connection:
        if self._open is None:
            raise Invalid("this consolidation is not open", hint="use it in a with statement")
        return self._open

    def complete_open_runs(self) -> Consolidated:
        """End the rewrites and complete the runs that earlier processes have begun, the oldest first."""
        done = Consolidated(problems=tuple(self._settle_rewrites()))
        runs = plans.open_runs(self._conn)
        if runs:
            self._lake.clean_partial()
        for run in runs:
            done += self.complete(run)
        return done

    def _settle_rewrites(self) -> Iterator[str]:
        """What keeps replaced files from going is told, and hinders no consolidation: no snapshot has them."""
        for rewrite in open_plans(self._conn):
            try:
                settle(self._conn, self._lake, self._catalog, rewrite)
            except (Conflict, Invalid) as error:
                yield f"rewrite {rewrite.rewrite_id} is not over: {error.message}"

    def plan(self, older_than: str | None = None, now: dt.datetime | None = None) -> tuple[Run | None, tuple[str, ...]]:
        """Plan a run of all that ended before `now - older_than`; with it, what must wait and why.

        `older_than` is a duration, by default the setting's; with `0d` every import is taken at once.
        """
        cutoff, idle_cutoff = cutoffs(self._settings, older_than, now or dt.datetime.now(dt.UTC))
        run_id = uuid.UUID(int=uuid_utils.uuid7().int)
        run = plans.make_plan(self._conn, run_id, cutoff, idle_cutoff)
        waiting = plans.quarantined(self._conn, cutoff, idle_cutoff)
        return run, tuple(
            f"trajectory {trajectory_id}: {count} of its events are in quarantine" for trajectory_id, count in waiting
        )

    def write_files(self, run: Run) -> Written:
        """Write the files of a run that is not committed; damaged trajectories leave the plan and are reported."""
        self._refuse_committed(run)
        files: list[File] = []
        problems: list[str] = []
        for group in plans.groups(self._conn, run):
            written = write_group(self._conn, self._lake, self._store, self._settings, run, group)
            while written.damaged:
                problems += self.leave_out(run, written.damaged)
                written = write_group(self._conn, self._lake, self._store, self._settings, run, group)
            files += written.files
            self._remove_leftovers(run, group, written.files)
        return Written(tuple(files), tuple(problems))

    def leave_out(self, run: Run, damaged: dict[uuid.UUID, str]) -> list[str]:
        """Take trajectories out of a run that is not committed; returns the problems to report."""
        self._refuse_committed(run)
        plans.drop_items(self._conn, run, damaged)
        return [f"trajectory {trajectory_id}: {reason}" for trajectory_id, reason in sorted(damaged.items())]

    def read_back(self, run: Run, files: Iterable[File | RunFile]) -> ReadBack:
        """Read the files from storage, verify them from their bytes alone, and compare with the plan."""
        by_folder: dict[str, list[str]] = {}
        for file in files:
            by_folder.setdefault(file.url.rpartition("/")[0], []).append(file.url)
        damaged: dict[uuid.UUID, str] = {}
        unreadable: list[str] = []
        blobs = BlobCheck(self._store)
        for group in plans.groups(self._conn, run):
            urls = by_folder.pop(f"{self._lake.url}/{group.folder}", [])
            expected = plans.items(self._conn, run, group)
            found = _compare(expected, check_files(self._lake, urls, blobs))
            unreadable += (str(problem) for problem in found if problem.trajectory_id is None)
            for problem in found:
                if problem.trajectory_id is not None:
                    damaged.setdefault(problem.trajectory_id, problem.what)
        unreadable += (f"{folder}: it has files that no item was planned for" for folder in by_folder)
        # What an unreadable file hides is not known to be damaged.
        return ReadBack({} if unreadable else damaged, tuple(unreadable))

    def commit(self, run: Run, files: Sequence[File]) -> RunTotals | None:
        """Make the files visible, all at once; does nothing for a run that is committed, or that has no files."""
        if not files:
            return None
        self.require_lock()
        return self._catalog.commit([file.url for file in files], str(run.run_id))

    def mark(self, run: Run) -> Consolidated:
        """Mark the run's trajectories; refuses unless the catalog has exactly what was planned."""
        committed = self._catalog.run_totals(str(run.run_id))
        trajectories, events = plans.totals(self._conn, run)
        if committed is None and events:
            raise Conflict(
                f"run {run.run_id} is not committed, so nothing of it can be marked",
                hint="complete it with: stratalog consolidate",
            )
        added = committed or RunTotals(0, 0, 0)
        if added.events != events:
            raise Corrupt(f"run {run.run_id} was planned with {events} events, the catalog has {added.events}")
        values = {
            "run_id": run.run_id,
            "trajectories": trajectories,
            "events": events,
            "files": added.files,
            "bytes": added.bytes,
        }
        with answering(), self._conn.transaction():
            self._conn.execute(_SQL["unlimited"])
            self._conn.execute(_SQL["mark_trajectories"], values)
            self._conn.execute(_SQL["mark_run"], values)
        return Consolidated(trajectories, events, added.files, added.bytes, (), (str(run.run_id),))

    def complete(self, run: Run) -> Consolidated:
        """Take a planned run from wherever it stands to its marks."""
        problems = self.publish(run)
        return self.mark(run) + Consolidated(problems=problems)

    def publish(self, run: Run) -> tuple[str, ...]:
        """Take a planned run to its commit; returns what had to be left out, and why.

        A run that an earlier process has committed is read back again before anything relies on it, and files of it
        that have been damaged since are put back. Raises `Corrupt` where that does not help.
        """
        problems: list[str] = []
        if self._catalog.has_run(str(run.run_id)):
            self._check_committed(run)
        else:
            files = self._write_until_good(run, problems)
            self.commit(run, files)
        return tuple(problems)

    def _check_committed(self, run: Run) -> None:
        files = self._catalog.run_files(str(run.run_id))
        checked = self.read_back(run, files)
        if checked.unreadable:
            # The warm tier still has the events, and the same events give files of the same names.
            for group in plans.groups(self._conn, run):
                self.require_lock()
                write_group(self._conn, self._lake, self._store, self._settings, run, group)
            checked = self.read_back(run, files)
        if not checked.good:
            raise Corrupt(
                f"run {run.run_id} is committed, but its files are damaged: {_trouble(checked)}",
                hint="nothing of it was marked; restore what is named from a backup and run it again",
            )

    def _write_until_good(self, run: Run, problems: list[str]) -> tuple[File, ...]:
        for _ in range(REWRITES_MAX):
            written = self.write_files(run)
            problems += written.problems
            checked = self.read_back(run, written.files)
            if checked.good:
                return written.files
            if checked.damaged:
                problems += self.leave_out(run, checked.damaged)
        raise Corrupt(
            f"run {run.run_id} does not read back as it was written: {_trouble(checked)}",
            hint="check the storage of the cold tier; the run stays open and nothing was marked",
        )

    def _refuse_committed(self, run: Run) -> None:
        if self._catalog.has_run(str(run.run_id)):
            raise Conflict(f"run {run.run_id} is committed, its files are fixed", hint="run: stratalog consolidate")

    def _remove_leftovers(self, run: Run, group: Group, keep: Iterable[File]) -> None:
        """Remove files that an earlier attempt of this run has published and this one has not."""
        kept = {self._lake.path_of(file.url) for file in keep}
        for entry in self._lake.files(group.folder):
            if entry.path not in kept and entry.path.rpartition("/")[2].startswith(f"{run.run_id}-"):
                # Whoever took our lock may have committed this very file.
                self.require_lock()
                self._refuse_committed(run)
                self._lake.delete(entry.path)

    def require_lock(self) -> None:
        with answering(), self._conn.transaction():
            if self._conn.execute(_SQL["still_locked"]).fetchone() != (True,):
                raise Unavailable("the lock on consolidation was lost", hint="run the same command again")


def _trouble(found: ReadBack) -> str:
    return next(iter((*found.unreadable, *found.damaged.values())))


def _compare(expected: Iterator[Item], found: Iterable[Segment | Problem]) -> list[Problem]:
    """The problems found, and those of planned segments that were not found as planned. Both come by trajectory id."""
    problems: list[Problem] = []
    item = next(expected, None)
    for part in found:
        if isinstance(part, Problem):
            problems.append(part)
            continue
        while item is not None and item.trajectory_id.bytes < part.trajectory_id.bytes:
            problems.append(_missing(item))
            item = next(expected, None)
        if item is None or item.trajectory_id != part.trajectory_id:
            problems.append(Problem(f"trajectory {part.trajectory_id}", None, "it was not planned"))
            continue
        if not _as_planned(item, part):
            problems.append(Problem("read-back", part.trajectory_id, "its segment is not the planned one"))
        item = next(expected, None)
    while item is not None:
        problems.append(_missing(item))
        item = next(expected, None)
    return problems


def _missing(item: Item) -> Problem:
    return Problem("read-back", item.trajectory_id, f"events {item.first_sequence} to {item.last_sequence} are missing")


def _as_planned(item: Item, part: Segment) -> bool:
    planned = (item.first_sequence, item.last_sequence, item.previous_hash, item.last_hash)
    if planned != (part.first_sequence, part.last_sequence, part.previous_hash, part.last_hash):
        return False
    # A trajectory that was erased after its run was committed has no secret any more; its file follows.
    return item.secret is None or item.secret == part.secret


def cutoffs(settings: ColdSettings, older_than: str | None, now: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
    """Before which moments an end, and an import's last event, must lie; raises `Invalid` for a bad duration."""
    try:
        age_us = duration_us(settings.older_than if older_than is None else older_than)
        idle_us = duration_us(settings.idle_after)
        cutoff = now - dt.timedelta(microseconds=age_us)
        idle_cutoff = now - dt.timedelta(microseconds=max(age_us, idle_us))
    except (ValueError, OverflowError) as error:
        raise Invalid(str(error), hint="write a duration such as 7d") from error
    return (cutoff, idle_cutoff) if age_us else (now, FOREVER)


def consolidate(
    connect: Callable[[], Connection],
    lake: Lake,
    catalog: Catalog,
    store: ContentStore,
    settings: ColdSettings,
    older_than: str | None = None,
    now: dt.datetime | None = None,
) -> Consolidated:
    """Complete what is open, then move everything that ended `older_than` ago; see `Consolidation` for the steps.

    Raises `Locked` while another consolidation runs, `Unavailable` where Postgres or the storage do not answer: the
    same call goes on from there.
    """
    with Consolidation(connect, lake, catalog, store, settings) as work:
        done = work.complete_open_runs()
        run, waiting = work.plan(older_than, now)
        done += Consolidated(problems=waiting)
        return done if run is None else done + work.complete(run)
