"""Results as JSON for machines, as a Markdown table and a chart for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .machine import Machine


@dataclass(frozen=True, slots=True)
class Row:
    """One number. `baseline` is the same work done in the plainest way, `ratio` the value divided by it."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    target: float | None = None
    at_most: bool = False
    """The target is an upper bound."""
    low: float | None = None
    high: float | None = None
    """Smallest and largest of the rounds."""
    round_ratio: float | None = None
    """The median of the ratios of the rounds, where value and baseline were measured by turns."""

    @property
    def ratio(self) -> float | None:
        """Value over baseline."""
        if self.round_ratio is not None:
            return self.round_ratio
        return self.value / self.baseline if self.baseline else None

    @property
    def met(self) -> bool | None:
        """Whether the target was reached."""
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """The rows as a list of objects."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(documents(rows), indent=2) + "\n", encoding="utf-8")


def documents(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as objects for JSON."""
    kept = ("name", "value", "unit", "baseline", "target", "low", "high")
    found = []
    for row in rows:
        values = {name: value for name, value in asdict(row).items() if name in kept}
        found.append(values | {"ratio": row.ratio, "met": row.met})
    return found


def number(value: float | None) -> str:
    """A number for people: three digits that count, thousands apart."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table; columns that nothing fills are left out."""
    columns = {
        "": [row.name for row in rows],
        "median": [f"{number(row.value)} {row.unit}" for row in rows],
        "rounds": ["" if row.low is None else f"{number(row.low)} to {number(row.high)}" for row in rows],
        "baseline": [number(row.baseline) for row in rows],
        "ratio": [number(row.ratio) for row in rows],
        "target": [number(row.target) for row in rows],
        "met": [{None: "", True: "yes", False: "no"}[row.met] for row in rows],
    }
    filled = {name: cells for name, cells in columns.items() if any(cells)}
    lines = [" | ".join(filled), " | ".join(["---", *["---:"] * (len(filled) - 1)])]
    lines += [" | ".join(cells) for cells in zip(*filled.values(), strict=True)]
    return "\n".join(f"| {line} |" for line in lines)


def machine_text(machine: Machine) -> str:
    """The machine, as a Markdown list."""
    return "\n".join(
        (
            f"- {machine.cores} cores, {machine.processor}; {machine.memory_bytes / 2**30:.0f} GiB of memory",
            f"- {machine.kernel}; {machine.python}",
            f"- disk: {machine.disk}; write and fdatasync of 1 KB take {machine.fdatasync_us:,.0f} µs (median)",
            f"- load average when it started: {machine.load:.2f}",
        )
    )


def chart(path: Path, panels: Sequence[tuple[str, Sequence[Row]]]) -> None:
    """Horizontal bars, one panel after the other; a baseline is a line across its bar."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heights = [len(rows) + 1.2 for _, rows in panels]
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(9, 0.36 * sum(heights)), height_ratios=heights, layout="constrained", squeeze=False
    )
    for axis, (title, rows) in zip(axes[:, 0], panels, strict=True):
        places = range(len(rows))
        axis.barh(places, [row.value for row in rows], color="#3b6ea5", height=0.62)
        for place, row in zip(places, rows, strict=True):
            axis.text(row.value, place, f" {number(row.value)}", va="center", fontsize=8)
            if row.baseline is not None:
                axis.plot([row.baseline] * 2, [place - 0.4, place + 0.4], color="#c44e52", linewidth=2)
        axis.set_yticks(places, [row.name for row in rows], fontsize=8)
        axis.invert_yaxis()
        axis.margins(x=0.12)
        compared = any(row.baseline is not None for row in rows)
        axis.set_title(f"{title} (red: baseline)" if compared else title, loc="left", fontsize=10)
        axis.tick_params(axis="x", labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
