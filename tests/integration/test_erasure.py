"""Erasure in Postgres: unreadable at once, for good, with everything that descends from it, unless a hold says no."""

from __future__ import annotations

import datetime as dt
import secrets
import uuid
from collections.abc import Iterator, Sequence

import pytest
from fix_erasure import BY, arrive, canary_story, erase, others, tables_with
from fix_history import MemoryLog, Story, assert_sound, copy, message, row

from stratalog.schemas import events as ev
from stratalog.schemas import subjects
from stratalog.schemas.blobs import Blob, BlobRef
from stratalog.schemas.codec import encode_body
from stratalog.schemas.errors import Conflict, Invalid, NotFound
from stratalog.warm import erasure, erasure_bytes, erasure_ledger, hold, quarantine
from stratalog.warm.database import Connection, connect
from stratalog.warm.erasure import Selection, Subject
from stratalog.warm.places import PLACES

__all__ = ["others"]
pytestmark = pytest.mark.usefixtures("others")


def canary() -> str:
    return f"canary{secrets.token_hex(12)}"


def subject(name: str, *, key: bytes = b"k" * 32, tenant: str = "default") -> Subject:
    return Subject(tenant, subjects.subject_hash(key, tenant, name), subjects.key_id(key))


def held(conn: Connection, *stories: Story) -> None:
    hold.place(conn, "case", hold.Scope(trajectories=tuple(story.trajectory_id for story in stories)), **BY)


def test_nothing_of_it_can_be_read(warm: Connection) -> None:
    word = canary()
    story = canary_story(word)
    arrive(warm, story)
    assert "trajectory_events" in {name.split(".")[0][:17] for name in tables_with(warm, word.encode())}  # the control
    done = erase(warm, story)
    assert done.trajectories == (story.trajectory_id,)
    assert done.events == len(story.events)
    assert tables_with(warm, word.encode()) == []
    assert row(warm, "SELECT secret FROM trajectories WHERE trajectory_id = %s", story.trajectory_id) == (None,)
    assert_sound(warm)


def test_hashes_and_places_stay(warm: Connection) -> None:
    story = canary_story(canary())
    arrive(warm, story)
    erase(warm, story)
    found = warm.execute(
        "SELECT cryptographic_hash, body_digest, erased, event_type FROM all_events WHERE trajectory_id = %s "
        "ORDER BY sequence_number",
        (story.trajectory_id,),
    ).fetchall()
    warm.rollback()
    assert [(bytes(digest), bytes(body), erased, kind) for digest, body, erased, kind in found] == [
        (event.hash, event.header.body_digest, True, event.header.kind) for event in story.events
    ]


def test_status_and_counts_stay(warm: Connection) -> None:
    story = canary_story(canary())
    arrive(warm, story)
    query = "SELECT status, model, events, turns, started_at, imported FROM trajectories WHERE trajectory_id = %s"
    before = row(warm, query, story.trajectory_id)
    erase(warm, story)
    assert row(warm, query, story.trajectory_id) == before


def test_what_comes_later_is_stored_without_its_body(warm: Connection) -> None:
    word = canary()
    story = canary_story(word, finish=False)
    log = MemoryLog()
    log.append(story, story.events)
    copy(warm, log)
    erase(warm, story)
    late = [story.write(message(f"late {word}")), story.write(ev.TaskFinished(status="completed", result=word))]
    log.append(story, late)
    done = copy(warm, log)
    assert (done.admitted, done.brought_back) == (2, frozenset({story.trajectory_id}))
    assert erasure_ledger.pending(warm, log.log_id) is not None
    assert tables_with(warm, word.encode()) == []
    assert row(warm, "SELECT head_hash FROM trajectories WHERE trajectory_id = %s", story.trajectory_id) == (
        story.head.hash,
    )
    assert_sound(warm)


