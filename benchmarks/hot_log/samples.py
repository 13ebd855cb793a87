"""What was measured: samples by name over the rounds, with the ratio to a baseline of the same round."""

from __future__ import annotations

from typing import Any

from harness.measure import Rounds
from harness.report import Row

QUANTILES = ("p50", "p99")


class Samples(Rounds):
    """Samples; `of` are those of a baseline."""

    def note(self, name: str, found: dict[str, Any], least: dict[str, Any] | None = None) -> None:
        """Throughput and latencies (ms) of one round, beside those of the baseline in the same round."""
        self.pair(f"{name}: throughput", _rate(found), _rate(least) if least else None)
        for quantile in QUANTILES:
            self.pair(
                f"{name}: {quantile}", found[f"{quantile}_us"] / 1e3, least[f"{quantile}_us"] / 1e3 if least else None
            )

    def pair(self, name: str, value: float, baseline: float | None) -> None:
        """A sample, the baseline of its round, and their ratio."""
        self.add(name, value)
        if baseline:
            self.add(f"baseline of {name}", baseline)
            self.add(f"ratio of {name}", value / baseline)

    def has(self, name: str) -> bool:
        """Whether there are samples of that name."""
        return name in self.names()

    def row(self, name: str, unit: str, shown: str = "") -> Row:
        """Median, smallest and largest of a name, with its baseline and the median of the rounds' ratios."""
        low, high = self.spread(name)
        baseline = self.median(f"baseline of {name}") if self.has(f"baseline of {name}") else None
        ratio = self.median(f"ratio of {name}") if baseline else None
        return Row(shown or name, self.median(name), unit, baseline=baseline, low=low, high=high, round_ratio=ratio)

    def target(self, name: str, shown: str, unit: str, target: float, *, at_most: bool) -> Row:
        """A row that is judged; `name` may begin with `ratio of `."""
        low, high = self.spread(name)
        return Row(shown, self.median(name), unit, target=target, at_most=at_most, low=low, high=high)


def _rate(found: dict[str, Any]) -> float:
    rate: float = found["events"] / found["seconds"]
    return rate
