"""The long versions of the crash tests and the simulation, and a report of what they add up to.

    make soak        (SOAK_MINUTES=60; needs root for the parts that mount disks)

Two lanes run at the same time, one a core. Each part goes on where the last soak stopped (benchmarks/out/soak/); the
report is docs/benchmarks/soak.md. A failure names its seed, and makes the exit status 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from harness.machine import Machine, describe  # noqa: E402
from harness.report import machine_text  # noqa: E402
from soaking.counts import Count, Part, load, version  # noqa: E402
from soaking.parts import PARTS, run, why_not  # noqa: E402

REPORT = ROOT / "docs" / "benchmarks" / "soak.md"
LANES = (
    (("simulation", 0.6), ("kills", 0.4)),
    (("crash-points", 0.4), ("power-losses", 0.45), ("volatile-cache", 0.15)),
)
"""The parts of each lane, and their shares of the time."""
NAMES = {
    "simulation": "crashes in the simulation",
    "kills": "kill -9 of a writer",
    "crash-points": "deaths and errors at every file operation",
    "power-losses": "power losses of a file system",
    "volatile-cache": "power losses with a volatile cache",
}
SLACK_S = 300.0
"""A part ends its batch after its time is over."""


def run_lane(lane: tuple[tuple[str, float], ...], seconds: float) -> list[str]:
    """Run the parts of a lane, one after the other, each in a process of its own; returns which of them broke."""
    broken = []
    for name, share in lane:
        if reason := why_not(name):
            print(f"{name}: skipped, {reason}", flush=True)
            continue
        command = [sys.executable, __file__, "part", name, str(seconds * share)]
        try:
            if subprocess.run(command, timeout=seconds * share + SLACK_S, check=False).returncode:
                broken.append(name)
        except subprocess.TimeoutExpired:
            broken.append(f"{name} (it did not end)")
        print(f"{name}: {load(name).now().crashes:,} crashes with this code so far", flush=True)
    return broken


def soak(minutes: float) -> int:
    """Run both lanes, then write the report; returns the exit status."""
    machine = describe(ROOT)
    before = {name: load(name).total().failures for name in PARTS}
    lanes = [
        subprocess.Popen([sys.executable, __file__, "lane", str(number), str(minutes * 60)])
        for number in range(len(LANES))
    ]
    statuses = [lane.wait() for lane in lanes]
    REPORT.write_text(report({name: load(name) for name in PARTS}, machine), encoding="utf-8")
    failed = [name for name in PARTS if load(name).total().failures > before[name]]
    for name in failed:
        print(f"{name} failed:", *load(name).failures[-3:], sep="\n  ")
    print(f"wrote {REPORT}")
    return 1 if failed or any(statuses) else 0


def bound(count: Count) -> str:
    """The rule of three: with no failure in N, the chance of one is below 3/N at 95 % confidence."""
    if not count.crashes:
        return "–"
    return f"below {3 / count.crashes:.1e}" if not count.failures else "there were failures"


def report(parts: dict[str, Part], machine: Machine) -> str:
    """The report as Markdown."""
    lines = [
        "# Soak: how often a crash lost something",
        "",
        "The hot log was crashed again and again, and each time compared with what it had acknowledged before. Written",
        "by `make soak`, whose counts add up over runs. With no failure in N crashes, the chance that a crash like",
        "these loses something is below 3/N, with a confidence of 95 %. The crashes are those of `tests/crash/` and",
        "`tests/simulation/`.",
        "",
        f"| crashes | with this code ({version()}) | events acknowledged | hours | failures | chance of a loss |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, part in parts.items():
        count = part.now()
        lines.append(
            f"| {NAMES[name]} | {count.crashes:,} | {count.acknowledged:,} | {count.seconds / 3600:.2f} "
            f"| {count.failures} | {bound(count)} |"
        )
    lines += [
        "",
        "With all versions of the code that were soaked:",
        "",
        "| crashes | number | failures |",
        "|---|---:|---:|",
    ]
    for name, part in parts.items():
        total = part.total()
        lines.append(f"| {NAMES[name]} | {total.crashes:,} | {total.failures} |")
    runs = parts["crash-points"].now().runs
    lines += ["", f"All points of a workload were passed {runs} times (there are twelve: three workloads, four ways)."]
    for name, part in parts.items():
        for title, found in (("Failures of", part.failures), ("Failed before, and is good since:", part.cured)):
            lines += [f"\n{title} {name}\n", *(f"- {failure}" for failure in found)] if found else []
    lines += ["", machine_text(machine), f"Written on {time.strftime('%Y-%m-%d')}.", ""]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """The command line: nothing, or what a lane and a part are started with."""
    if arguments[:1] == ["lane"]:
        return 1 if run_lane(LANES[int(arguments[1])], float(arguments[2])) else 0
    if arguments[:1] == ["part"]:
        run(arguments[1], float(arguments[2]))
        return 0
    return soak(float(os.environ.get("SOAK_MINUTES", "60")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
