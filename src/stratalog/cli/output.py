"""What a person or a program sees: one JSON document on stdout, or text and tables; everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from stratalog.schemas.errors import StratalogError

from .sanitise import json_safe, sanitise

WIDTH_OF_FILES = 200
"""How wide tables may be where nobody's terminal says so."""


class Step(Protocol):
    """A progress bar that is being moved."""

    def __call__(self, done: int, total: int | None = None, text: str = "") -> None:
        """Show how far it is."""


class Output:
    """Where one command writes. `json_mode` is the `--json` flag."""

    def __init__(self, *, json_mode: bool) -> None:
        self.json_mode = json_mode
        self.out = _console(stderr=False)
        self.err = _console(stderr=True)

    def document(self, value: Any) -> None:
        """The one JSON document of a `--json` run."""
        text = msgspec.json.format(msgspec.json.encode(json_safe(msgspec.to_builtins(value)))).decode()
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def line(self, text: str = "", *, style: str = "") -> None:
        """A line of text on stdout; foreign text in it must have gone through `sanitise`."""
        if not self.json_mode:
            self.out.print(Text(text, style=style), soft_wrap=True)

    def note(self, text: str) -> None:
        """A line for people on stderr."""
        self.err.print(Text(text, style="dim"), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
        """A table on stdout, one line a row; every cell is sanitised, and cut only on a narrow terminal."""
        if self.json_mode:
            return
        if title:
            self.line(title, style="italic")
        table = Table(header_style="bold", box=None, pad_edge=False, show_header=any(columns))
        for index, name in enumerate(columns):
            numeric = bool(rows) and all(isinstance(row[index], int | float | None) for row in rows)
            # The first column names the row, so it is the last to be cut.
            least = max((len(_cell(row[index])) for row in rows), default=0) if index == 0 else None
            justify: Literal["left", "right"] = "right" if numeric else "left"
            table.add_column(name, justify=justify, overflow="ellipsis", no_wrap=True, min_width=least)
        for row in rows:
            table.add_row(*(Text(_cell(value)) for value in row))
        self.out.print(table)

    def error(self, error: StratalogError) -> None:
        """The error and its hint: as JSON on stdout in JSON mode, else on stderr."""
        if self.json_mode:
            self.document({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
            return
        self.err.print(Text.assemble(("error: ", "bold red"), sanitise(error.message)), soft_wrap=True)
        if error.hint:
            self.err.print(Text.assemble(("hint: ", "bold"), sanitise(error.hint)), soft_wrap=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[Step]:
        """A progress bar on stderr, shown only on a terminal."""
        if not self.err.is_terminal:
            yield lambda done, total=None, text="": None
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.err, transient=True) as bar:
            task = bar.add_task(title, total=None)

            def step(done: int, total: int | None = None, text: str = "") -> None:
                description = f"{title} {sanitise(text)}".strip()
                bar.update(task, completed=done, total=total, description=description)

            yield step


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    return console


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return sanitise(str(value))


def human_bytes(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_us(microseconds: int | None) -> str:
    """A moment (µs since 1970) for people, UTC."""
    if microseconds is None:
        return ""
    from stratalog.schemas.ids import from_us

    return from_us(microseconds).strftime("%Y-%m-%d %H:%M:%S")
