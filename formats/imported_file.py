"""One file on its way into the log, in as many readings as it takes; memory is what waits for a commit.

What is new is written in the first reading. What was imported before is compared, each generation in the reading that
it came from (see `comparison`), and only then written. Where several trajectories of the file would be written as the
same one (a run that is in the file twice), they take turns: the later is compared with what the earlier has written.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from .comparison import Comparison, Cuts
from .cursor import Written
from .ending import Ending, beginnings
from .source import Begin, Cut, Entry, Problem, Reader
from .tracks import Place, Plan, Target, Track

WAITING_BYTES_MAX = 16 << 20
"""What the trajectories of one file may together keep waiting for a commit."""
_CHANGED = Problem(None, "the file changed while it was imported; import it again")


class ImportedFile:
    """The import of one file: what it found wrong, what stands for the file now, and what that added."""

    def __init__(self, place: Place, reader: Reader, path: Path) -> None:
        self._place = place
        self._reader = reader
        self._path = path
        self.problems: list[Problem] = []
        self.stands: dict[uuid.UUID, tuple[int, int]] = {}
        """Trajectory to its number of events, and how many of the file's are opaque."""
        self.appended = 0
        self._ids: dict[str, uuid.UUID] = {}
        """Key to the id that a trajectory had when it was first imported, which its sub-agents name."""

    def run(self) -> None:
        """Write what is new at once; what was imported before is compared, then written where that is needed."""
        waiting = self._round(None)
        while waiting:
            waiting = self._round(waiting)

    def _round(self, keys: Collection[str] | None) -> list[str]:
        """Import all trajectories of the file, or some; returns the keys of those that have to wait for others."""
        tracks = self._pass((), None if keys is None else dict.fromkeys(keys))
        compared = {key: Comparison(track) for key, track in tracks.items() if track.target is None}
        for cuts, plans in self._readings(compared).items():
            for key, track in self._pass(cuts, plans).items():
                compared[key].take(cuts, track)
        targets, waiting = self._targets(compared)
        written = {key: track for key, track in tracks.items() if track.target is not None}
        for cuts, some in targets.items():
            again = self._pass(cuts, some)
            if again.keys() != some.keys() or any(track.changed for track in again.values()):
                self.problems.append(_CHANGED)
            written |= again
        for comparison in compared.values():
            self._stand(comparison.stands())
        for track in written.values():
            assert track.target is not None
            self._stand((track.target.trajectory_id, track.digest.count, track.opaque))
        return waiting

    def _readings(self, compared: Mapping[str, Comparison]) -> dict[Cuts, dict[str, Sequence[Written]]]:
        """The readings beside the plain one, and what is compared in each, by key."""
        offsets = {offset for comparison in compared.values() for offset in comparison.offsets}
        known = beginnings(self._path, offsets) if offsets else {}
        size = self._path.stat().st_size
        found: dict[Cuts, dict[str, Sequence[Written]]] = {}
        for key, comparison in compared.items():
            for cuts, generations in comparison.readings(known, size).items():
                found.setdefault(cuts, {})[key] = generations
        return found

    def _targets(self, compared: Mapping[str, Comparison]) -> tuple[dict[Cuts, dict[str, Target]], list[str]]:
        """What is written in which reading, and the keys that wait because another is written to their trajectory."""
        found: dict[Cuts, dict[str, Target]] = {}
        waiting: list[str] = []
        taken: set[uuid.UUID] = set()
        for key, comparison in compared.items():
            decided = comparison.decide(self._place.log)
            if decided is None:
                continue
            cuts, target = decided
            if target.trajectory_id in taken:
                waiting.append(key)
                continue
            taken.add(target.trajectory_id)
            found.setdefault(cuts, {})[key] = target
        return found, waiting

    def _stand(self, standing: tuple[uuid.UUID, int, int] | None) -> None:
        if standing is not None:
            identity, events, opaque = standing
            before = self.stands.get(identity, (0, 0))
            self.stands[identity] = (max(before[0], events), max(before[1], opaque))

    # --- one reading -------------------------------------------------------------------------------------------

    def _pass(self, cuts: Cuts, plans: Mapping[str, Plan] | None) -> dict[str, Track]:
        """Read the file: all of it, and report what is wrong; or some of its trajectories, each with its plan."""
        tracks: dict[str, Track] = {}
        ending: Ending | None = None
        compares = bool(cuts) and plans is not None and not any(isinstance(plan, Target) for plan in plans.values())
        try:
            for item in self._reader.read(self._path, cuts):
                if isinstance(item, Problem):
                    if plans is None:
                        self.problems.append(item)
                elif isinstance(item, Cut):
                    ending = self._end(item, tracks)
                elif isinstance(item, Begin):
                    if plans is None or item.key in plans:
                        tracks[item.key] = self._track(item, (plans or {}).get(item.key), tracks, ending)
                elif item.key in tracks:
                    self._add(item, tracks)
                    if compares and len(tracks) == len(plans or ()) and not any(t.agrees for t in tracks.values()):
                        break
            for track in tracks.values():
                track.flush()
        finally:
            self.appended += sum(track.appended for track in tracks.values())
        return tracks

    def _end(self, cut: Cut, tracks: Mapping[str, Track]) -> Ending:
        ending = Ending(cut.offset, beginnings(self._path, (cut.offset,)).get(cut.offset, b""))
        for track in tracks.values():
            track.cut(ending)
        return ending

    def _track(self, begin: Begin, plan: Plan, tracks: Mapping[str, Track], ending: Ending | None) -> Track:
        # Two documents of one file may be the same run: the second must find what the first has written.
        for track in tracks.values():
            track.flush()
        parent = self._ids.get(begin.parent_key)
        track = Track(self._place, self._reader.name, begin, str(parent) if parent else "", plan, ending)
        self._ids.setdefault(begin.key, track.base_id)
        return track

    def _add(self, entry: Entry, tracks: Mapping[str, Track]) -> None:
        tracks[entry.key].add(entry.body, entry.created_at)
        if sum(track.batch_bytes for track in tracks.values()) > WAITING_BYTES_MAX:
            for track in tracks.values():
                track.flush()
