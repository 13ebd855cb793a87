"""SWE-agent runs: `trajectory` and `history` told once, in both ways that the program has written them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stratalog.formats.source import Begin, Entry, Item, Problem
from stratalog.formats.swe_agent import SweAgent
from stratalog.schemas import events as ev
from stratalog.schemas.codec import encode_body

Json = dict[str, Any]


def step(action: str, observation: str, **members: Any) -> Json:
    return {"action": action, "observation": observation, "response": f"I do {action}", "thought": "hm"} | members


def said(action: str, **members: Any) -> Json:
    return {"role": "assistant", "content": f"I do {action}", "action": action, "agent": "main"} | members


def message(role: str, content: Any, **members: Any) -> Json:
    return {"role": role, "content": content, "agent": "main"} | members


def read(tmp_path: Path, document: Json | bytes, name: str = "repo-1.traj") -> list[Item]:
    path = tmp_path / name
    path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    return list(SweAgent().read(path))


def only(items: list[Item], kind: type[Any]) -> list[Any]:
    return [item.body for item in items if isinstance(item, Begin | Entry) and isinstance(item.body, kind)]


def run(**members: Any) -> Json:
    call = {"id": "call_1", "type": "function", "function": {"name": "open", "arguments": '{"path": "a"}'}}
    return {
        "environment": "main",
        "trajectory": [
            step("open a", "text of a", execution_time=0.25, state={"open_file": "a"}),
            step("submit", "the diff", state='{"open_file": "a"}'),
        ],
        "history": [
            message("system", "You have a shell."),
            message("user", "an example", is_demo=True),
            message("user", "fix it"),
            said("open a", tool_calls=[call], thought="hm"),
            message("tool", "text of a\n(Open file: a)", tool_call_ids=["call_1"]),
            said("submit"),
        ],
        "info": {"exit_status": "submitted", "submission": "the diff", "model_stats": {"api_calls": 2}},
        "replay_config": json.dumps({"agent": {"model": {"name": "gpt-4o"}}}),
    } | members


def test_a_run_is_told_once(tmp_path: Path) -> None:
    items = read(tmp_path, run())
    (begin,) = only(items, ev.TaskStarted)
    assert (begin.task, begin.model.name, begin.labels["instance_id"]) == ("fix it", "gpt-4o", "repo-1")
    assert begin.labels["undated"] == "true"
    assert begin.source.run_id == "repo-1"
    first, second = only(items, ev.ModelReplied)
    assert [(call.tool_call_id, call.tool) for call in first.tool_calls] == [("call_1", "open")]
    assert [(call.tool_call_id, call.tool) for call in second.tool_calls] == [("step-2", "submit")]
    assert [bytes(intent.arguments) for intent in only(items, ev.ToolIntent)] == [b'"open a"', b'"submit"']
    results = only(items, ev.ToolResult)
    assert [(result.output, result.duration_ms) for result in results] == [("text of a", 250.0), ("the diff", None)]
    assert b"(Open file: a)" in bytes(results[0].data)
    assert b"open_file" in bytes(results[1].data)


def test_demonstrations_are_context_and_not_part_of_the_run(tmp_path: Path) -> None:
    document = run()
    document["history"].insert(2, said("rm -rf /", is_demo=True))
    items = read(tmp_path, document)
    assert [m.injected for m in only(items, ev.MessageReceived)] == [False, True, True, False]
    assert len(only(items, ev.ModelReplied)) == 2


def test_the_end_is_what_the_run_says(tmp_path: Path) -> None:
    for status, expected in (
        ("submitted", "completed"),
        ("submitted (exit_context)", "completed"),
        ("exit_cost", "failed"),
        ("user_abort", "cancelled"),
    ):
        items = read(tmp_path, run(info={"exit_status": status}))
        (finished,) = only(items, ev.TaskFinished)
        assert (finished.status, finished.exit_status) == (expected, status)
    for info in ({}, {"exit_status": None, "model_stats": {"api_calls": 1}}):
        assert only(read(tmp_path, run(info=info)), ev.TaskFinished) == []


def test_a_history_alone_is_a_run(tmp_path: Path) -> None:
    items = read(tmp_path, {"history": run()["history"]})
    assert len(only(items, ev.ModelReplied)) == 2
    assert [result.output for result in only(items, ev.ToolResult)] == ["text of a\n(Open file: a)"]
    assert only(items, ev.TaskFinished) == []


def test_a_requery_without_an_action_is_a_reply_of_its_own(tmp_path: Path) -> None:
    document = run()
    document["history"].insert(3, message("assistant", "I forgot the command"))
    document["history"].insert(4, message("user", "Your output was not formatted correctly"))
    items = read(tmp_path, document)
    assert [reply.text for reply in only(items, ev.ModelReplied)] == [
        "I forgot the command",
        "I do open a",
        "I do submit",
    ]
    assert len(only(items, ev.ToolResult)) == 2


def test_what_was_sent_is_referred_to_and_only_elided_messages_are_stored(tmp_path: Path) -> None:
    document = run()
    sent = [message("system", "You have a shell."), message("user", "fix it"), message("user", "Old output omitted")]
    document["trajectory"][1]["query"] = sent
    items = read(tmp_path, document)
    context = only(items, ev.ContextBuilt)[1]
    assert context.message_count == 3
    stored = [message.parts[0].text for message in only(items, ev.MessageReceived) if message.author == "sent"]
    assert stored == ["Old output omitted"]


def test_runs_of_one_task_are_different_trajectories(tmp_path: Path) -> None:
    document, other = run(), run()
    other["trajectory"][0]["execution_time"] = 0.26
    digests = {item.first_record for d in (document, other) for item in read(tmp_path, d) if isinstance(item, Begin)}
    assert len(digests) == 2


def test_damage_stays_where_it_is(tmp_path: Path) -> None:
    raw = json.dumps(run()).encode().replace(b'"execution_time": 0.25', b'"execution_time": NaN')
    items = read(tmp_path, raw)
    assert [item.reason for item in items if isinstance(item, Problem)]
    assert [body.native_type for body in only(items, ev.Opaque)] == ["element"]
    assert len(only(items, ev.ModelReplied)) == 2
    assert only(items, ev.TaskFinished)[0].status == "completed"


def test_a_file_cut_off_keeps_what_is_there(tmp_path: Path) -> None:
    raw = json.dumps(run()).encode()
    for cut in range(1, len(raw), 37):
        items = read(tmp_path, raw[:cut])
        assert any(isinstance(item, Problem) for item in items)
        begins = [item for item in items if isinstance(item, Begin)]
        assert len(begins) == 1
        for item in items:
            if isinstance(item, Begin | Entry):
                assert encode_body(item.body)
