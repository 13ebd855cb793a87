"""What a person or a program sees: one JSON document on stdout, or text and tables; everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from stratalog.schemas.errors import StratalogError

from .sanitise import escape_json, json_safe, sanitise
from .table import describe_left_out, lay_out

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

    @property
    def width(self) -> int:
        """How many cells a line on stdout has."""
        return self.out.width

    def document(self, value: Any) -> None:
        """The one JSON document of a `--json` run."""
        text = msgspec.json.format(msgspec.json.encode(json_safe(msgspec.to_builtins(value)))).decode()
        sys.stdout.write(f"{escape_json(text)}\n")
        sys.stdout.flush()

    def line(self, text: str = "", *, style: str = "") -> None:
        """A line of text on stdout; foreign text in it must have gone through `sanitise`."""
        if not self.json_mode:
            self.out.print(Text(text, style=style), soft_wrap=True)

    def note(self, text: str) -> None:
        """A line for people on stderr."""
        self._say(Text(text, style="dim"))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
        """A table on stdout, one line a row, the most important columns first; see `table.py`. Nothing without rows."""
        if self.json_mode or not rows:
            return
        if title:
            self.line(title, style="italic")
        layout = lay_out(columns, rows, self.out.width)
        if layout.header:
            self.line(layout.header, style="bold")
        for line in layout.lines:
            self.line(line)
        if layout.left_out:
            self.note(describe_left_out(layout, self.out.width))

    def error(self, error: StratalogError) -> None:
        """The error and its hint: as JSON on stdout in JSON mode, else on stderr."""
        if self.json_mode:
            self.document({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
            return
        self._say(Text.assemble(("error: ", "bold red"), sanitise(error.message)))
        if error.hint:
            self._say(Text.assemble(("hint: ", "bold"), sanitise(error.hint)))

    def _say(self, text: Text) -> None:
        # A terminal gets lines that end between words; a file gets one line, to be found whole.
        self.err.print(text, soft_wrap=not self.err.is_terminal)

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
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", style="dim", table_column=Column(no_wrap=True, overflow="ellipsis")),
        )
        with Progress(*columns, console=self.err, transient=True) as bar:
            task = bar.add_task(title, total=None, count="", text="")

            def step(done: int, total: int | None = None, text: str = "") -> None:
                count = f"{done:,}" if total is None else f"{done:,}/{total:,}"
                bar.update(task, completed=done, total=total, count=count, text=sanitise(text))

            yield step


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    return console


def counted(number: int, noun: str) -> str:
    """A number of things for people: 1 file, 2 files, 3 trajectories."""
    plural = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


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
