"""Tables for people: one line a row, as wide as the terminal, the least important columns left out where it is narrow.

Columns stand in the order of their importance. Texts are cut first, ids and numbers never; what still does not fit is
left out, from the right, and said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from rich.cells import cell_len, set_cell_size

from .sanitise import json_safe, sanitise

GAP = "  "
TEXT_LEAST = 11
"""Cells that a column of text keeps at least, so that a date can be read."""
_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Layout:
    """A table as lines; `left_out` are the columns that did not fit."""

    header: str
    lines: list[str]
    left_out: list[str]


def lay_out(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> Layout:
    """Fit a table into `width` cells; every cell is sanitised."""
    names = [sanitise(name) for name in columns]
    texts = [[cell(value) for value in row] for row in rows]
    numeric = [
        bool(rows) and all(isinstance(row[at], int | float | None) for row in rows) for at in range(len(columns))
    ]
    natural = [max([cell_len(name), *(cell_len(row[at]) for row in texts)], default=0) for at, name in enumerate(names)]
    least = [
        full if numeric[at] or _are_ids(texts, at) else min(full, max(TEXT_LEAST, cell_len(names[at])))
        for at, full in enumerate(natural)
    ]
    shown = len(names)
    while shown > 1 and _total(least[:shown]) > width:
        shown -= 1
    widths = _shrink(natural[:shown], least[:shown], width)
    lines = [_line(row[:shown], widths, numeric, width) for row in texts]
    return Layout(_line(names[:shown], widths, numeric, width), lines, names[shown:])


def cell(value: object) -> str:
    """A value for people."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, dict | list | tuple):
        return sanitise(msgspec.json.encode(json_safe(value)).decode())
    return sanitise(str(value))


def _are_ids(texts: Sequence[Sequence[str]], at: int) -> bool:
    return all(_ID.fullmatch(row[at]) for row in texts)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _shrink(natural: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Take what is too much from the widest column that can spare it, again and again."""
    widths = list(natural)
    while (surplus := _total(widths) - width) > 0:
        spare = [at for at, full in enumerate(widths) if full > least[at]]
        if not spare:
            break
        widest = max(spare, key=lambda at: widths[at])
        others = [widths[at] for at in spare if widths[at] < widths[widest]]
        floor = max(least[widest], max(others, default=0))
        widths[widest] = max(widths[widest] - surplus, min(floor, widths[widest] - 1))
    return widths


def _line(texts: Sequence[str], widths: Sequence[int], numeric: Sequence[bool], width: int) -> str:
    cells = []
    for text, size, number in zip(texts, widths, numeric, strict=False):
        if cell_len(text) > size:
            text = set_cell_size(text, size - 1) + "…"
        blank = " " * (size - cell_len(text))
        cells.append(blank + text if number else text + blank)
    line = GAP.join(cells).rstrip()
    return line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…"


def describe_left_out(layout: Layout, width: int) -> str:
    """What people are told about missing columns."""
    return f"not shown in {width} columns: {', '.join(layout.left_out)}; see everything with --json"
