"""Tables fit their terminal, never cut an id or a number, and say what they leave out."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from stratalog.cli.output import counted
from stratalog.cli.sanitise import sanitise
from stratalog.cli.table import cell, lay_out

values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=60) | st.uuids()


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(values, min_size=n, max_size=n))), st.integers(20, 200))
def test_every_line_fits(rows: list[list[object]], width: int) -> None:
    names = [f"column {at}" for at in range(len(rows[0]) if rows else 3)]
    layout = lay_out(names, rows, width)
    assert all(cell_len(line) <= width for line in [layout.header, *layout.lines])
    assert len(layout.lines) == len(rows)
    shown = len(names) - len(layout.left_out)
    assert layout.left_out == names[shown:] and shown >= 1
    assert all(sanitise(line) == line for line in layout.lines)


def test_an_id_and_a_number_are_whole_and_texts_give_way() -> None:
    identity = uuid.uuid4()
    layout = lay_out(["id", "text", "n"], [[identity, "x" * 100, 12345], [identity, "short", None]], 60)
    assert layout.left_out == []
    assert str(identity) in layout.lines[0] and "12,345" in layout.lines[0] and "xxx…" in layout.lines[0]


def test_the_last_columns_go_first() -> None:
    assert lay_out(["a", "b", "c"], [["x" * 30, "y" * 30, "z" * 30]], 26).left_out == ["c"]
    assert lay_out(["a", "b", "c"], [["x", "y", "z"]], 26).left_out == []


def test_wide_characters_count_twice() -> None:
    layout = lay_out(["a", "b"], [["東京東京東京", "x"], ["abc", "y"]], 80)
    assert [line.index(mark) for line, mark in zip(layout.lines, "xy", strict=True)] == [8, 14]


def test_values_for_people() -> None:
    shown = [None, True, 1234567, 0.5, {"b": [1, "\x1b"]}, "a\nb"]
    assert [cell(value) for value in shown] == ["", "yes", "1,234,567", "0.5", '{"b":[1,"\\u001b"]}', "a b"]


def test_counted() -> None:
    assert [counted(1, "file"), counted(0, "key"), counted(1200, "trajectory")] == [
        "1 file",
        "0 keys",
        "1,200 trajectories",
    ]
