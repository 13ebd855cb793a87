"""The heads of trajectories: what a log knows in memory is what it knows again after it was opened."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import pytest
from fix_hot import GatedStore, log_on, names, note
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.hot import heads
from stratalog.hot.intake import Addition
from stratalog.hot.log import HotLog, NewEvent
from stratalog.hot.sim import SimDisk, SimStore
from stratalog.schemas import ids
from stratalog.schemas.chain import Link
from stratalog.schemas.errors import Invalid
from stratalog.schemas.events import (
    Checkpoint,
    EventBody,
    Source,
    TaskFinished,
    TaskStarted,
    TrajectoryClaimed,
    TrajectoryReleased,
    TrajectoryReopened,
    Unknown,
)

BODIES: list[EventBody] = [
    note("x"),
    Checkpoint(covers=0),
    TaskFinished(status="completed"),
    TrajectoryReopened(),
    TrajectoryReleased(holder="h", token=1),
    TrajectoryClaimed(holder="h", token=3),
    Unknown("Checkpoint", b'{"covers":1}'),
    Unknown("Fancy", b"[1]"),
]


def known(log: HotLog) -> tuple[Any, Any]:
    return sorted(log.heads(), key=lambda head: head.trajectory_id), dict(log.engine._heads._live)


@settings(deadline=None, max_examples=40)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("start"), st.booleans()),
            st.tuples(st.integers(0, 3), st.lists(st.sampled_from(BODIES), min_size=1, max_size=4)),
            st.tuples(st.just("resume"), st.sampled_from(BODIES)),
        ),
        max_size=15,
    ),
    save_every=st.sampled_from([1, 3, 65_536]),
    cached_max=st.sampled_from([0, 2, 200_000]),
)
def test_heads_and_pins_are_the_same_after_a_crash(steps: list[Any], save_every: int, cached_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "SAVE_EVERY_EVENTS", save_every)
        patch.setattr(heads, "CACHED_MAX", cached_max)
        disk = SimDisk()
        started: list[uuid.UUID] = []
        with log_on(SimStore(disk)) as log:
            for step, argument in steps:
                if step == "start":
                    source = Source(format="f") if argument else None
                    started.append(log.start_blocking(tenant="t", body=TaskStarted(source=source)))
                elif step == "resume" and started:
                    head = log.head(started[-1])
                    assert head is not None
                    following = Link(head.sequence_number, head.hash)
                    resume = partial(log.engine.stager.resume, "t", head.trajectory_id, following, 2, head.secret)
                    log._staged_blocking(Addition(resume, [NewEvent(argument)]))
                elif isinstance(step, int) and step < len(started):
                    log.append_many_blocking(started[step], [NewEvent(body) for body in argument])
            before = known(log)
            disk.crash()
            with log_on(SimStore(disk)) as again:
                assert known(again) == before


def test_a_head_that_is_not_stored_yet_is_not_forgotten(monkeypatch: pytest.MonkeyPatch, gated: GatedStore) -> None:
    # Forgotten between the save and its commit, the next append would have read the head of long ago.
    monkeypatch.setattr(heads, "SAVE_EVERY_EVENTS", 1)
    monkeypatch.setattr(heads, "CACHED_MAX", 0)
    with log_on(gated) as log:
        trajectory_id = log.start_blocking(tenant="t")
        for number in range(3):
            log.append_blocking(trajectory_id, note(str(number)))
        seen = []

        def look(puts: object) -> None:
            # The commit thread is about to store the heads: what does an append find now?
            if log._engine is not None and log.engine._committer.lock.acquire(blocking=False):
                try:
                    head = log.engine._heads.get(trajectory_id)
                    seen.append((head.lsn if head else None, log.engine.stager.last.lsn))
                finally:
                    log.engine._committer.lock.release()

        gated.before = look
        for number in range(3, 8):
            log.append_blocking(trajectory_id, note(str(number)))
        gated.before = lambda puts: None
        assert seen and all(lsn == last for lsn, last in seen)
        assert names(log.read(trajectory_id)) == [str(number) for number in range(8)]


def test_a_call_that_fails_in_its_middle_stages_nothing() -> None:
    with log_on(SimStore(SimDisk())) as log:
        trajectory_id = log.start_blocking(tenant="t")
        before = known(log)
        bad = TrajectoryClaimed(holder="h", token=1 << 64)
        with pytest.raises(Invalid, match="fencing token"):
            log.append_many_blocking(trajectory_id, [NewEvent(note("a")), NewEvent(bad)])
        assert known(log) == before
        receipt = log.append_blocking(trajectory_id, note("b"))
        assert receipt.lsn == 2 and receipt.sequence_number == 1


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "../x"},
        {"secret": b"short"},
        {"after": Link(3, b"short")},
        {"after": Link(-2, bytes(32))},
        {"after": Link(1 << 63, bytes(32))},
        {"epoch": -1},
        {"epoch": 1 << 63},
    ],
)
async def test_a_trajectory_is_not_resumed_from_nonsense(change: dict[str, Any]) -> None:
    good = {"tenant": "t", "after": Link(3, bytes(32)), "epoch": 1, "secret": bytes(32)}
    async with log_on(SimStore(SimDisk())) as log:
        trajectory_id = ids.new_trajectory_id()
        with pytest.raises(Invalid):
            await log.resume(**{**good, **change}, trajectory_id=trajectory_id, body=note("x"))  # type: ignore[arg-type]
        assert log.heads() == [] and log.durable_lsn == 0
        receipt = await log.resume(**good, trajectory_id=trajectory_id, body=note("x"))  # type: ignore[arg-type]
        assert (receipt.lsn, receipt.sequence_number) == (1, 4)
