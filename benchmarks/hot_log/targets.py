"""What was aimed at, whether it was reached, and what limits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.report import Row

from . import peers
from .plan import PLAN
from .samples import Samples

STEADY_RATIO = 1.1
LIMITS = (
    (
        "One append at a time",
        "encoding, digests, chain and batch take about 20 µs in a loop and about 65 µs right after a sync, when "
        "nothing of the interpreter is in the caches any more: 25 to stage the event, 20 to build and write the "
        "batch, 20 to release and return. A coroutine also waits for a turn of its loop and for two changes of "
        "thread.",
    ),
    (
        "Throughput and durable steps",
        "the interpreter lock. With a store that does nothing, 64 coroutines get through 45,000 to 50,000 "
        "events/s: about 20 µs each, of which asyncio takes 2, encoding 3, the four SHA-256 of digest and hash 4, "
        "header, record, head, receipt and futures the rest. RocksDB's batch and write keep the lock, too, for 3 "
        "µs more. What is missing to the number above are two wake-ups of an idle processor for each group, about "
        "0.15 ms each, of which halved groups hide a part. The plain file has only asyncio's share. The sync "
        "itself runs without the lock. A smaller `sys.setswitchinterval`, groups of other sizes and no garbage "
        "collection made no difference.",
    ),
    (
        "Open loop",
        "the same, as long as the rate is well below the throughput; beyond it the queue grows and latency is "
        "only a matter of how long the run takes. The tail is other work on the same two cores, and a lock that a "
        "busy thread gives away after 5 ms at the latest (`sys.getswitchinterval`).",
    ),
    (
        "Write amplification",
        "a sync writes the last, partly filled page of 4 KB of the log again, about one page for each group: 1 + "
        "4096 / (events of a group × bytes of an event). Small groups come from fast syncs; a window makes them "
        "larger. And what is not pruned when a memtable is full is written once more: on two cores that the log, "
        "the sidecar and Postgres share, replication falls behind at this rate (events behind, below), so nearly "
        "everything is.",
    ),
    (
        "Reopening",
        "reading the write-ahead log back into memory, then checking density and chains.",
    ),
)


def targets(samples: Samples, stalls: Mapping[str, dict[str, Any]], memory: Mapping[str, Any]) -> list[Row]:
    """The targets, as rows."""
    rows = [
        samples.target(
            "append_blocking over a bare write",
            "append_blocking p50 over a bare write + fdatasync",
            "×",
            1.5,
            at_most=True,
        ),
        samples.target("append over a bare write", "append p50 over a bare write + fdatasync", "×", 2.5, at_most=True),
        *(
            samples.target(
                f"ratio of {appenders} × 1 KB: throughput",
                f"throughput of {appenders} appenders over the plain file's",
                "×",
                0.5,
                at_most=False,
            )
            for appenders in (64, 256)
        ),
        *(
            samples.target(
                f"64: stratalog over {peer}", f"durable steps/s of 64 trajectories over {peer}", "×", 25, at_most=False
            )
            for peer in peers.WITH_POSTGRES
        ),
        samples.target(
            "p99 over the file's at 2,000 events/s",
            "open loop at 2,000 events/s: p99 over the plain file's",
            "ms",
            0.5,
            at_most=True,
        ),
        samples.target(
            "write amplification, W 0 µs",
            f"write amplification at {PLAN.amplify_rate:,} events/s",
            "×",
            1.3,
            at_most=True,
        ),
        samples.target(
            "open after a crash", "reopening after a crash with 64 MB of write-ahead log", "s", 1, at_most=True
        ),
    ]
    first, last, _ = steady(memory)
    rows.append(
        Row(
            f"memory at the end of {memory['events']:,} events over that at a fifth",
            last / first,
            "×",
            target=STEADY_RATIO,
            at_most=True,
        )
    )
    for what, who in (("thread", "another thread"), ("loop", "the event loop")):
        if stalls:
            added = stalls["log"][what]["p99_ms"] - stalls["log at once"][what]["p99_ms"]
            shown = f"p99 of how late {who} wakes: what a delay of syncs by {PLAN.delay_us / 1000:g} ms adds"
            rows.append(Row(shown, added, "ms", target=PLAN.delay_us / 2e3, at_most=True))
    return rows


def steady(memory: Mapping[str, Any]) -> tuple[float, float, float]:
    """Resident MB at a fifth of the events (median of the samples around), at the end, and MB for a million events."""
    samples = [(done, resident / 1e6) for done, resident in memory["samples"]]
    fifth = len(samples) // 5
    early, late = samples[fifth - 1 : fifth + 2], samples[-3:]
    first, last = (sorted(resident for _, resident in part)[1] for part in (early, late))
    events = late[1][0] - early[1][0]
    return first, last, (last - first) / events * 1e6


def limits_text() -> str:
    """What limits each target, as a Markdown list."""
    return "\n".join(f"- {name}: {text}" for name, text in LIMITS)
