"""What is to be done with a trajectory of a file that was imported before, once the file has been compared.

What was written of its source before (the generations) may come from several copies of the file that differ. The file
is read as it is, and for each generation as if it had ended where that generation's file once ended. If any generation
has everything that the file says, nothing is written, whatever else would fit; else the longest one that the file goes
on from grows; else there is another generation, written from the file as it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import msgspec

from .cursor import Written
from .tracks import ImportLog, Target, Track

Cuts = tuple[int, ...]
"""Offsets (ascending) at which a file is read as if it had ended there; none: as it is."""


class Agreement(msgspec.Struct, frozen=True):
    """The file says what was written, as far as both go, if it is read with `cuts`; `count` events of it then."""

    written: Written
    cuts: Cuts
    count: int
    opaque: int

    @property
    def covers(self) -> bool:
        """Whether everything that the file says was written."""
        return self.count <= self.written.progress.count


class Comparison:
    """One trajectory of the file against all generations of its source."""

    def __init__(self, plain: Track) -> None:
        self._next_id = plain.next_id
        self._generations = plain.generations
        self._agreements: list[Agreement] = []
        self.take((), plain)

    def take(self, cuts: Cuts, track: Track) -> None:
        """The file has been read with `cuts`."""
        self._agreements += [
            Agreement(written, cuts, track.digest.count, track.opaque) for written in track.generations if written.same
        ]

    @property
    def offsets(self) -> set[int]:
        """Where the file, or a copy of it, ended before."""
        return {cut for written in self._generations for cut in written.progress.cuts}

    def readings(self, beginnings: Mapping[int, bytes], size: int) -> dict[Cuts, list[Written]]:
        """How else a file of `size` bytes with these beginnings has to be read, and what it is then compared with."""
        found: dict[Cuts, list[Written]] = {}
        if self.covering is not None:
            return found
        for written in self._generations:
            endings = written.progress.endings
            cuts = {ending.offset for ending in endings if ending.offset < size and ending.fits(beginnings)}
            if cuts and not written.same:
                found.setdefault(tuple(sorted(cuts)), []).append(written.again())
        return found

    @property
    def covering(self) -> Agreement | None:
        """The longest generation that has everything that the file says."""
        return max((one for one in self._agreements if one.covers), key=_length, default=None)

    def decide(self, log: ImportLog) -> tuple[Cuts, Target] | None:
        """How the file is to be read, and where to it is to be written; `None` if everything is there."""
        if self.covering is not None:
            return None
        best = max((one for one in self._agreements if _untouched(log, one.written)), key=_length, default=None)
        if best is not None:
            return best.cuts, Target(best.written.trajectory_id, best.written.progress)
        like = max(self._agreements, key=_length, default=None)
        replaced = like.written if like else self._generations[-1]
        return (), Target(self._next_id, None, str(replaced.trajectory_id))

    def stands(self) -> tuple[uuid.UUID, int, int] | None:
        """The trajectory that has everything of the file, its events, and how many of the file's are opaque."""
        one = self.covering
        return None if one is None else (one.written.trajectory_id, one.written.progress.count, one.opaque)


def _length(agreement: Agreement) -> int:
    return agreement.written.progress.count


def _untouched(log: ImportLog, written: Written) -> bool:
    """Whether nobody else has appended to it: else the numbers that the file's events refer to are taken."""
    head = log.head(written.trajectory_id)
    return head is not None and head.sequence_number + 1 == written.progress.count
