"""The machine that a benchmark ran on, as far as it can be seen from inside."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SYNC_ROUNDS = 100
SYNC_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine, in words and numbers."""

    cores: int
    processor: str
    memory_bytes: int
    kernel: str
    disk: str
    python: str
    fdatasync_us: float
    """Median of writing 1 KB to the end of a file and syncing it."""
    load: float
    """How many processes wanted to run, on average over the minute before the benchmark."""


def describe(folder: Path) -> Machine:
    """The machine, and the disk under `folder`."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        processor=_processor(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=f"{platform.system()} {platform.release()}",
        disk=_disk(folder),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        fdatasync_us=_fdatasync_us(folder),
        load=os.getloadavg()[0],
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _disk(folder: Path) -> str:
    """File system and device of the mount that `folder` lies on."""
    best = ("", "", "")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, mount, kind, *_ = line.split(" ")
        inside = folder.resolve() == Path(mount) or Path(mount) in folder.resolve().parents
        if inside and len(mount) >= len(best[1]):
            best = (device, mount, kind)
    device, _, kind = best
    queue = Path("/sys/block") / Path(device).name / "queue"
    try:
        spins = (queue / "rotational").read_text().strip() == "1"
        cache = (queue / "write_cache").read_text().strip()
    except OSError:
        return f"{kind} on {device}"
    return f"{kind} on {device} ({'rotational' if spins else 'not rotational'} as reported, {cache})"


def _fdatasync_us(folder: Path) -> float:
    seconds = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNC_ROUNDS):
            os.write(file.fileno(), bytes(SYNC_BYTES))
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1e6
