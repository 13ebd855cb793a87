"""Trajectories across the tiers: which there are, in which tiers they lie, and their events from where they are."""

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
from stratalog.warm import queries
from stratalog.warm.database import Connection
from stratalog.warm.queries import TrajectoryHead

from .installation import Installation
from .log_access import LogAccess

TIERS = ("hot", "warm", "cold")


class Listed(msgspec.Struct, frozen=True):
    """One trajectory. Times are µs since 1970. `tier` is the coldest one that has all of it."""

    trajectory_id: uuid.UUID
    tenant: str
    summary: Summary
    tier: str
    tiers: tuple[str, ...]


class Tiers:
    """The logs and the warm tier of an installation, for reading; no log is locked while the caller is busy."""

    def __init__(self, installation: Installation) -> None:
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
        for trajectory_id in sorted({*hot, *warm}, key=lambda id_: id_.int, reverse=True):
            yield self._listed(trajectory_id, hot.get(trajectory_id, []), warm.get(trajectory_id))

    def get(self, trajectory_id: uuid.UUID) -> Listed:
        """One trajectory; raises `NotFound`."""
        hot = self._hot_heads().get(trajectory_id, [])
        warm = self._warm_head(trajectory_id)
        if not hot and warm is None:
            raise NotFound(f"there is no trajectory {trajectory_id}", hint="list them: stratalog trajectory list")
        listed = self._listed(trajectory_id, hot, warm)
        self._release()
        return listed

    def events(self, trajectory_id: uuid.UUID) -> Generator[Envelope, None, None]:
        """The events of a trajectory: what Postgres has of it, then what so far is only in a hot log.

        Close the generator before the tiers if it is not read to its end.
        """
        last = max((head.sequence_number for _, head, _ in self._hot_heads().get(trajectory_id, [])), default=-1)
        position, before = -1, None
        # What a sidecar moves while we read is found at its next place.
        while position != before:
            before = position
            warm = self._warm_head(trajectory_id)
            if warm is not None and self.connection is not None and warm.head.sequence_number > position:
                for envelope in queries.read_events(self.connection, trajectory_id, position + 1):
                    yield envelope
                    position = envelope.header.sequence_number
            for envelope in self._hot_tail(trajectory_id, position, last):
                self._release()  # the caller may take its time with each event
                yield envelope
                position = envelope.header.sequence_number

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
        self, trajectory_id: uuid.UUID, hot: list[tuple[LogAccess, Head, bool]], warm: TrajectoryHead | None
    ) -> Listed:
        last = max([head.sequence_number for _, head, _ in hot] + ([warm.head.sequence_number] if warm else []))
        tiers = ["hot"] if any(here for _, _, here in hot) else []
        tier = "hot"
        if warm is not None:
            tiers.append("warm")
            if warm.head.sequence_number == last:
                tier = "warm"
            if warm.consolidated.sequence_number >= 0:
                tiers.append("cold")
                if warm.consolidated.sequence_number == last:
                    tier = "cold"
        tenant = warm.tenant if warm else hot[0][1].tenant
        return Listed(trajectory_id, tenant, self._summary(trajectory_id, warm, last), tier, tuple(tiers))

    def _summary(self, trajectory_id: uuid.UUID, warm: TrajectoryHead | None, last: int) -> Summary:
        summary = warm.summarize() if warm else Summary()
        position = warm.head if warm else Link(-1, b"")
        if position.sequence_number < last:
            for envelope in self._hot_tail(trajectory_id, position.sequence_number, last):
                summary.advance(decode_event(envelope))
        return summary
