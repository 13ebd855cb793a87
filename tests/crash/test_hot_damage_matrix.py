"""Every kind of damage to every kind of file: refused at open, found on read, or nothing acknowledged is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from crash.damage import PATTERNS, SHAPES, Damaged, Matrix, outcome_of
from crash.forks import Forks

pytestmark = [pytest.mark.required_in_ci, pytest.mark.slow]

ALWAYS_NOTICED = {("wal", "WAL"), ("tables", "CURRENT"), ("wal", "CURRENT")}
"""What no flip can leave as it was."""


@pytest.mark.parametrize("kind", PATTERNS)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_damage_is_silent(forks: Forks, tmp_path: Path, shape: str, kind: str) -> None:
    damaged, matrix = Damaged(forks, tmp_path, shape), Matrix()
    assert outcome_of(damaged.outcome(lambda log: None)) == "whole"
    for damage in damaged.damages(kind):
        matrix.add(shape, kind, damage, damaged.outcome(damage))
    print(f"\n{matrix}")
    assert matrix.silent == [], str(matrix)
    if (shape, kind) in ALWAYS_NOTICED:
        assert matrix.counts[f"{shape}, {kind}, remove"]["whole"] == 0
        assert matrix.counts[f"{shape}, {kind}, empty"]["whole"] == 0


def remove_wal(log: Path) -> None:
    for path in log.glob("db/*.log"):
        path.unlink()


def flip_wal(log: Path) -> None:
    path = max(log.glob("db/*.log"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("sabotage", "damage"), [("no_marks", remove_wal), ("no_wal_check", flip_wal)])
def test_the_check_finds_a_log_without_its_guard(
    forks: Forks, tmp_path: Path, sabotage: str, damage: Callable[[Path], None]
) -> None:
    damaged = Damaged(forks, tmp_path, "wal")
    assert outcome_of(damaged.outcome(damage)) == "refused"
    assert outcome_of(damaged.outcome(damage, sabotage)) == "silent"
