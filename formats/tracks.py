"""The trajectories of one file on their way into the log.

A trajectory that is new here is written while it is read. One that was imported before is first compared: what is the
same is not written again, growth is appended after the cursor, and a file that differs from all that was written of
its source becomes another trajectory (a new generation) that names the one it replaces. Its id comes from the same
source and the generation's number, so importing it again meets it again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from stratalog.hot.log import NewEvent
from stratalog.schemas import ids
from stratalog.schemas.codec import kind_of
from stratalog.schemas.errors import Conflict
from stratalog.schemas.events import Body, Opaque, TaskStarted

from .cursor import Digest, Progress, Writing, Written, load_progress
from .ending import Ending
from .fitting import fitted
from .native import digest
from .source import Begin

BATCH_EVENTS_MAX = 256
BATCH_BYTES_MAX = 4 << 20
CREATED_AT_MAX = 253_402_300_799_999_999


class HeadLike(Protocol):
    """The last event of a trajectory in the log."""

    @property
    def sequence_number(self) -> int:
        """Its number."""
        ...


class ReceiptLike(Protocol):
    """Proof that an event is durable."""

    @property
    def sequence_number(self) -> int:
        """Its number."""
        ...


class ImportLog(Protocol):
    """What an import needs of the hot log."""

    def head(self, trajectory_id: uuid.UUID) -> HeadLike | None:
        """The last event of a trajectory here."""
        ...

    def note(self, key: bytes) -> bytes | None:
        """A small durable value."""
        ...

    def start_blocking(
        self,
        *,
        tenant: str,
        body: TaskStarted,
        trajectory_id: uuid.UUID,
        secret: bytes,
        created_at: int,
        notes: Mapping[bytes, bytes],
    ) -> object:
        """Start a trajectory; returns when that is durable."""
        ...

    def append_many_blocking(
        self, trajectory_id: uuid.UUID, events: Sequence[NewEvent], *, notes: Mapping[bytes, bytes]
    ) -> Sequence[ReceiptLike]:
        """Append events and notes, all or none."""
        ...


class Place(msgspec.Struct, frozen=True):
    """Where an import writes: the log, the tenant, and the tenant's import key."""

    log: ImportLog
    tenant: str
    import_key: bytes


class Target(msgspec.Struct, frozen=True):
    """The trajectory that a source is written to; `progress` is `None` for one that is new."""

    trajectory_id: uuid.UUID
    progress: Progress | None = None
    replaces: str = ""


Plan = Target | Sequence[Written] | None
"""Write the trajectory; or compare it with these; or with all that was written of it, and write it if that is none."""


def generation_id(begin: Begin, tenant: str, format_name: str, generation: int) -> uuid.UUID:
    """The id of a source's trajectory; generation 0 is the first."""
    first = begin.first_record
    if generation:
        first = digest(first + b"generation" + generation.to_bytes(8, "big"))
    started_at = min(max(begin.started_at or 0, 0), CREATED_AT_MAX)
    return ids.imported_trajectory_id(started_at, tenant, format_name, begin.run_id, begin.agent_id, first)


class Track:
    """One trajectory of the file: compares or writes its events."""

    def __init__(
        self, place: Place, format_name: str, begin: Begin, parent: str, plan: Plan, ending: Ending | None
    ) -> None:
        self._place = place
        self._format = format_name
        self.base_id = generation_id(begin, place.tenant, format_name, 0)
        self.digest = Digest()
        self.opaque = 0
        self.appended = 0
        self._before = 0
        self.target = plan if isinstance(plan, Target) else None
        self.generations: Sequence[Written] = () if plan is None or isinstance(plan, Target) else plan
        """What was imported of this source before; compared while `target` is `None`."""
        if plan is None:
            self.generations = self._written(begin)
        self.next_id = generation_id(begin, place.tenant, format_name, len(self.generations))
        """Of the generation that comes after all of them."""
        if plan is None and not self.generations:
            self.target = Target(self.next_id)
        self._writing = self._writer()
        self._batch: list[NewEvent] = []
        self._batch_bytes = 0
        self.changed = False
        """Whether the file changed between the comparison and the writing."""
        if ending is not None:
            self.cut(ending)
        self._begin(begin, parent)

    def _written(self, begin: Begin) -> list[Written]:
        found: list[Written] = []
        while True:
            trajectory_id = generation_id(begin, self._place.tenant, self._format, len(found))
            progress = load_progress(self._place.log, trajectory_id)
            if progress is None:
                return found
            found.append(Written(self._place.log, trajectory_id, progress))

    def _writer(self) -> Writing | None:
        if self.target is None:
            return None
        return Writing(self._place.log, self.target.trajectory_id, self.target.progress)

    def _begin(self, begin: Begin, parent: str) -> None:
        body = begin.body
        if parent:
            body = msgspec.structs.replace(body, parent=parent)
        if self.target and self.target.replaces and body.source:
            source = msgspec.structs.replace(body.source, replaces=self.target.replaces)
            body = msgspec.structs.replace(body, source=source)
        self.add(body, begin.started_at or 0)

    @property
    def agrees(self) -> bool:
        """Whether something that was written is what the file says, so far."""
        return any(written.same for written in self.generations)

    @property
    def batch_bytes(self) -> int:
        """Bytes that wait for a commit."""
        return self._batch_bytes

    def add(self, body: Body, created_at: int | None) -> None:
        """The next event of the file; without a time it has that of the event before it."""
        at = self._before if created_at is None else min(max(created_at, 0), CREATED_AT_MAX)
        self._before = at
        body, encoded = fitted(body, self._format)
        if isinstance(body, Opaque):
            self.opaque += 1
        index = self.digest.count
        mark = self.digest.add(kind_of(body), at, body, encoded)
        for written in self.generations:
            written.compare(index, mark)
        if self.target is not None:
            self._write(index, mark, NewEvent(body, at), len(encoded))

    def _write(self, index: int, mark: bytes, event: NewEvent, size: int) -> None:
        progress = self.target.progress if self.target else None
        if progress is not None and index < progress.count:
            if index == progress.count - 1 and self.digest.state != progress.state:
                self.changed = True
            return
        if self.changed or self._writing is None:
            return
        self._writing.add(mark)
        self._batch.append(event)
        self._batch_bytes += size
        if index == 0 or len(self._batch) >= BATCH_EVENTS_MAX or self._batch_bytes >= BATCH_BYTES_MAX:
            self.flush()

    def cut(self, ending: Ending) -> None:
        """The file ends here in the middle of something."""
        if self._writing is not None:
            self._writing.cut(ending)

    def flush(self) -> None:
        """Commit what waits."""
        if not self._batch or self.target is None or self._writing is None:
            return
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        log, trajectory_id = self._place.log, self.target.trajectory_id
        notes = self._writing.notes(self.digest)
        first = self.digest.count - len(batch)
        if first == 0:
            self._start(batch[0], notes)
        else:
            receipts = log.append_many_blocking(trajectory_id, batch, notes=notes)
            if receipts[0].sequence_number != first:
                raise Conflict(
                    f"something else appended to trajectory {trajectory_id} while it was imported",
                    hint="let one process import at a time, then import again",
                )
        self.appended += len(batch)

    def _start(self, event: NewEvent, notes: Mapping[bytes, bytes]) -> None:
        assert self.target is not None and isinstance(event.body, TaskStarted)
        self._place.log.start_blocking(
            tenant=self._place.tenant,
            body=event.body,
            trajectory_id=self.target.trajectory_id,
            secret=ids.imported_secret(self._place.import_key, self.target.trajectory_id),
            created_at=event.created_at or 0,
            notes=notes,
        )
