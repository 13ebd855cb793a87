"""A sample is the same for the same seed, everywhere, and about as large as it says."""

from __future__ import annotations

import pytest

from stratalog.cold.sample import EVERYTHING, SEED_MAX, Sample, parse_sample
from stratalog.schemas.errors import Invalid

NAMES = [str(number).encode() for number in range(10_000)]


def test_a_share_takes_about_as_much_as_it_says_and_the_same_again() -> None:
    chosen = {name for name in NAMES if Sample(0.05, 7).takes(name)}
    assert 380 < len(chosen) < 620
    assert chosen == {name for name in NAMES if Sample(0.05, 7).takes(name)}
    assert chosen != {name for name in NAMES if Sample(0.05, 8).takes(name)}


def test_a_larger_share_looks_at_the_smaller_one_too() -> None:
    assert {n for n in NAMES if Sample(0.05, 7).takes(n)} < {n for n in NAMES if Sample(0.1, 7).takes(n)}


def test_everything_is_everything() -> None:
    assert parse_sample("all") is EVERYTHING and all(map(EVERYTHING.takes, NAMES))
    assert parse_sample("100%", 3).is_all


def test_without_a_seed_one_is_drawn() -> None:
    assert parse_sample("5%", 3) == Sample(0.05, 3)
    seeds = {parse_sample("0.5%").seed for _ in range(5)}
    assert len(seeds) > 1 and all(0 <= seed <= SEED_MAX for seed in seeds)
    assert parse_sample("0.5%").share == 0.005


@pytest.mark.parametrize("text", ["", "5", "0%", "101%", "-5%", "5 %", "nan%", "five%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="not a part of the data"):
        parse_sample(text)


@pytest.mark.parametrize("seed", [-1, SEED_MAX + 1])
def test_what_is_no_seed_is_refused(seed: int) -> None:
    with pytest.raises(Invalid, match="not a seed"):
        parse_sample("5%", seed)
