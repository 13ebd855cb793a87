"""What an event says of other trajectories and of people: whom it descends from, whom it is about. Pure."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Literal

import msgspec

from stratalog.schemas import subjects
from stratalog.schemas.codec import Event
from stratalog.schemas.events import ChildStarted, LabelsSet, TaskStarted, TrajectoryForked


class Link(msgspec.Struct, frozen=True):
    """`child` descends from `parent`."""

    child: uuid.UUID
    parent: uuid.UUID
    kind: Literal["fork", "child"]


def links(event: Event) -> Iterator[Link]:
    """The descent that an event tells of; an id that is none, or its own, tells nothing."""
    own, body = event.header.trajectory_id, event.body
    if isinstance(body, TaskStarted):
        found = _link(own, _id(body.parent), "child")
    elif isinstance(body, TrajectoryForked):
        found = _link(own, _id(body.parent), "fork")
    elif isinstance(body, ChildStarted):
        found = _link(_id(body.child), own, "child")
    else:
        return
    if found is not None:
        yield found


def subject_hashes(event: Event) -> list[bytes]:
    """The keyed hashes of those that an event says its trajectory is about."""
    return subjects.hashes_in(event.body.labels) if isinstance(event.body, (TaskStarted, LabelsSet)) else []


def _link(child: uuid.UUID | None, parent: uuid.UUID | None, kind: Literal["fork", "child"]) -> Link | None:
    return None if child is None or parent is None or child == parent else Link(child, parent, kind)


def _id(text: str) -> uuid.UUID | None:
    if len(text) == 36:
        with contextlib.suppress(ValueError):
            return uuid.UUID(text)
    return None
