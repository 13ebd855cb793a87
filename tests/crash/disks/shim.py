"""Dying or failing at a chosen file operation: a library in C, compiled at test time, that a child has preloaded.

The operations are counted below one folder. Threads of RocksDB work beside the writer, so the n-th operation of two
runs may differ a little; what counts is that all of them are met.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
WRITE, SYNC, NAME = 1, 2, 4
ALL = WRITE | SYNC | NAME
"""Classes of operations: writes and truncations, syncs, and what changes the names in a folder."""
_FILES = re.compile(
    r"\.(log|sst|blob|dbtmp)$|(HEAD|REPLICATED|OWNER|CURRENT|MANIFEST|OPTIONS|IDENTITY|LOG|LOCK|config|json)"
)
COUNT, DIE, DIE_TORN, FAIL, FAIL_ON = range(5)
"""Only count; die; die half-way through a write; fail once; fail from there on."""


def why_not() -> str:
    """Why there can be no shim here; empty where there can."""
    return "" if shutil.which("gcc") else "gcc is not installed"


def build(folder: Path) -> Path:
    """Compile the library."""
    library = folder / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"], check=True, timeout=60)
    return library


def preloaded(library: Path) -> Mapping[str, str]:
    """The environment of processes that have it."""
    return {"LD_PRELOAD": os.fspath(library)}


def arm(
    folder: str, nth: int = 0, action: int = COUNT, classes: int = ALL, error: int = 0, trace: str | None = None
) -> None:
    """In a child: act at the `nth` operation (1 is the first) of these classes below `folder`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    descriptor = os.open(trace, flags, 0o600) if trace else -1
    library = ctypes.CDLL(None)
    library.shim_arm(folder.encode(), ctypes.c_long(nth), action, classes, error, descriptor)


def disarm() -> None:
    """In a child: let everything pass from here on."""
    ctypes.CDLL(None).shim_arm(b"", ctypes.c_long(0), COUNT, 0, 0, -1)


@dataclass(frozen=True, slots=True)
class Operation:
    """One file operation that was counted."""

    number: int
    name: str
    path: str

    @property
    def kind(self) -> str:
        """What it does to which kind of file, such as `write .log`."""
        file = _FILES.search(self.path)
        return f"{self.name} {file.group() if file else 'folder'}"


def read_trace(path: Path) -> list[Operation]:
    """The operations that a child was counted to do."""
    operations = []
    for line in path.read_text().splitlines():
        number, name, place = line.split(" ", 2)
        if not place.endswith("/LOG"):  # what RocksDB tells people
            operations.append(Operation(int(number), name, place))
    return sorted(operations, key=lambda operation: operation.number)


def spread(operations: list[Operation], count: int, source: random.Random) -> list[Operation]:
    """A sample in which each kind of operation occurs before one occurs twice, the frequent kinds first."""
    frequency = Counter(operation.kind for operation in operations)
    seen: Counter[str] = Counter()
    ranked = []
    for operation in source.sample(operations, len(operations)):
        seen[operation.kind] += 1
        ranked.append((seen[operation.kind], -frequency[operation.kind], operation))
    return [operation for *_, operation in sorted(ranked, key=lambda entry: entry[:2])[:count]]
