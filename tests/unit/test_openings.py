"""A copy of a log that has grown on its own is told from it, also where the event at the cursor is the same one."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from fix_hot import crash_copy, note

from stratalog.hot.engine import Engine
from stratalog.hot.home import Home
from stratalog.hot.keys import OPENING_PREFIX, Cursor, lsn_key, lsn_of, prefix_end
from stratalog.hot.log import HotLog
from stratalog.hot.openings import Openings
from stratalog.hot.sim import SimDisk, SimStore
from stratalog.hot.source import LogEvent, has_more, open_source
from stratalog.schemas.errors import CursorMismatch
from stratalog.schemas.events import Source, TaskStarted
from stratalog.schemas.protocols import Put
from stratalog.schemas.settings import HotSettings

IMPORTED = uuid.UUID("01890000-0000-7000-8000-000000000001")
SECRET = bytes(32)


def import_source(log: HotLog) -> None:
    """The same three events wherever they are imported."""
    body = TaskStarted(task="imported", source=Source(format="test"))
    log.start_blocking(tenant="default", body=body, trajectory_id=IMPORTED, secret=SECRET, created_at=1_000)
    for number in range(2):
        log.append_blocking(IMPORTED, note(f"imported {number}"), created_at=2_000)


def replicated(home: Home, log_id: uuid.UUID, after: Cursor | None = None) -> list[LogEvent]:
    """What a sidecar gets that goes on from a cursor."""
    source = open_source(home, log_id, after)
    try:
        return source.read((after or Cursor()).lsn, 100, 1 << 20)
    finally:
        source.close()


def cursor_at(event: LogEvent) -> Cursor:
    return Cursor(event.envelope.lsn, event.envelope.hash, event.opening)


@pytest.fixture
def grown_apart(home: Home, tmp_path: Path) -> tuple[Home, uuid.UUID, Cursor]:
    """A copy that has other events than were replicated, but the same one at the LSN of the cursor."""
    with HotLog.open(home) as log:
        log_id = log.log_id
        log.start_blocking(tenant="default", task="both have this one")
    copy = crash_copy(home, tmp_path / "copy")
    for place in (home, copy):
        with HotLog.open(place, log_id=log_id) as log:
            log.start_blocking(tenant="default", task="each has another one")
            import_source(log)
    there, here = replicated(home, log_id), replicated(copy, log_id)
    assert there[1].envelope.hash != here[1].envelope.hash
    assert there[-1].envelope.lsn == here[-1].envelope.lsn and there[-1].envelope.hash == here[-1].envelope.hash
    return copy, log_id, cursor_at(there[-1])


def test_the_same_event_at_the_cursor_does_not_make_a_copy_the_log(grown_apart: tuple[Home, uuid.UUID, Cursor]) -> None:
    copy, log_id, cursor = grown_apart
    with pytest.raises(CursorMismatch, match=f"LSN {cursor.lsn}"):
        open_source(copy, log_id, cursor)
    with HotLog.open(copy, log_id=log_id), pytest.raises(CursorMismatch):
        open_source(copy, log_id, cursor)
    # The control: LSN and hash alone are taken for proof.
    open_source(copy, log_id, Cursor(cursor.lsn, cursor.hash)).close()


def test_such_a_copy_is_opened_although_it_was_closed_right_at_the_cursor(
    grown_apart: tuple[Home, uuid.UUID, Cursor],
) -> None:
    copy, log_id, cursor = grown_apart
    assert has_more(copy, log_id, cursor)
    assert not has_more(copy, log_id, Cursor(cursor.lsn, cursor.hash))


def test_the_log_itself_goes_on_after_each_opening(home: Home) -> None:
    cursor: Cursor | None = None
    seen: set[bytes] = set()
    log_id: uuid.UUID | None = None
    for number in range(3):
        with HotLog.open(home, log_id=log_id) as log:
            log_id = log.log_id
            log.start_blocking(tenant="default", task=f"opening {number}")
            (event,) = replicated(home, log_id, cursor)
            log.start_blocking(tenant="default", task="read after the log was closed")
        cursor = cursor_at(event)
        (last,) = replicated(home, log_id, cursor)
        assert last.opening == event.opening
        cursor = cursor_at(last)
        seen.add(cursor.opening)
        assert not has_more(home, log_id, cursor)
    assert len(seen) == 3 and b"" not in seen


def engine_on(disk: SimDisk) -> Engine:
    return Engine(uuid.uuid4(), SimStore(disk), HotSettings())


def openings_in(store: SimStore) -> list[int]:
    return [lsn_of(key[2:]) for key, _ in store.scan("meta", OPENING_PREFIX, prefix_end(OPENING_PREFIX))]


def test_an_opening_that_wrote_nothing_leaves_nothing() -> None:
    disk = SimDisk()
    for _ in range(3):
        engine_on(disk).close()
    assert openings_in(SimStore(disk)) == []


def test_openings_go_with_their_events_except_that_of_the_last_one_pruned() -> None:
    disk = SimDisk()
    for _ in range(4):
        with HotLog.on(engine_on(disk)) as log:
            log.start_blocking(tenant="default", body=TaskStarted(source=Source(format="test")))
            log.start_blocking(tenant="default", body=TaskStarted(source=Source(format="test")))
    assert openings_in(SimStore(disk)) == [0, 2, 4, 6]
    with HotLog.on(engine_on(disk)) as log:
        before = [log.engine.openings.at(lsn) for lsn in range(1, 9)]
        envelope = log.engine.envelope(4)
        assert envelope is not None
        log.acknowledge(4, envelope.hash)
        assert log.prune() == 4
        log.engine.check_cursor(Cursor(4, envelope.hash, before[3]))
        assert [log.engine.openings.at(lsn) for lsn in range(4, 9)] == before[3:]
    assert openings_in(SimStore(disk)) == [2, 4, 6]


def test_an_event_from_before_openings_were_recorded_has_none() -> None:
    store = SimStore(SimDisk())
    store.commit([Put("meta", OPENING_PREFIX + lsn_key(5), b"x" * 16)])
    openings = Openings(store, 9)
    assert openings.at(5) == b"" and openings.at(6) == b"x" * 16 and openings.at(9) == b"x" * 16
    openings.check(Cursor(5, b"any hash"))
    with pytest.raises(CursorMismatch):
        openings.check(Cursor(5, b"any hash", b"x" * 16))
