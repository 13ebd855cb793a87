"""A generated trajectory: what a log would be given, before it is encoded."""

from __future__ import annotations

import uuid

import msgspec

from stratalog.schemas.blobs import BlobRef
from stratalog.schemas.events import Body, TaskFinished


class GeneratedEvent(msgspec.Struct, frozen=True):
    """A body, its time in µs since 1970, and the content that the body refers to."""

    body: Body
    created_at: int
    blobs: tuple[tuple[BlobRef, bytes], ...] = ()


class GeneratedTrajectory(msgspec.Struct, frozen=True):
    """One trajectory, its events in order; the first is its TaskStarted. `secret` has 32 bytes."""

    trajectory_id: uuid.UUID
    tenant: str
    secret: bytes
    events: list[GeneratedEvent]

    @property
    def ended(self) -> bool:
        """Whether it has a TaskFinished."""
        return any(isinstance(event.body, TaskFinished) for event in self.events)
