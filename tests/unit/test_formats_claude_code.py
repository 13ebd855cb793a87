"""Claude Code sessions: what the events of a session are, whatever its records look like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.formats.claude_code import ClaudeCode
from stratalog.formats.claude_code.session import HELD_RECORDS_MAX
from stratalog.formats.source import Begin, Cut, Item, Problem
from stratalog.schemas import events as ev
from stratalog.schemas.codec import encode_body, kind_of

Json = dict[str, Any]
REFUSED = "The user doesn't want to proceed with this tool use. The tool use was rejected. "


def record(number: int, kind: str, **members: Any) -> Json:
    return {
        "type": kind,
        "uuid": f"uuid-{number}",
        "parentUuid": None if number == 0 else f"uuid-{number - 1}",
        "sessionId": "session-1",
        "isSidechain": False,
        "version": "2.1.0",
        "cwd": "/repo",
        "timestamp": f"2026-01-02T03:04:{number % 60:02d}.000Z",
    } | members


def user(number: int, content: Any, **members: Any) -> Json:
    return record(number, "user", message={"role": "user", "content": content}, **members)


def reply(number: int, reply_id: str, block: Json, output_tokens: int = 1, **members: Any) -> Json:
    usage = {"input_tokens": 2, "cache_read_input_tokens": 10, "output_tokens": output_tokens}
    message = {"id": reply_id, "role": "assistant", "model": "claude-x", "content": [block], "usage": usage}
    return record(number, "assistant", message=message, **members)


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def call(call_id: str, name: str = "Bash", **arguments: Any) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(number: int, call_id: str, content: Any = "ok", *, error: bool = False, **members: Any) -> Json:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": error}
    return user(number, [block], **members)


def read(tmp_path: Path, records: Sequence[Json | bytes]) -> list[Item]:
    lines = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in records]
    path = tmp_path / "session-1.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return [item for item in ClaudeCode().read(path) if not isinstance(item, Cut)]


def bodies(items: Sequence[Item], key: str = "main") -> list[ev.Body]:
    return [item.body for item in items if not isinstance(item, Problem | Cut) and item.key == key]


def kinds(items: Sequence[Item], key: str = "main") -> list[str]:
    return [kind_of(body) for body in bodies(items, key)]


def only(items: Sequence[Item], kind: type[Any], key: str = "main") -> list[Any]:
    return [body for body in bodies(items, key) if isinstance(body, kind)]


def test_a_trajectory_begins_with_its_task_its_model_and_its_time(tmp_path: Path) -> None:
    items = read(
        tmp_path,
        [
            {"type": "permission-mode", "permissionMode": "plan", "sessionId": "session-1"},
            user(0, "<command-name>/init</command-name>"),
            user(1, "fix the bug"),
            reply(2, "m1", text("done")),
        ],
    )
    begin = items[0]
    assert isinstance(begin, Begin)
    assert begin.body.task == "fix the bug"
    assert begin.body.model.name == "claude-x"
    assert begin.body.agent_version == "2.1.0"
    assert begin.body.labels["permission_mode"] == "plan"
    assert begin.body.source == ev.Source(format="claude-code", run_id="session-1", name="session-1.jsonl")
    assert begin.started_at == 1_767_323_040_000_000
    assert only(items, ev.TaskFinished) == []


def test_one_reply_in_many_records_counts_its_tokens_once(tmp_path: Path) -> None:
    items = read(
        tmp_path,
        [
            user(0, "go"),
            reply(1, "m1", {"type": "thinking", "thinking": "hm", "signature": "sig-1"}, 3),
            reply(2, "m1", text("I run both"), 3),
            reply(3, "m1", call("a"), 90),
            result(4, "a"),
            record(5, "attachment", attachment={"type": "task_reminder"}),
            reply(6, "m1", call("b"), 100),
            result(7, "b"),
            reply(8, "m2", text("done"), 7),
        ],
    )
    first, second = only(items, ev.ModelReplied)
    assert (first.output_tokens, first.input_tokens, first.cache_read_tokens) == (100, 12, 10)
    assert (first.reasoning, first.text, [c.tool_call_id for c in first.tool_calls]) == ("hm", "I run both", ["a", "b"])
    assert b"sig-1" in bytes(first.verbatim)
    assert second.output_tokens == 7
    assert kinds(items)[2:] == [
        "ContextBuilt",
        "ModelReplied",
        *["Authorized", "ToolIntent", "ToolResult", "MessageReceived"],
        *["Authorized", "ToolIntent", "ToolResult"],
        "ContextBuilt",
        "ModelReplied",
    ]


def test_a_reply_too_long_to_hold_goes_on_without_counting_twice(tmp_path: Path) -> None:
    between = [record(2 + n, "progress", data={"n": n}) for n in range(HELD_RECORDS_MAX)]
    items = read(tmp_path, [user(0, "go"), reply(1, "m1", text("a"), 40), *between, reply(5000, "m1", text("b"), 100)])
    assert [body.output_tokens for body in only(items, ev.ModelReplied)] == [40, 60]


def test_results_name_their_intents_by_sequence_number(tmp_path: Path) -> None:
    items = read(
        tmp_path,
        [
            user(0, "go"),
            reply(1, "m1", call("same", n=1)),
            result(2, "same", "first"),
            reply(3, "m2", call("same", n=2)),
            result(4, "same", "second"),
            result(5, "same", "a third without a call"),
        ],
    )
    found = bodies(items)
    for answer in only(items, ev.ToolResult)[:2]:
        assert isinstance(found[answer.intent], ev.ToolIntent)
    arguments = [bytes(found[answer.intent].arguments) for answer in only(items, ev.ToolResult)[:2]]
    assert arguments == [b'{"n": 1}', b'{"n": 2}']
    assert only(items, ev.ToolResult)[2].intent is None


def test_a_refused_call_was_never_dispatched(tmp_path: Path) -> None:
    reason = REFUSED + "The user provided the following reason for the rejection:  use pnpm"
    items = read(
        tmp_path,
        [
            user(0, "go"),
            reply(1, "m1", call("a")),
            reply(2, "m1", call("b")),
            result(3, "a", reason, error=True),
            result(4, "b", "This command requires approval", error=True),
            user(5, "then do something else"),
        ],
    )
    assert only(items, ev.ToolIntent) == []
    assert [answer.status for answer in only(items, ev.ToolResult)] == ["denied", "denied"]
    (approval,) = only(items, ev.ApprovalResolved)
    assert (approval.decision, approval.reason, approval.inferred) == ("denied", "use pnpm", True)
    (denied,) = only(items, ev.Authorized)
    assert (denied.decision, denied.tool_call_id) == ("deny", "b")


def test_the_same_words_in_an_output_are_no_refusal(tmp_path: Path) -> None:
    items = read(tmp_path, [user(0, "go"), reply(1, "m1", call("a")), result(2, "a", REFUSED)])
    assert only(items, ev.ApprovalResolved) == []
    assert only(items, ev.ToolResult)[0].status == "ok"


def test_a_call_without_a_result_is_dispatched_only_when_the_session_goes_on(tmp_path: Path) -> None:
    records = [user(0, "go"), reply(1, "m1", call("a"))]
    assert only(read(tmp_path, records), ev.ToolIntent) == []
    assert len(only(read(tmp_path, [*records, user(2, "and?")]), ev.ToolIntent)) == 1


def test_harness_text_is_injected_and_apart_from_what_a_person_wrote(tmp_path: Path) -> None:
    items = read(
        tmp_path,
        [
            user(0, [text("<system-reminder>be careful</system-reminder>"), text("fix it")]),
            user(1, "Base directory for this skill", isMeta=True),
            user(2, "[Request interrupted by user]"),
            record(3, "attachment", attachment={"type": "hook_additional_context", "content": ["x"]}),
            record(
                4, "attachment", attachment={"type": "queued_command", "prompt": "also this", "commandMode": "prompt"}
            ),
        ],
    )
    messages = only(items, ev.MessageReceived)
    assert [message.injected for message in messages] == [True, False, True, True, True, False]
    assert only(items, ev.TaskStarted)[0].task == "fix it"


def test_words_that_no_model_wrote_are_no_reply(tmp_path: Path) -> None:
    synthetic = {"id": "x", "role": "assistant", "model": "<synthetic>", "content": [text("API Error")]}
    items = read(
        tmp_path,
        [
            user(0, "go"),
            record(1, "assistant", message=synthetic),
            reply(2, "m1", text("API Error: 529"), isApiErrorMessage=True),
        ],
    )
    assert only(items, ev.ModelReplied) == []
    assert [message.role for message in only(items, ev.MessageReceived)] == ["user", "assistant", "assistant"]


def test_a_boundary_and_its_summary_are_one_compaction(tmp_path: Path) -> None:
    items = read(
        tmp_path,
        [
            user(0, "go"),
            reply(1, "m1", text("ok")),
            record(
                2,
                "system",
                subtype="compact_boundary",
                compactMetadata={"trigger": "auto", "preTokens": 50_000, "postTokens": 9},
            ),
            user(3, "we did things", isCompactSummary=True),
            user(4, "go on"),
            reply(5, "m2", text("ok")),
        ],
    )
    (compacted,) = only(items, ev.Compacted)
    assert (compacted.summary, compacted.trigger, compacted.tokens_before) == ("we did things", "auto", 50_000)
    assert (compacted.first_turn, compacted.last_turn) == (1, 1)
    number = bodies(items).index(compacted)
    assert only(items, ev.ContextBuilt)[1].appended[0] == (number, 0)
    assert b"postTokens" in bytes(only(items, ev.Annotation)[0].value)


def test_contexts_refer_to_everything_before_a_reply(tmp_path: Path) -> None:
    records = [user(0, "go")]
    for turn in range(70):
        records += [reply(2 * turn + 1, f"m{turn}", call(f"c{turn}")), result(2 * turn + 2, f"c{turn}")]
    items = read(tmp_path, records)
    context: list[tuple[int, int]] = []
    for number, body in enumerate(bodies(items)):
        if isinstance(body, ev.ContextBuilt):
            kept = [reference for start, stop in body.kept for reference in context[start:stop]]
            context = kept + list(body.appended)
            assert len(context) == body.message_count
            expected = [n for n, before in enumerate(bodies(items)[:number]) if isinstance(before, _IN_CONTEXT)]
            assert sorted({n for n, _ in context}) == expected


_IN_CONTEXT = (ev.MessageReceived, ev.ModelReplied, ev.ToolResult)


def test_inline_sub_agents_are_trajectories_of_their_own(tmp_path: Path) -> None:
    side = {"isSidechain": True}
    items = read(
        tmp_path,
        [
            user(0, "go"),
            reply(1, "m1", call("t1", "Task", prompt="look left")),
            reply(2, "m1", call("t2", "Task", prompt="look right")),
            user(10, "look right", **side, parentUuid=None),
            user(20, "look left", **side, parentUuid=None),
            reply(11, "r1", text("right"), 5, **side, parentUuid="uuid-10"),
            reply(21, "l1", text("left"), 6, **side, parentUuid="uuid-20"),
            result(3, "t2", "right"),
            result(4, "t1", "left"),
        ],
    )
    begins = {item.key: item for item in items if isinstance(item, Begin)}
    assert set(begins) == {"main", "sidechain:uuid-10", "sidechain:uuid-20"}
    assert begins["sidechain:uuid-10"].parent_key == "main"
    assert begins["sidechain:uuid-10"].body.task == "look right"
    assert [body.output_tokens for body in only(items, ev.ModelReplied, "sidechain:uuid-20")] == [6]
    started = {body.tool_call_id: body.child for body in only(items, ev.ChildStarted)}
    assert started == {"t2": "claude-code:uuid-10", "t1": "claude-code:uuid-20"}
    assert len(only(items, ev.ChildFinished)) == 2
    assert len(only(items, ev.ToolIntent)) == 2


def test_a_sub_agent_in_a_file_beside_is_named_by_its_native_id(tmp_path: Path) -> None:
    outcome = {"agentId": "a1b2", "status": "completed", "totalDurationMs": 1500}
    items = read(tmp_path, [user(0, "go"), reply(1, "m1", call("t", "Agent")), result(2, "t", toolUseResult=outcome)])
    assert only(items, ev.ChildStarted)[0].child == "claude-code:a1b2"
    assert only(items, ev.ChildFinished)[0].status == "completed"
    assert only(items, ev.ToolResult)[0].duration_ms == 1500
    own = read(tmp_path, [user(0, "task", isSidechain=True, agentId="a1b2"), {"type": "mode", "mode": "x"}])
    (begin,) = [item for item in own if isinstance(item, Begin)]
    assert (begin.agent_id, begin.run_id, begin.parent_key) == ("a1b2", "session-1", "")


def test_a_copied_record_is_kept_and_counts_nothing(tmp_path: Path) -> None:
    answer = reply(1, "m1", text("hello"), 50)
    items = read(tmp_path, [user(0, "go"), answer, user(2, "more"), {**answer, "sessionId": "session-2"}])
    assert [body.output_tokens for body in only(items, ev.ModelReplied)] == [50]
    assert only(items, ev.Opaque)[0].native_type == "copy:assistant"


def test_the_same_uuid_with_other_content_is_no_copy(tmp_path: Path) -> None:
    items = read(tmp_path, [user(0, "go"), user(0, "go again")])
    assert len(only(items, ev.MessageReceived)) == 2


def test_changes_of_the_session_are_labels(tmp_path: Path) -> None:
    items = read(tmp_path, [user(0, "go"), user(1, "on", version="2.2.0", gitBranch="main", cwd="/repo")])
    assert [body.labels for body in only(items, ev.LabelsSet)] == [{"version": "2.2.0"}]
    assert only(items, ev.TaskStarted)[0].labels["git_branch"] == "main"


def test_a_file_without_times_is_undated(tmp_path: Path) -> None:
    items = read(tmp_path, [{"type": "summary", "summary": "Fixed it", "leafUuid": "elsewhere"}])
    begin = items[0]
    assert isinstance(begin, Begin)
    assert (begin.started_at, begin.body.labels["undated"]) == (None, "true")
    assert only(items, ev.Annotation)[0].note == "Fixed it"


class Tokens:
    """Gives out strings that occur nowhere else."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def __call__(self) -> str:
        self.given.append(f"tok{len(self.given):04d}en")
        return self.given[-1]


