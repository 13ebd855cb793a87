"""The cold tier beside what its parts are made of: pyarrow, ADBC, DuckDB on a hand-laid file, and JSON.

    make bench-cold        (BENCH=quick for a short run)

Writes benchmarks/out/cold.json, docs/benchmarks/cold.md and docs/benchmarks/cold.png. Every round has a new home; every
stage is a process of its own with one worker.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cold_tier.page import write_page
from cold_tier.plan import PLAN
from cold_tier.stages import MB, STAGES, query_for_adbc
from harness.machine import describe
from harness.measure import Rounds, be_stage, run_stage

from stratalog.cold.installation import Installation
from stratalog.hot.home import Home

SCRIPT = Path(__file__).resolve()
ROOT = SCRIPT.parents[1]
SHARED = ROOT.parent / "shared" / "data" / "trajectories"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
ZERO_AGE = '[cold]\nidle_after = "0s"\n'
"""Imports without an end count as ended at once."""


@contextmanager
def new_home(folder: Path, *, settings: str = "") -> Iterator[str]:
    """A home for one measurement, gone after it."""
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        home = place / "home"
        Home.open(home, create=True)
        if settings:
            (home / "stratalog.toml").write_text(settings, encoding="utf-8")
        yield str(home)
    finally:
        shutil.rmtree(place)


def stage(name: str, **arguments: Any) -> dict[str, Any]:
    """One stage."""
    return run_stage(SCRIPT, name, **arguments)


def run_adbc(dsn: str) -> dict[str, Any]:
    """ADBC reading the events, in the environment of the peers."""
    if not PEERS.exists():
        raise SystemExit("the environment of the peers is missing; make it with: make .venv-peers/installed")
    command = [str(PEERS), str(SCRIPT.parent / "peers" / "adbc_read.py"), json.dumps([dsn, query_for_adbc()])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run_round(folder: Path, rounds: Rounds, source: str) -> None:
    """Generated or real events through every stage once."""
    with new_home(folder, settings=ZERO_AGE) as home:
        if source == "generated":
            stage("fill", home=home, trajectories=PLAN.trajectories, profile="mixed")
        else:
            stage("import_real", home=home, folder=str(SHARED))
        hot = stage("verify_hot", home=home)
        with Installation(Home.open(home)).postgres() as dsn:
            stage("replicate", home=home)
            warm = stage("verify_warm", home=home)
            bodies = warm["body_bytes"] / warm["events"]
            rounds.add(f"{source}: bytes of a body", bodies)
            rounds.add(f"{source}: verify, hot", hot["events"] * bodies / hot["seconds"] / MB)
            rounds.add(f"{source}: verify, warm", warm["body_bytes"] / warm["seconds"] / MB)
            adbc = run_adbc(dsn)
            moved = stage("consolidate", home=home)
            note_consolidation(rounds, source, moved, adbc)
            cold = stage("verify_cold", home=home)
            rounds.add(f"{source}: verify, Parquet", cold["events"] * bodies / cold["seconds"] / MB)
            with tempfile.TemporaryDirectory(dir=folder) as place:
                arrow = stage("write_arrow", home=home, folder=place)
            rounds.add(f"{source}: from Arrow", arrow["events"] / arrow["seconds"])
            rounds.add(f"baseline of {source}: from Arrow", arrow["events"] / arrow["pyarrow_seconds"])
            note_sizes(rounds, source, stage("sizes", home=home))
            with tempfile.TemporaryDirectory(dir=folder) as place:
                note_questions(rounds, source, stage("ask", home=home, folder=place, repeats=PLAN.repeats))


def note_consolidation(rounds: Rounds, source: str, moved: dict[str, Any], adbc: dict[str, Any]) -> None:
    """Reading, checking and writing beside ADBC, which only reads; and the whole run."""
    rounds.add(f"{source}: from Postgres", moved["events"] / moved["write_seconds"])
    rounds.add(f"baseline of {source}: from Postgres", adbc["events"] / adbc["seconds"])
    rounds.add(f"{source}: the whole run, with read-back, commit and marks", moved["events"] / moved["seconds"])


def note_sizes(rounds: Rounds, source: str, found: dict[str, Any]) -> None:
    """Cold files over JSON lines, and what only proves over the cold files."""
    rounds.add(f"{source}: Parquet over JSON", found["cold_bytes"] / found["json_bytes"])
    rounds.add(f"{source}: proof over Parquet", found["proof_bytes"] / found["cold_bytes"])


def note_questions(rounds: Rounds, source: str, found: dict[str, Any]) -> None:
    """Our times in ms, with the hand-laid file's as the baseline; and how many times longer JSON takes."""
    for title, times in found["questions"].items():
        rounds.add(f"{source}: {title}", times["ours"] * 1000)
        rounds.add(f"baseline of {source}: {title}", times["hand"] * 1000)
        rounds.add(f"json of {source}: {title}", times["json"] / times["ours"])


def run_many(folder: Path, rounds: Rounds) -> None:
    """One among many: found, and erased."""
    with new_home(folder) as home:
        stage("fill", home=home, trajectories=PLAN.many, profile="small")
        with Installation(Home.open(home)).postgres():
            stage("replicate", home=home)
            stage("consolidate", home=home)
            for _ in range(PLAN.rounds):
                rounds.add(
                    "one trajectory, by id", stage("fetch_one", home=home, repeats=PLAN.repeats)["seconds"] * 1000
                )
            erased = stage("erase_one", home=home)
            rounds.add("erased: unreadable", erased["unreadable_seconds"])
            rounds.add("erased: bytes gone", erased["seconds"])


def run_memory(folder: Path, rounds: Rounds) -> None:
    """The peak of a consolidation of little and of much."""
    for name, trajectories in zip(("little", "much"), PLAN.memory_trajectories, strict=True):
        with new_home(folder) as home:
            filled = stage("fill", home=home, trajectories=trajectories, profile="mixed")
            with Installation(Home.open(home)).postgres():
                stage("replicate", home=home)
                moved = stage("consolidate", home=home)
        rounds.add(f"memory: {name}", moved["peak_bytes"] / MB)
        rounds.add(f"memory: bodies of {name}", filled["body_bytes"] / MB)


@contextmanager
def told(name: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    started = time.perf_counter()
    print(f"{name} …", end=" ", flush=True)
    yield
    print(f"{time.perf_counter() - started:.0f} s", flush=True)


def main() -> None:
    """Measure and report."""
    rounds = Rounds()
    sources = ["generated", "real"] if SHARED.is_dir() else ["generated"]
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as name:
        folder = Path(name)
        machine = describe(folder)
        for number in range(PLAN.rounds):
            for source in sources:
                with told(f"round {number + 1} of {PLAN.rounds}, {source}"):
                    run_round(folder, rounds, source)
        with told("one among many"):
            run_many(folder, rounds)
        with told("memory"):
            run_memory(folder, rounds)
    write_page(ROOT, rounds, machine, sources)


if __name__ == "__main__" and not be_stage(STAGES, sys.argv[1:]):
    main()
