"""ATIF documents: steps, results in their step, copied context, sub-agents, totals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stratalog.formats.atif import Atif
from stratalog.formats.source import Begin, Entry, Item, Problem
from stratalog.schemas import events as ev

Json = dict[str, Any]


def call(call_id: str, **arguments: Any) -> Json:
    return {"tool_call_id": call_id, "function_name": "run", "arguments": arguments}


def agent(message: str = "", *, calls: tuple[Json, ...] = (), results: tuple[Json, ...] = (), **members: Any) -> Json:
    step: Json = {"source": "agent", "message": message} | members
    if calls:
        step["tool_calls"] = list(calls)
    if results:
        step["observation"] = {"results": list(results)}
    return step


def document(*steps: Json, **members: Any) -> Json:
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": "s1",
        "agent": {"name": "a", "version": "1", "model_name": "gpt"},
        "steps": numbered,
    } | members


def read(tmp_path: Path, *documents: Json) -> list[Item]:
    path = tmp_path / ("run.json" if len(documents) == 1 else "runs.jsonl")
    path.write_text("\n".join(json.dumps(one) for one in documents))
    return list(Atif().read(path))


def only(items: list[Item], kind: type[Any], key: str = "main") -> list[Any]:
    found = [item for item in items if isinstance(item, Begin | Entry) and item.key == key]
    return [item.body for item in found if isinstance(item.body, kind)]


USER = {"source": "user", "message": "do it", "timestamp": "2026-04-20T10:00:00Z"}


def test_steps_become_events(tmp_path: Path) -> None:
    metrics = {"prompt_tokens": 20, "cached_tokens": 5, "completion_tokens": 7, "cost_usd": 0.1, "logprobs": [-0.1]}
    items = read(
        tmp_path,
        document(
            USER, agent("ok", metrics=metrics, reasoning_content="hm"), final_metrics={"total_completion_tokens": 7}
        ),
    )
    (begin,) = only(items, ev.TaskStarted)
    assert (begin.task, begin.agent, begin.model.name) == ("do it", "a", "gpt")
    (reply,) = only(items, ev.ModelReplied)
    assert (reply.input_tokens, reply.cache_read_tokens, reply.output_tokens, reply.cost_usd) == (20, 5, 7, 0.1)
    assert reply.reasoning == "hm"
    assert b"logprobs" in bytes(reply.verbatim)
    (finished,) = only(items, ev.TaskFinished)
    assert (finished.status, finished.inferred) == ("completed", True)


def test_results_belong_to_the_call_they_name_or_to_the_one_at_their_place(tmp_path: Path) -> None:
    two = (call("c1", n=1), call("c2", n=2))
    named = agent(
        calls=two, results=({"source_call_id": "c2", "content": "2"}, {"source_call_id": "c1", "content": "1"})
    )
    placed = agent(calls=two, results=({"content": "1"}, {"content": "2"}))
    unclear = agent(calls=two, results=({"content": "?"},))
    items = read(tmp_path, document(USER, named, placed, unclear))
    results = only(items, ev.ToolResult)
    assert [(r.tool_call_id, r.output) for r in results] == [
        *[("c2", "2"), ("c1", "1")],
        *[("c1", "1"), ("c2", "2")],
        ("", "?"),
    ]
    assert [r.intent is None for r in results] == [False] * 4 + [True]


def test_copied_steps_are_context_and_count_no_tokens(tmp_path: Path) -> None:
    copied = agent("before", is_copied_context=True, metrics={"completion_tokens": 99})
    items = read(tmp_path, document(USER | {"is_copied_context": True}, copied, agent("now")))
    assert [reply.text for reply in only(items, ev.ModelReplied)] == ["now"]
    assert [message.injected for message in only(items, ev.MessageReceived)] == [True, True]


def test_a_step_without_a_model_call_is_no_reply(tmp_path: Path) -> None:
    items = read(tmp_path, document(USER, agent(llm_call_count=0, calls=(call("c"),), results=({"content": "x"},))))
    assert only(items, ev.ModelReplied) == []
    assert only(items, ev.ToolResult)[0].intent is not None


def test_embedded_sub_agents_have_trajectories_of_their_own(tmp_path: Path) -> None:
    child = document(USER, agent("found"), trajectory_id="child", final_metrics={})
    reference = {"source_call_id": "c", "content": "found", "subagent_trajectory_ref": [{"trajectory_id": "child"}]}
    items = read(
        tmp_path, document(USER, agent(calls=(call("c"),), results=(reference,)), subagent_trajectories=[child])
    )
    first, second = (item for item in items if isinstance(item, Begin))
    assert (second.parent_key, second.agent_id, second.run_id) == (first.key, "child", "s1")
    assert only(items, ev.ChildStarted)[0].child == "atif:child"
    assert [reply.text for reply in only(items, ev.ModelReplied, second.key)] == ["found"]


def test_a_hand_off_is_a_compaction_and_no_end(tmp_path: Path) -> None:
    references = [{"session_id": f"s1-{part}"} for part in ("summary", "questions", "answers")]
    handed = {
        "source": "system",
        "message": "Performed context summarization",
        "observation": {"results": [{"subagent_trajectory_ref": references}]},
    }
    items = read(
        tmp_path,
        document(USER, agent("a"), handed, final_metrics={"total": 1}, continued_trajectory_ref="run.cont-1.json"),
    )
    (compacted,) = only(items, ev.Compacted)
    assert (compacted.first_turn, compacted.last_turn) == (1, 1)
    assert len(only(items, ev.ChildStarted)) == 3
    assert only(items, ev.TaskFinished) == []
    names = [note.name for note in only(items, ev.Annotation)]
    assert names == ["compaction", "continued_trajectory_ref", "final_metrics"]


def test_a_document_per_line_is_a_trajectory_per_line(tmp_path: Path) -> None:
    items = read(tmp_path, document(USER, agent("a")), document(USER, agent("b"), session_id="s2"))
    assert [item.run_id for item in items if isinstance(item, Begin)] == ["s1", "s2"]


def test_unknown_keys_and_sources_are_kept(tmp_path: Path) -> None:
    items = read(tmp_path, document(USER | {"novel": 12345678901234567890123}, {"source": "oracle", "message": "x"}))
    assert b"12345678901234567890123" in bytes(only(items, ev.MessageReceived)[0].parts[-1].data)
    assert only(items, ev.Opaque)[0].native_type == "step/oracle"


def test_a_broken_step_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    raw = json.dumps(document(USER, agent("a", extra={"x": 1}), agent("b"))).replace('"x": 1', '"x": Infinity')
    path.write_text(raw)
    items = list(Atif().read(path))
    assert [item.reason for item in items if isinstance(item, Problem)]
    assert [reply.text for reply in only(items, ev.ModelReplied)] == ["b"]
    assert only(items, ev.Opaque)[0].native_type == "step"
