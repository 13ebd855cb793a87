"""Verifies the cold tier from its stored bytes: the files of the current snapshot, every chain, all content.

Checked are the digest and the page checksums of each file, every event's body, digest and place, every segment's end,
that the segments of a trajectory join without gap or overlap from its first event on, and that all content referred to
is there with the right hash. Memory is bounded by the segments of one tenant's day.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec

from stratalog.schemas.chain import START, Link
from stratalog.schemas.errors import Corrupt, NotFound
from stratalog.schemas.protocols import ContentStore

from .catalog import Catalog
from .lake import Lake
from .readback import BlobCheck, begins_segment, check_files
from .sample import EVERYTHING, Sample
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
    files: int = 0
    files_left_out: int = 0
    """Of the table, because they are not in the sample."""


class Looked(msgspec.Struct, frozen=True):
    """What was found in files whose rows follow each other."""

    segments: tuple[Segment, ...]
    problems: tuple[Problem, ...]
    content: frozenset[tuple[str, str]]


Look = Callable[[Sequence[tuple[str, ...]]], Iterator[Looked]]
"""Looks at files, each group of which follow each other; the results are in the order of the groups."""


def verify_cold(
    lake: Lake,
    catalog: Catalog,
    store: ContentStore,
    on_trajectory: OnTrajectory | None = None,
    starts: Mapping[uuid.UUID, Collection[Link]] = NOWHERE,
    *,
    sample: Sample = EVERYTHING,
    look: Look | None = None,
) -> ColdVerified:
    """Verify the files of the current snapshot, all or a sample; damage becomes a problem, never an exception.

    `starts` says after which events trajectories may begin whose first events retention has taken out of the cold tier.
    `look` does the reading, by default one file after the other in this process. Where not all files of a day are
    looked at, nothing can be said of what lies between the segments that were: such trajectories are only counted.

    Raises `Unavailable` where Postgres or the storage do not answer.
    """
    try:
        urls = catalog.snapshot_files()
    except (NotFound, Corrupt) as error:
        return ColdVerified(0, 0, 0, (f"cold: {error.message}: it cannot be told which files there should be",))
    groups = [tuple(group) for _, files in groupby(urls, _run_of) for group in _apart(lake, list(files))]
    chosen = [group for group in groups if sample.takes(lake.path_of(group[0]).encode())]
    whole_days = {_day_of(group[0]) for group in groups} - {_day_of(group[0]) for group in set(groups) - set(chosen)}
    found = (look_at(lake, store, group) for group in chosen) if look is None else look(chosen)
    tally = _Tally(on_trajectory)
    for day, pairs in groupby(zip(chosen, found, strict=True), lambda pair: _day_of(pair[0][0])):
        tally.add([looked for _, looked in pairs], starts, whole=day in whole_days)
    named = {lake.path_of(url) for url in urls}
    return ColdVerified(
        tally.events,
        tally.trajectories,
        len(tally.content),
        tuple(tally.problems),
        frozenset(tally.damaged),
        tuple(entry.path for entry in lake.files() if entry.path not in named),
        sum(map(len, chosen)),
        len(urls) - sum(map(len, chosen)),
    )


def look_at(
    lake: Lake, store: ContentStore, group: tuple[str, ...], gone: Collection[tuple[str, str]] = frozenset()
) -> Looked:
    """Check files whose rows follow each other; content that is in `gone` was deleted by a policy."""
    blobs = BlobCheck(store)
    content: set[tuple[str, str]] = set()

    def problem_with(tenant: str, sha256: str) -> str | None:
        content.add((tenant, sha256))
        return None if (tenant, sha256) in gone else blobs(tenant, sha256)

    found = list(check_files(lake, group, problem_with))
    segments = tuple(part for part in found if isinstance(part, Segment))
    return Looked(segments, tuple(part for part in found if isinstance(part, Problem)), frozenset(content))


class _Tally:
    """What was found, day by day."""

    def __init__(self, on_trajectory: OnTrajectory | None) -> None:
        self.events = self.trajectories = 0
        self.content: set[tuple[str, str]] = set()
        self.problems: list[str] = []
        self.damaged: set[uuid.UUID] = set()
        self._on_trajectory = on_trajectory

    def add(self, day: list[Looked], starts: Mapping[uuid.UUID, Collection[Link]], *, whole: bool) -> None:
        """Put the segments of a day together; `whole` says whether they are all that the day has."""
        segments: dict[uuid.UUID, list[Segment]] = {}
        blamed: set[uuid.UUID] = set()
        for looked in day:
            self.content |= looked.content
            self.problems += map(str, looked.problems)
            blamed |= {problem.trajectory_id for problem in looked.problems if problem.trajectory_id is not None}
            for segment in looked.segments:
                segments.setdefault(segment.trajectory_id, []).append(segment)
        self.damaged |= blamed
        for trajectory_id, parts in sorted(segments.items()):
            end = _join(parts, starts.get(trajectory_id, ())) if whole else _last_of(parts)
            if isinstance(end, str):
                if trajectory_id not in blamed:
                    self.problems.append(f"cold: trajectory {trajectory_id}: {end}")
                self.damaged.add(trajectory_id)
                continue
            self.events += sum(part.events for part in parts)
            if trajectory_id not in blamed:
                self.trajectories += 1
                if whole and self._on_trajectory is not None:
                    self._on_trajectory(trajectory_id, end.sequence_number, end.hash)


def _day_of(url: str) -> str:
    """The part of a URL up to the folder of its day."""
    return url.rsplit("/", 2)[0]


def _run_of(url: str) -> tuple[str, str]:
    """Folder and run of a file: files with the same ones hold rows that follow each other."""
    folder, _, name = url.rpartition("/")
    return folder, name.rsplit("-", 2)[0]


def _apart(lake: Lake, urls: list[str]) -> Iterator[list[str]]:
    """The files of one run in groups that can be checked each for itself: a group begins where a segment begins."""
    group = urls[:1]
    for url in urls[1:]:
        if begins_segment(lake, url):
            yield group
            group = []
        group.append(url)
    if group:
        yield group


def _last_of(segments: list[Segment]) -> Link:
    last = max(segments, key=lambda segment: segment.last_sequence)
    return Link(last.last_sequence, last.last_hash)


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
