"""Admission: one canonical chain whatever arrives, everything else refused with a reason, nothing lost."""

from __future__ import annotations

import uuid

import pytest
from fix_history import MemoryLog, Story, message, started
from hypothesis import given
from hypothesis import strategies as st

from stratalog.schemas.chain import START, ChainCheck, Link
from stratalog.schemas.codec import decode_event
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.errors import Corrupt
from stratalog.warm.admission import Seal, Standing, Verdict

A, B, C = uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=3)


class History:
    """What the warm tier does with verdicts, in memory: the reference that the tests drive."""

    def __init__(self, first: Envelope, log_id: uuid.UUID) -> None:
        self.standing = Standing(origin_log=log_id, tenant=first.header.tenant)
        self.canonical: dict[int, Envelope] = {}
        self.quarantine: list[tuple[uuid.UUID, Envelope, str]] = []

    def offer(self, log_id: uuid.UUID, envelope: Envelope) -> Verdict:
        verdict = self.standing.judge(log_id, envelope)
        if verdict.outcome == "admitted":
            self.standing.take(log_id, envelope, decode_event(envelope))
            self.canonical[envelope.header.sequence_number] = envelope
        elif verdict.outcome == "refused":
            self.quarantine.append((log_id, envelope, verdict.reason))
        return verdict

    def retry(self) -> None:
        waiting = sorted(self.quarantine, key=lambda entry: entry[1].header.sequence_number)
        self.quarantine = []
        for log_id, envelope, _ in waiting:
            self.offer(log_id, envelope)

    def check(self, secret: bytes) -> None:
        """The admitted events are one chain from the start."""
        check = ChainCheck(secret)
        for sequence in sorted(self.canonical):
            check.feed(self.canonical[sequence])
        assert check.position == self.standing.head


def history_of(log: MemoryLog) -> History:
    return History(log.events[0].envelope, log.log_id)


def events_of(story: Story, log_id: uuid.UUID = A) -> list[Envelope]:
    log = MemoryLog(log_id)
    return [event.envelope for event in log.append(story, story.events)]


def offered(history: History, log_id: uuid.UUID, events: list[Envelope]) -> list[str]:
    verdicts = [history.offer(log_id, event) for event in events]
    return [verdict.reason or verdict.outcome for verdict in verdicts]


def test_a_history_is_admitted_and_its_repetition_dropped() -> None:
    story = Story().tell(4)
    events = events_of(story)
    history = History(events[0], A)
    assert offered(history, A, events) == ["admitted"] * 4
    assert offered(history, A, events) == ["duplicate"] * 4
    assert not history.quarantine
    history.check(story.secret)


def test_a_fork_is_refused_with_all_that_follows_it() -> None:
    story = Story().tell(3)
    other = story.fork().tell(3, text="other")
    events = events_of(story.tell(2))
    history = History(events[0], A)
    offered(history, A, events)
    assert offered(history, A, events_of(other)[3:]) == ["divergent"] * 3
    history.check(story.secret)


def test_events_of_a_log_that_does_not_own_the_trajectory_are_refused() -> None:
    story = Story().tell(5)
    events = events_of(story)
    history = History(events[0], A)
    offered(history, A, events[:3])
    assert offered(history, B, events[3:]) == ["foreign_log", "foreign_log"]
    assert offered(history, A, events[3:]) == ["admitted", "admitted"]


def test_any_log_may_go_on_with_an_import() -> None:
    story = Story().tell(5, imported=True)
    events = events_of(story)
    history = History(events[0], A)
    assert offered(history, A, events[:3]) == ["admitted"] * 3
    assert offered(history, B, events) == ["duplicate"] * 3 + ["admitted"] * 2


def test_a_gap_is_told_from_a_fork_and_heals() -> None:
    story = Story().tell(6, imported=True)
    events = events_of(story)
    history = History(events[0], A)
    assert offered(history, A, events[:2]) == ["admitted"] * 2
    assert offered(history, B, events[4:]) == ["gap", "gap"]
    assert offered(history, A, events[2:4]) == ["admitted"] * 2
    history.retry()
    assert not history.quarantine
    history.check(story.secret)


def test_an_epoch_owns_what_was_sealed_for_it() -> None:
    story = Story().tell(3)
    seal = Seal(2, B, 3, story.head.hash)
    stale = story.fork().tell(1, text="stale")
    for _ in range(2):
        story.write(message("new"), epoch=2)
    events, late = events_of(story), events_of(stale)
    history = History(events[0], A)
    history.standing.seals = [seal]
    assert offered(history, A, events[:3]) == ["admitted"] * 3
    assert offered(history, A, late[3:]) == ["stale_epoch"]
    assert offered(history, C, events[3:4]) == ["foreign_log"]
    assert offered(history, B, events[3:]) == ["admitted"] * 2
    assert offered(history, A, late[3:]) == ["divergent"]


