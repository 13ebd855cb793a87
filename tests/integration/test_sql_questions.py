"""The questions of docs/sql.md: each query runs, has the columns that the page explains, and gives the right rows.

The right rows are worked out from the events in plain Python (`fix_answers.py`), on a set with known contents and on
generated trajectories; on the samples the queries go through the command line, as a reader of the page would ask.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from fix_answers import ANSWERS
from fix_cli import Cli
from fix_questions import Tale, known_trajectories, write_tales

from stratalog.cold.lake import Lake
from stratalog.cold.query import connect, run_sql
from stratalog.testing.workload import workload

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^## (\d+)\. (.*?)\n(.*?)(?=^## |^# |\Z)", PAGE, re.MULTILINE | re.DOTALL)
QUERIES = [re.findall(r"^```sql\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) for _, _, text in SECTIONS]
NUMBERS = pytest.mark.parametrize("number", range(1, 26))

Opened = tuple[duckdb.DuckDBPyConnection, Sequence[Tale]]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """The small set, some of it erased."""
    with Lake(str(tmp_path_factory.mktemp("known"))) as lake:
        trajectories, erased = known_trajectories()
        written = write_tales(lake, trajectories, erased)
    return connect(files=written.files), written.tales


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Generated trajectories of every kind, every hundredth event of them erased."""
    trajectories = list(workload(4, 80, "mixed")) + list(workload(4, 6, "bulky"))
    erased = [
        (trajectory.trajectory_id, number)
        for trajectory in trajectories[::3]
        for number in range(1, len(trajectory.events))
        if number % 100 == 57
    ]
    with Lake(str(tmp_path_factory.mktemp("generated"))) as lake:
        written = write_tales(lake, trajectories, erased)
    return connect(files=written.files), written.tales


def query_of(number: int) -> str:
    (query,) = QUERIES[number - 1]
    return query


def documented_columns(number: int) -> list[str]:
    cells = re.findall(r"^\| (`.*?) \|", SECTIONS[number - 1][2], re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def answer(opened: Opened, number: int) -> list[list[Any]]:
    return [list(row.values()) for row in run_sql(opened[0], query_of(number))]


def test_the_page_has_twenty_five_questions_each_with_its_traps() -> None:
    assert [int(number) for number, _, _ in SECTIONS] == list(range(1, 26))
    assert len(ANSWERS) == 25
    for _, question, text in SECTIONS:
        assert question.endswith("?") and "**Mind:**" in text and len(re.findall("^```sql", text, re.MULTILINE)) == 1


@NUMBERS
def test_the_columns_are_the_documented_ones(number: int, known: Opened) -> None:
    described = known[0].execute(f"DESCRIBE {query_of(number)}").fetchall()
    assert [row[0] for row in described] == documented_columns(number)


@NUMBERS
def test_the_rows_are_those_that_follow_from_the_events(number: int, known: Opened) -> None:
    expected = ANSWERS[number - 1](known[1])
    assert expected, "the set has no answer to this question, so it proves nothing"
    assert answer(known, number) == expected


@NUMBERS
def test_the_rows_are_right_on_generated_trajectories_too(number: int, generated: Opened) -> None:
    assert answer(generated, number) == ANSWERS[number - 1](generated[1])


@NUMBERS
def test_the_answers_differ_once_the_events_do(number: int, known: Opened) -> None:
    """The control: without its first trajectories the set has other answers, so equal rows are no accident."""
    tales = known[1]
    assert any(ANSWERS[number - 1]([t for t in tales if t is not tale]) != answer(known, number) for tale in tales)


@pytest.mark.postgres
@NUMBERS
def test_the_queries_run_on_the_samples_as_the_page_says(number: int, filled: Cli) -> None:
    rows = filled.json("sql", query_of(number))
    assert all(list(row) == documented_columns(number) for row in rows)
    assert filled("sql", query_of(number)).code == 0
