"""What Postgres has of a log: how long it has been behind, in bounded memory."""

from __future__ import annotations

import time

import pytest

from stratalog.hot import replication
from stratalog.hot.keys import Position
from stratalog.hot.replication import Replication


def test_the_lag_is_the_age_of_the_first_event_that_is_not_replicated() -> None:
    known = Replication(None)
    now = time.time()
    known.note_durable(10, now - 100)
    known.note_durable(20, now - 50)
    assert known.lag_s(20) == pytest.approx(100, abs=5)
    known.acknowledge(Position(10, b""), ())
    assert known.lag_s(20) == pytest.approx(50, abs=5)
    known.acknowledge(Position(20, b""), ())
    assert known.lag_s(20) == 0
    # Told only after it was replicated: it says nothing of what comes later.
    known.note_durable(20, now - 40)
    known.note_durable(21, now - 3)
    assert known.lag_s(21) == pytest.approx(3, abs=2)


def test_what_is_remembered_is_bounded_and_keeps_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "MOMENTS_MAX", 16)
    known = Replication(None)
    now = time.time()
    for lsn in range(1, 10_001):
        known.note_durable(lsn, now - 100_000 + lsn)
        assert len(known._durable_since) <= 16
    assert known.lag_s(10_000) == pytest.approx(99_999, abs=5)
    known.acknowledge(Position(9_000, b""), ())
    assert 89_000 < known.lag_s(10_000) <= 91_100
    known.acknowledge(Position(10_000, b""), ())
    assert not known._durable_since
