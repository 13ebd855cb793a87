"""Verifies the cold tier from its stored bytes: the files of the current snapshot, every chain, all content.

Checked are the digest and the page checksums of each file, every event's body, digest and place, every segment's end,
that the segments of a trajectory join without gap or overlap from its first event on, and that all content referred to
is there with the right hash. Memory is bounded by the segments of one tenant's day.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby

import msgspec

from stratalog.schemas.chain import START, Link
from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.schemas.protocols import ContentStore

from .catalog import Catalog
from .lake import Lake
from .readback import BlobCheck, check_files
from .segments import Problem, Segment

OnTrajectory = Callable[[uuid.UUID, int, bytes], None]
"""Called for each trajectory that is whole, with its last sequence number and hash in the cold tier."""
NOWHERE: Mapping[uuid.UUID, Collection[Link]] = {}


class ColdVerified(msgspec.Struct, frozen=True):
    """What was found: events and trajectories that are whole, pieces of content looked at, and what is wrong."""

    events: int
    trajectories: int
    blobs: int
    problems: tuple[str, ...]
    damaged: frozenset[uuid.UUID] = frozenset()
    """The trajectories that a problem names; one that only an unreadable file hides is not among them."""
    unknown: tuple[str, ...] = ()
    """Files below the table's folder that no snapshot names: left by a crash, or of a run that is not committed yet."""


def verify_cold(
    lake: Lake,
    catalog: Catalog,
    store: ContentStore,
    on_trajectory: OnTrajectory | None = None,
    starts: Mapping[uuid.UUID, Collection[Link]] = NOWHERE,
) -> ColdVerified:
    """Verify every file of the current snapshot; damage becomes a problem, never an exception.

    `starts` says after which events trajectories may begin whose first events retention has taken out of the cold tier.

    Raises `Unavailable` where Postgres or the storage do not answer.
    """
    try:
        urls = catalog.snapshot_files()
    except (NotFound, Corrupt) as error:
        return ColdVerified(0, 0, 0, (f"cold: {error.message}: it cannot be told which files there should be",))
    blobs = BlobCheck(store)
    events = trajectories = 0
    problems: list[str] = []
    damaged: set[uuid.UUID] = set()
    for _, day in groupby(urls, _day_of):
        segments, found = _segments_of(lake, day, blobs)
        problems += map(str, found)
        blamed = {problem.trajectory_id for problem in found if problem.trajectory_id is not None}
        damaged |= blamed
        for trajectory_id, parts in sorted(segments.items()):
            end = _join(parts, starts.get(trajectory_id, ()))
            if isinstance(end, str):
                if trajectory_id not in blamed:
                    problems.append(f"cold: trajectory {trajectory_id}: {end}")
                damaged.add(trajectory_id)
                continue
            events += sum(part.events for part in parts)
            if trajectory_id not in blamed:
                trajectories += 1
                if on_trajectory is not None:
                    on_trajectory(trajectory_id, end.sequence_number, end.hash)
    named = {lake.path_of(url) for url in urls}
    unknown = tuple(entry.path for entry in lake.files() if entry.path not in named)
    return ColdVerified(events, trajectories, blobs.checked, tuple(problems), frozenset(damaged), unknown)


def _day_of(url: str) -> str:
    """The part of a URL up to the folder of its day."""
    return url.rsplit("/", 2)[0]


def _run_of(url: str) -> tuple[str, str]:
    """Folder and run of a file: files with the same ones hold rows that follow each other."""
    folder, _, name = url.rpartition("/")
    return folder, name.rsplit("-", 2)[0]


def _segments_of(
    lake: Lake, urls: Iterable[str], blobs: BlobCheck
) -> tuple[dict[uuid.UUID, list[Segment]], list[Problem]]:
    segments: dict[uuid.UUID, list[Segment]] = {}
    problems: list[Problem] = []
    for _, files in groupby(urls, _run_of):
        for found in check_files(lake, files, blobs):
            if isinstance(found, Problem):
                problems.append(found)
            else:
                segments.setdefault(found.trajectory_id, []).append(found)
    return segments, problems


def _join(segments: list[Segment], starts: Collection[Link]) -> Link | str:
    """The end of a trajectory whose segments join from where it may begin, or what keeps them from it."""
    segments.sort(key=lambda segment: segment.first_sequence)
    first = segments[0].first_sequence
    at = next((start for start in starts if start.sequence_number + 1 == first), START)
    for segment in segments:
        if segment.first_sequence > at.sequence_number + 1:
            return f"events {at.sequence_number + 1} to {segment.first_sequence - 1} are missing"
        if segment.first_sequence <= at.sequence_number:
            return f"event {segment.first_sequence} is there twice"
        if segment.previous_hash != at.hash:
            return f"the segment from event {segment.first_sequence} on does not extend the chain"
        at = Link(segment.last_sequence, segment.last_hash)
    return at
