"""The page of the cold tier: tables, chart, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from harness.machine import Machine
from harness.measure import Rounds
from harness.report import Row, chart, machine_text, table, write_json

from .plan import PLAN, QUICK
from .questions import QUESTIONS

VERIFY = {"verify, hot": 200.0, "verify, warm": 200.0, "verify, Parquet": 80.0}
WRITE = {"from Arrow": 0.5, "from Postgres": 0.8}
WHOLE = "the whole run, with read-back, commit and marks"


def write_page(root: Path, rounds: Rounds, machine: Machine, sources: Sequence[str]) -> None:
    """JSON, Markdown, chart; and the tables on stdout."""
    panels = _panels(rounds, sources)
    write_json(root / "benchmarks" / "out" / "cold.json", [row for rows in panels.values() for row in rows])
    docs = root / "docs" / "benchmarks"
    text = [
        "# The cold tier: moved, verified, asked, erased",
        f"Written by `make bench-cold`; do not edit. Medians of {PLAN.rounds} rounds{' (short run)' if QUICK else ''}, "
        "each with a new home. Every stage is a process of its own, timed without the start of Python and Postgres.",
        machine_text(machine),
        _about(rounds, sources),
        "![chart](cold.png)",
    ]
    for title, rows in panels.items():
        text += [f"## {title}", table(rows)]
        print(f"\n{title}\n{table(rows)}")
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "cold.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    chart(docs / "cold.png", list(panels.items()))


def _about(rounds: Rounds, sources: Sequence[str]) -> str:
    sizes = " and ".join(f"{rounds.median(f'{source}: bytes of a body'):,.0f} bytes ({source})" for source in sources)
    return (
        f"A body has {sizes} on average. *Generated* is {PLAN.trajectories:,} trajectories of "
        "`stratalog.testing.workload`, profile `mixed`, of one tenant and day; *real* are the 279 files of the shared "
        "test data, as they are imported: many small folders of few events each. One worker everywhere: the MB are "
        "those of bodies, and the work of the Postgres server, on another core, is not in them.\n\n"
        "Baselines. *From Arrow*: pyarrow writing the finished rows with the same options; ours begins with the "
        "bodies, spreads them over the columns, compares and writes. *From Postgres*: ADBC reading the same columns of "
        "the same events and doing nothing with them; ours reads them, checks every hash and body, spreads, and writes "
        "Parquet. *Questions*: DuckDB on one file of the same rows that it has written itself, sorted by trajectory; "
        "and on one JSON file for each trajectory with a line for each event. Ratios of questions are the baseline's "
        "time over ours.\n\n"
        "What limits: the digest of a body is keyed, which takes four calls of SHA-256, and the header is hashed once "
        "more: 4 to 5 µs of CPython for an event of this size, whatever else is done. Without any other work that is "
        "130 to 160 MB/s for bodies of 650 bytes, so the targets of 200 MB/s hold for bodies of some KB only. A "
        "consolidation hashes every event twice, when it is read and when it is read back; ADBC and pyarrow hash "
        "nothing. Where a day has few events of each model, opening files costs more than reading them."
    )


def _panels(rounds: Rounds, sources: Sequence[str]) -> dict[str, list[Row]]:
    """The tables."""
    found: dict[str, list[Row]] = {
        "Verify, MB of bodies/s on one core": [
            _row(rounds, f"{source}: {name}", "MB/s", target=target)
            for source in sources
            for name, target in VERIFY.items()
        ],
        "Consolidation, events/s": [],
        "Consolidation, ratio to the baseline": [],
        "Size": [],
        "Memory of a consolidation, MB": [
            _row(
                rounds, f"memory: {name}", "MB", shown=f"{rounds.median(f'memory: bodies of {name}'):,.0f} MB of bodies"
            )
            for name in ("little", "much")
        ],
        "Questions, ms": [],
        "Questions, ratio": [],
        f"One among {PLAN.many:,}": [
            _row(rounds, "one trajectory, by id", "ms", target=50, at_most=True),
            _row(rounds, "erased: unreadable", "s", target=2, at_most=True),
            _row(rounds, "erased: bytes gone", "s", shown="erased: bytes gone in every tier, with receipts"),
        ],
    }
    for source in sources:
        for name, target in WRITE.items():
            own = f"{source}: {name}"
            found["Consolidation, events/s"].append(_row(rounds, own, "events/s", baseline=True))
            ratios = rounds.ratios(own)
            found["Consolidation, ratio to the baseline"].append(_ratio(own, ratios, target))
        found["Consolidation, events/s"].append(_row(rounds, f"{source}: {WHOLE}", "events/s"))
        found["Size"] += [
            _row(rounds, f"{source}: Parquet over JSON", "", target=0.15, at_most=True),
            _row(rounds, f"{source}: proof over Parquet", "", target=0.05, at_most=True),
        ]
        for title in QUESTIONS:
            own = f"{source}: {title}"
            found["Questions, ms"].append(_row(rounds, own, "ms", baseline=True))
            hand = [1 / ratio for ratio in rounds.ratios(own)]
            found["Questions, ratio"] += [
                _ratio(f"{own}, hand-laid Parquet", hand, 0.9),
                _ratio(f"{own}, JSON files", rounds.samples(f"json of {own}"), 10),
            ]
    return found


def _row(
    rounds: Rounds,
    name: str,
    unit: str,
    *,
    shown: str = "",
    target: float | None = None,
    at_most: bool = False,
    baseline: bool = False,
) -> Row:
    low, high = rounds.spread(name)
    least = rounds.median(f"baseline of {name}") if baseline else None
    return Row(
        shown or name, rounds.median(name), unit, baseline=least, target=target, at_most=at_most, low=low, high=high
    )


def _ratio(name: str, ratios: Sequence[float], target: float) -> Row:
    return Row(name, median(ratios), "", target=target, low=min(ratios), high=max(ratios))
