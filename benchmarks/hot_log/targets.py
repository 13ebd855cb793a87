"""What was aimed at, whether it was reached, and what limits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.report import Row

from . import peers
from .plan import PLAN
from .samples import Samples

STEADY_RATIO = 1.1
LIMITS: tuple[tuple[str, str], ...] = ()


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
    if stalls:
        most = PLAN.delay_us / 2e3
        rows += [
            Row(
                f"p99 of how late {who} comes, sync delayed by {PLAN.delay_us / 1000:g} ms",
                stalls["log"][what]["p99_ms"],
                "ms",
                target=most,
                at_most=True,
            )
            for what, who in (("thread", "another thread"), ("loop", "the event loop"))
        ]
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