def test_a_host_that_was_away_brings_nothing_back(warm: Connection) -> None:
    """Also its duplicates of what was here, and also what is put aside."""
    word = canary()
    story = canary_story(word)
    arrive(warm, story)
    erase(warm, story)
    other = MemoryLog()
    other.append(story, story.events)  # the same again
    fork = story.fork()
    other.append(fork, [fork.write(message(f"divergent {word}"))])
    done = copy(warm, other)
    assert done.brought_back == {story.trajectory_id}
    assert done.duplicates == len(story.events)
    assert tables_with(warm, word.encode()) == []


def test_one_that_is_not_here_yet(warm: Connection) -> None:
    word = canary()
    story = canary_story(word)
    with pytest.raises(NotFound, match="not known here"):
        erase(warm, story)
    erase(warm, story, tenant="default")
    done = copy(warm, _log_of(story))
    assert done.admitted == len(story.events)
    assert tables_with(warm, word.encode()) == []
    assert_sound(warm)


def _log_of(story: Story) -> MemoryLog:
    log = MemoryLog()
    log.append(story, story.events)
    return log


def test_quarantined_events_are_cleared_and_can_still_be_admitted(warm: Connection) -> None:
    word = canary()
    story = canary_story(word)
    log = MemoryLog()
    log.append(story, story.events[2:])  # the first two have not arrived
    copy(warm, log)
    assert "quarantine.body" in tables_with(warm, word.encode())
    erase(warm, story, tenant="default")
    assert tables_with(warm, word.encode()) == []
    log.append(story, story.events[:2])
    copy(warm, log)
    quarantine.retry(warm, story.trajectory_id)
    assert row(warm, "SELECT head_sequence FROM trajectories WHERE trajectory_id = %s", story.trajectory_id) == (
        story.head.sequence_number,
    )
    assert_sound(warm)


def test_content_is_noted(warm: Connection) -> None:
    story = Story().tell(1)
    ref = BlobRef.of(b"bulky")
    story.write(ev.ToolResult(tool_call_id="c", output=Blob(ref)))
    arrive(warm, story)
    erase(warm, story)
    assert [piece[:2] for piece in erasure_ledger.content_left(warm)] == [("default", ref.sha256)]
    assert erasure_ledger.content_counts(warm, 1) == (1, 0)


def test_content_that_comes_later_is_noted(warm: Connection) -> None:
    story = Story().tell(1)
    ref = BlobRef.of(b"bulky")
    story.write(ev.ToolResult(tool_call_id="c", output=Blob(ref)))
    story.write(ev.ToolResult(tool_call_id="d", output=Blob(BlobRef("no digest", 1))))
    erase(warm, story, tenant="default")
    arrive(warm, story)
    assert [piece[:2] for piece in erasure_ledger.content_left(warm)] == [("default", ref.sha256)]


# --- what descends from it, and whom it is about ---------------------------------------------------------------------


def child_of(parent: Story, word: str) -> Story:
    return canary_story(word, parent=str(parent.trajectory_id))


def test_children_forks_and_theirs_are_included(warm: Connection) -> None:
    word = canary()
    parent = canary_story(word)
    child = child_of(parent, word)
    grandchild = child_of(child, word)
    fork = Story().tell(1)
    fork.write(ev.TrajectoryForked(parent=str(child.trajectory_id), parent_sequence=2, reason=word))
    named = Story().tell(1, text=word)
    parent_of_named = Story().tell(1)
    parent_of_named.write(ev.ChildStarted(child=str(named.trajectory_id), task=word))
    arrive(warm, parent, child, grandchild, fork, named, parent_of_named)
    done = erase(warm, parent, parent_of_named)
    assert set(done.trajectories) == {
        story.trajectory_id for story in (parent, child, grandchild, fork, named, parent_of_named)
    }
    assert tables_with(warm, word.encode()) == []


