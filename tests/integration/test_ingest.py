"""Ingest into a real Postgres: one canonical history, exact bytes, one transaction with the cursor."""

from __future__ import annotations

import datetime as dt
import random
import threading
import uuid

import psycopg
import pytest
from fix_history import T0, MemoryLog, Story, assert_sound, copy, message, row

from stratalog.schemas import ids
from stratalog.schemas.errors import Conflict, Corrupt, Invalid, NotFound, StratalogError
from stratalog.schemas.events import Authorized, LabelsSet, ModelReplied, TaskFinished, ToolResult
from stratalog.warm import quarantine
from stratalog.warm.check import verify_warm
from stratalog.warm.database import Connection, connect
from stratalog.warm.ingest import ingest, read_cursor
from stratalog.warm.queries import (
    counts,
    cursors,
    head,
    import_key,
    publish_import_key,
    read_events,
    trajectories,
)

pytestmark = [pytest.mark.postgres, pytest.mark.required_in_ci]


def test_a_batch_is_stored_with_exact_bytes_and_its_cursor(warm: Connection) -> None:
    story, log = Story().tell(5, finish=True), MemoryLog()
    done = ingest(warm, log.log_id, log.append(story, story.events))
    assert (done.admitted, done.duplicates, done.quarantined) == (6, 0, ())
    assert done.trajectories == {story.trajectory_id}
    assert read_cursor(warm, log.log_id) == done.cursor
    stored = list(read_events(warm, story.trajectory_id))
    assert [(e.header, e.body, e.hash) for e in stored] == [(e.header, e.body, e.hash) for e in story.events]
    assert stored[0].secret == story.secret and stored[1].secret is None
    assert [e.header for e in read_events(warm, story.trajectory_id, 4)] == [e.header for e in story.events[4:]]
    found = verify_warm(warm)
    assert (found.events, found.trajectories, found.problems) == (6, 1, [])
    assert found.heads == {story.trajectory_id: story.head}


def test_a_batch_that_does_not_follow_the_cursor_is_a_conflict(warm: Connection) -> None:
    story, log = Story().tell(6), MemoryLog()
    events = log.append(story, story.events)
    with pytest.raises(Conflict):
        ingest(warm, log.log_id, events[2:])
    assert cursors(warm) == []
    ingest(warm, log.log_id, events[:3])
    for wrong in (events[:3], events[4:], events[2:5]):
        with pytest.raises(Conflict):
            ingest(warm, log.log_id, wrong)
    with pytest.raises(Corrupt):
        ingest(warm, log.log_id, [events[3], events[5]])
    assert ingest(warm, log.log_id, events[3:]).admitted == 3
    assert_sound(warm)


def test_ingest_refuses_to_run_inside_a_transaction_that_it_would_not_commit(warm: Connection) -> None:
    story, log = Story().tell(1), MemoryLog()
    warm.execute("SELECT 1")
    with pytest.raises(Invalid):
        ingest(warm, log.log_id, log.append(story, story.events))


def test_the_same_history_from_another_log_is_dropped(warm: Connection) -> None:
    story, first, second = Story().tell(4, imported=True), MemoryLog(), MemoryLog()
    first.append(story, story.events)
    copy(warm, first)
    second.append(story, story.events + story.fork().tell(2).events[4:])
    done = copy(warm, second)
    assert (done.admitted, done.duplicates) == (2, 4)
    assert head(warm, story.trajectory_id).origin_log == first.log_id
    assert_sound(warm)


def test_a_fork_is_quarantined_whole_and_the_rest_of_the_batch_goes_on(warm: Connection) -> None:
    story, log, other = Story().tell(3), MemoryLog(), MemoryLog()
    fork = story.fork().tell(3, text="fork")
    log.append(story, story.tell(2).events)
    copy(warm, log)
    bystander = Story().tell(2)
    other.append(bystander, bystander.events[:1])
    other.append(fork, fork.events)
    other.append(bystander, bystander.events[1:])
    done = ingest(warm, other.log_id, other.events)
    assert (done.admitted, done.duplicates, done.quarantined) == (2, 3, (5, 6, 7))
    assert done.reasons == ("divergent",) * 3
    entries = quarantine.entries(warm)
    assert [entry.sequence_number for entry in entries] == [3, 4, 5]
    shown, envelope = quarantine.show(warm, entries[0].quarantine_id)
    assert shown == entries[0]
    assert (envelope.header, envelope.body) == (fork.events[3].header, fork.events[3].body)
    assert len(list(quarantine.export(warm, story.trajectory_id))) == 3
    assert quarantine.retry(warm).still_open == 3
    assert quarantine.open_lsns(warm, other.log_id, 5) == [6, 7]
    assert_sound(warm)
    with pytest.raises(NotFound):
        quarantine.show(warm, 999)


