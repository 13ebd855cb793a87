"""`stratalog bench device`: what it prints, and that it leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_cli import Cli, call

from stratalog.hot.device import GROUP_SIZES, measure, quantile
from stratalog.schemas.errors import Invalid

SHORT = ("--seconds", "0.001")


def test_the_document_has_both_tables_and_settings(tmp_path: Path) -> None:
    found = Cli(tmp_path / "home").json("bench", "device", *SHORT)
    assert [row["safe"] for row in found["interfaces"]] == ["unsafe", "conditional", "conditional", "safe", "safe"]
    assert [row["events"] for row in found["groups"]] == list(GROUP_SIZES)
    assert [row["name"][0] for row in found["stages"]] == ["1", "3", "4", "5"]
    assert all(0 < row["p50_us"] <= row["p99_us"] for row in (*found["interfaces"], *found["stages"]))
    assert found["groups"][0]["effective_us"] == pytest.approx(
        found["groups"][0]["write_p50_us"] + found["groups"][0]["sync_p50_us"]
    )
    assert found["recommendation"]["group_events_max"] in (64, 128, 256)
    assert found["recommendation"]["group_window_us"] == 0
    assert len(found["recommendation"]["reasons"]) == 2


def test_it_measures_beside_a_home_that_is_not_made_yet_and_leaves_nothing(tmp_path: Path) -> None:
    found = Cli(tmp_path / "new" / "home").json("bench", "device", *SHORT)
    assert found["folder"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_for_people_it_names_the_settings(tmp_path: Path) -> None:
    said = call("bench", "device", "--folder", tmp_path, "--rate", "500", "--syncs-per-second", "1", *SHORT)
    assert said.code == 0
    assert "write() + fdatasync()" in said.out and "Table 4" in said.out
    assert "recommended for 500 events/s" in said.out
    assert "hot.group_events_max = " in said.out and "hot.group_window_us = " in said.out
    assert "1 syncs/s" in said.out


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    assert Cli(tmp_path).error("bench", "device", "--folder", tmp_path / "none", code=1)["code"] == Invalid.code
    with pytest.raises(Invalid, match="cannot measure"):
        measure(tmp_path / "none")


@pytest.mark.parametrize("wrong", [("--rate", "0"), ("--record-bytes", "0"), ("--syncs-per-second", "-1")])
def test_numbers_that_make_no_sense_are_refused(wrong: tuple[str, str]) -> None:
    assert call("bench", "device", *wrong).code == 2


def test_quantiles() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([1, 2, 3, 4], 0.99) == 4
    assert quantile([7], 0.99) == 7
