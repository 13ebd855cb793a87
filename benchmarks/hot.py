"""The hot log beside a plain file with the same group commit, and beside others that make a step durable.

    make bench-hot        (BENCH=quick for a short run)

Writes benchmarks/out/hot.json, docs/benchmarks/hot.md and docs/benchmarks/hot.png. Everything goes through the public
API: encode, digest, chain and batch are included. Every measurement has a new home.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.machine import describe
from harness.measure import Stage, be_stage, run_stage
from hot_log import amplification, appends, delayed, memory, peers, reopening, replicated, slow_sync
from hot_log.following import following, new_database, settle
from hot_log.page import Page
from hot_log.plan import PLAN
from hot_log.samples import Samples

SCRIPT = Path(__file__).resolve()
STAGES: dict[str, Stage] = {
    stage.__name__: stage
    for stage in (
        appends.append,
        appends.append_blocking,
        appends.arrive,
        appends.step,
        delayed.stall,
        delayed.sweep,
        replicated.append_replicated,
        amplification.amplify,
        memory.remember,
        reopening.reopen,
        reopening.fill_and_die,
    )
}
STALLS = (
    ("nobody", "nobody", 0),
    ("log at once", "log", 0),
    ("log", "log", PLAN.delay_us),
    ("holding", "holding", PLAN.delay_us),
)
"""Who syncs, and how much longer that takes."""


@contextmanager
def new_folder(parent: Path) -> Iterator[Path]:
    """A folder for one measurement, gone after it."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def stage(parent: Path, name: str, **arguments: Any) -> dict[str, Any]:
    """A stage on a new home."""
    with new_folder(parent) as folder:
        return run_stage(SCRIPT, name, home=str(folder / "home"), **arguments)


def run_round(folder: Path, server: str, number: int, samples: Samples) -> None:
    """What is compared, once."""
    run_closed_loops(folder, samples)
    for rate in PLAN.rates:
        found = stage(folder, "arrive", rate=rate, seconds=PLAN.arrive_s, seed=1000 * number)
        samples.note(f"{rate:,} events/s", found["ours"], found["file"])
        samples.add(
            f"p99 over the file's at {rate:,} events/s", (found["ours"]["p99_us"] - found["file"]["p99_us"]) / 1e3
        )
    for appenders in PLAN.step_appenders:
        run_steps(folder, server, appenders, samples)
    settle(server)


def run_closed_loops(folder: Path, samples: Samples) -> None:
    """Appends by coroutines that wait for each; and by one thread, beside a bare write and sync."""
    found = stage(folder, "append_blocking", seconds=PLAN.append_s)
    samples.note("1 thread, append_blocking", found["ours"], found["file"])
    samples.note("1 thread, bare write + fdatasync", found["raw"])
    bare_us = found["raw"]["p50_us"]
    samples.add("append_blocking over a bare write", found["ours"]["p50_us"] / bare_us)
    for appenders in PLAN.appenders:
        found = stage(folder, "append", appenders=appenders, size="1 KB", seconds=PLAN.append_s)
        samples.note(f"{appenders} × 1 KB", found["ours"], found["file"])
        if appenders == 1:
            samples.add("append over a bare write", found["ours"]["p50_us"] / bare_us)
    for size in PLAN.sizes:
        found = stage(folder, "append", appenders=64, size=size, seconds=PLAN.append_s)
        samples.note(f"64 × {size}", found["ours"], found["file"])


def run_steps(folder: Path, server: str, appenders: int, samples: Samples) -> None:
    """Durable steps: ours, the plain file, the peers."""
    found = stage(folder, "step", appenders=appenders, seconds=PLAN.step_s)
    ours = found["ours"]["events"] / found["ours"]["seconds"]
    samples.note(f"{appenders}: stratalog", found["ours"])
    samples.note(f"{appenders}: plain file, group commit", found["file"])
    samples.add(f"{appenders}: stratalog over plain file, group commit", ours / _rate(found["file"]))
    for name in peers.ALL:
        with new_folder(folder) as place:
            dsn = new_database(server, f"peer_{appenders}") if name in peers.WITH_POSTGRES else ""
            peer = peers.run_peer(
                name,
                folder=place,
                dsn=dsn,
                appenders=appenders,
                seconds=PLAN.step_s,
                record_bytes=found["record_bytes"],
            )
        samples.note(f"{appenders}: {name}", peer)
        samples.add(f"{appenders}: stratalog over {name}", ours / _rate(peer))


