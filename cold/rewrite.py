"""Replaces data files of the cold table by others: the one way in which what is in it can change.

    complete what is open ─▶ plan ─▶ new files ─▶ read-back ─▶ one commit ─▶ old files, and what names them, gone

Guarantee: readers see the table as it was or as it is to be, never anything between; the old files go only after the
new ones were read back from storage and found to hold exactly the rows that were meant, their chains verified from the
bytes alone, with the segments that the old files had, except those that were meant to go. Everything that was not whole
before (a damaged trajectory) is carried over as it was and named.

A crash at any step leaves a plan, which the next rewrite, consolidation or expiry ends first: it is undone where it was
not committed, and completed where it was. Memory is bounded by a row group, and one batch of rows of each file that is
merged. Nobody else can change the table meanwhile: a rewrite holds the lock on consolidation.
"""

from __future__ import annotations

import heapq
import operator
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing
from types import TracebackType

import msgspec

from stratalog.schemas.arrow import INDEX
from stratalog.schemas.errors import Corrupt, Invalid, Unavailable
from stratalog.schemas.settings import ColdSettings
from stratalog.warm.database import Connection

from .columns import Row
from .consolidate import Consolidation
from .installation import Tiers
from .readback import read_rows
from .rewrite_commit import replace_files
from .rewrite_files import Unit, closed_units
from .rewrite_plan import Kind, Plan, make_plan, note, note_new_files
from .rewrite_settle import Settled, settle, settle_open
from .rewrite_tally import Tally
from .writer import EventsWriter, File

Change = Callable[[Row], Row | None]
"""Gives the row that is to be stored for a row (which it may change in place), or `None` to leave it out."""

_BY_PLACE = operator.itemgetter(INDEX["trajectory_id"], INDEX["sequence_number"])


class Rewritten(msgspec.Struct, frozen=True):
    """What a rewrite did: files, bytes, rows before and after; what is damaged; and whether the old files are gone."""

    rewrite_id: str = ""
    files: tuple[str, ...] = ()
    """The URLs of the files that were replaced."""
    new_files: tuple[str, ...] = ()
    bytes: int = 0
    new_bytes: int = 0
    rows: int = 0
    rows_dropped: int = 0
    damaged: frozenset[uuid.UUID] = frozenset()
    """Trajectories that were not whole before; they are not whole now."""
    settled: Settled | None = None

    @property
    def over(self) -> bool:
        """Whether the old files are gone."""
        return self.settled is None or self.settled.over


class _Written(msgspec.Struct, frozen=True):
    files: tuple[File, ...]
    before: Tally
    after: Tally
    dropped: int