def test_a_gap_heals_when_the_events_before_arrive_from_another_log(warm: Connection) -> None:
    story, first, second = Story().tell(8, imported=True), MemoryLog(), MemoryLog()
    second.append(story, story.events[4:])
    done = copy(warm, second, batch=2)
    assert done.reasons == ("gap", "gap")
    assert list(trajectories(warm)) == []
    first.append(story, story.events[:2])
    assert copy(warm, first).readmitted == 0
    first.append(story, story.events[2:4])
    assert copy(warm, first).readmitted == 4
    assert quarantine.entries(warm) == []
    assert len(quarantine.entries(warm, everything=True)) == 4
    assert head(warm, story.trajectory_id).head == story.head
    assert_sound(warm)


def test_retry_admits_when_the_seal_was_corrected(warm: Connection) -> None:
    story, first, second = Story().tell(3), MemoryLog(), MemoryLog()
    first.append(story, story.events)
    copy(warm, first)
    seal = (story.trajectory_id, 2, second.log_id, 3, story.head.hash)
    for _ in range(3):
        story.write(message("new"), epoch=2)
    second.append(story, story.events[3:])
    assert copy(warm, second).reasons == ("foreign_log",) * 3
    assert quarantine.retry(warm, story.trajectory_id).still_open == 3
    with warm.transaction():
        warm.execute("INSERT INTO lease_epochs VALUES (%s, %s, %s, %s, %s)", seal)
    done = quarantine.retry(warm)
    assert (done.admitted, done.still_open) == (3, 0)
    assert head(warm, story.trajectory_id).head == story.head
    assert_sound(warm)


def test_the_head_shows_what_the_summary_knows(warm: Connection) -> None:
    story, log = Story().tell(1, imported=True), MemoryLog()
    story.write(ModelReplied(text="hi", input_tokens=5, output_tokens=7, cost_usd=0.5))
    log.append(story, story.events)
    copy(warm, log)
    first = head(warm, story.trajectory_id)
    assert (first.status, first.model, first.imported, first.turns) == ("imported", "m-1", True, 1)
    story.write(ModelReplied(text="ho", input_tokens=2, output_tokens=1))
    story.write(LabelsSet(labels={"team": "a"}))
    story.write(TaskFinished(status="completed"))
    log.append(story, story.events[2:])
    copy(warm, log)
    last = head(warm, story.trajectory_id)
    assert (last.status, last.turns, last.events, last.input_tokens, last.output_tokens) == ("completed", 2, 5, 7, 8)
    assert last.labels == {"team": "a"} and last.finished_at is not None and last.cost_usd == 0.5
    assert last.summarize().turn == 2
    assert [found.trajectory_id for found in trajectories(warm, status="completed", labels={"team": "a"})] == [
        story.trajectory_id
    ]
    assert list(trajectories(warm, tenant="other")) == []


def test_typed_columns_hold_tool_status_and_turn(warm: Connection) -> None:
    story, log = Story().tell(1), MemoryLog()
    story.write(ModelReplied(text="x"))
    story.write(Authorized(tool_call_id="1", decision="allow", tool="bash"))
    story.write(ToolResult(tool_call_id="1", tool="ba\x00sh" + "h" * 5000, status="error", output="o" * 10_000))
    log.append(story, story.events)
    copy(warm, log)
    columns = "tool_name, event_status, turn, length(payload->>'output')"
    found = row(warm, f"SELECT {columns} FROM all_events WHERE event_type = 'ToolResult'")
    assert found[0] is None or str(found[0]).startswith("ba\ufffdsh")
    assert found[1:3] == ("error", 1)
    assert_sound(warm)


