"""Generated trajectories as a log holds them: appended to one, or as envelopes without any."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.hot import HotLog, NewEvent
from stratalog.schemas.blobs import offload
from stratalog.schemas.chain import START, next_header
from stratalog.schemas.codec import encode_body, kind_of
from stratalog.schemas.envelope import Envelope, Header
from stratalog.schemas.errors import Invalid
from stratalog.schemas.events import SCHEMA_VERSION, TaskStarted, TrajectoryClaimed
from stratalog.schemas.settings import HotSettings

from .trajectory import GeneratedTrajectory

GROUP_EVENTS = 256
INLINE_BYTES_MAX = HotSettings().inline_bytes_max


def write(log: HotLog, trajectories: Iterable[GeneratedTrajectory], *, group_events: int = GROUP_EVENTS) -> int:
    """Append trajectories to an open log, in groups of so many events; returns how many events they had."""
    events = 0
    for trajectory in trajectories:
        first, *rest = trajectory.events
        if not isinstance(first.body, TaskStarted):
            raise Invalid("a trajectory starts with TaskStarted")
        log.start_blocking(
            tenant=trajectory.tenant,
            body=first.body,
            trajectory_id=trajectory.trajectory_id,
            secret=trajectory.secret,
            created_at=first.created_at,
        )
        for start in range(0, len(rest), group_events):
            group = [
                NewEvent(event.body, event.created_at, event.blobs) for event in rest[start : start + group_events]
            ]
            log.append_many_blocking(trajectory.trajectory_id, group)
        events += len(trajectory.events)
    return events


def envelopes(
    trajectory: GeneratedTrajectory, *, first_lsn: int = 1, inline_bytes_max: int = INLINE_BYTES_MAX
) -> list[Envelope]:
    """The events as a hot log would hold them: the same bytes and hashes, from `first_lsn` on."""
    made = []
    position, epoch, lsn = START, 0, first_lsn
    for event in trajectory.events:
        body, _ = offload(encode_body(event.body), inline_bytes_max)
        if isinstance(event.body, TrajectoryClaimed):
            epoch = event.body.token
        header, position = next_header(
            position,
            tenant=trajectory.tenant,
            trajectory_id=trajectory.trajectory_id,
            epoch=epoch,
            created_at=event.created_at,
            kind=kind_of(event.body),
            schema_version=SCHEMA_VERSION,
            secret=trajectory.secret,
            body=body,
        )
        first = lsn == first_lsn
        made.append(
            Envelope(
                lsn=lsn,
                previous_lsn=0 if first else lsn - 1,
                header=Header.decode(header),
                body=body,
                hash=position.hash,
                secret=trajectory.secret if first else None,
            )
        )
        lsn += 1
    return made


def contents(trajectory: GeneratedTrajectory, *, inline_bytes_max: int = INLINE_BYTES_MAX) -> dict[str, bytes]:
    """The content that the envelopes refer to, by SHA-256 (hex)."""
    found: dict[str, bytes] = {}
    for event in trajectory.events:
        _, offloaded = offload(encode_body(event.body), inline_bytes_max)
        found.update((ref.sha256, content) for ref, content in (*event.blobs, *offloaded))
    return found