def test_an_epoch_that_was_never_sealed_is_refused() -> None:
    story = Story().tell(1)
    story.write(message(), epoch=7)
    events = events_of(story)
    history = History(events[0], A)
    history.standing.seals = [Seal(3, None, 1, story.events[0].hash)]
    assert offered(history, A, events) == ["admitted", "unknown_epoch"]


def test_a_seal_names_the_event_it_follows() -> None:
    story = Story().tell(1)
    story.write(message(), epoch=1)
    history = History(story.events[0], A)
    history.standing.seals = [Seal(1, A, 1, b"x" * 32)]
    assert offered(history, A, events_of(story)) == ["admitted", "divergent"]


def test_another_secret_is_a_divergent_history() -> None:
    story = Story().tell(1, imported=True)
    other = Story(trajectory_id=story.trajectory_id).tell(2, imported=True)
    history = History(story.events[0], A)
    offered(history, A, events_of(story))
    assert offered(history, B, events_of(other, B)) == ["divergent", "divergent"]


def test_a_secret_may_not_change_within_a_history() -> None:
    story = Story().tell(2, imported=True)
    first, second = events_of(story)
    history = History(first, A)
    offered(history, A, [first])
    forged = Envelope(9, 0, second.header, second.body, second.hash, False, b"s" * 32)
    assert offered(history, B, [forged]) == ["divergent"]


def test_bytes_that_do_not_match_their_digest_are_refused() -> None:
    story = Story().tell(2)
    first, second = events_of(story)
    history = History(first, A)
    flipped = Envelope(2, 1, second.header, second.body.replace(b"hello", b"jello"), second.hash)
    assert offered(history, A, [first, flipped, second]) == ["admitted", "damaged", "admitted"]


def test_what_postgres_cannot_hold_is_refused_and_not_cut() -> None:
    story = Story(at_us=1 << 62).tell(1)
    history = History(story.events[0], A)
    assert offered(history, A, events_of(story)) == ["unstorable"]


def test_events_that_left_for_the_cold_tier_are_acknowledged() -> None:
    story = Story().tell(4)
    events = events_of(story)
    standing = Standing(
        origin_log=A, tenant="default", head=story.head, secret=story.secret, consolidated=Link(3, story.head.hash)
    )
    assert [standing.judge(A, event).outcome for event in events] == ["duplicate"] * 4
    other = story.fork()
    other.events.pop()
    other.write(message("other"))
    assert standing.judge(A, events_of(other)[3]).reason == "divergent"


def test_a_hole_in_the_warm_tier_is_no_duplicate() -> None:
    story = Story().tell(4)
    standing = Standing(origin_log=A, tenant="default", head=story.head, secret=story.secret)
    assert standing.consolidated == START
    with pytest.raises(Corrupt):
        standing.judge(A, events_of(story)[1])


@given(st.data())
def test_any_interleaving_of_two_logs_gives_one_chain_and_loses_nothing(data: st.DataObject) -> None:
    imported = data.draw(st.booleans(), label="imported")
    story = Story().tell(data.draw(st.integers(1, 5), label="shared"), imported=imported)
    if not story.events[0].body:
        story.write(started(imported=imported))
    other = story.fork().tell(data.draw(st.integers(0, 4), label="other"), text="other")
    story.tell(data.draw(st.integers(0, 4), label="own"), text="own")
    logs = {A: events_of(story, A), B: events_of(other, B)}
    sent = {A: 0, B: 0}
    history: History | None = None
    delivered: list[Envelope] = []
    while any(sent[log_id] < len(logs[log_id]) for log_id in logs):
        log_id = data.draw(st.sampled_from([i for i in logs if sent[i] < len(logs[i])]))
        back = data.draw(st.integers(0, sent[log_id]), label="sent again")
        count = data.draw(st.integers(1, 3), label="batch")
        batch = logs[log_id][sent[log_id] - back : sent[log_id] + count]
        sent[log_id] = min(len(logs[log_id]), sent[log_id] + count)
        history = history or History(batch[0], log_id)
        for event in batch:
            history.offer(log_id, event)
        delivered += batch
        if data.draw(st.booleans(), label="retry"):
            history.retry()
    assert history is not None
    history.check(story.secret)
    canonical = {event.hash for event in history.canonical.values()}
    kept = {event.hash for _, event, _ in history.quarantine}
    assert {event.hash for event in delivered} == canonical | kept
    # Both logs hold a whole chain, so the winner's is complete, and only the loser's own events wait.
    assert canonical in ({event.hash for event in logs[A]}, {event.hash for event in logs[B]})


@given(st.permutations(range(6)), st.booleans())
def test_an_import_arriving_in_any_order_is_complete_after_retries(order: list[int], repeated: bool) -> None:
    story = Story().tell(6, imported=True)
    events = [
        Envelope(e.lsn, 0, e.header, e.body, e.hash, False, story.secret)  # each a segment of its own
        for e in events_of(story)
    ]
    history = History(events[0], A)
    for number in order:
        history.offer(uuid.UUID(int=number + 1), events[number])
        if repeated:
            history.retry()
    history.retry()
    assert not history.quarantine
    assert len(history.canonical) == 6
    history.check(story.secret)
