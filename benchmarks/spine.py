"""How fast, how large, how much memory: every stage from an import to a query, on this machine.

    python benchmarks/spine.py        (BENCH=quick for a short run)

Writes benchmarks/out/spine.json, docs/benchmarks/spine.md and docs/benchmarks/spine.png. Every round has a new home.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.machine import Machine, describe
from harness.measure import Rounds, be_stage, run_stage
from harness.report import Row, chart, machine_text, table, write_json
from spine_stages import QUERIES, STAGES

from stratalog.cold.installation import Installation
from stratalog.hot.home import Home
from stratalog.testing.foreign import claude_code_session

SCRIPT = Path(__file__).resolve()
ROOT = SCRIPT.parents[1]
SHARED, EXAMPLES = ROOT.parent / "shared" / "data" / "trajectories", ROOT / "examples" / "trajectories"
QUICK = os.environ.get("BENCH") == "quick"
ROUNDS = 3 if QUICK else 5
DEMO_ROUNDS = 3
TRAJECTORIES = 300 if QUICK else 1_000
SESSION_TURNS = 4_000 if QUICK else 15_000
SESSION_BULKY_EVERY = 250
APPENDERS = (1, 8, 64, 256)
APPEND_S = 1.0 if QUICK else 2.0
MB = 1e6


def run_round(folder: Path, session: Path, rounds: Rounds) -> None:
    """Every stage once."""
    for name, paths in {"import of sample files": [samples()], "import of one large session": [session]}.items():
        found = run_stage(SCRIPT, "import_files", home=str(folder / name), paths=[str(path) for path in paths])
        note_stage(rounds, name, found)
    rounds.add("MB/s, import of one large session", session.stat().st_size / MB / found["seconds"])
    for appenders in APPENDERS:
        run_appends(folder, appenders, rounds)
    home = folder / "spine"
    Home.open(home, create=True)
    filled = run_stage(SCRIPT, "fill", home=str(home), trajectories=TRAJECTORIES)
    note_stage(rounds, "append, one thread in groups of 256", filled)
    with Installation(Home.open(home)).postgres():
        replicated = run_stage(SCRIPT, "replicate", home=str(home))
        note_stage(rounds, "sidecar into Postgres", replicated)
        consolidated = run_stage(SCRIPT, "consolidate", home=str(home))
        note_stage(rounds, "consolidation into Parquet", consolidated)
        note_stage(rounds, "verify, all tiers", run_stage(SCRIPT, "verify", home=str(home)))
        note_queries(rounds, run_stage(SCRIPT, "query", home=str(home)))
    note_sizes(rounds, filled, replicated, consolidated)


def run_appends(folder: Path, appenders: int, rounds: Rounds) -> None:
    """Our append, beside the same to a plain file."""
    home, plain = folder / f"append-{appenders}", folder / f"plain-{appenders}"
    found = run_stage(SCRIPT, "append", home=str(home), plain=str(plain), appenders=appenders, seconds=APPEND_S)
    least = found["plain"]
    name = f"append, {appenders} coroutines" if appenders > 1 else "append, 1 coroutine"
    note_stage(rounds, name, found)
    rounds.add(f"baseline of {name}", least["events"] / least["seconds"])
    for quantile in ("p50", "p99"):
        rounds.add(f"{quantile} of {name}", found[f"{quantile}_us"] / 1000)
        rounds.add(f"baseline of {quantile} of {name}", least[f"{quantile}_us"] / 1000)
    plain.unlink()


def note_stage(rounds: Rounds, name: str, found: dict[str, Any]) -> None:
    """Its throughput and its peak."""
    rounds.add(name, found["events"] / found["seconds"])
    rounds.add(f"peak of {name}", found["peak_bytes"] / MB)


def note_queries(rounds: Rounds, found: dict[str, Any]) -> None:
    """The times of the queries, and the peak of their process."""
    rounds.add("connect and make the views", found["open_seconds"] * 1000)
    for title, seconds in found["query_seconds"].items():
        rounds.add(title, seconds * 1000)
    rounds.add("peak of DuckDB queries", found["peak_bytes"] / MB)


def note_sizes(
    rounds: Rounds, filled: dict[str, Any], replicated: dict[str, Any], consolidated: dict[str, Any]
) -> None:
    """Bytes for each event, by tier; the baselines are what was put in."""
    events, bodies, contents = filled["events"], filled["body_bytes"], filled["content_bytes"]
    rounds.add("hot: RocksDB", filled["stored_bytes"] / events)
    rounds.add("baseline of hot: RocksDB", (bodies + contents) / events)
    rounds.add("warm: Postgres tables and indexes", replicated["stored_bytes"] / events)
    rounds.add("baseline of warm: Postgres tables and indexes", bodies / events)
    rounds.add("cold: Parquet", consolidated["stored_bytes"] / events)
    rounds.add("baseline of cold: Parquet", bodies / events)
    rounds.add("content-addressed storage", replicated["content_bytes"] / events)
    rounds.add("baseline of content-addressed storage", contents / events)


def samples() -> Path:
    """The real files where they are, else the examples."""
    return SHARED if SHARED.is_dir() else EXAMPLES


def time_demo(folder: Path, rounds: Rounds) -> None:
    """What `make demo` runs once everything is installed."""
    command = [sys.executable, "-m", "stratalog", "demo", str(samples()), "--json", "--home", str(folder / "demo")]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rounds.add("stratalog demo", time.perf_counter() - started)


def row(rounds: Rounds, name: str, unit: str, shown: str = "") -> Row:
    """The median of a name, with its baseline where it has one."""
    low, high = rounds.spread(name)
    known = f"baseline of {name}" in rounds.names()
    baseline = rounds.median(f"baseline of {name}") if known else None
    return Row(shown or name, rounds.median(name), unit, baseline=baseline, low=low, high=high)


def panels(rounds: Rounds) -> dict[str, list[Row]]:
    """The tables of the report."""
    names = list(rounds.names())
    stages = [name.removeprefix("peak of ") for name in names if name.startswith("peak of ")]
    flows = [name for name in stages if name in names]
    appends = [name for name in flows if name.startswith("append, ") and "coroutine" in name]
    latencies = [f"{quantile} of {name}" for name in appends for quantile in ("p50", "p99")]
    tiers = [name for name in names if name.startswith(("hot:", "warm:", "cold:", "content-"))]
    return {
        "Throughput, events/s": [row(rounds, name, "events/s") for name in flows],
        "Import of one large session, MB/s": [row(rounds, "MB/s, import of one large session", "MB/s", "JSON read")],
        "Time of one append until it is durable, ms": [row(rounds, name, "ms") for name in latencies],
        "Size, bytes/event": [row(rounds, name, "bytes/event") for name in tiers],
        "Peak memory of the process, MB": [row(rounds, f"peak of {name}", "MB", name) for name in stages],
        "DuckDB, ms": [row(rounds, name, "ms") for name in ("connect and make the views", *QUERIES)],
        "Wall time of the demo, s": [row(rounds, "stratalog demo", "s")],
    }


def write_report(found: dict[str, list[Row]], machine: Machine) -> None:
    """JSON, Markdown, chart."""
    write_json(ROOT / "benchmarks" / "out" / "spine.json", list(flat(found)))
    docs = ROOT / "docs" / "benchmarks"
    source = "the 279 files of the shared test data" if SHARED.is_dir() else "the example files"
    text = [
        "# The spine: from a durable append to a query",
        f"Written by `make bench-spine`; do not edit. Medians of {ROUNDS} rounds{' (short run)' if QUICK else ''}, "
        "each with a new home. Every stage is a process of its own, timed without the start of Python and Postgres. "
        "Postgres itself is not in the peaks.",
        machine_text(machine),
        f"Sample files are {source}; the large session has {SESSION_TURNS:,} turns; the rest moves "
        f"{TRAJECTORIES:,} generated trajectories (`stratalog.testing.workload`, profile `mixed`). "
        "The baseline of an append is the same number of bytes written to a plain file with the same group commit; "
        "that of a size is the bytes of the bodies (hot: with their content).",
        "![chart](spine.png)",
    ]
    for title, rows in found.items():
        text += [f"## {title}", table(rows)]
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "spine.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    shown = [(title, rows) for title, rows in found.items() if len(rows) > 1]
    chart(docs / "spine.png", shown)


def flat(found: dict[str, list[Row]]) -> Iterable[Row]:
    """All rows."""
    for rows in found.values():
        yield from rows


def main() -> None:
    """Measure and report."""
    rounds = Rounds()
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as name:
        folder = Path(name)
        machine = describe(folder)
        session = folder / "session.jsonl"
        with session.open("w", encoding="utf-8") as file:
            bulky = range(0, SESSION_TURNS, SESSION_BULKY_EVERY)
            file.writelines(claude_code_session("bench", SESSION_TURNS, bulky=bulky))
        for number in range(ROUNDS):
            print(f"round {number + 1} of {ROUNDS}", flush=True)
            with tempfile.TemporaryDirectory(dir=folder) as home:
                run_round(Path(home), session, rounds)
        for _ in range(DEMO_ROUNDS):
            with tempfile.TemporaryDirectory(dir=folder) as home:
                time_demo(Path(home), rounds)
    found = panels(rounds)
    write_report(found, machine)
    for title, rows in found.items():
        print(f"\n{title}\n{table(rows)}")


if __name__ == "__main__" and not be_stage(STAGES, sys.argv[1:]):
    main()