def test_a_child_that_comes_later_is_erased_too(warm: Connection) -> None:
    word = canary()
    parent = canary_story(word)
    arrive(warm, parent)
    erase(warm, parent)
    child = child_of(parent, word)
    done = copy(warm, _log_of(child))
    assert done.related
    assert tables_with(warm, word.encode()) != []  # it was not known: the one who ingests goes on
    assert erasure.add_related(warm) == 1
    assert erasure.proceed(warm).trajectories == (child.trajectory_id,)
    assert tables_with(warm, word.encode()) == []


def test_a_parent_stays_when_its_child_is_erased(warm: Connection) -> None:
    parent, child = canary_story("parent"), canary_story("child")
    child = child_of(parent, "child")
    arrive(warm, parent, child)
    assert erase(warm, child).trajectories == (child.trajectory_id,)


def test_an_erasure_of_a_subject(warm: Connection) -> None:
    word = canary()
    about, not_about = canary_story(word), Story().tell(3, finish=True)
    arrive(warm, about, not_about)
    assert erasure.add_subject(warm, subject("bob@example.org"), [about.trajectory_id, uuid.uuid4()]) == 1
    number = erasure.request(warm, Selection(subject=subject("bob@example.org")), **BY)
    assert erasure.proceed(warm, number).trajectories == (about.trajectory_id,)
    assert tables_with(warm, word.encode()) == []
    assert tables_with(warm, b"bob@example.org") == []


def test_a_subject_said_at_the_start(warm: Connection) -> None:
    """And what began before the erasure and arrives after it is erased; what begins after it is not."""
    who = subject("carol")
    before, after = _about(who, at_us=1_790_000_000_000_000), _about(who, at_us=_in_an_hour_us())
    number = erasure.request(warm, Selection(subject=who), **BY)
    assert erasure.proceed(warm, number).trajectories == ()
    arrive(warm, before, after)
    assert erasure.add_related(warm) == 1
    assert erasure.proceed(warm).trajectories == (before.trajectory_id,)


def _in_an_hour_us() -> int:
    return int((dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).timestamp() * 1_000_000)


def _about(who: Subject, at_us: int) -> Story:
    story = Story(at_us=at_us)
    story.write(ev.TaskStarted(task="t", model=ev.Model(name="m"), labels={"subjects": subjects.label([who.digest])}))
    return story


def test_another_subject_key_is_refused(warm: Connection) -> None:
    story = Story().tell(2)
    arrive(warm, story)
    erasure.add_subject(warm, subject("dave"), [story.trajectory_id])
    with pytest.raises(Conflict, match="another key"):
        erasure.request(warm, Selection(subject=subject("dave", key=b"x" * 32)), **BY)


def test_a_condition(warm: Connection) -> None:
    word = canary()
    story = canary_story(word)
    arrive(warm, story)
    number = erasure.request(warm, Selection(where=f"labels ->> 'customer' = '{word}'"), **BY)
    assert erasure.proceed(warm, number).trajectories == (story.trajectory_id,)
    assert tables_with(warm, word.encode()) == [], "the condition is not kept either"


@pytest.mark.parametrize(
    "selection",
    [
        Selection(),
        Selection((uuid.uuid4(),), where="true"),
        Selection(where="no such column"),
        Selection(where="true; DELETE FROM trajectories"),
        Selection((uuid.uuid4(),), tenant="../x"),
    ],
)
def test_bad_selections(warm: Connection, selection: Selection) -> None:
    with pytest.raises(Invalid):
        erasure.request(warm, selection, **BY)
    assert row(warm, "SELECT count(*) FROM erasures") == (0,)


def test_a_condition_that_names_nothing(warm: Connection) -> None:
    with pytest.raises(NotFound):
        erasure.request(warm, Selection(where="false"), **BY)


# --- the registry of what holds content -------------------------------------------------------------------------------