def test_sums_beyond_bigint_do_not_stop_a_log(warm: Connection) -> None:
    story, log = Story().tell(1), MemoryLog()
    for _ in range(3):
        story.write(ModelReplied(text="x", input_tokens=(1 << 64) - 1, output_tokens=-(1 << 62), cost_usd=1e308))
        log.append(story, story.events[-1:] if len(story.events) > 2 else story.events)
        copy(warm, log)
    assert head(warm, story.trajectory_id).input_tokens == (1 << 63) - 1
    assert_sound(warm)


def test_ids_without_a_usable_time_are_stray_and_block_nothing(warm: Connection) -> None:
    log = MemoryLog()
    stories = [
        Story(trajectory_id=uuid.uuid4()),
        Story(trajectory_id=ids.uuid7_at(1 << 62, b"x" * 10)),
        Story(trajectory_id=ids.uuid7_at(ids.to_us(dt.datetime(2200, 1, 1, tzinfo=dt.UTC)), b"x" * 10)),
        Story(at_us=0),
        Story(),
    ]
    for story in stories:
        log.append(story, story.tell(2).events)
    assert copy(warm, log).admitted == 10
    assert [head(warm, story.trajectory_id).stray for story in stories] == [True, True, True, False, False]
    for story in stories:
        log.append(story, story.tell(1).events[2:])
    assert copy(warm, log).admitted == 5
    assert counts(warm).stray == 3
    assert row(warm, "SELECT count(*) FROM trajectory_events_stray") == (9,)
    assert_sound(warm)


def test_with_too_many_partitions_new_days_are_stray(warm: Connection) -> None:
    fill = "INSERT INTO event_partitions SELECT 'x' || g, date '1000-01-01' + g, date '1000-01-01' + g + 1"
    with warm.transaction():
        warm.execute(f"{fill} FROM generate_series(1, 500) g".encode())
    story, log = Story().tell(2), MemoryLog()
    log.append(story, story.events)
    assert copy(warm, log).admitted == 2
    assert head(warm, story.trajectory_id).stray
    assert_sound(warm)


def test_events_sent_again_after_consolidation_are_acknowledged(warm: Connection) -> None:
    story, first, second = Story().tell(4, finish=True), MemoryLog(), MemoryLog()
    first.append(story, story.events)
    copy(warm, first)
    with warm.transaction():
        through = "UPDATE trajectories SET consolidated_through = head_sequence, consolidated_hash = head_hash"
        warm.execute(through.encode())
        warm.execute("DELETE FROM trajectory_events")
    assert_sound(warm)
    with pytest.raises(NotFound):
        next(read_events(warm, story.trajectory_id))
    second.append(story, story.events)
    assert copy(warm, second).duplicates == 5
    story.write(message("late"))
    first.append(story, story.events[5:])
    assert copy(warm, first).admitted == 1
    assert [e.header for e in read_events(warm, story.trajectory_id, 5)] == [story.events[5].header]
    assert_sound(warm)


def test_an_erased_trajectory_takes_no_more_content(warm: Connection) -> None:
    story, log = Story().tell(2), MemoryLog()
    log.append(story, story.events)
    copy(warm, log)
    with warm.transaction():
        warm.execute("UPDATE trajectory_events SET body = '', erased = true, payload = NULL")
        warm.execute("UPDATE trajectories SET secret = NULL")
    assert_sound(warm)
    log.append(story, story.tell(1).events[2:])
    assert copy(warm, log).reasons == ("erased",)