def _rate(found: dict[str, Any]) -> float:
    rate: float = found["events"] / found["seconds"]
    return rate


def run_delayed(folder: Path, page: Page) -> None:
    """Who is held up by a slow sync, and what W and B_max do; nothing where there is no C compiler."""
    library = slow_sync.build(folder)
    if library is None:
        return
    slow = slow_sync.variables(library, PLAN.delay_us)
    for name, syncing, delay_us in STALLS:
        variables = slow_sync.variables(library, delay_us)
        page.stalls[name] = stage(folder, "stall", variables=variables, syncing=syncing, seconds=PLAN.stall_s)
    open_loop = [(window, 64, rate) for rate in PLAN.window_rates for window in PLAN.windows_us]
    closed_loop = [(window, events, 0) for window in (0, 2_000) for events in PLAN.groups]
    for window_us, events_max, rate in (*open_loop, *closed_loop):
        found = stage(
            folder,
            "sweep",
            variables=slow,
            window_us=window_us,
            events_max=events_max,
            rate=rate,
            seconds=PLAN.sweep_s,
            barrier_us=PLAN.delay_us,
        )
        page.sweep.append({"window_us": window_us, "events_max": events_max, "rate": rate, **found})


def run_replicated(folder: Path, server: str, samples: Samples) -> None:
    """The barrier `replicated`, with a sidecar of its own."""
    for appenders in PLAN.step_appenders:
        with new_folder(folder) as place, following(place / "home", new_database(server, "bench_replicated")):
            found = run_stage(
                SCRIPT,
                "append_replicated",
                home=str(place / "home"),
                appenders=appenders,
                seconds=PLAN.replicated_s,
            )
        samples.note(f"{appenders}, replicated", found["replicated"], found["local"])


def run_amplification(folder: Path, server: str, page: Page, samples: Samples) -> None:
    """Bytes written for bytes appended, with a sidecar that follows: as it is, and with a window."""
    for window_us in (0, 2_000):
        settings = f"{PLAN.amplify_settings}group_window_us = {window_us}\n"
        dsn = new_database(server, "bench_amplification")
        with new_folder(folder) as place, following(place / "home", dsn, settings):
            home = str(place / "home")
            found = run_stage(SCRIPT, "amplify", home=home, rate=PLAN.amplify_rate, seconds=PLAN.amplify_s)
        page.amplification.append({"window_us": window_us, **found})
        samples.add(f"write amplification, W {window_us} µs", found["amplification"])


def run_single(folder: Path, server: str, page: Page, samples: Samples) -> None:
    """What is measured outside of the rounds."""
    run_delayed(folder, page)
    run_replicated(folder, server, samples)
    run_amplification(folder, server, page, samples)
    for _ in range(PLAN.reopenings):
        found = stage(folder, "reopen")
        samples.add("open after a crash", found["open_s"])
        samples.add("first append after a crash", found["first_append_s"])
    page.memory = stage(folder, "remember", events=PLAN.memory_events, memtable_bytes=PLAN.memory_memtable_bytes)


@contextmanager
def told(name: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    started = time.perf_counter()
    print(f"{name} …", end=" ", flush=True)
    yield
    print(f"{time.perf_counter() - started:.0f} s", flush=True)


def main() -> None:
    """Measure and report."""
    from stratalog.warm.server import EmbeddedPostgres

    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as name:
        folder = Path(name)
        page, samples = Page(describe(folder)), Samples()
        with EmbeddedPostgres(folder / "pg") as server:
            for number in range(PLAN.rounds):
                with told(f"round {number + 1} of {PLAN.rounds}"):
                    run_round(folder, server.dsn, number, samples)
            with told("slow syncs, replication, write amplification, reopening, memory"):
                run_single(folder, server.dsn, page, samples)
    page.write(samples)


if __name__ == "__main__" and not be_stage(STAGES, sys.argv[1:]):
    main()
