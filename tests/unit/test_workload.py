"""Generated workloads: the same for the same seed, complete, in order, and as a hot log would hold them."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from pathlib import Path

import pytest

from stratalog.hot import HotLog
from stratalog.schemas.blobs import references
from stratalog.schemas.codec import decode_event, kind_of
from stratalog.schemas.errors import Invalid
from stratalog.schemas.events import (
    Compacted,
    ContextBuilt,
    MessageReceived,
    ModelReplied,
    TaskFinished,
    TaskStarted,
    ToolIntent,
    ToolResult,
)
from stratalog.schemas.ids import uuid7_time_us
from stratalog.schemas.record import TrajectoryRecord, fold
from stratalog.testing import GeneratedTrajectory, contents, envelopes, workload, write
from stratalog.testing.context import FULL_EVERY, context_hash
from stratalog.testing.profile import PROFILES
from stratalog.testing.workload import DAY_US, END_US

HAPPENS = (
    *(
        "TaskStarted",
        "ContextBuilt",
        "ModelReplied",
        "Authorized",
        "ApprovalRequested",
        "ApprovalResolved",
        "ToolIntent",
    ),
    *("ToolResult", "IntentSettled", "EscalationRaised", "EscalationResolved", "DriftResolved", "Compacted"),
    *("Checkpoint", "PlanUpdated", "HarnessInput", "LabelsSet", "Annotation", "LateResult", "CancelRequested"),
    *("TaskFinished", "ChildStarted", "ChildFinished", "TrajectoryForked", "TrajectoryReopened", "MessageReceived"),
    "ResultRejected",
)


@pytest.fixture(scope="module")
def mixed() -> list[GeneratedTrajectory]:
    return list(workload(1, 300))


@pytest.mark.parametrize("profile", PROFILES)
def test_the_same_seed_gives_the_same_bytes(profile: str) -> None:
    def digest(seed: int) -> str:
        made = [envelope for trajectory in workload(seed, 3, profile) for envelope in envelopes(trajectory)]
        return hashlib.sha256(b"".join(envelope.hash for envelope in made)).hexdigest()

    assert digest(4) == digest(4)
    assert digest(4) != digest(5)


def test_as_many_as_asked_for() -> None:
    for n in (0, 1, 7, 50):
        made = list(workload(2, n))
        assert len({trajectory.trajectory_id for trajectory in made}) == n
    with pytest.raises(Invalid, match="no workload profile"):
        next(workload(1, 1, "none"))


def test_a_child_or_a_branch_follows_its_parent(mixed: list[GeneratedTrajectory]) -> None:
    seen: set[str] = set()
    children = 0
    for trajectory in mixed:
        start = trajectory.events[0].body
        assert isinstance(start, TaskStarted)
        children += bool(start.parent)
        assert not start.parent or start.parent in seen
        seen.add(str(trajectory.trajectory_id))
    assert children > 10


def test_everything_that_can_happen_happens(mixed: list[GeneratedTrajectory]) -> None:
    kinds = Counter(kind_of(event.body) for trajectory in mixed for event in trajectory.events)
    assert set(kinds) == set(HAPPENS)
    statuses = Counter(str(getattr(e.body, "status", "")) for t in mixed for e in t.events)
    assert {"completed", "failed", "cancelled", "ok", "error", "denied", "timeout"} <= set(statuses)
    assert len({trajectory.tenant for trajectory in mixed}) == 3
    parts = [e.body for t in mixed for e in t.events if isinstance(e.body, MessageReceived)]
    assert any(len(body.parts) > 1 for body in parts)


@pytest.mark.parametrize("profile", PROFILES)
def test_times_grow_and_end_in_time(profile: str) -> None:
    for trajectory in workload(3, 10, profile):
        times = [event.created_at for event in trajectory.events]
        assert times == sorted(times)
        assert times[0] >= END_US - 11 * DAY_US
        assert times[-1] <= END_US
        assert uuid7_time_us(trajectory.trajectory_id) <= times[0]


def test_another_end_moves_everything() -> None:
    ((there,), (here,)) = (list(workload(3, 1, end=end)) for end in (END_US, END_US + DAY_US))
    assert here.events[0].created_at - there.events[0].created_at == DAY_US


def test_profiles() -> None:
    assert all(len(trajectory.events) >= 1000 for trajectory in workload(1, 2, "long"))
    assert all(not trajectory.ended for trajectory in workload(1, 30, "running"))
    assert all(trajectory.ended for trajectory in workload(1, 30, "small"))
    for trajectory in workload(1, 3, "bulky"):
        sizes = [len(content) for content in contents(trajectory).values()]
        assert sum(size > 1 << 20 for size in sizes) == 1
        assert sum(size > 32 << 10 for size in sizes) > 1


def test_running_ones_stand_in_different_states() -> None:
    records = [fold(TrajectoryRecord(), map(decode_event, envelopes(t))) for t in workload(1, 40, "running")]
    assert {record.status for record in records} == {"running", "waiting_approval"}
    assert {bool(record.open_intents) for record in records} == {True, False}
    assert {record.turn_open for record in records} == {True, False}


def said(trajectory: GeneratedTrajectory, sequence_number: int, part: int) -> tuple[str, str]:
    body = trajectory.events[sequence_number].body
    if isinstance(body, MessageReceived):
        return body.role, str(body.parts[part].text or "")
    if isinstance(body, ModelReplied):
        return "assistant", str(body.text)
    if isinstance(body, Compacted):
        return "summary", str(body.summary)
    assert isinstance(body, ToolResult)
    return "tool", str(body.output)


def test_contexts_are_references_and_their_hash_is_real() -> None:
    deltas = 0
    for trajectory in [*workload(6, 8), *workload(6, 1, "long")]:
        record, since_full = TrajectoryRecord(), 0
        made = envelopes(trajectory, inline_bytes_max=1 << 30)
        for number, event in enumerate(map(decode_event, made)):
            if not isinstance(event.body, ContextBuilt):
                continue
            record = fold(record, [event])
            messages = [said(trajectory, *reference) for reference in record.context]
            messages += [("retrieved", str(item.text)) for item in event.body.retrieved]
            assert event.body.context_hash == context_hash(messages)
            assert event.body.message_count == len(record.context)
            assert all(sequence < number for sequence, _ in record.context)
            since_full = 0 if event.body.base is None else since_full + 1
            assert since_full < FULL_EVERY
            deltas += event.body.base is not None
    assert deltas > 100


def test_effects_have_keys_and_reads_do_not(mixed: list[GeneratedTrajectory]) -> None:
    intents = [e.body for t in mixed for e in t.events if isinstance(e.body, ToolIntent)]
    assert all(bool(intent.idempotency_key) == (intent.effect != "read") for intent in intents)
    keys = [intent.idempotency_key for intent in intents if intent.idempotency_key]
    assert len(set(keys)) == len(keys)


def test_text_compresses_like_real_output(mixed: list[GeneratedTrajectory]) -> None:
    text = b"\n".join(envelope.body for trajectory in mixed[:60] for envelope in envelopes(trajectory))
    assert 3 < len(text) / len(zlib.compress(text)) < 12


def test_references_have_their_content() -> None:
    for trajectory in workload(2, 2, "bulky"):
        given = contents(trajectory)
        for envelope in envelopes(trajectory):
            for ref in references(envelope.body):
                assert hashlib.sha256(given[ref.sha256]).hexdigest() == ref.sha256


def test_a_hot_log_holds_the_same_envelopes(tmp_path: Path) -> None:
    trajectories = [*workload(9, 6), *workload(9, 1, "bulky")]
    with HotLog.open(tmp_path / "home", serve=False) as log:
        written = write(log, trajectories, group_events=50)
        assert written == sum(len(trajectory.events) for trajectory in trajectories) == log.durable_lsn
        lsn = 1
        for trajectory in trajectories:
            expected = envelopes(trajectory, first_lsn=lsn)
            assert list(log.envelopes(trajectory.trajectory_id)) == expected
            lsn += len(expected)
            for envelope in expected:
                for ref in references(envelope.body):
                    assert log.blob(envelope.lsn, ref.sha256) == contents(trajectory)[ref.sha256]


def test_costs_add_up(mixed: list[GeneratedTrajectory]) -> None:
    for trajectory in mixed[:20]:
        replies = [event.body for event in trajectory.events if isinstance(event.body, ModelReplied)]
        record = fold(TrajectoryRecord(), map(decode_event, envelopes(trajectory)))
        assert record.spent.input_tokens == sum(reply.input_tokens or 0 for reply in replies) > 0
        assert record.spent.cost_usd > 0
        assert all((reply.cache_read_tokens or 0) <= (reply.input_tokens or 0) for reply in replies)


def test_the_end_says_how_it_went(mixed: list[GeneratedTrajectory]) -> None:
    ends = [event.body for trajectory in mixed for event in trajectory.events if isinstance(event.body, TaskFinished)]
    assert all((end.status == "completed") == (end.reward == 1.0) for end in ends)
    assert json.loads(bytes(mixed[0].events[0].body.sampling))["temperature"] == 0.2  # type: ignore[union-attr]