def test_verify_finds_what_was_changed_behind_its_back(warm: Connection) -> None:
    log = MemoryLog()
    stories = [Story().tell(4) for _ in range(7)]
    for story in stories:
        log.append(story, story.events)
    copy(warm, log)
    damage = [
        "UPDATE trajectory_events SET body = body || ' ' WHERE sequence_number = 2 AND trajectory_id = %s",
        "UPDATE trajectory_events SET created_at = created_at + interval '1 us' WHERE sequence_number = 0 AND "
        "trajectory_id = %s",
        "DELETE FROM trajectory_events WHERE sequence_number = 1 AND trajectory_id = %s",
        "DELETE FROM trajectory_events WHERE sequence_number = 3 AND trajectory_id = %s",
        "UPDATE trajectories SET head_hash = 'x' WHERE trajectory_id = %s",
        "DELETE FROM trajectories WHERE trajectory_id = %s",
    ]
    with warm.transaction():
        for statement, story in zip(damage, stories, strict=False):
            warm.execute(statement.encode(), [story.trajectory_id])
    found = verify_warm(warm)
    assert len(found.problems) == 6
    for story in stories[:6]:
        assert sum(str(story.trajectory_id) in problem for problem in found.problems) == 1
    for story in stories[1:3]:
        with pytest.raises(Corrupt):
            list(read_events(warm, story.trajectory_id))


def test_sidecars_that_share_trajectories_do_not_deadlock(warm_dsn: str, warm: Connection) -> None:
    stories = [Story().tell(12, imported=True) for _ in range(20)]
    logs = [MemoryLog() for _ in range(4)]
    for number, log in enumerate(logs):
        shuffled = random.Random(number)
        left = {story.trajectory_id: list(story.events) for story in stories}
        while left:
            story = shuffled.choice([s for s in stories if s.trajectory_id in left])
            log.append(story, left[story.trajectory_id][:3])
            del left[story.trajectory_id][:3]
            if not left[story.trajectory_id]:
                del left[story.trajectory_id]
    errors: list[Exception] = []

    def work(log: MemoryLog) -> None:
        conn = connect(warm_dsn)
        try:
            copy(conn, log, batch=40)
        except StratalogError as error:
            errors.append(error)
        finally:
            conn.close()

    threads = [threading.Thread(target=work, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert quarantine.entries(warm) == []
    assert {story.trajectory_id: story.head for story in stories} == verify_warm(warm).heads
    assert_sound(warm)


def test_unsorted_locks_would_deadlock(warm_dsn: str) -> None:
    """The negative control: without the order of the locks, two such transactions kill each other."""
    first, second = uuid.UUID(int=1), uuid.UUID(int=2)
    insert = b"INSERT INTO trajectories (trajectory_id, tenant, origin_log, head_hash) VALUES (%s, 't', %s, '')"
    barrier = threading.Barrier(2)
    errors: list[psycopg.Error] = []

    def work(order: tuple[uuid.UUID, uuid.UUID]) -> None:
        with connect(warm_dsn) as conn:
            try:
                conn.execute(insert, [order[0], order[0]])
                barrier.wait()
                conn.execute(insert + b" ON CONFLICT DO NOTHING", [order[1], order[1]])
            except psycopg.errors.DeadlockDetected as error:
                errors.append(error)

    threads = [threading.Thread(target=work, args=(order,)) for order in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 1


def test_import_keys_are_published_once(warm: Connection) -> None:
    assert import_key(warm, "default") is None
    assert publish_import_key(warm, "default", b"a" * 32) == b"a" * 32
    assert publish_import_key(warm, "default", b"b" * 32) == b"a" * 32
    assert import_key(warm, "other") is None


def test_counts(warm: Connection) -> None:
    story, log = Story().tell(3), MemoryLog()
    log.append(story, story.events)
    copy(warm, log)
    found = counts(warm)
    assert (found.trajectories, found.events, found.quarantined, found.stray) == (1, 3, 0, 0)
    assert found.partitions > 0 and found.bytes > 0
    assert [(cursor.log_id, cursor.lsn) for cursor in cursors(warm)] == [(log.log_id, 3)]


def test_a_history_in_many_segments_and_batches_of_any_size(warm: Connection) -> None:
    chance = random.Random(7)
    stories = [Story(at_us=T0 + 86_400_000_000 * (day % 3)).tell(chance.randint(1, 15)) for day in range(10)]
    log = MemoryLog()
    events = [(story, event) for story in stories for event in story.events]
    order = {id(story): list(story.events) for story in stories}
    for story in chance.sample([story for story, _ in events], len(events)):
        log.append(story, [order[id(story)].pop(0)])
    copy(warm, log, batch=7)
    assert verify_warm(warm).heads == {story.trajectory_id: story.head for story in stories}
    assert_sound(warm)
