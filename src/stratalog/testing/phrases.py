"""Sentences and tool output in the manner of real tools: repetitive where they are, never constant, never noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from . import words

T = TypeVar("T")


class Phrases:
    """Draws text from one random generator."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.draw = source.random

    def one(self, items: Sequence[T]) -> T:
        """One of `items`."""
        return items[int(self.draw() * len(items))]

    def below(self, limit: int) -> int:
        """A number from 0 up to, not including, `limit`."""
        return int(self.draw() * limit)

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self.draw() < share

    def filled(self, template: str) -> str:
        """A template of `words` with names put in."""
        if "{" not in template:
            return template
        return template.format(
            file=self.one(words.FILES),
            function=self.one(words.FUNCTIONS),
            service=self.one(words.SERVICES),
            repository=self.one(words.REPOSITORIES),
            team=self.one(words.TEAMS),
            count=self.below(240) + 2,
        )

    def thought(self) -> str:
        """What the model says before it acts."""
        parts = [self.filled(self.one(words.OPENINGS))]
        while self.chance(0.5):
            parts.append(self.filled(self.one(words.MIDDLES)))
        parts.append(self.filled(self.one(words.CLOSINGS)))
        return " ".join(parts)

    def _rows(self, template: str, count: int, *columns: Sequence[Any]) -> str:
        drawn = [self.random.choices(column, k=count) for column in columns]
        return "\n".join(map(template.__mod__, zip(*drawn, strict=True)))

    def compiler(self, count: int) -> str:
        """Diagnostics of a compiler or a type checker."""
        rows = self._rows(
            "%s:%d:%d: %s: %s  [%s]",
            count, words.FILES, range(1, 900), range(1, 100), words.SEVERITIES, words.COMPLAINTS, words.CODES,
        )  # fmt: skip
        return f"{rows}\nFound {count} problems (checked {len(words.FILES)} source files)"

    def listing(self, count: int) -> str:
        """`ls -l` of a folder."""
        rows = self._rows(
            "-rw-r--r-- 1 ci ci %7d Jan %2d %02d:%02d %s.py",
            count, range(80, 60_000), range(1, 15), range(24), range(60), words.MODULES,
        )  # fmt: skip
        return f"total {count * 8}\n{rows}"

    def source_code(self, count: int) -> str:
        """A file with line numbers."""
        first = self.below(400) + 1
        lines = self.random.choices(words.CODE_LINES, k=count)
        lines[0] = f"def {self.one(words.FUNCTIONS)}(client: Client, invoice: Invoice) -> Cursor | None:"
        return "\n".join(map("%6d\t%s".__mod__, enumerate(lines, first)))

    def matches(self, count: int) -> str:
        """`grep -n`."""
        return self._rows("%s:%d:%s", count, words.FILES, range(1, 900), words.CODE_LINES[:-1])

    def test_run(self, count: int) -> str:
        """A test runner's report."""
        rows = self._rows(
            "%s::test_%s[%d] %s", count, words.FILES, words.FUNCTIONS, range(40), ("PASSED",) * 19 + ("FAILED",)
        )
        failed = rows.count("FAILED")
        trace = ""
        if failed:
            trace = (
                f"\n=================== FAILURES ===================\n{self.source_code(6)}\n"
                f">       assert total == {self.below(900)}\nE       assert {self.below(900)} == {self.below(900)}\n\n"
                f"{self.one(words.FILES)}:{self.below(300)}: AssertionError"
            )
        return f"{rows}{trace}\n======= {failed} failed, {count - failed} passed in {self.draw() * 90:.2f}s ======="

    def service_log(self, count: int) -> str:
        """The log of a service."""
        return self._rows(
            "2026-01-%02dT%02d:%02d:%02d.%03dZ %s %s request=%08x %s status=%d duration_ms=%d",
            count, range(1, 15), range(24), range(60), range(60), range(1000), words.LEVELS, words.SERVICES,
            range(1 << 32), words.ROUTES, words.STATUSES, range(1, 2400),
        )  # fmt: skip

    def pods(self, count: int) -> str:
        """`kubectl get pods`."""
        rows = self._rows(
            "%s-%06x-%04x   %d/1   %-16s %2d   %dh",
            count, words.SERVICES, range(1 << 24), range(1 << 16), (0, 1, 1, 1),
            ("Running", "Running", "CrashLoopBackOff", "Pending"), range(9), range(1, 300),
        )  # fmt: skip
        return f"NAME   READY   STATUS   RESTARTS   AGE\n{rows}"

    def patch(self, count: int) -> str:
        """A unified diff."""
        file = self.one(words.FILES)
        signs = self.random.choices((" ", " ", "+", "-"), k=count)
        body = "\n".join(map(str.__add__, signs, self.random.choices(words.CODE_LINES, k=count)))
        return (
            f"--- a/{file}\n+++ b/{file}\n@@ -{self.below(300) + 1},{count} +{self.below(300) + 1},{count} @@\n{body}"
        )


Output = Callable[[Phrases, int], str]
"""Text of about so many lines."""