def _extras(draw: st.DrawFn, token: Tokens) -> Json:
    names = draw(st.lists(st.sampled_from(["alpha", "beta", "uuid2", "extra", "level"]), max_size=2, unique=True))
    shapes = [lambda: token(), lambda: {"deep": [token(), {"er": token()}]}, lambda: [token(), 10**30]]
    return {name: draw(st.sampled_from(shapes))() for name in names}


@st.composite
def sessions(draw: st.DrawFn) -> tuple[list[Json], list[str]]:
    """Records of all types with unique leaves, and all those leaves."""
    token = Tokens()
    records: list[Json] = []
    calls: list[str] = []
    for number in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["user", "reply", "result", "attachment", "system", "summary", "odd", "boundary"]))
        extras = _extras(draw, token)
        if kind == "user":
            blocks = [text(token()) | _extras(draw, token), {"type": "image", "source": {"data": token()}}]
            made = user(number, draw(st.sampled_from([token(), blocks])), isMeta=draw(st.booleans()))
        elif kind == "reply":
            calls.append(token())
            block = draw(
                st.sampled_from(
                    [
                        text(token()),
                        {"type": "thinking", "thinking": token(), "signature": token()},
                        call(calls[-1], token(), a=token()) | {"caller": token()},
                        {"type": "fallback", "from": token()},
                    ]
                )
            )
            made = reply(number, f"m{number // 3}", block)
            made["message"] |= _extras(draw, token)
            made["message"]["usage"]["tier"] = "standard"
        elif kind == "result":
            content = [text(token()), {"type": "image", "source": {"data": token()}}]
            call_id = draw(st.sampled_from([*calls, "none"]))
            made = result(number, call_id, content, error=draw(st.booleans()), toolUseResult={"stdout": token()})
        elif kind == "boundary":
            made = record(
                number, "system", subtype="compact_boundary", compactMetadata={"trigger": token(), "x": token()}
            )
        else:
            made = record(number, kind, subtype=token(), content=token(), attachment={"type": "x", "y": token()})
        records.append(made | extras)
    whole = json.dumps(records)
    return records, [given for given in token.given if given in whole]


@settings(max_examples=60, deadline=None)
@given(sessions())
def test_every_value_of_every_record_is_in_some_event(
    tmp_path_factory: pytest.TempPathFactory, session: tuple[list[Json], list[str]]
) -> None:
    records, tokens = session
    items = read(tmp_path_factory.mktemp("session"), records)
    written = b"\n".join(encode_body(item.body) for item in items if not isinstance(item, Problem | Cut)).decode()
    assert [token for token in tokens if token not in written] == []
    assert [item for item in items if isinstance(item, Problem)] == []
    uuids = [record["uuid"] for record in records]
    assert [uuid for uuid in uuids if uuid not in written] == []