class Rewriting:
    """Rewrites under the lock on consolidation: entering takes it and ends what is open, or raises `Locked`.

    Entering also raises what completing an open consolidation raises (`Corrupt`, `Unavailable`).
    """

    def __init__(self, tiers: Tiers) -> None:
        self.tiers = tiers
        self._stack = ExitStack()
        self._lock: Consolidation | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Rewriting:
        with ExitStack() as stack:
            self._lock = stack.enter_context(self.tiers.consolidation())
            # Whoever completes a run looks for its files, and for its id among the snapshots.
            self._lock.complete_open_runs()
            self._connection = stack.enter_context(closing(self.tiers.connect()))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection = self._lock = None
        self._stack.close()

    @property
    def connection(self) -> Connection:
        """A connection to the warm tier, outside of any transaction."""
        if self._connection is None:
            raise Invalid("this rewrite is not open", hint="use it in a with statement")
        return self._connection

    def require_lock(self) -> None:
        """Raise `Unavailable` where the lock was lost."""
        if self._lock is None:
            raise Invalid("this rewrite is not open", hint="use it in a with statement")
        self._lock.require_lock()

    def rewrite(
        self,
        files: Collection[str],
        change: Change,
        kind: Kind,
        *,
        wait_s: float = 0.0,
        settings: ColdSettings | None = None,
        committing: Callable[[uuid.UUID], None] = lambda rewrite_id: None,
    ) -> Rewritten:
        """Replace `files` (URLs of the current snapshot) by what `change` makes of their rows.

        Files that share a segment with them are rewritten, too. A segment is kept whole or left out whole. With kind
        `compaction` the files of a folder are merged into as few as possible. Readers of the old files are waited for
        `wait_s` seconds at most; where they stay longer, the result is not `over`, and the next call of `settle_open`
        takes the files away. An erasure waits for nobody. `settings` say how large files and row groups become.
        `committing` is told the id when all is written and checked, and nothing is committed yet; where it raises, the
        rewrite is undone.

        Raises `Conflict` where the table has not all of `files`, `Corrupt` where one cannot be read or the new ones do
        not read back (nothing has changed then), `Unavailable` where the lock is lost or the storage does not answer.
        """
        units = closed_units(self.tiers.lake, self.tiers.catalog.files(), files)
        if not units:
            return Rewritten()
        old = [file for unit in units for file in unit.files]
        lake = self.tiers.lake
        plan = make_plan(self.connection, kind, [lake.path_of(file.url) for file in old])
        try:
            written = self._write(plan, units, change, settings or self.tiers.settings)
            self._read_back(written)
            committing(plan.rewrite_id)
        except Unavailable:
            raise
        except Exception:
            settle(self.connection, lake, self.tiers.catalog, plan)
            raise
        new = [file.url for file in written.files]
        self._commit(plan, [file.url for file in old], new)
        plan = note(self.connection, plan, "committed")
        settled = settle(self.connection, lake, self.tiers.catalog, plan, wait_s=wait_s)
        return Rewritten(
            str(plan.rewrite_id),
            tuple(file.url for file in old),
            tuple(new),
            sum(file.bytes for file in old),
            sum(file.bytes for file in written.files),
            written.after.rows,
            written.dropped,
            frozenset(written.before.damaged),
            settled,
        )

    def _commit(self, plan: Plan, old: list[str], new: list[str]) -> None:
        note_new_files(self.connection, plan, [self.tiers.lake.path_of(url) for url in new])
        replace_files(self.tiers.catalog, old, new, str(plan.rewrite_id), self.require_lock)

    def _write(self, plan: Plan, units: list[Unit], change: Change, settings: ColdSettings) -> _Written:
        files: list[File] = []
        before, after, dropped = Tally(), Tally(), 0
        for folder, group in _by_output(units, merge=plan.kind == "compaction"):
            number = sum(file.url.startswith(f"{self.tiers.lake.url_of(folder)}/") for file in files)
            with EventsWriter(self.tiers.lake, folder, str(plan.rewrite_id), settings, first=number) as writer:
                for row in _merged(self.tiers, group):
                    whole = before.feed(row)
                    changed = change(row)
                    before.keep(row, whole, kept=changed is not None)
                    if changed is None:
                        dropped += 1
                        continue
                    after.add(changed)
                    writer.add(changed, _size(changed))
                before.end()
                files += writer.finish()
        return _Written(tuple(files), before, after, dropped)

    def _read_back(self, written: _Written) -> None:
        found = Tally()
        last = ""
        for file in written.files:
            folder = file.url.rpartition("/")[0]
            if folder != last:
                found.end()
            last = folder
            for row in read_rows(self.tiers.lake, file.url):
                found.keep(row, found.feed(row), kept=True)
                found.add(row)
        found.end()
        problem = found.differs(written.before, written.after)
        if problem:
            raise Corrupt(
                f"the rewritten files do not read back as they were meant: {problem}",
                hint="nothing was changed; check the storage of the cold tier",
            )


def rewrite(tiers: Tiers, files: Collection[str], change: Change, kind: Kind, *, wait_s: float = 0.0) -> Rewritten:
    """Take the lock, end what is open, and rewrite `files`; see `Rewriting.rewrite`. Raises `Locked`, too."""
    with Rewriting(tiers) as work:
        return work.rewrite(files, change, kind, wait_s=wait_s)


def settle_rewrites(tiers: Tiers, *, wait_s: float = 0.0) -> list[Settled]:
    """End all rewrites that are open, waiting `wait_s` at most for the readers of each; raises `Locked`."""
    with tiers.consolidation(), closing(tiers.connect()) as conn:
        return settle_open(conn, tiers.lake, tiers.catalog, wait_s=wait_s)


def _by_output(units: list[Unit], *, merge: bool) -> Iterator[tuple[str, list[Unit]]]:
    """The folders with the units that are written together, in the order in which their files are numbered."""
    if not merge:
        yield from ((unit.folder, [unit]) for unit in units)
        return
    together: dict[str, list[Unit]] = {}
    for unit in units:
        together.setdefault(unit.folder, []).append(unit)
    yield from together.items()


def _merged(tiers: Tiers, units: list[Unit]) -> Iterator[Row]:
    """The rows of the units by trajectory and sequence number."""

    def rows(unit: Unit) -> Iterator[Row]:
        for file in unit.files:
            yield from read_rows(tiers.lake, file.url)

    return rows(units[0]) if len(units) == 1 else heapq.merge(*map(rows, units), key=_BY_PLACE)


def _size(row: Row) -> int:
    return sum(len(value) for value in row if isinstance(value, (str, bytes)))