class Inbox:
    """A place that is added later: a table with bodies that came from outside."""

    name, tables = "inbox", ("inbox",)

    def references(self, conn: Connection, ids: Sequence[uuid.UUID] | None = None) -> Iterator[tuple[str, bytes]]:
        condition = "true" if ids is None else "trajectory_id = ANY(%(ids)s)"
        for tenant, body in conn.execute(f"SELECT tenant, body FROM inbox WHERE {condition}".encode(), {"ids": ids}):
            yield tenant, bytes(body)

    def clear(self, conn: Connection, ids: Sequence[uuid.UUID]) -> int:
        return conn.execute("UPDATE inbox SET body = '' WHERE trajectory_id = ANY(%s)", (list(ids),)).rowcount

    def readable(self, conn: Connection, ids: Sequence[uuid.UUID]) -> list[tuple[str, uuid.UUID]]:
        query = "SELECT 'inbox', trajectory_id FROM inbox WHERE body <> '' AND trajectory_id = ANY(%s)"
        return list(conn.execute(query, (list(ids),)).fetchall())


@pytest.mark.parametrize("registered", [True, False])
def test_what_is_added_later_joins_through_the_registry(
    warm: Connection, registered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = canary()
    story, ref = canary_story(word), BlobRef.of(b"came later")
    arrive(warm, story)
    body = encode_body(ev.ToolResult(tool_call_id=word, output=Blob(ref)))
    with warm.transaction():
        warm.execute("CREATE TABLE inbox (trajectory_id uuid, tenant text, body bytea)")
        warm.execute("INSERT INTO inbox VALUES (%s, 'default', %s)", (story.trajectory_id, body))
    if registered:
        for module in (erasure, erasure_bytes):
            monkeypatch.setattr(module, "PLACES", (*PLACES, Inbox()))
    erase(warm, story)
    assert tables_with(warm, word.encode()) == ([] if registered else ["inbox.body"]), "the second is the control"
    noted = [sha256 for _, sha256, _ in erasure_ledger.content_left(warm)]
    assert noted == ([ref.sha256] if registered else [])
    gone = erasure_bytes.remove_bytes(warm, embedded=True)
    assert ("inbox" in gone.tables) is registered


# --- holds -----------------------------------------------------------------------------------------------------------


def test_a_hold_wins_until_it_is_released(warm: Connection) -> None:
    word = canary()
    story, free = canary_story(word), canary_story(canary())
    arrive(warm, story, free)
    held(warm, story)
    number = erasure.request(warm, Selection((story.trajectory_id, free.trajectory_id)), **BY)
    done = erasure.proceed(warm, number)
    assert done.trajectories == (free.trajectory_id,)
    assert [(one.trajectory_id, one.matters) for one in done.held] == [(story.trajectory_id, ("case",))]
    assert tables_with(warm, word.encode()) != []
    assert erasure_ledger.requests(warm, number)[0].held == 1
    hold.release(warm, "case", **BY)
    assert erasure.proceed(warm).trajectories == (story.trajectory_id,)
    assert tables_with(warm, word.encode()) == []


def test_a_hold_on_the_parent_keeps_the_child(warm: Connection) -> None:
    parent = canary_story("p")
    child = child_of(parent, "c")
    arrive(warm, parent, child)
    held(warm, parent)
    assert erase(warm, child).trajectories == ()


def test_a_held_child_keeps_what_it_refers_to(warm: Connection) -> None:
    parent = canary_story("p")
    child, other = child_of(parent, "c"), child_of(parent, "d")
    arrive(warm, parent, child, other)
    held(warm, child)
    done = erase(warm, parent)
    assert done.trajectories == (other.trajectory_id,)
    assert {one.trajectory_id for one in done.held} == {parent.trajectory_id, child.trajectory_id}


def test_a_hold_on_a_tenant_keeps_what_has_not_arrived(warm: Connection) -> None:
    hold.place(warm, "all", hold.Scope(tenant="acme"), **BY)
    story = Story(tenant="acme").tell(2)
    assert erase(warm, story, tenant="acme").held[0].matters == ("all",)


# --- the ledger ------------------------------------------------------------------------------------------------------


def test_asking_twice(warm: Connection) -> None:
    story = canary_story(canary())
    arrive(warm, story)
    first, second = erase(warm, story), erase(warm, story)
    assert (first.events, second.events) == (len(story.events), 0)
    assert [item.erased_by for item in erasure_ledger.items(warm, 2)] == [1]


def test_each_log_follows_the_ledger(warm: Connection) -> None:
    stories = [canary_story(canary()) for _ in range(3)]
    log = arrive(warm, *stories)
    erase(warm, *stories[:2])
    wanted = erasure_ledger.pending(warm, log.log_id)
    assert wanted is not None
    assert set(wanted.trajectories) == {story.trajectory_id for story in stories[:2]}
    assert [behind.log_id for behind in erasure_ledger.logs_behind(warm, wanted.place)].count(log.log_id) == 1
    erasure_ledger.followed(warm, log.log_id, wanted.place, 12)
    assert erasure_ledger.pending(warm, log.log_id) is None
    assert log.log_id not in {behind.log_id for behind in erasure_ledger.logs_behind(warm, wanted.place)}
    erase(warm, stories[2])
    again = erasure_ledger.pending(warm, log.log_id)
    assert again is not None
    assert again.trajectories == (stories[2].trajectory_id,)


def test_a_log_that_is_gone_can_be_abandoned(warm: Connection) -> None:
    log = arrive(warm, Story().tell(2))
    with pytest.raises(Invalid, match="no log"):
        erasure_ledger.abandon(warm, uuid.uuid4(), "burnt")
    erasure_ledger.abandon(warm, log.log_id, "the host was shredded")
    assert erasure_ledger.abandoned(warm) == {log.log_id: "the host was shredded"}
    assert log.log_id not in {behind.log_id for behind in erasure_ledger.logs_behind(warm, 1 << 40)}


@pytest.mark.parametrize("table", ["erasures", "erasure_receipts", "erased_trajectories"])
def test_the_history_is_not_changed(warm: Connection, table: str) -> None:
    story = canary_story(canary())
    arrive(warm, story)
    erase(warm, story)
    with pytest.raises(Exception, match="history"), warm.transaction():
        warm.execute(f"TRUNCATE {table} CASCADE".encode())


def test_a_log_that_brings_bodies_back_has_not_followed(warm: Connection) -> None:
    story, other = canary_story(canary(), finish=False), canary_story(canary())
    log = arrive(warm, other, story)
    erase(warm, other)
    erase(warm, story)
    erasure_ledger.followed(warm, log.log_id, 2, 12)
    log.append(story, [story.write(message("once more"))])
    copy(warm, log)
    again = erasure_ledger.pending(warm, log.log_id)
    assert again is not None and again.trajectories == (story.trajectory_id,)


# --- crashes and races -----------------------------------------------------------------------------------------------


def test_erasure_and_ingest_at_once(warm: Connection, warm_dsn: str) -> None:
    """Whoever has the head first: in the end nothing is readable."""
    word = canary()
    story = canary_story(word, finish=False)
    log = MemoryLog()
    log.append(story, story.events)
    copy(warm, log)
    log.append(story, [story.write(message(f"late {word}"))])
    number = erasure.request(warm, Selection((story.trajectory_id,)), **BY)
    import threading

    def ingesting() -> None:
        with connect(warm_dsn) as other:
            other.rollback()
            copy(other, log)

    thread = threading.Thread(target=ingesting)
    with connect(warm_dsn) as blocker:
        blocker.execute("SELECT 1 FROM trajectories WHERE trajectory_id = %s FOR UPDATE", (story.trajectory_id,))
        thread.start()
        eraser = threading.Thread(target=lambda: erasure.proceed(warm, number))
        eraser.start()
        blocker.rollback()
    thread.join()
    eraser.join()
    assert tables_with(warm, word.encode()) == []
    assert_sound(warm)
