"""The report: benchmarks/out/hot.json, docs/benchmarks/hot.md, docs/benchmarks/hot.png."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.machine import Machine
from harness.report import Row, chart, documents, machine_text, number, table

from . import peers, replicated
from .plan import PLAN, QUICK
from .samples import QUANTILES, Samples
from .targets import limits_text, steady, targets

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "benchmarks" / "out" / "hot.json"
DOCS = ROOT / "docs" / "benchmarks"
SYNCING = {
    "nobody": "nobody syncs",
    "log at once": "16 coroutines append, syncs as they are",
    "log": "16 coroutines append, syncs delayed",
    "holding": "control: a sync that keeps the interpreter lock",
}


@dataclass
class Page:
    """What was found outside of the rounds, and how all of it is shown."""

    machine: Machine
    stalls: dict[str, dict[str, Any]] = field(default_factory=dict)
    sweep: list[dict[str, Any]] = field(default_factory=list)
    amplification: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)

    def write(self, samples: Samples) -> None:
        """All three files; the tables also to stdout."""
        judged = targets(samples, self.stalls, self.memory)
        panels = self._panels(samples)
        rows = [*judged, *(row for _, found in panels for row in found)]
        OUT.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "short_run": QUICK,
            "machine": asdict(self.machine),
            "warnings": [replicated.WARNING],
            "rows": documents(rows),
            "stalls": self.stalls,
            "sweep": self.sweep,
            "amplification": self.amplification,
            "memory": self.memory,
        }
        OUT.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        sections = self._sections(judged, panels)
        DOCS.mkdir(parents=True, exist_ok=True)
        (DOCS / "hot.md").write_text("\n\n".join(sections) + "\n", encoding="utf-8")
        chart(DOCS / "hot.png", panels)
        print("\n\n".join(sections))

    def _panels(self, samples: Samples) -> list[tuple[str, list[Row]]]:
        closed = ["1 thread, append_blocking", "1 thread, bare write + fdatasync"]
        closed += [f"{appenders} × 1 KB" for appenders in PLAN.appenders]
        closed += [f"64 × {size}" for size in PLAN.sizes]
        arriving = [f"{rate:,} events/s" for rate in PLAN.rates]
        panels = [
            ("Closed loop: throughput, events/s", _rows(samples, closed, "throughput", "events/s")),
            *[(f"Closed loop: {quantile}, ms", _rows(samples, closed, quantile, "ms")) for quantile in QUANTILES],
            *[
                (
                    f"Open loop (Poisson), from the moment it was due: {quantile}, ms",
                    _rows(samples, arriving, quantile, "ms"),
                )
                for quantile in QUANTILES
            ],
        ]
        names = ["stratalog", "plain file, group commit", *peers.ALL]
        for appenders in PLAN.step_appenders:
            stepping = [f"{appenders}: {name}" for name in names]
            who = f"{appenders} {'trajectory' if appenders == 1 else 'trajectories'}"
            panels.append((f"Durable steps/s, {who}", _rows(samples, stepping, "throughput", "steps/s")))
        barrier = [f"{appenders}, replicated" for appenders in PLAN.step_appenders]
        for quantile in QUANTILES:
            panels.append((f"Barrier replicated: {quantile}, ms", _rows(samples, barrier, quantile, "ms")))
        return panels

    def _sections(self, judged: Sequence[Row], panels: Sequence[tuple[str, Sequence[Row]]]) -> list[str]:
        sections = [
            "# The hot log",
            f"Written by `make bench-hot`; do not edit. Medians of {PLAN.rounds} "
            f"rounds{' (short run: what is scaled down is said below)' if QUICK else ''}. Ours and the baseline take "
            "turns in one process, the ratio is the median of the ratios of the rounds. Events are `ToolResult`s of "
            "1 KB unless it says otherwise, 100 KB carries a blob; encode, digest, chain and batch are included. The "
            "baseline is a plain file that gets the same bytes with the same group commit: one thread writes and "
            "syncs what queued meanwhile.",
            machine_text(self.machine),
            "## Targets",
            table(judged),
            limits_text(),
            "![chart](hot.png)",
        ]
        for title, rows in panels:
            sections += [f"## {title}", table(rows)]
            if title.startswith("Durable steps") and title.endswith("trajectories"):
                sections.append(_STEPS_NOTE)
            if title.startswith("Barrier replicated: p99"):
                sections += [
                    "The baseline is the barrier `local` of the same run.",
                    f"**Warning.** {replicated.WARNING}",
                ]
        return [*sections, *self._delayed_sections(), *self._amplification_sections(), *self._memory_sections()]

    def _delayed_sections(self) -> list[str]:
        if not self.stalls:
            return ["## A delayed sync", "Not measured: there is no C compiler here for the library that delays syncs."]
        rows = [
            [
                SYNCING[name],
                *(found[what][kind] for what in ("thread", "loop") for kind in ("p99_ms", "max_ms")),
                found["syncs"],
            ]
            for name, found in self.stalls.items()
        ]
        head = ["", "thread p99", "thread max", "loop p99", "loop max", "syncs"]
        return [
            f"## A sync delayed by {PLAN.delay_us / 1000:g} ms: who is held up",
            _grid(head, rows),
            "By how much (ms) another thread and the event loop wake later than they asked for, while syncs take their "
            "time. The loop's own timers are rounded up to whole ms, also where nobody syncs.",
            f"## A sync delayed by {PLAN.delay_us / 1000:g} ms: W and B_max",
            _grid(_SWEEP_HEAD, [_sweep_row(found) for found in self.sweep]),
            _SWEEP_NOTE,
        ]

    def _amplification_sections(self) -> list[str]:
        head = ["W, µs", "events/s", "amplification", "passed to write()", "p50, ms", "events behind at the end"]
        rows = [
            [
                found["window_us"],
                found["events"] / found["seconds"],
                found["amplification"],
                found["passed"],
                found["p50_us"] / 1e3,
                found["behind"],
            ]
            for found in self.amplification
        ]
        scaled = (
            f" The memtable is scaled down here: `{PLAN.amplify_settings.strip()}`." if PLAN.amplify_settings else ""
        )
        return [
            f"## Write amplification at {PLAN.amplify_rate:,} events/s",
            _grid(head, rows),
            f"Open loop for {PLAN.amplify_s:g} s, a sidecar follows, `prune_lag_events` is 0. Bytes that the process "
            "wrote (/proc/self/io `write_bytes` less `cancelled_write_bytes`: whole pages, each time they are made "
            "dirty) over the bytes of the records. `passed to write()` is the same without pages: log framing, keys, "
            f"heads, and what was flushed before it was pruned.{scaled}",
        ]

    def _memory_sections(self) -> list[str]:
        first, last, growth = steady(self.memory)
        shown = self.memory["samples"][:: max(1, len(self.memory["samples"]) // 10)]
        rows = [[done, resident / 1e6] for done, resident in shown]
        return [
            "## Memory",
            _grid(["events", "resident, MB"], rows),
            f"{self.memory['events']:,} events in trajectories of 64, acknowledged and pruned as they go, "
            f"{self.memory['events'] / self.memory['seconds']:,.0f} events/s; {self.memory['trajectories']:,} "
            f"trajectories. From a fifth of the events on to the end: {number(first)} MB to {number(last)} MB, "
            f"{number(growth)} MB for a million events.",
        ]


_STEPS_NOTE = (
    "A durable step is an intent and a result, each waited for: two barriers. DBOS records the outcome of a step, so "
    "an intent is a step of its own. LangGraph's checkpointer is called directly, a checkpoint for the intent and "
    "its writes for the result, without the graph engine: one for the application, which serialises its calls, and "
    "one for each trajectory. Both run on the same embedded Postgres (`synchronous_commit` on, over a unix socket) "
    "with up to 32 connections. SQLite commits each event by itself on one connection; the raw file is synced by "
    "each thread for itself."
)
_SWEEP_HEAD = [
    "load",
    "W, ms",
    "B_max",
    "events/s",
    "p50, ms",
    "p99, ms",
    "group",
    "Eq 2",
    "Eq 2 with the barrier",
    "cost, µs",
    "Eq 3",
    "Eq 3 with the barrier",
]
_SWEEP_NOTE = (
    "`group` is events by syncs as measured. Eq 2 knows only the window; the log also gathers what arrives while the "
    "barrier before runs, so the window of Eq 2 is really W and the barrier. `cost` is Eq 3 with the measured group, "
    "half the window and the barrier spread over the group: a cost, not what a waiter waits. A window makes groups "
    "larger and syncs fewer, and every append later by about itself; it is worth it only where syncs are what the "
    "device limits. B_max bounds the throughput at B_max events for each barrier, so a slow sync wants it large."
)


def _sweep_row(found: dict[str, Any]) -> list[Any]:
    return [
        f"{found['rate']:,} events/s" if found["rate"] else "256 coroutines",
        found["window_us"] / 1e3,
        found["events_max"],
        found["events"] / found["seconds"],
        found["p50_us"] / 1e3,
        found["p99_us"] / 1e3,
        found["group"],
        found["group_eq2"],
        found["group_eq2_with_barrier"],
        found["cost_us"],
        found["cost_eq3_us"],
        found["cost_eq3_with_barrier_us"],
    ]


def _rows(samples: Samples, names: Sequence[str], what: str, unit: str) -> list[Row]:
    return [samples.row(f"{name}: {what}", unit, name.partition(": ")[2] or name) for name in names]


def _grid(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [" | ".join(head), " | ".join(["---", *["---:"] * (len(head) - 1)])]
    lines += [" | ".join(cell if isinstance(cell, str) else number(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)
