"""The picture of `stratalog storage --plot`: what lies where, what was written each day, where it leads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratalog.schemas.errors import Invalid

if TYPE_CHECKING:
    from stratalog.cold.prices import Prices
    from stratalog.cold.usage import Usage

COLORS = {"hot": "#d1495b", "warm": "#edae49", "cold": "#00798c", "content": "#66a182"}
UNITS = ("B", "KB", "MB", "GB", "TB")


def draw(usage: Usage, prices: Prices | None, path: Path) -> None:
    """Draw `usage` into a PNG file; raises `Invalid` where it cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    now, written, ahead = figure.subplots(1, 3)
    _draw_now(now, usage, prices)
    _draw_days(written, usage)
    _draw_forecast(ahead, usage)
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise Invalid(f"{path} cannot be written: {error.strerror}", hint="name a file in a folder of yours") from error


def _draw_now(axes: Any, usage: Usage, prices: Prices | None) -> None:
    sizes = {tier: usage.bytes_of(tier) for tier in COLORS}
    scale, unit = _unit(max(sizes.values()))
    bars = axes.bar(list(sizes), [size / scale for size in sizes.values()], color=list(COLORS.values()))
    axes.set(title="Now", ylabel=unit)
    if prices is not None:
        costs = [prices.cost(tier, size) for tier, size in sizes.items()]
        # A currency is somebody else's text: a dollar sign would begin a formula.
        currency = prices.currency.replace("$", r"\$")
        axes.bar_label(bars, ["" if cost is None else f"{cost:.2f} {currency}" for cost in costs])
        axes.set_title("Now, and its cost a month")


def _draw_days(axes: Any, usage: Usage) -> None:
    scale, unit = _unit(max([day.bytes for day in usage.days], default=0))
    labels = [f"{day.day:%m-%d}" for day in usage.days]
    below = [0.0] * len(labels)
    for tier in ("warm", "cold", "content"):
        sizes = [getattr(day, tier) / scale for day in usage.days]
        axes.bar(labels, sizes, bottom=below, color=COLORS[tier], label=tier)
        below = [bottom + size for bottom, size in zip(below, sizes, strict=True)]
    axes.set(title="Written on each day", ylabel=unit)
    axes.tick_params(axis="x", rotation=60)
    if labels:
        axes.legend()


def _draw_forecast(axes: Any, usage: Usage) -> None:
    scale, unit = _unit(max([size for grown in usage.growth for size in grown.forecast.values()], default=0))
    for grown in usage.growth:
        days = [0, *grown.forecast]
        sizes = [usage.bytes_of(grown.tier), *grown.forecast.values()]
        axes.plot(days, [size / scale for size in sizes], color=COLORS[grown.tier], label=grown.tier, marker="o")
    axes.set(title="Forecast, without retention", xlabel="days from now", ylabel=unit)
    axes.set_ylim(bottom=0)


def _unit(largest: float) -> tuple[float, str]:
    power = 0
    while largest >= 1000 and power < len(UNITS) - 1:
        largest, power = largest / 1000, power + 1
    return 1000.0**power, UNITS[power]
