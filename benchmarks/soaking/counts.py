"""What the soak has counted so far, in one file a part, by the version of the code that was tested.

The file is replaced after each batch, so an interrupted soak loses a batch at most.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "out" / "soak"
TESTED = ("hot", "schemas")
FAILURES_KEPT_MAX = 50
_TEMPORARY = re.compile(r"[^\s'\"]*/stratalog-soak-[^/\s]+/(disk/home/)?")


class Count(msgspec.Struct):
    """Crashes of one part with one version of the code."""

    crashes: int = 0
    runs: int = 0
    """Of the simulation; passes through all points of a workload of the crash points."""
    acknowledged: int = 0
    failures: int = 0
    seconds: float = 0.0


class Part(msgspec.Struct):
    """One part: where it goes on, and its counts by version."""

    seed: int = 1
    place: int = 0
    """The next crash point of the workload that `seed` names."""
    counts: dict[str, Count] = {}
    failures: list[str] = []
    cured: list[str] = []
    """Failures that did not show again when they were replayed with later code or a corrected simulation."""

    def now(self) -> Count:
        """The count with the present code."""
        return self.counts.setdefault(version(), Count())

    def total(self) -> Count:
        """The count with all versions of the code."""
        total = Count()
        for count in self.counts.values():
            for name in Count.__struct_fields__:
                setattr(total, name, getattr(total, name) + getattr(count, name))
        return total

    def add_failures(self, failures: list[str]) -> None:
        """Note what went wrong, without the temporary folder that it went wrong in."""
        self.now().failures += len(failures)
        told = [_TEMPORARY.sub("", failure) for failure in failures]
        self.failures = [*self.failures, *told][:FAILURES_KEPT_MAX]

    def cure(self, failure: str) -> None:
        """A failure is none any more, in any version's count: what it showed has been corrected."""
        self.failures.remove(failure)
        self.cured.append(failure)
        for count in reversed(self.counts.values()):
            if count.failures:
                count.failures -= 1
                return


@functools.cache
def version() -> str:
    """A digest of the code under test."""
    digest = hashlib.sha256()
    for path in sorted(path for name in TESTED for path in (ROOT / name).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def load(name: str) -> Part:
    """What a part has counted; a new one where there is nothing yet."""
    path = FOLDER / f"{name}.json"
    return msgspec.json.decode(path.read_bytes(), type=Part) if path.exists() else Part()


def save(name: str, part: Part) -> None:
    """Keep what a part has counted."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    draft = FOLDER / f".{name}.json"
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(part)))
    draft.replace(FOLDER / f"{name}.json")
