"""Trajectories across the tiers: which there are, in which tiers they lie, and their events from where they are.

What has left Postgres is read from the cold tier, rebuilt to the byte, from the snapshot that is current when it is
first needed, which stays as it is until the end (see `pins.py`). An erased trajectory gives no bodies from any tier.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Generator, Iterator

import msgspec

from stratalog.hot.keys import Head
from stratalog.schemas.chain import Link
from stratalog.schemas.codec import decode_event
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.errors import NotFound
from stratalog.schemas.summary import Summary
from stratalog.warm import erasure_ledger, queries
from stratalog.warm.database import Connection
from stratalog.warm.queries import Dropped, TrajectoryHead

from .history import ColdFiles, events_of, open_cold, without_body
from .installation import Installation, require_cold
from .log_access import LogAccess

TIERS = ("hot", "warm", "cold")
SEVERAL, DELETED = "several", "deleted"
"""In place of the tier that has all of a trajectory: no single one has, or retention has deleted it in all of them."""
KEPT = Dropped()


class Listed(msgspec.Struct, frozen=True):
    """One trajectory. Times are µs since 1970. `tier` is the coldest one that has all of it, `several` or `deleted`."""

    trajectory_id: uuid.UUID
    tenant: str
    summary: Summary
    tier: str
    tiers: tuple[str, ...]


READER = "stratalog trajectory"
"""How it is called in the list of pins."""


class Tiers:
    """The tiers of an installation, for reading; no log is locked while the caller is busy."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._files: ColdFiles | None = None
        self._stack = contextlib.ExitStack()
        self.logs: list[LogAccess] = []
        self.connection: Connection | None = None
        try:
            for log_id in installation.home.log_ids():
                access = LogAccess(installation.home, log_id)
                self._stack.callback(access.release)
                self.logs.append(access)
            if installation.has_postgres:
                self.connection = self._stack.enter_context(installation.connection())
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Tiers:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def all(self) -> Iterator[Listed]:
        """All trajectories, newest start first."""
        hot = self._hot_heads()
        warm = {} if self.connection is None else {h.trajectory_id: h for h in queries.trajectories(self.connection)}
        dropped = self._dropped()
        for id_ in sorted({*hot, *warm}, key=lambda id_: id_.int, reverse=True):
            yield self._listed(id_, hot.get(id_, []), warm.get(id_), dropped.get(id_, KEPT))

    def get(self, trajectory_id: uuid.UUID) -> Listed:
        """One trajectory; raises `NotFound`."""
        hot = self._hot_heads().get(trajectory_id, [])
        warm = self._warm_head(trajectory_id)
        if not hot and warm is None:
            raise NotFound(f"there is no trajectory {trajectory_id}", hint="list them: stratalog trajectory list")
        listed = self._listed(trajectory_id, hot, warm, self._dropped(trajectory_id).get(trajectory_id, KEPT))
        self._release()
        return listed

    def events(self, trajectory_id: uuid.UUID) -> Generator[Envelope, None, None]:
        """The events of a trajectory: from the cold tier what has left Postgres, then what Postgres has, then what is
        only in a hot log so far.

        Close the generator before the tiers if it is not read to its end. Raises `NotFound` for what retention has
        deleted in every tier, `Corrupt` for what is damaged.
        """
        last = max((head.sequence_number for _, head, _ in self._hot_heads().get(trajectory_id, [])), default=-1)
        position, before = -1, None
        # What a sidecar moves while we read is found at its next place.
        while position != before:
            before = position
            warm = self._warm_head(trajectory_id)
            if warm is not None and self.connection is not None and warm.head.sequence_number > position:
                for envelope in self._stored(self.connection, warm, position + 1):
                    yield envelope
                    position = envelope.header.sequence_number
            for envelope in self._hot_tail(trajectory_id, position, last):
                self._release()  # the caller may take its time with each event
                # A log that has not followed the ledger yet still has the bodies.
                yield without_body(envelope) if self._is_erased(trajectory_id) else envelope
                position = envelope.header.sequence_number

    def _stored(self, conn: Connection, warm: TrajectoryHead, first: int) -> Iterator[Envelope]:
        """The events from `first` on that have been replicated."""
        through = warm.consolidated.sequence_number
        if first <= through and queries.hash_at(conn, warm.trajectory_id, first) is None:
            found = events_of(self._cold(conn), warm.tenant, warm.trajectory_id)
            if found and found[0].header.sequence_number <= first:
                yield from found[first - found[0].header.sequence_number :]
                first = found[-1].header.sequence_number + 1
            elif not found:
                self._refuse_deleted(warm.trajectory_id, first)
        if first <= warm.head.sequence_number:
            yield from queries.read_events(conn, warm.trajectory_id, first)

    def _refuse_deleted(self, trajectory_id: uuid.UUID, first: int) -> None:
        dropped = self._dropped(trajectory_id).get(trajectory_id)
        if dropped is not None and dropped.in_cold >= first:
            raise NotFound(
                f"the events of {trajectory_id} up to {dropped.in_cold} were deleted by retention in every tier",
                hint="by which policy, and when: stratalog audit verify --json",
            )

    def _dropped(self, trajectory_id: uuid.UUID | None = None) -> dict[uuid.UUID, Dropped]:
        return {} if self.connection is None else queries.dropped(self.connection, trajectory_id)

    def _is_erased(self, trajectory_id: uuid.UUID) -> bool:
        return self.connection is not None and bool(erasure_ledger.among(self.connection, [trajectory_id]))

    def _cold(self, conn: Connection) -> ColdFiles:
        if self._files is None:
            require_cold()
            self._files = self._stack.enter_context(open_cold(self._installation, conn, READER))
        return self._files

    def _hot_tail(self, trajectory_id: uuid.UUID, position: int, last: int) -> Iterator[Envelope]:
        """The events after a sequence number up to `last`, from the hot logs."""
        known = self._hot_heads().get(trajectory_id, [])
        for access, head, _ in sorted(known, key=lambda found: found[1].first_sequence):
            if head.sequence_number <= position:
                continue
            while envelopes := access.read(trajectory_id, position + 1):
                start = position
                for envelope in envelopes:
                    if envelope.header.sequence_number == position + 1 <= last:
                        yield envelope
                        position += 1
                if position == start:
                    break

    def _release(self) -> None:
        for access in self.logs:
            access.release()

    def _warm_head(self, trajectory_id: uuid.UUID) -> TrajectoryHead | None:
        if self.connection is None:
            return None
        with contextlib.suppress(NotFound):
            return queries.head(self.connection, trajectory_id)
        return None

    def _hot_heads(self) -> dict[uuid.UUID, list[tuple[LogAccess, Head, bool]]]:
        """Per trajectory the logs that know it, its head there, and whether events of it still lie there."""
        found: dict[uuid.UUID, list[tuple[LogAccess, Head, bool]]] = {}
        for access in self.logs:
            for head in access.heads:
                found.setdefault(head.trajectory_id, []).append((access, head, head.lsn > access.pruned_lsn))
        return found

    def _listed(
        self,
        trajectory_id: uuid.UUID,
        hot: list[tuple[LogAccess, Head, bool]],
        warm: TrajectoryHead | None,
        dropped: Dropped,
    ) -> Listed:
        last = max([head.sequence_number for _, head, _ in hot] + ([warm.head.sequence_number] if warm else []))
        tiers = ["hot"] if any(here for _, _, here in hot) else []
        whole = ["hot"] if hot else []
        if warm is not None:
            stored, moved = warm.head.sequence_number, warm.consolidated.sequence_number
            tiers += ["warm"] * (dropped.in_warm < stored) + ["cold"] * (dropped.in_cold < moved)
            whole += ["warm"] * (stored == last and dropped.in_warm < 0)
            whole += ["cold"] * (moved == last and dropped.in_cold < 0)
        tier = whole[-1] if whole and whole[-1] in tiers else SEVERAL if tiers else DELETED
        tenant = warm.tenant if warm else hot[0][1].tenant
        return Listed(trajectory_id, tenant, self._summary(trajectory_id, warm, last), tier, tuple(tiers))

    def _summary(self, trajectory_id: uuid.UUID, warm: TrajectoryHead | None, last: int) -> Summary:
        summary = warm.summarize() if warm else Summary()
        position = warm.head if warm else Link(-1, b"")
        if position.sequence_number < last:
            for envelope in self._hot_tail(trajectory_id, position.sequence_number, last):
                summary.advance(decode_event(envelope))
        return summary
