"""Measures the user's own device: the ways to persist of the specification's Table 2, the stages of its Table 4.

Everything goes to new files in one folder, which are removed again. Each row repeats one call for a bounded time, so a
slow device gives fewer samples, not a longer run. Times in µs.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from stratalog.schemas.errors import Invalid

from .amortisation import GroupCost, Recommendation, effective_us, recommend

GROUP_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SAMPLES_LEAST = 20
SAMPLES_MOST = 2000
SAFE, CONDITIONAL, UNSAFE = "safe", "conditional", "unsafe"


class Latency(msgspec.Struct, frozen=True):
    """How long one call took."""

    name: str
    samples: int
    p50_us: float
    p99_us: float
    safe: str = ""
    """Whether an effect may follow it: `safe`, `conditional` (it depends on the drive honouring FUA) or `unsafe`."""


class GroupLatency(msgspec.Struct, frozen=True):
    """`writev` of `events` records and one fdatasync; `effective_us` is Equation 3 without a window."""

    events: int
    samples: int
    write_p50_us: float
    write_p99_us: float
    sync_p50_us: float
    sync_p99_us: float
    effective_us: float

    @property
    def cost(self) -> GroupCost:
        """The medians."""
        return GroupCost(self.events, self.write_p50_us, self.sync_p50_us)


class DeviceReport(msgspec.Struct, frozen=True):
    """One device, as this process met it."""

    folder: str
    record_bytes: int
    rate: float
    interfaces: list[Latency]
    """Table 2."""
    stages: list[Latency]
    """Table 4, for a group of one."""
    groups: list[GroupLatency]
    recommendation: Recommendation


def measure(
    folder: Path,
    *,
    record_bytes: int = 1024,
    rate: float = 2000,
    syncs_max: float | None = None,
    seconds: float = 0.5,
) -> DeviceReport:
    """Measure the device under `folder` for about 15 times `seconds`; raises `Invalid` where nothing can be written.

    The settings are recommended for `rate` events/s and at most `syncs_max` syncs/s; see `amortisation.recommend`.
    """
    try:
        interfaces = [
            _interface("write()", UNSAFE, folder, record_bytes, seconds),
            _interface("write() with O_DSYNC", CONDITIONAL, folder, record_bytes, seconds, flags=os.O_DSYNC),
            _interface("write() with O_SYNC", CONDITIONAL, folder, record_bytes, seconds, flags=os.O_SYNC),
            _interface("write() + fdatasync()", SAFE, folder, record_bytes, seconds, sync=os.fdatasync),
            _interface("write() + fsync()", SAFE, folder, record_bytes, seconds, sync=os.fsync),
        ]
        groups = [_group(folder, events, record_bytes, seconds) for events in GROUP_SIZES]
    except OSError as error:
        raise Invalid(f"cannot measure in {folder}: {error}", hint="choose a folder that can be written to") from error
    return DeviceReport(
        str(folder),
        record_bytes,
        rate,
        interfaces,
        _stages(groups[0], seconds),
        groups,
        recommend([group.cost for group in groups], interfaces[0].p50_us, rate, syncs_max),
    )


@contextmanager
def _new_file(folder: Path, flags: int = 0) -> Iterator[int]:
    descriptor, name = tempfile.mkstemp(prefix=".stratalog-device-", dir=folder)
    os.close(descriptor)
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_APPEND | flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    finally:
        Path(name).unlink()


def _interface(
    name: str,
    safe: str,
    folder: Path,
    record_bytes: int,
    seconds: float,
    *,
    flags: int = 0,
    sync: Callable[[int], None] | None = None,
) -> Latency:
    record = os.urandom(record_bytes)
    with _new_file(folder, flags) as descriptor:

        def call() -> None:
            os.write(descriptor, record)
            if sync is not None:
                sync(descriptor)

        return _latency(name, _samples(call, seconds), safe)


def _group(folder: Path, events: int, record_bytes: int, seconds: float) -> GroupLatency:
    records = [os.urandom(record_bytes) for _ in range(events)]
    writes: list[float] = []
    syncs: list[float] = []
    with _new_file(folder) as descriptor:

        def call() -> None:
            started = time.perf_counter()
            os.writev(descriptor, records)
            written = time.perf_counter()
            os.fdatasync(descriptor)
            writes.append((written - started) * 1e6)
            syncs.append((time.perf_counter() - written) * 1e6)

        samples = len(_samples(call, seconds))
    write_us, sync_us = quantile(writes, 0.5), quantile(syncs, 0.5)
    return GroupLatency(
        events,
        samples,
        write_us,
        quantile(writes, 0.99),
        sync_us,
        quantile(syncs, 0.99),
        effective_us(0, write_us, sync_us, events),
    )


def _stages(single: GroupLatency, seconds: float) -> list[Latency]:
    """The stages of Table 4; aggregation is a setting, and takes no time of its own where the barrier is the window."""
    return [
        _latency("1 ingestion", _samples(_ingestion(), seconds / 5)),
        Latency("3 vectorised write", single.samples, single.write_p50_us, single.write_p99_us),
        Latency("4 storage barrier", single.samples, single.sync_p50_us, single.sync_p99_us),
        _latency("5 barrier release", _releases(seconds / 5)),
    ]


def _ingestion() -> Callable[[], None]:
    lock, queue = threading.Lock(), deque[bytes](maxlen=GROUP_SIZES[-1])

    def call() -> None:
        with lock:
            queue.append(b"")

    return call


def _releases(seconds: float) -> list[float]:
    """From the release of a parked thread until it runs."""
    gate, back = threading.Lock(), threading.Lock()
    gate.acquire()
    back.acquire()
    woken: list[float] = []
    released: list[float] = []
    stopping = False

    def park() -> None:
        while True:
            gate.acquire()
            woken.append(time.perf_counter())
            if stopping:
                return
            back.release()

    thread = threading.Thread(target=park, daemon=True)
    thread.start()
    end = time.perf_counter() + seconds
    while len(released) < SAMPLES_LEAST or (time.perf_counter() < end and len(released) < SAMPLES_MOST):
        released.append(time.perf_counter())
        gate.release()
        back.acquire()
    stopping = True
    gate.release()
    thread.join()
    return [(after - before) * 1e6 for before, after in zip(released, woken, strict=False)]


def _samples(call: Callable[[], None], seconds: float) -> list[float]:
    call()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < SAMPLES_LEAST or (time.perf_counter() < end and len(samples) < SAMPLES_MOST):
        started = time.perf_counter()
        call()
        samples.append((time.perf_counter() - started) * 1e6)
    return samples


def _latency(name: str, samples: Sequence[float], safe: str = "") -> Latency:
    return Latency(name, len(samples), quantile(samples, 0.5), quantile(samples, 0.99), safe)


def quantile(samples: Sequence[float], share: float) -> float:
    """The value below which this share of the samples lies (0.5 for the median)."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
